//! A bell that rings once, when the device is dropped, and is heard by all that wait with poll(2).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use device::{Error, Result};
use rustix::event::{EventfdFlags, eventfd};

/// See the module.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(eventfd(0, flags).map_err(|e| Error::os("open", e))?))
    }

    pub(super) fn ring(&self) {
        // It fails only when it has rung.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
