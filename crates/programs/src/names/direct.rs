//! What is done to names, by the process that may.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, mkdirat, openat, renameat, statat, unlinkat,
};
use rustix::io::{Errno, retry_on_intr};

use crate::system;

/// The name of the socket in a private directory.
pub const PRIVATE_SOCKET: &str = "socket";

/// Rights for the owner alone.
pub(crate) fn owner_only() -> Mode {
    Mode::RUSR | Mode::WUSR
}

/// A name, and where it is looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'a> {
    pub(crate) directory: BorrowedFd<'a>,
    pub(crate) name: &'a Path,
}

impl<'a> At<'a> {
    /// A path as the system takes it.
    pub(crate) fn here(path: &'a Path) -> Self {
        Self { directory: CWD, name: path }
    }

    /// The directory of the name, from `directory`.
    pub(super) fn folder(self) -> &'a Path {
        let parent = self.name.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new("."))
    }

    pub(crate) fn stat(self) -> Result<Stat, Errno> {
        statat(self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// Device and inode number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Numbers(pub(crate) (u64, u64));

impl Numbers {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self(system::numbers(stat))
    }
}

pub(crate) fn make(at: At<'_>, mode: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOCTTY;
    Ok(openat(at.directory, at.name, flags, system::mode(mode))?)
}

/// As the library does, with these flags, too; what there is already may be a pipe or a device.
pub(crate) fn append(at: At<'_>, more: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | more;
    Ok(retry_on_intr(|| openat(at.directory, at.name, flags, system::mode(0o666)))?)
}

/// The same for reading.
pub(crate) fn read(at: At<'_>, more: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | more;
    Ok(retry_on_intr(|| openat(at.directory, at.name, flags, Mode::empty()))?)
}

pub(crate) fn nameless(at: At<'_>, mode: u32) -> io::Result<OwnedFd> {
    Ok(system::nameless(at.directory, at.folder(), system::mode(mode))?)
}

/// A file without a name also where the file system makes none.
pub(crate) fn temporary(directory: BorrowedFd<'_>, folder: &Path) -> io::Result<OwnedFd> {
    match system::nameless(directory, folder, owner_only()) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
        made => return Ok(made?),
    }
    static COUNT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".diskferry-{}-{number}", std::process::id()));
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL;
        match openat(directory, &path, flags, owner_only()) {
            Err(Errno::EXIST) => {}
            made => {
                let made = made?;
                unlinkat(directory, &path, AtFlags::empty())?;
                return Ok(made);
            }
        }
    }
}

pub(crate) fn link(made: BorrowedFd<'_>, at: At<'_>) -> io::Result<()> {
    system::link(made, at.directory, at.name)
}

pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
    system::reopen(fd, flags)
}

pub(crate) fn replace(by: At<'_>, at: At<'_>) -> io::Result<()> {
    Ok(renameat(by.directory, by.name, at.directory, at.name)?)
}

pub(crate) fn remove(at: At<'_>, numbers: Numbers) -> io::Result<()> {
    if Numbers::of(&at.stat()?) != numbers {
        return Err(Errno::STALE.into());
    }
    Ok(unlinkat(at.directory, at.name, AtFlags::empty())?)
}

pub(crate) fn sync(at: At<'_>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = openat(at.directory, at.folder(), flags | OFlags::DIRECTORY, Mode::empty());
    match opened.and_then(system::make_durable) {
        // If the directory cannot be synced, syncs the whole file system.
        Err(Errno::ACCESS | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
            let named = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            Ok(system::make_all_durable(openat(at.directory, at.name, named, Mode::empty())?)?)
        }
        synced => Ok(synced?),
    }
}

pub(crate) fn make_directory(at: At<'_>) -> io::Result<()> {
    Ok(mkdirat(at.directory, at.name, Mode::RWXU)?)
}

/// Removes a private directory and the socket in it, and nothing else.
pub(crate) fn remove_private(at: At<'_>) -> io::Result<()> {
    // It is held: another may take its name meanwhile.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let flags = flags | system::ONLY_KNOWN;
    let held = openat(at.directory, at.name, flags, Mode::empty())?;
    let socket = At { directory: held.as_fd(), name: Path::new(PRIVATE_SOCKET) };
    if socket.stat().is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_socket()) {
        unlinkat(socket.directory, socket.name, AtFlags::empty())?;
    }
    Ok(unlinkat(at.directory, at.name, AtFlags::REMOVEDIR)?)
}
