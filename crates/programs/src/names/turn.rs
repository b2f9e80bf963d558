//! Turns of servers at the name of a socket, by a lock that only programs of our own user can hold.
//!
//! That is the directory, where only its owner, who is us, may read it. Elsewhere, in /tmp for
//! example, any user could lock the directory, so a file of ours is locked instead, beside the
//! socket, which is there as long as a turn lasts. If another user has taken its name, or the file
//! system refuses locks, for whatever reason, there are no turns: that keeps no server from
//! starting.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, FileType, FlockOperation, OFlags, Stat, flock, fstat, openat, statat, unlinkat,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;

use super::Act;
use super::direct::{At, Numbers, owner_only};
use crate::helper;

/// Tries to get a lock file that is neither removed nor replaced meanwhile.
const TRIES: usize = 16;

/// A turn, until dropped.
#[derive(Debug)]
pub struct SocketTurn(Kept);

#[derive(Debug)]
enum Kept {
    /// Its lock, and where its file is to be removed.
    Here(HeldTurn),
    Helper(u32),
}

impl SocketTurn {
    pub(super) fn here(held: HeldTurn) -> Self {
        Self(Kept::Here(held))
    }

    pub(super) fn of_helper(index: u32) -> Self {
        Self(Kept::Helper(index))
    }
}

impl Drop for SocketTurn {
    fn drop(&mut self) {
        match &self.0 {
            Kept::Here(held) => held.end(rustix::fs::CWD),
            Kept::Helper(index) => {
                if let Some(helper) = helper::asked() {
                    // It ends with this process at the latest.
                    let _ = helper.act(*index, Act::EndTurn, None);
                }
            }
        }
    }
}

/// A lock that is held.
#[derive(Debug)]
pub(crate) struct HeldTurn {
    #[expect(dead_code, reason = "the lock is held until it is closed")]
    lock: OwnedFd,
    /// The name of the lock's file, unless it is the directory.
    name: Option<PathBuf>,
}

impl HeldTurn {
    /// `None`: there is no lock to be had.
    pub(crate) fn take(at: At<'_>) -> io::Result<Option<Self>> {
        if let Some(lock) = own_directory(at) {
            return Ok(locked(&lock)?.then_some(Self { lock, name: None }));
        }
        let Some(name) = lock_name(at) else { return Ok(None) };
        for _ in 0..TRIES {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
            let Ok(lock) = openat(at.directory, &name, flags, owner_only()) else {
                return Ok(None);
            };
            let stat = fstat(&lock)?;
            if !is_ours_alone(&stat) {
                return Ok(None);
            }
            if !locked(&lock)? {
                return Ok(None);
            }
            // Another process may have removed it at the end of its turn.
            let there = statat(at.directory, &name, AtFlags::SYMLINK_NOFOLLOW);
            if there.is_ok_and(|there| Numbers::of(&there) == Numbers::of(&stat)) {
                return Ok(Some(Self { lock, name: Some(name) }));
            }
        }
        Err(Errno::WOULDBLOCK.into())
    }

    /// Removes the lock's file, which is still ours: only the holder removes it.
    pub(crate) fn end(&self, directory: std::os::fd::BorrowedFd<'_>) {
        if let Some(name) = &self.name {
            let _ = unlinkat(directory, name, AtFlags::empty());
        }
    }
}

/// Whether it is locked now; not where the file system has no locks, or refuses this one in words
/// of its own.
///
/// # Errors
/// Another process has it locked.
fn locked(lock: &OwnedFd) -> io::Result<bool> {
    match retry_on_intr(|| flock(lock, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Err(Errno::WOULDBLOCK.into()),
        Err(_) => Ok(false),
    }
}

/// The directory, if no other user can open it, and therefore lock it.
fn own_directory(at: At<'_>) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat(at.directory, at.folder(), flags, rustix::fs::Mode::empty()).ok()?;
    let stat = fstat(&opened).ok()?;
    (stat.st_uid == geteuid().as_raw() && stat.st_mode & 0o044 == 0).then_some(opened)
}

/// A file that no other user can open.
fn is_ours_alone(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_file()
        && stat.st_uid == geteuid().as_raw()
        && stat.st_mode & 0o077 == 0
}

/// `.NAME.USER.lock` beside NAME.
fn lock_name(at: At<'_>) -> Option<PathBuf> {
    let mut name = OsString::from(".");
    name.push(at.name.file_name()?);
    name.push(format!(".{}.lock", geteuid().as_raw()));
    Some(at.name.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use rustix::fs::CWD;

    use super::*;

    fn directory(name: &str, mode: u32) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("diskferry-turn-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn is_taken(path: &Path) -> bool {
        match HeldTurn::take(At::here(path)) {
            Ok(held) => {
                held.unwrap().end(CWD);
                false
            }
            Err(e) => e.kind() == io::ErrorKind::WouldBlock,
        }
    }

    #[test]
    fn one_has_its_turn_at_a_name_and_nothing_is_left_of_it() {
        for mode in [0o700, 0o755, 0o1777] {
            let folder = directory(&format!("one-{mode:o}"), mode);
            let path = folder.join("socket");
            let held = HeldTurn::take(At::here(&path)).unwrap().unwrap();
            assert!(is_taken(&path), "{mode:o}");
            held.end(CWD);
            drop(held);
            assert!(!is_taken(&path), "{mode:o}");
            assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "{mode:o}");
            std::fs::remove_dir(folder).unwrap();
        }
    }

    #[test]
    fn a_directory_that_others_can_lock_is_no_lock() {
        let folder = directory("others", 0o1777);
        let path = folder.join("socket");
        // Any user may do this.
        let others = std::fs::File::open(&folder).unwrap();
        flock(&others, FlockOperation::LockExclusive).unwrap();
        assert!(!is_taken(&path));
        // Nor is a name that another user has taken: a link, or a file that others can open.
        let name = lock_name(At::here(&path)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &name).unwrap();
        assert!(HeldTurn::take(At::here(&path)).unwrap().is_none());
        std::fs::remove_file(&name).unwrap();
        std::fs::write(&name, "").unwrap();
        std::fs::set_permissions(&name, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(HeldTurn::take(At::here(&path)).unwrap().is_none());
        assert!(name.exists());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_lock_that_the_system_refuses_is_none_and_one_that_another_holds_is() {
        let folder = directory("refused", 0o755);
        // No file system locks this: EBADF.
        let seen = openat(CWD, &folder, OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        assert!(!locked(&seen).unwrap());
        let [first, second] = [(); 2].map(|()| std::fs::File::open(&folder).unwrap().into());
        assert!(locked(&first).unwrap());
        assert_eq!(locked(&second).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        std::fs::remove_dir(folder).unwrap();
    }

    #[test]
    fn a_lock_file_that_was_removed_meanwhile_is_none() {
        let folder = directory("removed", 0o755);
        let path = folder.join("socket");
        let first = HeldTurn::take(At::here(&path)).unwrap().unwrap();
        first.end(CWD);
        // Its file has no name any more: its lock keeps no other from a turn.
        let second = HeldTurn::take(At::here(&path)).unwrap().unwrap();
        assert!(is_taken(&path));
        second.end(CWD);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
