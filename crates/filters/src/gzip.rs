//! `gzip`: the contents of a gzip stream, read-only.
//!
//! Opening the filter decompresses the stream once to learn its size and check its checksums. Reads
//! decompress the parts they need; nothing is kept in a file.

use crate::FilterKind;
use crate::kit::unpacked;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "gzip",
    summary: "decompresses a gzip stream; read-only",
    reads_only: true,
    example: "serve --filter=gzip file disk.img.gz --run 'nbdinfo --size \"$uri\"'",
    open: |_, below, context| unpacked::open("gz", below, context),
    ..FilterKind::PLAIN
};
