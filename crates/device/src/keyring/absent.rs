//! Keyrings are Linux's.

use std::io;

use zeroize::Zeroizing;

/// The number that a kernel has given a key: 1 or more.
pub type Serial = i32;

/// Nothing is kept: whoever asks for a key is told that there are none.
pub fn keep(_: &[Serial]) {}

/// Fails.
pub(crate) fn read(_: Serial) -> io::Result<Zeroizing<Vec<u8>>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Why a key could not be read, where more can be said than the system does.
pub(crate) fn why(_: &io::Error) -> Option<(crate::ErrorKind, &'static str)> {
    Some((crate::ErrorKind::Unsupported, "this system has no keyrings"))
}
