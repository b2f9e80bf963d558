//! Linux: files without a name, descriptors that stand for files and for processes.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, chownat, fstat, fsync, linkat, openat, syncfs};
use rustix::io::Errno;
use rustix::process::{Gid, Pid, PidfdFlags, Signal, Uid, pidfd_open, pidfd_send_signal};

/// Opens a file only to know it: no right to it is needed, and it is not read.
pub(crate) const ONLY_KNOWN: OFlags = OFlags::PATH;

#[inline]
pub(crate) fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

/// Device and inode number.
#[inline]
pub(crate) fn numbers(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// A file in `folder` that has no name.
///
/// # Errors
/// The file system has none: `EOPNOTSUPP`, `EISDIR` or `EINVAL`.
pub(crate) fn nameless(
    directory: BorrowedFd<'_>,
    folder: &Path,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE;
    openat(directory, folder, flags, mode)
}

/// The path in /proc to an open file.
fn open_file(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Gives a name to a file that has none.
pub(crate) fn link(made: BorrowedFd<'_>, directory: BorrowedFd<'_>, name: &Path) -> io::Result<()> {
    Ok(linkat(CWD, open_file(made), directory, name, AtFlags::SYMLINK_FOLLOW)?)
}

/// Opens an open file once more.
pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(openat(CWD, open_file(fd), flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// Makes what was written to a file, or the names in a directory, durable.
pub(crate) fn make_durable(fd: OwnedFd) -> Result<(), Errno> {
    fsync(fd)
}

/// The same of the whole file system that a file is on.
pub(crate) fn make_all_durable(fd: OwnedFd) -> Result<(), Errno> {
    syncfs(fd)
}

/// A socket's file, held by a descriptor (`O_PATH`): no other has its numbers.
#[derive(Debug)]
pub(crate) struct BoundSocket(OwnedFd);

impl BoundSocket {
    /// The one that was just bound there.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(openat(CWD, path, flags, Mode::empty())?))
    }

    pub(crate) fn numbers(&self) -> io::Result<(u64, u64)> {
        Ok(numbers(&fstat(&self.0)?))
    }

    pub(crate) fn set_rights(
        &self,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
    ) -> io::Result<()> {
        if user.is_some() || group.is_some() {
            let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
            chownat(&self.0, "", user, group, AtFlags::EMPTY_PATH)?;
        }
        let Some(mode) = mode else { return Ok(()) };
        // By the file and not by its name, which may be another file's by now; there is no other
        // call for that.
        std::fs::set_permissions(open_file(self.0.as_fd()), Permissions::from_mode(mode))
    }
}

/// A child, also when its number is another's by now (pidfd_open(2)).
#[derive(Debug)]
pub(crate) struct ChildHandle(OwnedFd);

impl ChildHandle {
    pub(crate) fn of(pid: Pid) -> Result<Self, Errno> {
        pidfd_open(pid, PidfdFlags::empty()).map(Self)
    }

    /// Waits until it has ended. It stays to be waited for.
    pub(crate) fn ended(&self) -> Result<(), Errno> {
        poll(&mut [PollFd::new(&self.0.as_fd(), PollFlags::IN)], None).map(drop)
    }

    /// Sends it a signal. It may have been waited for: that is an error.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Errno> {
        pidfd_send_signal(&self.0, signal)
    }
}
