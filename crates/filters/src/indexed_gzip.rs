//! `indexed-gzip`: the filter `gzip` by another name of nbdkit's, with its parameters.
//!
//! `gzip` is read from points in its middle as it is, which are kept in memory. No file of points
//! is read: its bytes would be those of a decoder's state, and be trusted.

use device::{Params, Result, values};

use crate::FilterKind;
use crate::kit::unpacked;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "indexed-gzip",
    summary: "decompresses a gzip stream, as `gzip` does; read-only",
    reads_only: true,
    params: &[
        device::param("gzip-index-path", "PATH", "accepted; no file is read or written"),
        device::param("gzip-index-span", "SIZE", "accepted; 512 points at most, in memory"),
    ],
    example: "serve --filter=indexed-gzip file disk.img.gz --run 'nbdinfo --size \"$uri\"'",
    open: |params, below, context| {
        check(params)?;
        unpacked::open("gz", below, context)
    },
    ..FilterKind::PLAIN
};

/// What is accepted must make sense all the same.
fn check(params: &Params) -> Result<()> {
    match values::size(params, "gzip-index-span")? {
        Some(0) => Err(values::wrong("gzip-index-span", "it must be at least 1")),
        _ => Ok(()),
    }
}
