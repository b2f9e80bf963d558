//! FS_IOC_FIEMAP: where a file system has room for a file, and whether it was ever written.
//!
//! Uses `unsafe` for an ioctl with a structure, which rustix does not offer. It is worth it: no
//! other call distinguishes an allocated extent from a written one.
#![expect(unsafe_code, reason = "see above")]

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::Mapped;

/// `_IOWR('f', 11, struct fiemap)`, whose head has 32 bytes.
const FS_IOC_FIEMAP: libc::Ioctl = libc::_IOWR::<[u8; 32]>(0x66, 11);
/// Data in the page cache gets its blocks first.
const SYNC: u32 = 1;
const LAST: u32 = 1;
const UNWRITTEN: u32 = 0x800;
/// Extents in an answer.
const AT_ONCE: usize = 128;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Found {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

/// `struct fiemap` with room for its extents.
#[repr(C)]
struct Question {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Found; AT_ONCE],
}

/// The extents that touch `range`, upwards; between them are holes. Data in the page cache gets its
/// blocks first.
pub(crate) fn extents(fd: BorrowedFd<'_>, range: Range<u64>) -> io::Result<Vec<Mapped>> {
    let (mut found, mut at, mut flags) = (Vec::new(), range.start, SYNC);
    while at < range.end {
        let question = ask(fd, at..range.end, flags)?;
        flags = 0;
        let mapped = (question.mapped as usize).min(AT_ONCE);
        let (before, is_full) = (at, mapped == AT_ONCE);
        for extent in question.extents.iter().take(mapped) {
            let end = extent.logical.saturating_add(extent.length);
            let unwritten = extent.flags & UNWRITTEN != 0;
            found.push(Mapped { range: extent.logical..end, unwritten });
            at = at.max(end);
            if extent.flags & LAST != 0 {
                return Ok(found);
            }
        }
        if !is_full || at == before {
            break;
        }
    }
    Ok(found)
}

/// Whether an error says that there is no map.
pub(crate) fn is_without(e: &io::Error) -> bool {
    let codes = [libc::EOPNOTSUPP, libc::ENOTTY, libc::ENOSYS, libc::EINVAL, libc::EBADR];
    e.raw_os_error().is_some_and(|code| codes.contains(&code))
}

fn ask(fd: BorrowedFd<'_>, range: Range<u64>, flags: u32) -> io::Result<Box<Question>> {
    let count = u32::try_from(AT_ONCE).unwrap_or(0);
    let mut question = Box::new(Question {
        start: range.start,
        length: range.end - range.start,
        flags,
        mapped: 0,
        count,
        reserved: 0,
        extents: [Found::default(); AT_ONCE],
    });
    // SAFETY: the descriptor is open; the request reads the head of the structure and writes that
    // and as many extents as `count` says, for which there is room.
    let answer =
        unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_FIEMAP, std::ptr::from_mut(&mut *question)) };
    if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(question) }
}
