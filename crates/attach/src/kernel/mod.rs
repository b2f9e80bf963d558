//! A disk as a block device, by the kernel's own NBD client (drivers/block/nbd.c): it gets
//! connections to our server that were negotiated here, and speaks NBD over them from then on.

mod handshake;
mod netlink;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use device::{Error, ErrorKind, Fault, Result};
use rustix::fs::{Access, Mode, OFlags, access, fsync, open};
use rustix::io::Errno;

use crate::AttachedExport;
use crate::resized::SizeWatch;
use netlink::{Netlink, block_of};

/// Connections of a disk, if its server says that several are safe.
const CONNECTIONS: usize = 4;
/// How often, and how long apart, a device is asked for that another program has open.
const TRIES: u32 = 60;
const PAUSE: Duration = Duration::from_millis(50);
const BUSY: i32 = Errno::BUSY.raw_os_error();
/// How our devices are told from others', where the kernel shows it (Linux 5.14).
pub(crate) const BACKEND: &str = "diskferry ";

/// A device of the kernel that no disk is attached at yet.
#[derive(Debug)]
pub struct KernelDevice {
    netlink: Netlink,
    index: u32,
    path: PathBuf,
}

/// The number of a device by its path.
pub(crate) fn index_of(path: &Path) -> Option<u32> {
    path.strip_prefix("/dev").ok()?.to_str()?.strip_prefix("nbd")?.parse().ok()
}

impl KernelDevice {
    /// The device at `path`, which is free. Needs root.
    ///
    /// # Errors
    /// It is in use, the kernel has no NBD client, or the right to it is lacking.
    pub fn open(path: &Path) -> Result<Self> {
        let say = |e: Error| e.on(path.display());
        let Some(index) = index_of(path) else {
            let what = "attach: name a block device: /dev/nbd0, /dev/nbd1, …";
            return Err(say(Error::invalid(what)));
        };
        // Not opened: the kernel takes a device that is open for one that is in use.
        access(path, Access::EXISTS).map_err(|e| {
            let cure = "attach; `modprobe nbd nbds_max=16` creates such devices";
            say(Error::os(cure, e))
        })?;
        if is_connected(index) {
            let what = "attach: the device is already connected";
            return Err(say(Error::new(ErrorKind::Locked, Fault::User, what)));
        }
        let netlink = Netlink::open().map_err(say)?;
        Ok(Self { netlink, index, path: path.to_owned() })
    }

    /// Attaches an export of our server.
    ///
    /// # Errors
    /// The server refuses, or the kernel does.
    pub(crate) fn attach(self, export: &AttachedExport<'_>) -> Result<AttachedDevice> {
        let (name, connect) = (export.name, export.connect);
        let first = connect()?;
        let session = handshake::negotiate(&first, name)?;
        let mut sockets = vec![first];
        if session.flags.contains(wire::TransmissionFlags::CAN_MULTI_CONN) {
            while sockets.len() < CONNECTIONS {
                let socket = connect()?;
                if handshake::negotiate(&socket, name)? != session {
                    let what = "attach: the export changed meanwhile";
                    return Err(Error::new(ErrorKind::Changed, Fault::Peer, what));
                }
                sockets.push(socket);
            }
        }
        let backend = format!("{BACKEND}{}", export.disk);
        let mut tries = 0..TRIES;
        loop {
            match self.netlink.connect(self.index, &session, &sockets, &backend) {
                Ok(()) => break,
                // Another program looks at it just now: udev, say.
                Err(e) if e.raw_os_error() == Some(BUSY) && tries.next().is_some() => {
                    std::thread::sleep(PAUSE);
                }
                Err(e) => return Err(e.on(self.path.display())),
            }
        }
        let disk = Arc::new(self);
        let size = export.hub.exports.find(name).and_then(|served| {
            let disk = disk.clone();
            let tell = move |size| disk.netlink.resize(disk.index, size, &backend);
            SizeWatch::begin(&served.edge, block_of(&session), tell)
        });
        Ok(AttachedDevice { disk, size })
    }
}

/// A block device that is attached. Where it is not ended, it stays without its server, and reports
/// errors.
#[derive(Debug)]
pub struct AttachedDevice {
    disk: Arc<KernelDevice>,
    size: Option<SizeWatch>,
}

impl AttachedDevice {
    /// Ends it: writes back what the page cache has of it, and disconnects.
    ///
    /// # Errors
    /// Writes may be lost.
    pub fn end(self) -> Result<()> {
        let Self { disk, size } = self;
        // Nothing else speaks with the kernel from now on.
        drop(size);
        if !is_connected(disk.index) {
            return Ok(());
        }
        let say = |e: Errno| Error::os("flush", e).on(disk.path.display());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let flushed = open(&disk.path, flags, Mode::empty()).and_then(fsync).map_err(say);
        let gone = disk.netlink.disconnect(disk.index).map_err(|e| e.on(disk.path.display()));
        flushed.and(gone)
    }
}

/// Disconnects the device at `path`; `is_forced`, also while it is mounted or otherwise in use.
///
/// # Errors
/// It is in use, or not ours to disconnect.
pub(crate) fn detach(path: &Path, is_forced: bool) -> Result<()> {
    let Some(index) = index_of(path) else { return Err(Error::invalid("detach")) };
    let say = |e: Errno| Error::os("detach", e).on(path.display());
    // Refused for a device that is mounted, or part of another.
    let exclusive = if is_forced { OFlags::empty() } else { OFlags::EXCL };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | exclusive;
    let device = open(path, flags, Mode::empty()).map_err(say)?;
    match fsync(&device) {
        Err(e) if !is_forced => return Err(say(e)),
        _ => {}
    }
    Netlink::open()?.disconnect(index).map_err(|e| e.on(path.display()))
}

/// Whether the kernel has connections for the device.
pub(crate) fn is_connected(index: u32) -> bool {
    Path::new(&format!("/sys/block/nbd{index}/pid")).exists()
}
