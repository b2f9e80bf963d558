//! Systems that write back only when they are told to flush: macOS.

use std::io;
use std::os::fd::BorrowedFd;

/// It does not.
pub(crate) fn begin_write_back(_: BorrowedFd<'_>, _offset: u64, _len: u64) -> bool {
    false
}

/// Nothing is written back, and no report of a failure is taken: the flush finds it.
pub(crate) fn finish_write_back(_: BorrowedFd<'_>, _offset: u64, _len: u64) -> io::Result<()> {
    Ok(())
}
