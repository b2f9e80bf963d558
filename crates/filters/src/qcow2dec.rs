//! `qcow2dec`: the disk in a qcow2 image, read-only, as nbdkit's filter of that name shows it.
//!
//! What the image names is not opened: one with a backing image or an external data file is
//! refused.

use crate::FilterKind;
use crate::kit::unpacked;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "qcow2dec",
    summary: "decodes a qcow2 image; read-only",
    reads_only: true,
    example: "serve --filter=qcow2dec file disk.qcow2 --run 'nbdinfo --size \"$uri\"'",
    open: |_, below, context| unpacked::open("qcow2", below, context),
    ..FilterKind::PLAIN
};
