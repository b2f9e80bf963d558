//! What a server needs of the system, for its sandbox.

use std::path::Path;

use device::{Reach, Use};

use super::captive;
use super::settings::Settings;

/// The disks and filters, the sockets, the file for the process id, the command of --run, the network, and what is read
/// again when the server reloads.
pub(super) fn reach(settings: &Settings) -> Reach {
    let how = |is_read_only| if is_read_only { Use::Read } else { Use::Write };
    let disks = settings.disks.iter();
    let disks = disks
        .map(|one| disk::reach(&one.disk, &one.filters, how(settings.read_only || one.read_only)));
    let folders = settings.listening.folders(settings.run.is_some());
    // Editors replace a file by a new one: only its directory stays the same inode.
    let config = settings.config.as_ref().map(|config| config.folder().to_owned());
    let own = Reach {
        reads: config.into_iter().chain(settings.encryption.files()).collect(),
        sockets: folders.into_iter().chain(settings.metrics_folder()).collect(),
        writes: settings.listening.label_file().map(Path::to_owned).into_iter().collect(),
        makes: settings.pidfile.clone().into_iter().chain(settings.log_file()).collect(),
        network: true,
        programs: settings.run.as_deref().map(captive::program).into_iter().collect(),
        ..Reach::default()
    };
    disks.fold(own, Reach::and)
}
