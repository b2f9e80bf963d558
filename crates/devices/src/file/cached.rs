//! Whether a range of a file lies in the page cache, asked cheaply.
//!
//! By cachestat(2), which counts the cached pages of a range, and by reading the first and the last
//! byte without waiting, which also tells that nobody holds the file's lock just now. Where
//! cachestat is missing or not allowed, a byte of each page is read so, and a range of many pages
//! counts as not cached. The answer is a hint: a page may leave the cache, or still be on its way
//! into it. Uses `unsafe` because no crate wraps cachestat.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{ReadWriteFlags, preadv2};
use rustix::param::page_size;

/// The number of cachestat(2), the same on every architecture (but MIPS, where it
/// is an unknown call, and so missing).
const CACHESTAT: libc::c_long = 451;

/// Without cachestat, longer ranges (in pages) are not looked at.
const PROBES: u64 = 16;

/// `struct cachestat_range`.
#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

/// `struct cachestat`.
#[repr(C)]
#[derive(Default)]
struct Counts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Residency {
    no_cachestat: AtomicBool,
}

impl Residency {
    /// As on a kernel that has no cachestat.
    #[cfg(test)]
    pub(crate) fn without_cachestat(&self) {
        self.no_cachestat.store(true, Ordering::Relaxed);
    }

    /// Whether all pages of a range that is not empty are cached. In doubt, no.
    pub(crate) fn is_cached(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> bool {
        let Some(last) = len.checked_sub(1).and_then(|l| offset.checked_add(l)) else {
            return len == 0;
        };
        let page = page_size() as u64;
        let pages = last / page - offset / page + 1;
        if !self.no_cachestat.load(Ordering::Relaxed) {
            match cachestat(fd, offset, len) {
                Ok(counts) if counts.cached < pages => return false,
                Ok(_) => return is_byte_cached(fd, offset) && is_byte_cached(fd, last),
                // ENOSYS before Linux 6.5 and under seccomp; EPERM for files we may only read.
                Err(_) => self.no_cachestat.store(true, Ordering::Relaxed),
            }
        }
        let first = offset / page;
        pages <= PROBES
            && (first..first + pages).all(|n| is_byte_cached(fd, (n * page).max(offset)))
    }
}

/// Whether cachestat says that all pages of a range (not empty) are in memory.
pub(crate) fn is_cached(fd: BorrowedFd<'_>, offset: u64, len: u64) -> bool {
    let page = page_size() as u64;
    let last = offset.saturating_add(len - 1);
    cachestat(fd, offset, len).is_ok_and(|counts| counts.cached > last / page - offset / page)
}

fn is_byte_cached(fd: BorrowedFd<'_>, offset: u64) -> bool {
    let mut byte = [0];
    let mut to = [IoSliceMut::new(&mut byte)];
    preadv2(fd, &mut to, offset, ReadWriteFlags::NOWAIT).is_ok_and(|n| n == 1)
}

fn cachestat(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<Counts> {
    let range = Range { offset, len };
    let mut counts = Counts::default();
    // SAFETY: the descriptor is open; the call reads `range`, writes `counts`, both laid out as
    // the kernel's, and takes no flags.
    let answer =
        unsafe { libc::syscall(CACHESTAT, fd.as_raw_fd(), &raw const range, &raw mut counts, 0) };
    if answer == 0 { Ok(counts) } else { Err(io::Error::last_os_error()) }
}
