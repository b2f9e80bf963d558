//! Linux.
//!
//! Uses `unsafe` for one ioctl, FICLONERANGE, which rustix does not have. It is worth it: it
//! copies any length in the time of one call.
#![expect(unsafe_code, reason = "see above")]

use std::os::fd::{AsRawFd, BorrowedFd};

use device::Place;
use rustix::io::Errno;

/// Shares whole blocks.
pub(super) fn clone_range(
    from: &Place,
    to: BorrowedFd<'_>,
    offset: u64,
    len: u64,
) -> Result<(), Errno> {
    let from_fd: BorrowedFd<'_> = from.fd();
    let range = libc::file_clone_range {
        src_fd: i64::from(from_fd.as_raw_fd()),
        src_offset: from.offset(),
        src_length: len,
        dest_offset: offset,
    };
    // SAFETY: FICLONERANGE reads one `file_clone_range` through the pointer, which is valid for
    // the call, and both descriptors are borrowed for longer than it takes.
    let answer = unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONERANGE, &range) };
    if answer == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Has the kernel copy; how many bytes.
#[inline]
pub(super) fn copy_range(
    from: &Place,
    to: BorrowedFd<'_>,
    offset: u64,
    len: usize,
) -> Result<usize, Errno> {
    let (mut at, mut into) = (from.offset(), offset);
    rustix::fs::copy_file_range(from.fd(), Some(&mut at), to, Some(&mut into), len)
}
