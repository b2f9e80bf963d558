//! Systems without files that have no name, and without descriptors for processes: macOS.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RawMode, Stat, fcntl_fullfsync, fstat, getpath, openat, statat,
};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Opens a file only to know it. There is no such thing: it is opened for reading, and a pipe
/// without a writer does not make that wait.
pub(crate) const ONLY_KNOWN: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);

pub(crate) fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(RawMode::try_from(bits & 0o7777).unwrap_or_default())
}

/// Device and inode number.
pub(crate) fn numbers(stat: &Stat) -> (u64, u64) {
    (stat.st_dev.cast_unsigned().into(), stat.st_ino)
}

/// No file system has any.
pub(crate) fn nameless(_: BorrowedFd<'_>, _: &Path, _: Mode) -> Result<OwnedFd, Errno> {
    Err(Errno::OPNOTSUPP)
}

/// No file is without a name.
pub(crate) fn link(_: BorrowedFd<'_>, _: BorrowedFd<'_>, _: &Path) -> io::Result<()> {
    Err(Errno::OPNOTSUPP.into())
}

/// Opens an open file once more, by its name. Never another one: `ESTALE` if that has its name.
pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
    let opened = openat(CWD, getpath(fd)?, flags | OFlags::CLOEXEC, Mode::empty())?;
    match numbers(&fstat(&opened)?) == numbers(&fstat(fd)?) {
        true => Ok(opened),
        false => Err(Errno::STALE.into()),
    }
}

/// Makes what was written to a file, or the names in a directory, durable. fsync(2) does not: it
/// leaves the bytes in the disk's cache.
pub(crate) fn make_durable(fd: OwnedFd) -> Result<(), Errno> {
    fcntl_fullfsync(fd)
}

/// The same of the whole file system that a file is on: of the file, at least, and of what its
/// disk has in its cache.
pub(crate) fn make_all_durable(fd: OwnedFd) -> Result<(), Errno> {
    fcntl_fullfsync(fd)
}

/// A socket's file, by its numbers. No descriptor can stand for it; but APFS never gives a number
/// again.
#[derive(Debug)]
pub(crate) struct BoundSocket((u64, u64));

impl BoundSocket {
    /// The one that was just bound there.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        Ok(Self(numbers(&statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?)))
    }

    pub(crate) fn numbers(&self) -> io::Result<(u64, u64)> {
        Ok(self.0)
    }

    /// Fails if anything is to be set: by its name, the file may be another one by now.
    pub(crate) fn set_rights(
        &self,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
    ) -> io::Result<()> {
        match (mode, user, group) {
            (None, None, None) => Ok(()),
            _ => Err(Errno::OPNOTSUPP.into()),
        }
    }
}

/// A child, by its number. That is its own until it was waited for, which the owner of this knows.
#[derive(Debug)]
pub(crate) struct ChildHandle(Pid);

impl ChildHandle {
    pub(crate) fn of(pid: Pid) -> Result<Self, Errno> {
        Ok(Self(pid))
    }

    /// Waits until it has ended. It stays to be waited for.
    pub(crate) fn ended(&self) -> Result<(), Errno> {
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(self.0), how) {
            // Another thread has waited for it.
            Ok(_) | Err(Errno::CHILD) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Sends it a signal. It has not been waited for.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Errno> {
        kill_process(self.0, signal)
    }
}
