//! QEMU's words for disks: keys with dots, in option strings and in JSON, the drivers for bytes,
//! and the names of backing images that are no paths. Nothing is opened.

mod base;
mod keys;
pub(crate) mod protocols;

use device::{Error, Params, Result};

pub(crate) use base::{NamedBase, named_base};
pub(crate) use keys::Keys;

/// What nodes refer to by an identifier: objects.
#[derive(Debug, Default)]
pub struct NodeObjects {
    /// Credentials for servers, as parameters of `nbd`.
    pub credentials: Vec<(String, Params)>,
    /// Throttle groups, in bytes a second; `None`: without a limit.
    pub throttles: Vec<(String, Option<u64>)>,
}

impl NodeObjects {
    pub(crate) fn find<'a, T>(all: &'a [(String, T)], what: &str, id: &str) -> Result<&'a T> {
        let found = all.iter().find(|(known, _)| known == id);
        found.map(|(_, found)| found).ok_or_else(|| {
            Error::invalid(format!("{what}={id}: there is no --object with this id"))
        })
    }
}

/// Keys of any node that change no byte of what is read.
const TUNING: &[&str] = &[
    "aio",
    "aio-max-batch",
    "auto-read-only",
    "cache.direct",
    "cache.no-flush",
    "cache.writeback",
    "detect-zeroes",
    "discard",
    "drop-cache",
    "force-share",
    "locking",
    "node-name",
    "pr-manager",
    "read-only",
    "x-check-cache-dropped",
];

/// The keys of an option string, or of JSON behind `json:`.
pub(crate) fn keys_of(text: &str) -> Result<Keys> {
    match text.strip_prefix("json:") {
        Some(json) => Keys::of_json(json).map_err(|e| wrong("the image's JSON", &e)),
        None => Keys::of_words(text).map_err(|e| wrong("the image's options", &e)),
    }
}

pub(crate) fn wrong(what: &str, e: &Error) -> Error {
    Error::invalid(format!("{what}: {e}"))
}
