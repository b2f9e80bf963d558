//! Locks on an image, compatible with those of QEMU's tools.
//!
//! QEMU marks what a program does with an image by read locks (OFD locks, which belong to the open
//! file description) on single bytes of it: byte 100+n for each permission n that is used, byte
//! 200+n for each that it denies to others. Then it tests with a write lock, without taking it,
//! whether another program holds the opposite bytes. Two programs that only read never conflict; a
//! reader and a writer do, as do two writers.
//!
//! Locks are advice: they end with the last descriptor of this opening and are never waited for.
//! Uses `unsafe` for fcntl with a struct, which rustix does not offer for OFD locks.
#![expect(unsafe_code, reason = "see above")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use device::{Error, ErrorKind, Fault, Result};

const USED: i64 = 100;
const NOT_SHARED: i64 = 200;

const CONSISTENT_READ: i64 = 0;
const WRITE: i64 = 1;
// 2 is WRITE_UNCHANGED, which conflicts with nothing.
const RESIZE: i64 = 3;

/// Whether others are to be excluded.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Lock {
    /// Where the filesystem can.
    #[default]
    Auto,
    /// Not at all.
    Off,
    /// Or fail.
    On,
}

/// Marks `fd` as being read, or read and written, and refuses if that conflicts with what
/// another program does.
///
/// # Errors
/// `Locked`; or, with [`Lock::On`], that the filesystem has no such locks.
pub(crate) fn take(fd: BorrowedFd<'_>, write: bool, lock: Lock, path: &Path) -> Result<()> {
    if lock == Lock::Off {
        return Ok(());
    }
    match mark_and_ask(fd, write) {
        Ok(None) => Ok(()),
        // A lock of another kind, perhaps on all of the file.
        Err(e) if is_held(&e) => Err(refusal(Conflict::Excludes, path)),
        Ok(Some(conflict)) => Err(refusal(conflict, path)),
        Err(e) if lock == Lock::Auto && is_without_locks(&e) => Ok(()),
        Err(e) => Err(Error::os("lock", e)),
    }
}

/// What is in the way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Conflict {
    /// Another program writes.
    Writer,
    /// Another program, which may only read, excludes what we want to do.
    Excludes,
    /// The kernel itself has the block device for something.
    Device,
}

/// The error for a conflict on `path`, with how to read or open it all the same.
pub(crate) fn refusal(conflict: Conflict, path: &Path) -> Error {
    let path = path.display();
    let (what, reading) = match conflict {
        Conflict::Writer => {
            let what = "is in use by another program (a running VM, qemu-nbd, or diskferry has \
                        it open for writing)";
            (what, format!("`serve -r file {path} lock=off` only reads it, while it changes; "))
        }
        Conflict::Excludes => {
            let what = "is in use by another program that excludes this (qemu, qemu-nbd or \
                        diskferry has it open and allows no other writer)";
            (what, "`serve -r` (`--readonly`) only reads it; ".to_owned())
        }
        Conflict::Device => {
            let what = "is mounted or in use (by a file system, LVM, RAID, or a program that \
                        wants it for itself)";
            (what, "`serve -r` (`--readonly`) only reads it; ".to_owned())
        }
    };
    let action = format!(
        "{what}; {reading}`file:{path}?lock=off`, or `serve file {path} lock=off`, opens it anyway"
    );
    Error::new(ErrorKind::Locked, Fault::User, action)
}

fn mark_and_ask(fd: BorrowedFd<'_>, write: bool) -> io::Result<Option<Conflict>> {
    let used: &[i64] = if write { &[CONSISTENT_READ, WRITE, RESIZE] } else { &[CONSISTENT_READ] };
    let not_shared = [WRITE, RESIZE];
    // First mark, then test: of two programs that come at once at least one sees the other.
    for permission in used {
        mark(fd, USED + permission)?;
    }
    for permission in not_shared {
        mark(fd, NOT_SHARED + permission)?;
    }
    for permission in not_shared {
        if is_marked(fd, USED + permission)? {
            return Ok(Some(Conflict::Writer));
        }
    }
    for permission in used {
        if is_marked(fd, NOT_SHARED + permission)? {
            return Ok(Some(Conflict::Excludes));
        }
    }
    Ok(None)
}

fn is_without_locks(e: &io::Error) -> bool {
    let codes = [libc::EINVAL, libc::ENOLCK, libc::EOPNOTSUPP, libc::ENOTSUP, libc::ENOSYS];
    e.raw_os_error().is_some_and(|code| codes.contains(&code))
}

fn is_held(e: &io::Error) -> bool {
    e.raw_os_error().is_some_and(|code| code == libc::EAGAIN || code == libc::EACCES)
}

/// A read lock on one byte.
fn mark(fd: BorrowedFd<'_>, byte: i64) -> io::Result<()> {
    let mut lock = one_byte(libc::F_RDLCK, byte)?;
    call(fd, libc::F_OFD_SETLK, &mut lock)
}

/// Whether another program holds a lock on one byte.
fn is_marked(fd: BorrowedFd<'_>, byte: i64) -> io::Result<bool> {
    let mut lock = one_byte(libc::F_WRLCK, byte)?;
    call(fd, libc::F_OFD_GETLK, &mut lock)?;
    Ok(lock.l_type != one_byte(libc::F_UNLCK, byte)?.l_type)
}

/// The kind is a wider number on some systems.
fn one_byte(kind: impl TryInto<i16>, byte: i64) -> io::Result<libc::flock> {
    let wide = || io::Error::from(io::ErrorKind::InvalidInput);
    Ok(libc::flock {
        l_type: kind.try_into().map_err(|_| wide())?,
        l_whence: libc::SEEK_SET.try_into().map_err(|_| wide())?,
        l_start: byte,
        l_len: 1,
        // OFD locks belong to no process.
        l_pid: 0,
    })
}

fn call(fd: BorrowedFd<'_>, command: i32, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open, both commands take a pointer to a `flock`, and this one is
    // valid and ours. There is no safe form of these calls.
    let answer = unsafe { libc::fcntl(fd.as_raw_fd(), command, std::ptr::from_mut(lock)) };
    if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Locks all of a file for writing, as a program that knows nothing of QEMU's bytes may.
#[cfg(test)]
pub(crate) fn hold_exclusively(fd: BorrowedFd<'_>) {
    let mut lock = one_byte(libc::F_WRLCK, 0).unwrap();
    lock.l_len = 0;
    call(fd, libc::F_OFD_SETLK, &mut lock).unwrap();
}
