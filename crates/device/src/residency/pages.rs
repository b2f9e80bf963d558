//! Which pages of a file lie in the page cache: how many of a range, and in what state, by
//! cachestat(2) (Linux 6.5); which of them where that does not show it, and how many where
//! cachestat is missing, by mincore(2).
//!
//! The system tells only the owner of a file, and users who may write it; for all other files this
//! returns an error, never a guess. Nothing is read, so nothing comes into the cache. Uses `unsafe`
//! because no crate wraps cachestat, and because mincore asks about a mapping.
#![expect(unsafe_code, reason = "see above")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Access, AtFlags, CWD, accessat, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;

pub use super::states::{PageStates, Pages};

/// The number of cachestat(2), the same on every architecture (except MIPS, where the number is no
/// system call, so it counts as missing).
const CACHESTAT: libc::c_long = 451;
/// Bytes that are mapped at a time.
const MAPPED: u64 = 1 << 30;
/// Bytes of which cachestat says whether all or none are in memory: in a file with holes most are
/// alike, and a mapping costs as much as many such calls.
const ALIKE: u64 = 256 << 10;

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

/// Counts the pages of `len` bytes (≥ 1) from `offset` that lie in memory.
///
/// # Errors
/// The file is another user's, and we may not write it; or the system call fails.
pub fn count(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<Pages> {
    match cachestat(fd, offset, len) {
        Ok(Counts { cached, dirty, writeback, evicted, recently_evicted }) => {
            let states = PageStates { dirty, writeback, evicted, recently_evicted };
            Ok(Pages { cached, states: Some(states) })
        }
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => {
            let mut cached = 0;
            each_page(fd, offset, len, |_, resident| cached += u64::from(resident))?;
            Ok(Pages { cached, states: None })
        }
        Err(e) => Err(e),
    }
}

/// Says of each page that `len` bytes (≥ 1) from `offset` touch, in order, whether it lies in
/// memory. At most a GiB is mapped at a time.
///
/// # Errors
/// As for [`count`].
pub fn which(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<Vec<bool>> {
    let mut pages = Vec::new();
    let end = offset.saturating_add(len);
    let mut at = offset;
    while at < end {
        let rest = end - at;
        let n = (ALIKE - at % ALIKE).min(rest);
        let all = touched(at, n);
        match cachestat(fd, at, n) {
            Ok(Counts { cached, .. }) if cached == 0 || cached >= all => {
                let all = usize::try_from(all).unwrap_or(usize::MAX);
                pages.resize(pages.len().saturating_add(all), cached > 0);
                at += n;
            }
            told => {
                let n = if told.is_ok() { n } else { rest };
                each_page(fd, at, n, |_, resident| pages.push(resident))?;
                at += n;
            }
        }
    }
    Ok(pages)
}

/// How many pages `len` bytes (≥ 1) from `offset` touch.
#[must_use]
pub fn touched(offset: u64, len: u64) -> u64 {
    let page = page_size() as u64;
    let last = offset.saturating_add(len.saturating_sub(1));
    last / page - offset / page + 1
}

/// The result of cachestat(2); `ENOSYS` where it is missing.
pub(super) fn cached(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Option<u64> {
    cachestat(fd, offset, len).ok().map(|counts| counts.cached)
}

fn cachestat(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<Counts> {
    let missing = || io::Error::from_raw_os_error(libc::ENOSYS);
    if MISSING.load(Ordering::Relaxed) {
        return Err(missing());
    }
    let range = Range { offset, len };
    let mut counts = Counts::default();
    // SAFETY: the descriptor is open; the call reads `range`, writes `counts`, both laid out as
    // the kernel's, and takes no flags.
    let answer =
        unsafe { libc::syscall(CACHESTAT, fd.as_raw_fd(), &raw const range, &raw mut counts, 0) };
    if answer == 0 {
        return Ok(counts);
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENOSYS) {
        MISSING.store(true, Ordering::Relaxed);
    }
    Err(error)
}

/// Asks mincore(2) about each page that a range touches.
fn each_page(
    fd: BorrowedFd<'_>,
    offset: u64,
    len: u64,
    mut tell: impl FnMut(u64, bool),
) -> io::Result<()> {
    if !may_ask(fd) {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    let page = page_size() as u64;
    let (first, end) = (offset - offset % page, offset.saturating_add(len));
    let mut at = first;
    while at < end {
        let n = touched(at, (end - at).min(MAPPED));
        for (i, resident) in (at / page..).zip(mapped(fd, at, n)?) {
            tell(i, resident & 1 != 0);
        }
        at = at.saturating_add(n.saturating_mul(page));
    }
    Ok(())
}

/// The result of mincore(2) for `pages` pages from `offset`, a multiple of their size.
fn mapped(fd: BorrowedFd<'_>, offset: u64, pages: u64) -> io::Result<Vec<u8>> {
    let too_many = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let pages = usize::try_from(pages).map_err(too_many)?;
    let len = pages.saturating_mul(page_size());
    let mut answer = vec![0; pages];
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing; it is never
    // read.
    let map = unsafe { mmap(null_mut(), len, ProtFlags::READ, MapFlags::SHARED, fd, offset)? };
    // SAFETY: the range is the mapping just made, and `answer` has a byte for each of its pages.
    let asked = match unsafe { libc::mincore(map, len, answer.as_mut_ptr()) } {
        0 => Ok(answer),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: the whole of the mapping made above, which no other code knows.
    unsafe { munmap(map, len)? };
    asked
}

/// Whether mincore(2) tells this process the truth: for files of others it reports that all is in
/// memory.
fn may_ask(fd: BorrowedFd<'_>) -> bool {
    let Ok(stat) = fstat(fd) else { return false };
    let user = rustix::process::geteuid();
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    user.is_root()
        || stat.st_uid == user.as_raw()
        || accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::fs::{Mode, OFlags};

    use super::*;

    fn file(pages: usize) -> OwnedFd {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open("/tmp", flags, Mode::RUSR | Mode::WUSR).unwrap();
        rustix::io::pwrite(&file, &vec![1; pages * page_size()], 0).unwrap();
        file
    }

    #[test]
    fn mincore_and_cachestat_count_the_same_pages_and_none_beyond_the_end() {
        let page = page_size() as u64;
        let file = file(7);
        rustix::fs::ftruncate(&file, 20 * page).unwrap();
        rustix::io::pwrite(&file, &[1], 15 * page).unwrap();
        let which = which(file.as_fd(), 0, 30 * page).unwrap();
        let resident = |i: usize| i < 7 || i == 15;
        assert_eq!(which, (0..30).map(resident).collect::<Vec<_>>());
        let pages = count(file.as_fd(), 0, 30 * page).unwrap();
        assert_eq!(pages.cached, 8);
        if let Some(states) = pages.states {
            assert!(states.dirty <= 8);
        }
        assert_eq!(count(file.as_fd(), page - 1, 2).unwrap().cached, 2);
    }

    #[test]
    fn what_is_known_of_a_whole_piece_is_what_mincore_says_of_its_pages() {
        let file = file(70);
        let size = 4 * ALIKE;
        rustix::fs::ftruncate(&file, size).unwrap();
        rustix::io::pwrite(&file, &vec![1; 1 << 18], 3 * ALIKE).unwrap();
        for (offset, len) in [(0, size), (1, size), (ALIKE - 1, ALIKE + 2), (5000, 2 * ALIKE)] {
            let mut pages = Vec::new();
            each_page(file.as_fd(), offset, len, |_, resident| pages.push(resident)).unwrap();
            assert_eq!(which(file.as_fd(), offset, len).unwrap(), pages, "{offset} {len}");
        }
    }

    #[test]
    fn a_range_touches_the_pages_of_its_first_and_its_last_byte() {
        let page = page_size() as u64;
        assert_eq!(touched(0, 1), 1);
        assert_eq!(touched(page - 1, 2), 2);
        assert_eq!(touched(page, page), 1);
        assert_eq!(touched(0, 10 * page), 10);
    }
}
