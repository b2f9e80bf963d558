//! Disks that are attached as files (`--attach`, and the verb `attach`), beside what is listened
//! to.
//!
//! Points are mounted before the sandbox, which takes the right to; a disk is attached when it is
//! open. Both are clients of one export.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use attach::{Attachment, FuseMount};
use runtime::{Context, OperatorLog};
use rustix::fs::stat;

use super::captive::Event;
use super::exports::OpenExport;
use super::points::ExportPoint;
use super::settings::Settings;
use crate::failure::Failure;

/// Numbers of clients that no connection of the server has: it counts from 1.
const CLIENTS: u64 = 1 << 63;

/// Mounts the points, where programs wait from then on.
pub(super) fn mount(settings: &Settings) -> Result<Vec<(String, FuseMount)>, Failure> {
    let reach = super::reach::reach(settings);
    let files = || reach.reads.iter().chain(&reach.writes).chain(&reach.makes);
    let mut mounts = Vec::new();
    for ExportPoint { export, point } in &settings.points {
        if let Ok(found) = stat(&point.path)
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
        let mount = FuseMount::mount(point.clone(), &name, is_read_only)?;
        mounts.push((export.clone(), mount));
    }
    Ok(mounts)
}

/// Attaches the disks. When the last one has been detached, and nothing is listened to, that is an
/// event.
pub(super) fn attach(
    mounts: Vec<(String, FuseMount)>,
    served: &[OpenExport],
    is_alone: bool,
    context: &Context,
    log: &OperatorLog,
    events: &Sender<Event>,
) -> Result<Vec<Attachment>, Failure> {
    let left = Arc::new(AtomicUsize::new(mounts.len()));
    let mut attached = Vec::new();
    for ((name, mount), number) in mounts.into_iter().zip(CLIENTS..) {
        let Some(export) = served.iter().find(|export| export.name == name) else { continue };
        let (left, events) = (left.clone(), events.clone());
        let detached = move || {
            if left.fetch_sub(1, Ordering::SeqCst) == 1 && is_alone {
                // The receiver has gone if it ends just now.
                let _ = events.send(Event::Idle);
            }
        };
        let attachment = mount.attach(&export.edge, number, log.clone(), detached)?;
        let help = "Requests of the kernel for attached disks";
        context.control.on_measured(
            "diskferry_attached_requests_total",
            help,
            attachment.counter(),
        );
        attached.push(attachment);
    }
    Ok(attached)
}
