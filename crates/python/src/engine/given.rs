//! Descriptors that a user gave us, to own or to wait for.
//!
//! Uses `unsafe` to own a descriptor by its number (libnbd's `connect_socket` takes the socket
//! over, and closes it), and to poll one.
#![expect(unsafe_code, reason = "see above")]

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

use super::fault::EngineError;

/// Takes `number` over.
pub(crate) fn take(number: RawFd) -> Result<OwnedFd, EngineError> {
    if number < 0 {
        return Err(EngineError::new(Errno::BADF, "fcntl"));
    }
    // SAFETY: the caller says that it is a descriptor, and gives it away; a number that is none
    // makes system calls fail.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// `number`, which is not negative, for as long as a call waits for it.
pub(crate) fn lend(number: RawFd) -> BorrowedFd<'static> {
    // SAFETY: it is only polled, and one that was closed makes that fail.
    unsafe { BorrowedFd::borrow_raw(number) }
}
