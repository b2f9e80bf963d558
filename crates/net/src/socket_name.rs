//! The name of a Unix socket in the file system.
//!
//! A name without a listener is replaced, one with a listener is refused. Of several servers that
//! start together one gets it: they take turns ([`programs::names::take_turn`]). Our socket file is
//! removed when this is dropped, but only if it is still ours.

use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Fault, Result};
use programs::names::{self, OwnSocket, SocketTurn};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, bind, connect, listen};

use crate::socket;

/// How long another server may take to start.
const TURN: Duration = Duration::from_secs(10);
/// Clients that wait to be accepted: as many as the system lets wait.
const BACKLOG: i32 = -1;

/// A socket's name, made by us. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub struct SocketName(Arc<SocketFile>);

#[derive(Debug)]
struct SocketFile {
    own: OwnSocket,
    /// The directory that was made for this socket.
    directory: Option<PrivateDirectory>,
}

/// A directory that only we may enter, by its number beneath another one. All clones are one.
#[derive(Clone, Debug)]
struct PrivateDirectory {
    above: PathBuf,
    number: u32,
    is_removed: Arc<AtomicBool>,
}

impl PrivateDirectory {
    fn remove(&self) {
        // Once: by now its number may be that of another directory of ours.
        if self.is_removed.swap(true, Ordering::Relaxed) {
            return;
        }
        // Another program may have removed it; nothing is lost then.
        let _ = names::remove_private(&self.above, self.number);
    }
}

/// Mode and owner of the file of a Unix socket: clients that may write to it may connect. `None`:
/// the system's default, by the umask and our user.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SocketRights {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Its user.
    pub user: Option<u32>,
    /// Its group.
    pub group: Option<u32>,
}

impl SocketName {
    /// Listens at `path`, whose file has these rights before a client can connect.
    ///
    /// # Errors
    /// Another program listens there already, the path is not a socket, or it cannot be made.
    pub fn listen(path: &Path, rights: &SocketRights) -> Result<(OwnedFd, Self)> {
        Self::bind(path, None, rights)
    }

    fn bind(
        path: &Path,
        directory: Option<PrivateDirectory>,
        rights: &SocketRights,
    ) -> Result<(OwnedFd, Self)> {
        let say = |e: std::io::Error| Error::os("listen", e).on(path.display());
        let absolute = std::path::absolute(path).map_err(say)?;
        // In a directory of our own no other handles names.
        let _turn = if directory.is_none() { turn(&absolute)? } else { None };
        remove_stale(path)?;
        // By the name that was given: a longer one may be too long.
        let address = SocketAddrUnix::new(path).map_err(|e| say(e.into()))?;
        let listener = socket::blocking(AddressFamily::UNIX).map_err(|e| say(e.into()))?;
        bind(&listener, &address).map_err(|e| say(e.into()))?;
        let own = OwnSocket::bound(&absolute).map_err(say)?;
        // From here on it is removed if something fails.
        let name = Self(Arc::new(SocketFile { own, directory }));
        name.0.own.set_rights(rights.mode, rights.user, rights.group).map_err(|e| {
            Error::os("set the mode and the owner of the socket", e).on(path.display())
        })?;
        listen(&listener, BACKLOG).map_err(|e| say(e.into()))?;
        Ok((listener, name))
    }

    /// Listens in a new directory that only we may enter, and that is removed with the name.
    ///
    /// # Errors
    /// It cannot be made; then nothing is left behind.
    pub fn private() -> Result<(OwnedFd, Self)> {
        let above = Self::above_private();
        let mut number = 0;
        loop {
            let path = above.join(names::private_name(number));
            match names::make_private(&above, number) {
                Ok(()) => {
                    let is_removed = Arc::default();
                    let directory = PrivateDirectory { above, number, is_removed };
                    let (path, rights) =
                        (path.join(names::PRIVATE_SOCKET), SocketRights::default());
                    let made = Self::bind(&path, Some(directory.clone()), &rights);
                    if made.is_err() {
                        // The first error is the one to report.
                        directory.remove();
                    }
                    return made;
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && number < 1000 => {
                    number += 1;
                }
                Err(e) => return Err(Error::os("make a private directory", e).on(path.display())),
            }
        }
    }

    /// The directory in which [`private`](Self::private) makes one.
    #[must_use]
    pub fn above_private() -> PathBuf {
        std::env::temp_dir()
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.own.path()
    }

    /// Removes it; connections that are open stay so. Does nothing if it is not ours any more.
    pub fn remove(&self) {
        self.0.remove();
    }
}

impl SocketFile {
    fn remove(&self) {
        if let Some(directory) = &self.directory {
            return directory.remove();
        }
        self.own.remove();
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// While this is held no other diskferry server of this user handles the name.
fn turn(path: &Path) -> Result<Option<SocketTurn>> {
    let begun = Instant::now();
    loop {
        match names::take_turn(path) {
            Ok(turn) => return Ok(turn),
            Err(e) if e.kind() != std::io::ErrorKind::WouldBlock => {
                return Err(Error::os("listen: lock the name", e).on(path.display()));
            }
            Err(_) if begun.elapsed() < TURN => std::thread::sleep(Duration::from_millis(10)),
            Err(_) => {
                let action = "listen: another program of this user has the name locked";
                return Err(Error::new(ErrorKind::Locked, Fault::User, action).on(path.display()));
            }
        }
    }
}

/// Removes a socket file without a listener.
fn remove_stale(path: &Path) -> Result<()> {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return Ok(()) };
    let refuse = |kind, action| Err(Error::new(kind, Fault::User, action).on(path.display()));
    if !meta.file_type().is_socket() {
        let action = "listen: the path exists and is not a socket";
        return refuse(ErrorKind::InvalidInput, action);
    }
    match listens(path) {
        Err(Errno::CONNREFUSED) => {
            let removed = names::remove(path, (meta.dev(), meta.ino()));
            removed.map_err(|e| Error::os("remove", e).on(path.display()))
        }
        Err(Errno::NOENT) => Ok(()),
        // One that is too busy to accept us is a listener all the same.
        Ok(()) | Err(Errno::AGAIN) => {
            refuse(ErrorKind::Locked, "listen: another server listens there")
        }
        Err(e) => {
            let action = "listen: a socket exists, and it cannot be told whether it is in use";
            Err(Error::os(action, e).on(path.display()))
        }
    }
}

fn listens(path: &Path) -> rustix::io::Result<()> {
    let socket = socket::nonblocking(AddressFamily::UNIX)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("diskferry-socket-{}-{name}", std::process::id()))
    }

    fn bound(path: &Path) -> Result<(OwnedFd, SocketName)> {
        SocketName::listen(path, &SocketRights::default())
    }

    #[test]
    fn a_socket_has_its_mode_and_owner_before_it_listens() {
        let path = scratch("rights");
        // The file that we make is ours.
        let made = bound(&path).unwrap();
        let ours = std::fs::metadata(&path).unwrap();
        drop(made);
        let rights =
            SocketRights { mode: Some(0o620), user: Some(ours.uid()), group: Some(ours.gid()) };
        let (_fd, _name) = SocketName::listen(&path, &rights).unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o620, ours.uid(), ours.gid()));
        assert!(UnixStream::connect(&path).is_ok());
    }

    #[test]
    fn a_name_that_is_not_ours_any_more_stays() {
        let path = scratch("successor");
        let (fd, name) = bound(&path).unwrap();
        drop(fd);
        // It has no listener any more, so a successor may take the name.
        let (_fd, successor) = bound(&path).unwrap();
        drop(name);
        assert!(UnixStream::connect(&path).is_ok(), "the successor's name is gone");
        assert!(bound(&path).is_err());
        drop(successor);
        assert!(!path.exists());
    }

    #[test]
    fn a_private_socket_that_was_removed_takes_no_later_one_along() {
        let (_fd, first) = SocketName::private().unwrap();
        first.remove();
        assert!(!first.path().exists());
        // It has the number of the first one, unless another test was faster.
        let (_fd, second) = SocketName::private().unwrap();
        first.remove();
        drop(first);
        assert!(UnixStream::connect(second.path()).is_ok());
        second.remove();
    }

    #[test]
    fn of_many_that_start_together_over_a_stale_name_one_listens() {
        let path = scratch("together");
        for _ in 0..20 {
            drop(UnixListener::bind(&path).unwrap());
            let start = std::sync::Barrier::new(8);
            let bound: Vec<_> = std::thread::scope(|scope| {
                let all: Vec<_> = (0..8)
                    .map(|_| {
                        scope.spawn(|| {
                            start.wait();
                            bound(&path).ok()
                        })
                    })
                    .collect();
                all.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(bound.len(), 1);
            assert!(UnixStream::connect(&path).is_ok());
        }
        assert!(!path.exists());
    }

    #[test]
    fn what_cannot_be_made_leaves_nothing() {
        let directory = scratch("long").join("x".repeat(100));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("y".repeat(100));
        assert!(bound(&path).is_err());
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        std::fs::remove_dir_all(scratch("long")).unwrap();
    }
}
