//! Mounting: by mount(2) as root, else by fusermount3, which has the right to; and unmounting,
//! which has to happen however this process ends.
//!
//! The [`Attendant`] unmounts when this process ends, so a point never stays behind dead.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use device::{Error, ErrorKind, Fault, Result};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

use crate::attendant::Attendant;
use crate::{PointOptions, attached};

/// The type of our mounts in the kernel's table.
pub(crate) const TYPE: &str = "fuse.diskferry";
/// Threads that take requests for a disk.
const THREADS: usize = 8;
const DEVICE: &str = "/dev/fuse";
/// Of fuse3, with which users other than root mount.
const HELPER: &str = "fusermount3";

/// A point that is mounted, where no disk is attached yet: programs that look there wait. Dropped,
/// it is unmounted.
#[derive(Debug)]
pub struct FuseMount {
    /// Descriptors of the one connection, for as many threads.
    pub(super) connections: Vec<Arc<OwnedFd>>,
    pub(super) is_cached: bool,
    pub(super) is_read_only: bool,
    /// Unmounts when this is dropped.
    _unmounter: Attendant,
}

impl FuseMount {
    /// Mounts at `point`, which is an empty regular file, or is made and removed again. `disk` is
    /// its name for people. Starts processes, and needs rights that a sandbox takes away.
    ///
    /// # Errors
    /// The file is something else or in use, FUSE is not there, or the right to mount is lacking.
    pub(crate) fn mount(
        path: &Path,
        options: PointOptions,
        disk: &str,
        is_read_only: bool,
    ) -> Result<Self> {
        let point = &FilePoint { path: path.to_owned(), options };
        let is_made = make_file(path)?;
        let unmounter = Attendant::start(path, is_made)?;
        let name: String = disk.chars().map(|c| if is_odd(c) { '?' } else { c }).collect();
        let mounted = if rustix::process::geteuid().is_root() {
            mount_as_root(point, &name, is_read_only)
        } else {
            mount_by_helper(point, &name, is_read_only)
        };
        let connection = mounted.map_err(|e| e.on(path.display()))?;
        let connection = Arc::new(connection);
        // What it cannot have of its own, a thread shares with the first.
        let of_thread = |_| another(&connection).map_or_else(|| connection.clone(), Arc::new);
        let connections = (0..THREADS).map(of_thread).collect();
        Ok(Self { connections, is_cached: options.cached, is_read_only, _unmounter: unmounter })
    }
}

/// Where to mount, and how.
struct FilePoint {
    path: PathBuf,
    options: PointOptions,
}

/// What options of mounts and their table give a meaning to.
fn is_odd(c: char) -> bool {
    c == ',' || c == '\\' || c.is_control()
}

/// Whether the file had to be made.
fn make_file(path: &Path) -> Result<bool> {
    let say = |kind, what: &str| Error::new(kind, Fault::User, what).on(path.display());
    if attached()?.iter().any(|other| other.is_at(path)) {
        return Err(say(ErrorKind::Locked, "attach: a disk is attached there already"));
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_file() && found.len() == 0 => Ok(false),
        Ok(found) if found.is_file() => {
            let what = "attach: the file is not empty: name an empty or a new one";
            Err(say(ErrorKind::InvalidInput, what))
        }
        Ok(_) => {
            let what = "attach: name a regular file, or a new one";
            Err(say(ErrorKind::InvalidInput, what))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
            let made: Result<File> =
                made.map_err(|e| Error::os("attach: create the file", e).on(path.display()));
            made.map(|_| true)
        }
        Err(e) => Err(Error::os("attach", e).on(path.display())),
    }
}

fn mount_as_root(point: &FilePoint, name: &str, is_read_only: bool) -> Result<OwnedFd> {
    let file = OpenOptions::new().read(true).write(true).open(DEVICE);
    let connection: OwnedFd = file.map_err(|e| Error::os(format!("open {DEVICE}"), e))?.into();
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let mut data = format!(
        "fd={},rootmode=100000,user_id={},group_id={},default_permissions",
        connection.as_raw_fd(),
        user.as_raw(),
        group.as_raw()
    );
    if point.options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(|_| Error::invalid("attach"))?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    flags.set(MountFlags::RDONLY, is_read_only);
    rustix::mount::mount(name, &point.path, TYPE, flags, data.as_c_str())
        .map_err(|e| Error::os("attach: mount", e))?;
    Ok(connection)
}

/// Lets fusermount3 mount, which sends the descriptor over a socket.
fn mount_by_helper(point: &FilePoint, name: &str, is_read_only: bool) -> Result<OwnedFd> {
    let say = |e: Errno| Error::os("attach: create a socket pair", e);
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(say)?;
    fcntl_setfd(&theirs, FdFlags::empty()).map_err(say)?;
    let mode = if is_read_only { "ro" } else { "rw" };
    let mut options = format!("{mode},nosuid,nodev,default_permissions,fsname={name}");
    options.push_str(",subtype=diskferry");
    if point.options.allow_other {
        options.push_str(",allow_other");
    }
    let mut command = Command::new(HELPER);
    command.args(["-o", &options, "--"]).arg(&point.path).stdin(Stdio::null());
    command.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    let output = command.stdout(Stdio::null()).output().map_err(no_helper)?;
    drop(theirs);
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        let action = format!("attach: {}", why.trim().lines().last().unwrap_or(HELPER));
        return Err(Error::new(ErrorKind::PermissionDenied, Fault::User, action));
    }
    received(&ours)
}

fn no_helper(e: std::io::Error) -> Error {
    let cure = "users other than root need it (package fuse3)";
    Error::os(format!("start {HELPER}; {cure}"), e)
}

/// The descriptor that fusermount3 sent.
fn received(socket: &OwnedFd) -> Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .map_err(|e| Error::os("attach: receive the connection", e))?;
    let mut messages = control.drain();
    let fd = messages.find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let nothing = || Error::new(ErrorKind::Io, Fault::Us, format!("{HELPER} sent no descriptor"));
    fd.ok_or_else(nothing)
}

/// Unmounts what is attached at `path`; `is_forced`, also while programs have it open: to them the
/// disk is gone then.
///
/// # Errors
/// It is in use, or not ours to unmount.
pub(crate) fn unmount(path: &Path, is_forced: bool) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        let mut flags = UnmountFlags::NOFOLLOW;
        flags.set(UnmountFlags::DETACH, is_forced);
        return rustix::mount::unmount(path, flags)
            .map_err(|e| Error::os("detach: unmount", e).on(path.display()));
    }
    let mut command = Command::new(HELPER);
    command.arg(if is_forced { "-uz" } else { "-u" }).arg("--").arg(path);
    let output = command.stdin(Stdio::null()).output().map_err(no_helper)?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    let action = format!("detach: {}", why.trim().lines().last().unwrap_or(HELPER));
    let kind = if why.contains("busy") { ErrorKind::Locked } else { ErrorKind::PermissionDenied };
    Err(Error::new(kind, Fault::User, action).on(path.display()))
}

/// Another descriptor of the connection.
fn another(connection: &OwnedFd) -> Option<OwnedFd> {
    let file = OpenOptions::new().read(true).write(true).open(DEVICE);
    let new: OwnedFd = file.ok()?.into();
    super::ioctl::clone_onto(new.as_fd(), connection.as_fd()).ok()?;
    Some(new)
}
