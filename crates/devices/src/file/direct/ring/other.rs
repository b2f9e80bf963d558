//! Systems without io_uring.

use std::convert::Infallible;
use std::io;

use super::super::queue::Transfer;

/// There is none.
pub(in super::super) struct Ring(Infallible);

impl Ring {
    /// Fails.
    ///
    /// # Errors
    /// Always.
    pub(in super::super) fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in super::super) fn start(&self, _: Transfer) {
        match self.0 {}
    }
}
