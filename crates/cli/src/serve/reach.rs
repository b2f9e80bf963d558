//! What of the system a server gets at, for its sandbox.

use std::path::Path;

use device::{Reach, Use};

use super::captive;
use super::settings::Settings;

/// The disks and filters, the sockets, the file for the process id, the command of --run, and the network.
pub(super) fn reach(settings: &Settings) -> Reach {
    let how = if settings.read_only { Use::Read } else { Use::Write };
    let filters = &settings.disks.filters;
    let disks = settings.disks.list.iter().map(|one| disk::reach(&one.disk, filters, how));
    let folder = settings.listening.folder(settings.run.is_some());
    let own = Reach {
        sockets: folder.into_iter().chain(settings.metrics_folder()).collect(),
        writes: settings.listening.label_file().map(Path::to_owned).into_iter().collect(),
        makes: settings.pidfile.clone().into_iter().chain(settings.log_file()).collect(),
        network: true,
        programs: settings.run.as_deref().map(captive::program).into_iter().collect(),
        ..Reach::default()
    };
    disks.fold(own, Reach::and)
}
