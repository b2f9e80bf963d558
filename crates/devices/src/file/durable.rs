//! Making writes durable: fdatasync, and RWF_DSYNC for one write.
//!
//! The kernel reports a failure to write back *once* to each open file description, and then
//! forgets the bytes. So after a failed flush every later flush fails too, and flushes run one at a
//! time, so that none can succeed beside one that consumes the error. Flushes that wait share: one
//! that began after they came answers them all. FUA writes go through an opening of their own,
//! which gets its own report of a failure and takes none from the flushes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use runtime::Mutex;
use rustix::fs::OFlags;

use crate::file::{system, transfer};

#[derive(Debug, Default)]
pub(crate) struct Durability {
    /// Flushes begun so far.
    begun: AtomicU64,
    last: Mutex<Last>,
    /// The opening for FUA writes; `None` if there cannot be one.
    fua: OnceLock<Option<OwnedFd>>,
    no_dsync: AtomicBool,
}

#[derive(Debug, Default)]
struct Last {
    /// The number of the last flush that succeeded.
    succeeded: u64,
    failed: bool,
}

impl Durability {
    /// A failure to write back was reported elsewhere, and will not be reported again: no flush
    /// succeeds from now on.
    pub(crate) fn lost(&self) {
        self.last.lock().failed = true;
    }

    /// Makes everything durable that was written before the call.
    pub(crate) fn flush(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let seen = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.lock();
        if last.failed {
            return Err(io::Error::other("an earlier flush failed: writes may have been lost"));
        }
        if last.succeeded > seen {
            return Ok(());
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        match transfer::retry(|| system::make_durable(fd)) {
            Ok(()) => {
                last.succeeded = number;
                Ok(())
            }
            Err(e) => {
                last.failed = true;
                Err(e.into())
            }
        }
    }

    /// Writes all of `data` and makes it durable.
    pub(crate) fn write(&self, fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> io::Result<()> {
        if !self.no_dsync.load(Ordering::Relaxed)
            && let Some(own) = self.fua.get_or_init(|| open_again(fd))
        {
            match transfer::write_all_durably(own.as_fd(), data, offset) {
                Err(e) if is_unsupported(&e) => self.no_dsync.store(true, Ordering::Relaxed),
                other => return other,
            }
        }
        transfer::write_all(fd, data, offset)?;
        self.flush(fd)
    }
}

fn is_unsupported(e: &io::Error) -> bool {
    let codes = [libc::EOPNOTSUPP, libc::ENOSYS, libc::EINVAL];
    e.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// The same file, opened once more; not a duplicate, which would share its error reports.
fn open_again(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    programs::names::reopen(fd, OFlags::WRONLY).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> OwnedFd {
        let memory = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, 4096).unwrap();
        memory
    }

    #[test]
    fn after_a_failed_flush_every_later_flush_fails() {
        let durability = Durability::default();
        let file = file();
        durability.flush(file.as_fd()).unwrap();
        // A pipe cannot be flushed: EINVAL.
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert!(durability.flush(pipe.as_fd()).is_err());
        let error = durability.flush(file.as_fd()).unwrap_err();
        assert!(error.to_string().contains("an earlier flush failed"));
    }

    #[test]
    fn a_durable_write_without_dsync_writes_and_then_flushes() {
        let durability = Durability::default();
        durability.no_dsync.store(true, Ordering::Relaxed);
        let file = file();
        durability.write(file.as_fd(), b"abc", 5).unwrap();
        assert_eq!(durability.begun.load(Ordering::SeqCst), 1);
        let mut bytes = [0; 3];
        transfer::read_exact(file.as_fd(), &mut bytes, 5).unwrap();
        assert_eq!(&bytes, b"abc");
    }
}
