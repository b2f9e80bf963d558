//! vsock(7) is used on Linux only.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use device::Peer;

/// Fails.
pub(crate) fn start(_cid: u32, _port: u32) -> io::Result<OwnedFd> {
    Err(absent())
}

/// Fails.
pub(crate) fn listen(_port: u32) -> io::Result<OwnedFd> {
    Err(absent())
}

/// Never one.
pub(crate) fn peer(_: BorrowedFd<'_>) -> Option<Peer> {
    None
}

fn absent() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "vsock is used on Linux only")
}
