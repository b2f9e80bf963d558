//! `gzip`: what is in a stream that gzip packed, to be read.
//!
//! The stream is unpacked once when the filter is opened, which counts it and checks its sums, and in parts whenever it is
//! read; nothing is kept in a file.

use crate::Kind;
use crate::kit::unpacked;

pub(crate) const KIND: Kind = Kind {
    word: "gzip",
    summary: "unpacks what gzip packed; read-only",
    reads_only: true,
    params: &[],
    reaches: device::Reach::nothing,
    example: "serve --filter=gzip file disk.img.gz --run 'nbdinfo --size \"$uri\"'",
    open: |_, below, context| unpacked::open("gz", below, context),
};
