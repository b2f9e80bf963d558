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

/// Whether the system has no cachestat: before Linux 6.5, and under seccomp.
static MISSING: AtomicBool = AtomicBool::new(false);

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

/// Whether all of a range (not empty) can be taken from the cache without waiting for a disk or
/// for the file's lock. In doubt, no.
pub(crate) fn is_resident(fd: BorrowedFd<'_>, offset: u64, len: u64) -> bool {
    let Some(last) = len.checked_sub(1).and_then(|l| offset.checked_add(l)) else { return false };
    match count(fd, offset, len) {
        Some(cached) => {
            cached >= pages(offset, last) && is_byte_cached(fd, offset) && is_byte_cached(fd, last)
        }
        None => is_each_page_cached(fd, offset, last),
    }
}

/// Whether cachestat says that all pages of a range (not empty) are in memory. Nobody's lock is
/// looked at. In doubt, no.
#[must_use]
pub fn is_cached(fd: BorrowedFd<'_>, offset: u64, len: u64) -> bool {
    let last = offset.saturating_add(len.saturating_sub(1));
    count(fd, offset, len).is_some_and(|cached| cached >= pages(offset, last))
}

/// How many pages there are from one byte to another.
fn pages(first: u64, last: u64) -> u64 {
    let page = page_size() as u64;
    last / page - first / page + 1
}

/// Where the pages cannot be counted: a byte of each, if they are few.
fn is_each_page_cached(fd: BorrowedFd<'_>, first: u64, last: u64) -> bool {
    let page = page_size() as u64;
    pages(first, last) <= PROBES
        && (first / page..=last / page).all(|n| is_byte_cached(fd, (n * page).max(first)))
}

fn is_byte_cached(fd: BorrowedFd<'_>, offset: u64) -> bool {
    let mut byte = [0];
    let mut to = [IoSliceMut::new(&mut byte)];
    preadv2(fd, &mut to, offset, ReadWriteFlags::NOWAIT).is_ok_and(|n| n == 1)
}

/// How many pages of a range are cached, if the system says.
fn count(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Option<u64> {
    if MISSING.load(Ordering::Relaxed) {
        return None;
    }
    let range = Range { offset, len };
    let mut counts = Counts::default();
    // SAFETY: the descriptor is open; the call reads `range`, writes `counts`, both laid out as
    // the kernel's, and takes no flags.
    let answer =
        unsafe { libc::syscall(CACHESTAT, fd.as_raw_fd(), &raw const range, &raw mut counts, 0) };
    if answer == 0 {
        return Some(counts.cached);
    }
    // EPERM is for files that we may only read.
    if io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
        MISSING.store(true, Ordering::Relaxed);
    }
    None
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn where_pages_cannot_be_counted_a_few_are_looked_at_and_many_are_not_believed() {
        use rustix::fs::{Mode, OFlags};
        // Of a file in memory nothing can be read without waiting.
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open("/tmp", flags, Mode::RUSR | Mode::WUSR).unwrap();
        rustix::io::pwrite(&file, &[1; 1 << 20], 0).unwrap();
        let fd = file.as_fd();
        assert!(is_each_page_cached(fd, 0, (64 << 10) - 1) && is_each_page_cached(fd, 4095, 4096));
        assert!(!is_each_page_cached(fd, 0, (1 << 20) - 1));
        assert!(!is_each_page_cached(fd, (1 << 20) - 1, 1 << 20), "beyond the end");
        assert!(!is_resident(fd, u64::MAX, 1 << 30));
    }
}
