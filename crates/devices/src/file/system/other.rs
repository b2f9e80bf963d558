//! Systems that are not Linux: macOS, by its manual. Nothing of this has been run.
//!
//! Uses `unsafe` for `fcntl` with a structure (F_PUNCHHOLE), which rustix does not offer.
#![expect(unsafe_code, reason = "see above")]

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_fullfsync, fcntl_nocache, fcntl_rdadvise};
use rustix::io::{Errno, Result};

/// How a file will be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Advice {
    /// In any way.
    Normal,
    /// From end to end.
    Sequential,
    /// In no order.
    Random,
}

/// No map is believed: APFS has called a hole what held data (the `cp` of coreutils lost some so,
/// its pull request 68), so all is data, and zeroes are found by reading.
pub(crate) fn seek_data(_: BorrowedFd<'_>, _at: u64) -> Result<u64> {
    Err(Errno::OPNOTSUPP)
}

/// See [`seek_data`].
pub(crate) fn seek_hole(_: BorrowedFd<'_>, _at: u64) -> Result<u64> {
    Err(Errno::OPNOTSUPP)
}

/// Makes a hole, of whole blocks.
pub(crate) fn punch(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<()> {
    let number = |n: u64| libc::off_t::try_from(n).map_err(|_| Errno::INVAL);
    let hole = libc::fpunchhole_t {
        fp_flags: 0,
        reserved: 0,
        fp_offset: number(offset)?,
        fp_length: number(len)?,
    };
    // SAFETY: the descriptor is open, and the command reads one `fpunchhole_t`.
    let answer = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_PUNCHHOLE, &raw const hole) };
    if answer == -1 { Err(as_on_linux(last_error())) } else { Ok(()) }
}

/// There is no such request.
pub(crate) fn zero_range(_: BorrowedFd<'_>, _offset: u64, _len: u64) -> Result<()> {
    Err(Errno::OPNOTSUPP)
}

/// F_PREALLOCATE allocates behind the end of a file, never a hole in it.
pub(crate) fn allocate(_: BorrowedFd<'_>, _offset: u64, _len: u64) -> Result<()> {
    Err(Errno::OPNOTSUPP)
}

/// There is no such request.
pub(crate) fn write_zeroes(_: BorrowedFd<'_>, _offset: u64, _len: u64) -> Result<()> {
    Err(Errno::OPNOTSUPP)
}

/// Makes durable what was written. fsync(2) does not: it leaves the bytes in the disk's cache.
/// Where the file system has no such request that is an error.
pub(crate) fn make_durable(fd: impl AsFd) -> Result<()> {
    fcntl_fullfsync(fd).map_err(as_on_linux)
}

/// Any read may wait.
pub(crate) fn read_now(_: BorrowedFd<'_>, _: &mut [u8], _offset: u64) -> Result<usize> {
    Err(Errno::OPNOTSUPP)
}

/// No write is durable by itself: O_DSYNC, too, leaves it in the disk's cache.
pub(crate) fn write_durably(_: BorrowedFd<'_>, _: &[u8], _offset: u64) -> Result<usize> {
    Err(Errno::OPNOTSUPP)
}

/// Tells the system how a file will be read: it can only be told not to read ahead.
pub(crate) fn expect(fd: BorrowedFd<'_>, advice: Advice) -> Result<()> {
    let ahead = libc::c_int::from(advice != Advice::Random);
    // SAFETY: the descriptor is open, and the command takes a number.
    let answer = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_RDAHEAD, ahead) };
    if answer == -1 { Err(last_error()) } else { Ok(()) }
}

/// Has a range read into the page cache.
pub(crate) fn will_need(fd: BorrowedFd<'_>, offset: u64, len: NonZeroU64) -> Result<()> {
    // A longer length than it takes is refused.
    let most = libc::c_int::MAX.cast_unsigned().into();
    fcntl_rdadvise(fd, offset, len.get().min(most))
}

/// Pages cannot be dropped by range.
pub(crate) fn drop_pages(_: BorrowedFd<'_>, _offset: u64, _: Option<NonZeroU64>) -> Result<()> {
    Err(Errno::OPNOTSUPP)
}

/// To be called for a file of which few pages are to stay: what is read and written by this
/// description of it leaves none (F_NOCACHE).
pub(crate) fn keep_few_pages(fd: BorrowedFd<'_>) {
    // Without it the pages stay, and all is as it is for other files.
    let _ = fcntl_nocache(fd, true);
}

/// The same file, opened once more, past the page cache. What is in it is still found there.
pub(crate) fn open_direct(fd: BorrowedFd<'_>, mode: OFlags) -> io::Result<OwnedFd> {
    let opened = programs::names::reopen(fd, mode)?;
    fcntl_nocache(&opened, true)?;
    Ok(opened)
}

/// Not known.
pub(crate) fn direct_alignment(_: BorrowedFd<'_>) -> u64 {
    0
}

/// Not known.
pub(crate) fn ahead_of(_: BorrowedFd<'_>) -> Option<u64> {
    None
}

/// The system decides how much is in a pipe.
pub(crate) fn widen_pipe(_: impl AsFd, _bytes: usize) {}

/// No file system does that is known here.
pub(crate) fn lies_in_memory(_: BorrowedFd<'_>) -> bool {
    false
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// There are two numbers for what is not supported; callers know one.
fn as_on_linux(e: Errno) -> Errno {
    if e == Errno::NOTSUP { Errno::OPNOTSUPP } else { e }
}
