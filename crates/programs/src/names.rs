//! Names in directories that a sandboxed process may not change: files that are made, replaced and
//! removed, and sockets.
//!
//! A right to change a directory is a right to all that lies beneath it. So a sandboxed process has
//! none: for each name that the command line gave, the helper keeps the directory and the name, and
//! it does nothing to any other. Without a helper these functions do the same here. A name that was
//! not granted is left to the system, which refuses it in a sandbox.

pub(crate) mod direct;
mod own_socket;
mod turn;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf, absolute};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{CWD, OFlags, Stat, fstat};
#[cfg(target_os = "linux")]
use rustix::fs::{Mode, openat};
use rustix::io::Errno;

use crate::helper::{self, Helper};
use crate::system;
pub use direct::PRIVATE_SOCKET;
pub(crate) use direct::{At, Numbers};
pub use own_socket::OwnSocket;
pub(crate) use turn::HeldTurn;
pub use turn::SocketTurn;

/// A name, or the directory of several, and what may be done there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Grant {
    /// A file. It is made where nothing has its name, opened to be appended to, gets its name late,
    /// or replaces the file of that name; what was made is removed.
    File(PathBuf),
    /// A regular file that is read, whichever has the name by then.
    Reading(PathBuf),
    /// A socket. Servers take turns at it, and it is removed.
    Socket(PathBuf),
    /// The directory of files without a name.
    Nameless(PathBuf),
    /// The directory of private directories, each with a socket in it.
    Private(PathBuf),
}

impl Grant {
    #[cfg(target_os = "linux")]
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Reading(path) | Self::Socket(path) => path,
            Self::Nameless(path) | Self::Private(path) => path,
        }
    }

    /// The same whatever the current directory is.
    pub(crate) fn absolute(self) -> Self {
        let whole = |path: PathBuf| absolute(&path).unwrap_or(path);
        match self {
            Self::File(path) => Self::File(whole(path)),
            Self::Reading(path) => Self::Reading(whole(path)),
            Self::Socket(path) => Self::Socket(whole(path)),
            Self::Nameless(path) => Self::Nameless(whole(path)),
            Self::Private(path) => Self::Private(whole(path)),
        }
    }
}

/// What is asked to be done at a grant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Act {
    Make {
        mode: u32,
    },
    Append,
    Read,
    Nameless {
        mode: u32,
    },
    /// Gives the name to the file that comes along.
    Link,
    /// Opens the file that comes along once more: one that was made.
    Reopen {
        flags: u32,
    },
    /// Replaces the file of that name by the file of another one, which was made.
    Replace {
        by: u32,
    },
    Remove {
        numbers: Numbers,
    },
    Sync,
    TakeTurn,
    EndTurn,
    MakePrivate {
        number: u32,
    },
    RemovePrivate {
        number: u32,
    },
}

/// The helper, and the index of the grant for this name.
fn granted(kind: fn(PathBuf) -> Grant, path: &Path) -> Option<(&'static Helper, u32)> {
    let helper = helper::asked()?;
    let wanted = kind(path.to_owned()).absolute();
    let index = helper.grants().iter().position(|grant| *grant == wanted)?;
    Some((helper, u32::try_from(index).ok()?))
}

/// What was opened here, or, where the system refused that, by the helper, at a grant of this kind.
fn or_by_helper(
    opened: io::Result<OwnedFd>,
    (kind, path): (fn(PathBuf) -> Grant, &Path),
    act: Act,
) -> io::Result<OwnedFd> {
    match opened {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => match granted(kind, path) {
            Some((helper, index)) => helper.open(index, act, None),
            None => Err(e),
        },
        done => done,
    }
}

/// Makes a file, open for reading and writing. Follows no link.
///
/// # Errors
/// Something has the name; or the system refuses.
pub fn make(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    match granted(Grant::File, path) {
        Some((helper, index)) => helper.open(index, Act::Make { mode }, None),
        None => direct::make(At::here(path), mode),
    }
}

/// Files of this process's own from before there was a helper.
static OWN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file that was made here before there is a helper, or that an earlier run of the same work
/// made, counts as made here: it may be opened again, removed and replaced, as far as its name is
/// granted. It is the file that has the name when the helper begins.
pub fn own(path: &Path) {
    OWN.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
}

/// Those that were told before, open (`O_PATH`).
#[cfg(target_os = "linux")]
pub(crate) fn owned() -> Vec<OwnedFd> {
    let paths = std::mem::take(&mut *OWN.lock().unwrap_or_else(PoisonError::into_inner));
    let flags = system::ONLY_KNOWN | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    paths.iter().filter_map(|path| openat(CWD, path, flags, Mode::empty()).ok()).collect()
}

/// A file, open to be appended to; made if it is missing.
pub fn append(path: &Path) -> io::Result<OwnedFd> {
    let opened = direct::append(At::here(path), OFlags::empty());
    or_by_helper(opened, (Grant::File, path), Act::Append)
}

/// Opens a file for reading.
pub fn read(path: &Path) -> io::Result<OwnedFd> {
    let opened = direct::read(At::here(path), OFlags::empty());
    or_by_helper(opened, (Grant::Reading, path), Act::Read)
}

/// A file without a name in the directory of `path`, whose name it can get with [`link`].
///
/// # Errors
/// The file system has no such files; or the system refuses.
pub fn nameless_for(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    match granted(Grant::File, path) {
        Some((helper, index)) => helper.open(index, Act::Nameless { mode }, None),
        None => direct::nameless(At::here(path), mode),
    }
}

/// A file in `directory` that has no name, and never gets one.
pub fn nameless_in(directory: &Path) -> io::Result<OwnedFd> {
    match granted(Grant::Nameless, directory) {
        Some((helper, index)) => helper.open(index, Act::Nameless { mode: 0o600 }, None),
        None => direct::temporary(CWD, directory),
    }
}

/// Gives a file without a name this one.
///
/// # Errors
/// Something has the name; or the system refuses.
pub fn link(made: impl AsFd, path: &Path) -> io::Result<()> {
    match granted(Grant::File, path) {
        Some((helper, index)) => helper.act(index, Act::Link, Some(made.as_fd())),
        None => direct::link(made.as_fd(), At::here(path)),
    }
}

/// Opens an open file once more: another description of the same file, with flags of its own. Where
/// a sandbox has no rule for it, only files that were [made](make) here can be.
pub fn reopen(fd: impl AsFd, flags: OFlags) -> io::Result<OwnedFd> {
    let refused = match direct::reopen(fd.as_fd(), flags) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => e,
        done => return done,
    };
    match helper::asked() {
        Some(helper) => {
            let opened = helper.open(0, Act::Reopen { flags: flags.bits() }, Some(fd.as_fd()));
            // It did not make the file. Others say what the system has against it: that there is no
            // direct I/O, for example.
            opened
                .map_err(|e| if e.kind() == io::ErrorKind::PermissionDenied { refused } else { e })
        }
        None => Err(refused),
    }
}

/// Replaces the file `path` by the file `by`, which was [made](make) in the same directory.
pub fn replace(path: &Path, by: &Path) -> io::Result<()> {
    match (granted(Grant::File, path), granted(Grant::File, by)) {
        (Some((helper, index)), Some((_, by))) => helper.act(index, Act::Replace { by }, None),
        _ => direct::replace(At::here(by), At::here(path)),
    }
}

/// Removes the file of that name if it is still the one with these numbers (device and inode).
///
/// # Errors
/// It is another one, or the system refuses.
pub fn remove(path: &Path, numbers: (u64, u64)) -> io::Result<()> {
    match granted(Grant::File, path).or_else(|| granted(Grant::Socket, path)) {
        Some((helper, index)) => helper.act(index, Act::Remove { numbers: Numbers(numbers) }, None),
        None => direct::remove(At::here(path), Numbers(numbers)),
    }
}

/// The device and inode number of an open file.
pub fn numbers(fd: impl AsFd) -> io::Result<(u64, u64)> {
    Ok(system::numbers(&fstat(fd)?))
}

/// The same by what fstat(2) says.
#[must_use]
pub fn numbers_of(stat: &Stat) -> (u64, u64) {
    system::numbers(stat)
}

/// Makes the name of a file durable.
pub fn sync(path: &Path) -> io::Result<()> {
    match granted(Grant::File, path) {
        Some((helper, index)) => helper.act(index, Act::Sync, None),
        None => direct::sync(At::here(path)),
    }
}

/// The turn of this process at the name of a socket; `None` where the file system has no locks or
/// refuses them, or where another user could hold the only lock there is. Does not wait.
///
/// # Errors
/// It is the turn of another process: [`io::ErrorKind::WouldBlock`].
pub fn take_turn(path: &Path) -> io::Result<Option<SocketTurn>> {
    let Some((helper, index)) = granted(Grant::Socket, path) else {
        return Ok(HeldTurn::take(At::here(path))?.map(SocketTurn::here));
    };
    match helper.act(index, Act::TakeTurn, None) {
        Ok(()) => Ok(Some(SocketTurn::of_helper(index))),
        Err(e) if Errno::from_io_error(&e) == Some(Errno::NOLCK) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The name of a private directory of this process.
#[must_use]
pub fn private_name(number: u32) -> String {
    private_name_of(std::process::id(), number)
}

/// The same of another process.
pub(crate) fn private_name_of(pid: impl std::fmt::Display, number: u32) -> String {
    format!("diskferry-{pid}-{number}")
}

/// Makes a directory of that name beneath `above`, which only this user may enter.
///
/// # Errors
/// Something has the name; or the system refuses.
pub fn make_private(above: &Path, number: u32) -> io::Result<()> {
    match granted(Grant::Private, above) {
        Some((helper, index)) => helper.act(index, Act::MakePrivate { number }, None),
        None => direct::make_directory(At::here(&above.join(private_name(number)))),
    }
}

/// Removes that directory, and the socket in it.
pub fn remove_private(above: &Path, number: u32) -> io::Result<()> {
    match granted(Grant::Private, above) {
        Some((helper, index)) => helper.act(index, Act::RemovePrivate { number }, None),
        None => direct::remove_private(At::here(&above.join(private_name(number)))),
    }
}
