//! `bzip2`: the contents of a bzip2 stream, read-only.
//!
//! Opening the filter decompresses the stream once to learn its size and check its checksums. Reads
//! decompress the parts they need; nothing is kept in a file.

use crate::FilterKind;
use crate::kit::unpacked;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "bzip2",
    summary: "decompresses a bzip2 stream; read-only",
    reads_only: true,
    example: "serve --filter=bzip2 file disk.img.bz2 --run 'nbdinfo --size \"$uri\"'",
    open: |_, below, context| unpacked::open("bz2", below, context),
    ..FilterKind::PLAIN
};
