//! Disks that are attached as files (`--attach`, and the verb `attach`), beside what is listened
//! to.
//!
//! Points are mounted before the sandbox, which takes the right to; a disk is attached when it is
//! open. Both are clients of one export.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use attach::{AttachedExport, Attachment, ReadyPoint};
use rustix::fs::stat;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use server::Server;

use super::captive::Event;
use super::exports::OpenExport;
use super::points::ExportPoint;
use super::settings::Settings;
use crate::failure::Failure;

/// A point that is ready for the disk of an export.
#[derive(Debug)]
pub(super) struct MadePoint {
    export: String,
    /// Where it is, for people.
    shown: String,
    ready: ReadyPoint,
}

/// Makes the points ready; programs that look there wait from then on.
pub(super) fn prepare(settings: &Settings) -> Result<Vec<MadePoint>, Failure> {
    let reach = super::reach::reach(settings);
    let files = || reach.reads.iter().chain(&reach.writes).chain(&reach.makes);
    let mut points = Vec::new();
    for one @ ExportPoint { export, point } in &settings.points {
        if !one.is_device()
            && let Ok(found) = stat(&point.path)
            && files().any(|file| {
                let is_it = |other: rustix::fs::Stat| {
                    (other.st_dev, other.st_ino) == (found.st_dev, found.st_ino)
                };
                stat(file).is_ok_and(is_it)
            })
        {
            let what = "a disk cannot be attached over a file that it needs";
            return Err(Failure::usage(format!("attach: {}: {what}", point.path.display())));
        }
        let Some(disk) = settings.disks.iter().find(|disk| disk.export == *export) else {
            return Err(Failure::usage(format!("--attach: no export is named `{export}`")));
        };
        let is_read_only = settings.read_only || disk.read_only;
        let name = device::text::shown(&disk.disk.to_string()).into_owned();
        points.push(MadePoint {
            export: export.clone(),
            shown: device::text::shown(&point.path.to_string_lossy()).into_owned(),
            ready: ReadyPoint::make(point, &name, is_read_only)?,
        });
    }
    Ok(points)
}

/// Attaches the disks. When the last one has been detached, and nothing is listened to, that is an
/// event.
pub(super) fn attach(
    points: Vec<MadePoint>,
    server: &Server,
    served: &[OpenExport],
    is_alone: bool,
    events: &Sender<Event>,
) -> Result<Vec<Attachment>, Failure> {
    let left = Arc::new(AtomicUsize::new(points.len()));
    let mut attached = Vec::new();
    for MadePoint { export: name, shown, ready } in points {
        let Some(export) = served.iter().find(|export| export.name == name) else { continue };
        let (left, events) = (left.clone(), events.clone());
        let detached = move || {
            if left.fetch_sub(1, Ordering::SeqCst) == 1 && is_alone {
                // The receiver has gone if it ends just now.
                let _ = events.send(Event::Idle);
            }
        };
        let is_device = matches!(ready, ReadyPoint::Device(_));
        let attached_at = AttachedExport {
            hub: server.hub(),
            name: &name,
            point: &shown,
            disk: &export.disk,
            connect: &|| connection(server),
        };
        let attachment = ready.attach(&attached_at, detached.clone())?;
        if is_device {
            let idle = server.idle();
            std::thread::spawn(move || {
                idle.wait();
                detached();
            });
        }
        attached.push(attachment);
    }
    Ok(attached)
}

/// A connection to our own server.
fn connection(server: &Server) -> device::Result<OwnedFd> {
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.map_err(|e| device::Error::os("make a pair of sockets", e))?;
    server.adopt(ours)?;
    Ok(theirs)
}
