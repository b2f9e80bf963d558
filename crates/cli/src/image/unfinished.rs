//! A disk that is the target of a copy which has not ended: the user is told.

use clap::ArgMatches;
use device::text;
use disk::Named;

use crate::failure::{is_renamed, say};

/// Warns of it. Called before a sandbox shuts, which hides what lies beside a disk.
pub(crate) fn warn_of_unfinished(matches: &ArgMatches, disk: &Named) {
    if is_renamed() || super::is_given(matches, "quiet") {
        return;
    }
    let path = disk.path().map(text::path);
    if let Some(mark) = path.as_deref().and_then(transfer::job::unfinished) {
        let mark = text::carry(mark.as_os_str());
        say(&format!(
            "warning: {disk}: incomplete: the copy to it has not ended (according to {})",
            text::shown(&mark)
        ));
    }
}
