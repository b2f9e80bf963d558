//! `bzip2`: what is in a stream that bzip2 packed, to be read.
//!
//! The stream is unpacked once when the filter is opened, which counts it and checks its sums, and in parts whenever it is
//! read; nothing is kept in a file.

use crate::Kind;
use crate::kit::unpacked;

pub(crate) const KIND: Kind = Kind {
    word: "bzip2",
    summary: "unpacks what bzip2 packed; read-only",
    reads_only: true,
    params: &[],
    reaches: device::Reach::nothing,
    example: "serve --filter=bzip2 file disk.img.bz2 --run 'nbdinfo --size \"$uri\"'",
    open: |_, below, context| unpacked::open("bz2", below, context),
};
