//! Linux: by `sync_file_range`, for which `unsafe` is used, since rustix has no safe form of it.
#![expect(unsafe_code, reason = "see above")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::file::transfer;

/// Asks the system to begin writing a range back; returns whether it does.
pub(crate) fn begin_write_back(fd: BorrowedFd<'_>, offset: u64, len: u64) -> bool {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return false };
    let flags = libc::SYNC_FILE_RANGE_WRITE;
    // SAFETY: the descriptor is borrowed for the call, which takes numbers only.
    unsafe { libc::sync_file_range(fd.as_raw_fd(), offset, len, flags) == 0 }
}

/// Writes a range back and waits for it. A failure is reported to this descriptor once: a caller
/// that gets it here must make the flush fail.
pub(crate) fn finish_write_back(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let wide = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let (offset, len) = (i64::try_from(offset).map_err(wide)?, i64::try_from(len).map_err(wide)?);
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    transfer::retry(|| {
        // SAFETY: the descriptor is borrowed for the call, which takes numbers only.
        match unsafe { libc::sync_file_range(fd.as_raw_fd(), offset, len, flags) } {
            0 => Ok(()),
            _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    })
    .map_err(io::Error::from)
}
