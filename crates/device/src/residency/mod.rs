//! Whether a range of a file lies in the page cache, asked cheaply.
//!
//! By cachestat(2), which counts the cached pages of a range, and by reading the first and the last
//! byte without waiting, which also shows that the file's lock is free just now. Where cachestat is
//! missing or not allowed, a byte of each page is read so, and a range of many pages counts as not
//! cached. The answer is a hint: a page may leave the cache, or still be on its way into it.
//! [`pages`] says which pages there are, and in what state.

pub mod pages;
mod states;

use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;

use rustix::io::{ReadWriteFlags, preadv2};
use rustix::param::page_size;

/// Without cachestat, longer ranges (in pages) are not looked at.
const PROBES: u64 = 16;

/// Whether all of a range (not empty) can be taken from the cache without waiting for a disk or
/// for the file's lock. In doubt, no.
pub(crate) fn is_resident(fd: BorrowedFd<'_>, offset: u64, len: u64) -> bool {
    let Some(last) = len.checked_sub(1).and_then(|l| offset.checked_add(l)) else { return false };
    match pages::cached(fd, offset, len) {
        Some(cached) => {
            cached >= pages::touched(offset, len)
                && is_byte_cached(fd, offset)
                && is_byte_cached(fd, last)
        }
        None => is_each_page_cached(fd, offset, last),
    }
}

/// Whether cachestat says that all pages of a range (not empty) are in memory. No lock is
/// looked at. In doubt, no.
#[must_use]
pub fn is_cached(fd: BorrowedFd<'_>, offset: u64, len: u64) -> bool {
    pages::cached(fd, offset, len).is_some_and(|cached| cached >= pages::touched(offset, len))
}

/// Where the pages cannot be counted: tries a byte of each, if they are few.
fn is_each_page_cached(fd: BorrowedFd<'_>, first: u64, last: u64) -> bool {
    let page = page_size() as u64;
    pages::touched(first, (last - first).saturating_add(1)) <= PROBES
        && (first / page..=last / page).all(|n| is_byte_cached(fd, (n * page).max(first)))
}

fn is_byte_cached(fd: BorrowedFd<'_>, offset: u64) -> bool {
    let mut byte = [0];
    let mut to = [IoSliceMut::new(&mut byte)];
    preadv2(fd, &mut to, offset, ReadWriteFlags::NOWAIT).is_ok_and(|n| n == 1)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn where_pages_cannot_be_counted_a_few_are_looked_at_and_many_are_not_believed() {
        use rustix::fs::{Mode, OFlags};
        // Not even a file in memory can be read without waiting.
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
