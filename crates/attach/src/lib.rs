//! Disks attached to this machine, where programs work that speak no NBD: a disk as a file (FUSE),
//! as a block device (the kernel's NBD client, or ublk), or as one of a virtual machine
//! (vhost-user-blk).
//!
//! An attachment is a client of an export, as a connection of a server is, so a disk can be
//! attached and served at the same time. It begins in two steps, because a sandbox shuts between
//! them: a point is *mounted* while that is allowed and before any disk is open, and a disk is
//! *attached* there when it is open. Programs that look at the point meanwhile wait.
//!
//! What the kernel asks is believed no more than what a peer asks: ranges, lengths and the number
//! of bytes in flight are limited.

mod attendant;
mod client;
mod disk;
mod fields;
mod fuse;
mod kernel;
mod mapping;
mod mounts;
mod point;
mod resized;
mod ublk;
mod vhost;

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use device::{Error, Result};
use runtime::Bell;
use serving::Hub;

pub use disk::AttachedDisk;
#[cfg(feature = "played")]
pub use fuse::played::run as play_fuse;
pub use fuse::{AttachedFile, FuseMount};
pub use kernel::{AttachedDevice, KernelDevice};
pub use mounts::attached;
pub use point::{Point, PointKind, PointOptions, SocketOptions};
#[cfg(feature = "played")]
pub use ublk::queue::played::run as play_ublk;
pub use ublk::{AttachedUblk, UblkDevice};
#[cfg(feature = "played")]
pub use vhost::played::run as play_vhost;
pub use vhost::{AttachedSocket, VhostSocket};

/// A point that is made ready, where no disk is attached yet. Dropped, it is as it was before.
#[derive(Debug)]
pub enum ReadyPoint {
    /// A file.
    File(FuseMount),
    /// A block device.
    Device(KernelDevice),
    /// A block device of ublk.
    Ublk(Box<UblkDevice>),
    /// A socket of virtual machines.
    Socket(VhostSocket),
}

/// What is attached, and by whom.
pub struct AttachedExport<'a> {
    /// What all front ends of this process share.
    pub hub: &'a Arc<Hub>,
    /// The name of its export.
    pub name: &'a str,
    /// Where it is attached, for people.
    pub point: &'a str,
    /// Its name for people.
    pub disk: &'a str,
    /// Makes a connection to the server that has it.
    pub connect: &'a dyn Fn() -> Result<OwnedFd>,
}

impl fmt::Debug for AttachedExport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AttachedExport({})", self.name)
    }
}

impl AttachedExport<'_> {
    fn client(&self, is_read_only: bool) -> Result<Arc<client::AttachedClient>> {
        client::AttachedClient::connect(self.hub, self.name, self.point, is_read_only)
    }
}

/// A disk that is attached.
#[derive(Debug)]
pub enum Attachment {
    /// As a file.
    File(AttachedFile),
    /// As a block device.
    Device(AttachedDevice),
    /// As a block device of ublk.
    Ublk(Box<AttachedUblk>),
    /// As a disk of virtual machines.
    Socket(AttachedSocket),
}

impl ReadyPoint {
    /// Makes `point` ready for a disk of this name for people: a file is mounted, a device opened,
    /// a socket made.
    /// Starts processes, and needs rights that a sandbox takes away.
    ///
    /// # Errors
    /// It is something else or in use, the kernel lacks what it takes, or the right to it is
    /// lacking.
    pub fn make(point: &Point, disk: &str, is_read_only: bool) -> Result<Self> {
        match &point.kind {
            PointKind::File(options) => {
                FuseMount::mount(&point.path, *options, disk, is_read_only).map(Self::File)
            }
            PointKind::Device => KernelDevice::open(&point.path).map(Self::Device),
            PointKind::Ublk => UblkDevice::open(&point.path, disk, is_read_only)
                .map(|device| Self::Ublk(Box::new(device))),
            PointKind::Socket(options) => {
                VhostSocket::listen(&point.path, options, is_read_only).map(Self::Socket)
            }
        }
    }

    /// Attaches a disk. `detached` is called once when something else has detached it; of a device,
    /// the end of its connections tells that. A socket is only ended by its process.
    ///
    /// # Errors
    /// The disk refuses this client, or the system has no room.
    pub fn attach(
        self,
        export: &AttachedExport<'_>,
        detached: impl FnOnce() + Send + 'static,
    ) -> Result<Attachment> {
        match self {
            Self::File(mount) => mount.attach(export, detached).map(Attachment::File),
            Self::Device(device) => device.attach(export).map(Attachment::Device),
            Self::Ublk(device) => {
                device.attach(export, detached).map(Box::new).map(Attachment::Ublk)
            }
            Self::Socket(socket) => socket.attach(export).map(Attachment::Socket),
        }
    }
}

impl Attachment {
    /// Ends it: what was written there is on the disk, if this succeeds.
    ///
    /// # Errors
    /// Writes may be lost.
    pub fn end(self) -> Result<()> {
        match self {
            Self::File(file) => file.end(),
            Self::Device(device) => device.end(),
            Self::Ublk(device) => device.end(),
            Self::Socket(socket) => socket.end(),
        }
    }
}

/// Starts a thread; a panic of it is counted.
///
/// # Errors
/// The system gives none.
fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(work);
    thread.map_err(|e| Error::os("start a thread", e))
}

fn new_bell() -> Result<Bell> {
    Bell::new().map_err(|e| Error::os("make an eventfd", e))
}

/// Detaches what is at `path`, which [`attached`] lists; `is_forced`, also while programs have it
/// open, which lose it.
///
/// # Errors
/// It is in use, or not ours to detach.
pub fn detach(path: &Path, is_forced: bool) -> Result<()> {
    if kernel::index_of(path).is_some() {
        kernel::detach(path, is_forced)
    } else if ublk::number_of(path).is_some() {
        ublk::detach(path, is_forced)
    } else {
        fuse::unmount(path, is_forced)
    }
}
