//! qcow2: a disk in clusters, found by tables of two levels, with backing images, snapshots,
//! compression and dirty bitmaps. Versions 2 and 3.
//!
//! The parts: [`header`] and [`region`] (what is refused before anything is read by it), [`entry`] (what the
//! tables say), [`snapshot`] and [`bitmap`] (their lists), [`describe`],
//! [`create`] (how an image is made).

#![allow(dead_code, reason = "the reader and the creator land one by one")]

mod bitmap;
mod create;
mod describe;
mod entry;
mod header;
mod region;
mod snapshot;
mod stream;

use device::{Error, param};

use crate::Format;

pub(crate) const FORMAT: Format = Format {
    word: "qcow2",
    summary: "QEMU's own: clusters, backing images, snapshots, compression",
    is_plain: false,
    params: &[param("snapshot", "ID|NAME", "the disk as it was when this snapshot was made")],
    recognises: |head| header::begins(head.first()),
    open: |_, _| Err(Error::unsupported("open a qcow2 image")),
    describe: describe::describe,
    create: Some(create::CREATE),
    check: None,
};
