//! A bell of Linux: a counter that is readable while it is not 0.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

#[derive(Debug)]
pub(super) struct Clapper(OwnedFd);

impl Clapper {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    #[inline]
    pub(super) fn ring(&self) {
        // It fails only when the counter is full, and then the bell rings anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    #[inline]
    pub(super) fn silence(&self) {
        // It fails only when the bell does not ring.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Clapper {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
