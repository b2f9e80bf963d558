//! A file that is being filled by a copy: write-back begins while bytes are still written, and at
//! the end the file gets its length and late errors are collected.
//!
//! Early write-back is a hint: it shortens the flush that follows, and proves nothing. Only the
//! flush says whether the bytes are there.
//!
//! Uses `unsafe` for a `close` whose answer can be seen, which rustix does not offer.
#![expect(unsafe_code, reason = "see above")]

use std::io;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rustix::fs::{fstat, ftruncate};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use crate::file::transfer;
use crate::file::write_back::begin_write_back;

/// Write-back begins for this many bytes at a time, as soon as the last of them is written.
const STEP: u64 = 8 << 20;

/// The work that is deferred until the last byte is written, and early write-back.
#[derive(Debug)]
pub(crate) struct Filling {
    /// The length that the file has in the end; a block device keeps its own.
    length: Option<AtomicU64>,
    write_back: AtomicBool,
}

impl Filling {
    pub(crate) fn new(length: Option<u64>, write_back: bool) -> Self {
        Self { length: length.map(AtomicU64::new), write_back: AtomicBool::new(write_back) }
    }

    /// Sets another final length. Returns whether that is possible.
    pub(crate) fn resize(&self, length: u64) -> bool {
        self.length.as_ref().map(|kept| kept.store(length, Relaxed)).is_some()
    }

    /// The length that it has in the end.
    pub(crate) fn length(&self) -> Option<u64> {
        self.length.as_ref().map(|kept| kept.load(Relaxed))
    }

    /// Bytes were written: begins write-back for a step that they complete.
    pub(crate) fn wrote(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) {
        if !self.write_back.load(Relaxed) {
            return;
        }
        let end = offset.saturating_add(len);
        let (first, last) = (offset - offset % STEP, end - end % STEP);
        if first < last && !begin_write_back(fd, first, last - first) {
            self.write_back.store(false, Relaxed);
        }
    }

    /// Gives a file its length. What lies beyond is cut off; what was never written is a hole.
    pub(crate) fn finish(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let Some(length) = self.length.as_ref().map(|length| length.load(Relaxed)) else {
            return Ok(());
        };
        let now = u64::try_from(fstat(fd)?.st_size).unwrap_or(0);
        if now != length {
            transfer::retry(|| ftruncate(fd, length))?;
        }
        Ok(())
    }
}

/// The error of close(2): some file systems (NFS, CIFS, FUSE, those with quotas) write back, or
/// report errors, only then. Closing a duplicate has the same effect.
pub(crate) fn ask_by_closing(fd: BorrowedFd<'_>) -> io::Result<()> {
    transfer::retry(|| {
        let duplicate = fcntl_dupfd_cloexec(fd, 0)?.into_raw_fd();
        // SAFETY: the descriptor was made here, no other code knows its number, and it is given up
        // whatever the answer is.
        if unsafe { libc::close(duplicate) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    })
    .map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_file_gets_its_length_at_the_end_and_not_before() {
        let memory = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        for (before, length) in [(0, 10), (10, 10), (30, 10), (10, 0)] {
            ftruncate(&memory, before).unwrap();
            let filling = Filling::new(Some(length), true);
            filling.wrote(memory.as_fd(), 0, 3 * STEP);
            assert_eq!(fstat(&memory).unwrap().st_size, i64::try_from(before).unwrap());
            filling.finish(memory.as_fd()).unwrap();
            assert_eq!(fstat(&memory).unwrap().st_size, i64::try_from(length).unwrap());
            assert!(filling.resize(length + 1));
            filling.finish(memory.as_fd()).unwrap();
            assert_eq!(fstat(&memory).unwrap().st_size, i64::try_from(length + 1).unwrap());
        }
        assert!(!Filling::new(None, true).resize(1));
        Filling::new(None, true).finish(memory.as_fd()).unwrap();
        ask_by_closing(memory.as_fd()).unwrap();
    }

    #[test]
    fn ranges_that_cannot_be_written_back_early_are_not_tried_again() {
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        let filling = Filling::new(None, true);
        filling.wrote(pipe.as_fd(), 0, STEP - 1);
        assert!(filling.write_back.load(Relaxed), "no step has ended");
        filling.wrote(pipe.as_fd(), STEP - 1, 1);
        assert!(!filling.write_back.load(Relaxed));
    }
}
