//! `--force`: a block device that the system uses is written only with this option.

use clap::{Arg, ArgMatches};
use disk::Named;

use crate::arguments::flag;
use crate::failure::Failure;

/// `--force`.
pub(crate) fn argument() -> Arg {
    flag("--force", "Write a block device although it is mounted or in use")
}

/// Whether it is given.
pub(crate) fn asked(matches: &ArgMatches) -> bool {
    matches.try_get_one::<bool>("force").ok().flatten() == Some(&true)
}

/// Refuses a disk that the system uses, unless it is `forced`. Reads /proc and /sys, so it has to
/// run before any sandbox.
pub(crate) fn refuse_used(disk: &Named, forced: bool) -> Result<(), Failure> {
    Ok(transfer::job::refuse_used(disk, forced)?)
}
