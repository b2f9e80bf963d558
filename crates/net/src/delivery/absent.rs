//! What was sent and not received is known on Linux only. Elsewhere a Unix socket's bytes are the
//! peer's as soon as they are sent, and it tells nobody when they are read.

use std::os::fd::BorrowedFd;

/// Never known.
pub(crate) fn undelivered(_: BorrowedFd<'_>) -> Option<u64> {
    None
}

/// Never known.
pub(crate) fn on_the_way(_: BorrowedFd<'_>) -> Option<u64> {
    None
}
