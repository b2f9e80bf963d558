//! Parsers of ours that read untrusted bytes, by themselves: for those that try them with nonsense
//! (`hostile`). Nothing is opened or connected to.

use device::{Error, Result};

/// What `text` would be a disk of, in the language of `data`: its size in bytes. It names no file.
///
/// # Errors
/// It is nothing of that language.
pub fn data(text: &str) -> Result<u64> {
    crate::data::tried(text)
}

/// What a server says that sends `bytes` to some requests on one connection, and hangs up: what is wrong with it.
#[must_use]
pub fn http(bytes: &[u8]) -> Vec<Error> {
    crate::http::tried(bytes)
}

/// Reads a `.netrc`.
pub fn netrc(text: &str) {
    crate::http::netrc_tried(text);
}
