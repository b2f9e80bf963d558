//! Where the system does not tell what lies in its page cache, nothing counts as cached, and asking
//! for more is an error.

use std::os::fd::BorrowedFd;

#[path = "states.rs"]
mod states;

/// No.
pub(crate) fn is_resident(_: BorrowedFd<'_>, _offset: u64, _len: u64) -> bool {
    false
}

/// No.
#[must_use]
pub fn is_cached(_: BorrowedFd<'_>, _offset: u64, _len: u64) -> bool {
    false
}

/// Which pages there are: never known.
pub mod pages {
    use std::io;
    use std::os::fd::BorrowedFd;

    use rustix::param::page_size;

    pub use super::states::{PageStates, Pages};

    /// Fails.
    ///
    /// # Errors
    /// Always.
    pub fn count(_: BorrowedFd<'_>, _offset: u64, _len: u64) -> io::Result<Pages> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Fails.
    ///
    /// # Errors
    /// Always.
    pub fn which(_: BorrowedFd<'_>, _offset: u64, _len: u64) -> io::Result<Vec<bool>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// How many pages `len` bytes (≥ 1) from `offset` touch.
    #[must_use]
    pub fn touched(offset: u64, len: u64) -> u64 {
        let page = page_size() as u64;
        let last = offset.saturating_add(len.saturating_sub(1));
        last / page - offset / page + 1
    }
}
