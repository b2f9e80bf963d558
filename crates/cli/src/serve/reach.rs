//! What of the system a server gets at, for its sandbox.

use std::path::Path;

use device::{Reach, Use};

use super::settings::Settings;

/// The disks and filters, the sockets, the file for the process id, and the network.
pub(super) fn reach(settings: &Settings) -> Reach {
    let how = if settings.read_only { Use::Read } else { Use::Write };
    let filters = &settings.disks.filters;
    let disks = settings.disks.list.iter().map(|one| disk::reach(&one.disk, filters, how));
    let own = Reach {
        sockets: settings.listening.folder().into_iter().chain(settings.metrics_folder()).collect(),
        writes: settings.listening.label_file().map(Path::to_owned).into_iter().collect(),
        makes: settings.pidfile.clone().into_iter().chain(settings.log_file()).collect(),
        network: true,
        programs: settings.run.is_some(),
        ..Reach::default()
    };
    disks.fold(own, Reach::and)
}
