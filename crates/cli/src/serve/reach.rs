//! What a server needs of the system, for its sandbox.

use std::path::Path;

use device::{Reach, Use};

use super::points::ExportPoint;
use super::settings::Settings;
use super::{captive, pidfile};

/// The disks and filters, the sockets, the file for the process id, the command of --run, and what
/// is read again when the server reloads. Connections are accepted at sockets that are open: that
/// is no network.
pub(super) fn reach(settings: &Settings) -> Reach {
    let how = |is_read_only| if is_read_only { Use::Read } else { Use::Write };
    let disks = settings.disks.iter();
    let disks = disks
        .map(|one| disk::reach(&one.disk, &one.filters, how(settings.read_only || one.read_only)));
    let captive = settings.run.is_some();
    let pidfile = settings.pidfile.iter().flat_map(|path| [path.clone(), pidfile::new_name(path)]);
    let config = settings.config.as_ref().map(|config| config.path().to_owned());
    let points = |are: fn(&ExportPoint) -> bool| {
        settings.points.iter().filter(move |one| are(one)).map(|one| one.point.path.clone())
    };
    let own = Reach {
        // Editors and clients of ACME replace a file by a new one.
        rereads: config.into_iter().chain(settings.encryption.files()).collect(),
        sockets: settings
            .listening
            .sockets(captive)
            .into_iter()
            .chain(settings.metrics_socket())
            .chain(settings.control.clone())
            .chain(points(ExportPoint::is_socket))
            .collect(),
        privates: settings.listening.privates(captive),
        // A device is flushed at the end.
        reads: points(ExportPoint::is_device).collect(),
        writes: settings.listening.label_file().map(Path::to_owned).into_iter().collect(),
        makes: pidfile.chain(settings.log_file()).collect(),
        programs: settings.run.as_deref().map(captive::program).into_iter().collect(),
        ..Reach::default()
    };
    disks.fold(own, Reach::and)
}
