//! Parsers of untrusted bytes, each by itself, for fuzzing (`hostile`). Nothing is opened or
//! connected to.

use device::{Error, Result};

/// The size in bytes of the disk that `text` describes, in the language of `data`. It names no
/// file.
///
/// # Errors
/// It is not in that language.
pub fn data(text: &str) -> Result<u64> {
    crate::data::tried(text)
}

/// The error for a server that sends `bytes` to some requests on one connection, and hangs up.
#[must_use]
pub fn http(bytes: &[u8]) -> Vec<Error> {
    crate::http::tried(bytes)
}

/// Reads a `.netrc`.
pub fn netrc(text: &str) {
    crate::http::netrc_tried(text);
}
