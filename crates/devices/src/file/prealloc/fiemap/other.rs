//! Systems without such a map.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use super::Mapped;

/// Fails.
pub(crate) fn extents(_: BorrowedFd<'_>, _: Range<u64>) -> io::Result<Vec<Mapped>> {
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

/// Whether an error says that there is no map.
pub(crate) fn is_without(_: &io::Error) -> bool {
    true
}
