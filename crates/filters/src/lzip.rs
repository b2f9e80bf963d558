//! `lzip`: the contents of an lzip file, read-only, with random access if it has several members.
//!
//! Trailers say where members are. Nothing is decompressed before a read needs it, and no member is
//! held as a whole.

use crate::FilterKind;
use crate::kit::unpacked;
use crate::xz::check;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "lzip",
    summary: "decompresses an lzip file; read-only",
    reads_only: true,
    params: &[
        device::param(
            "lzip-max-block",
            "SIZE",
            "accepted; members of any size are read, in pieces",
        ),
        device::param(
            "lzip-max-depth",
            "N",
            "accepted; 32 MiB of what was unpacked are remembered",
        ),
    ],
    example: "serve --filter=lzip file disk.img.lz --run 'nbdinfo --size \"$uri\"'",
    open: |params, below, context| {
        check(params, "lzip-max-block", "lzip-max-depth")?;
        unpacked::open("lz", below, context)
    },
    ..FilterKind::PLAIN
};
