//! qcow2: a disk in clusters, found by tables of two levels, with backing images, snapshots,
//! compression and dirty bitmaps. Versions 2 and 3.
//!
//! The parts: [`header`] and [`region`] (checks before anything else is read), [`entry`] (table
//! entries), [`snapshot`] and [`bitmap`] (their lists), [`describe`]; [`open`] makes a disk of
//! them, with its [`map`] over slices of its [`tables`], [`unpack`], and its contexts ([`dirty`]).
//! [`check`] compares references with [`refcounts`], and [`repair`] puts them right. [`create`]
//! makes new images, and [`write`](mod@write) changes them where they lie.

mod bitmap;
mod check;
mod create;
mod describe;
mod dirty;
mod entry;
mod header;
mod map;
mod open;
mod rebase;
mod refcounts;
mod region;
mod repair;
mod snapshot;
mod stream;
mod tables;
#[cfg(test)]
mod tests;
mod tracked;
mod unpack;
mod write;

use device::{Error, ErrorKind, Fault, Param, param};

use crate::luks::inside;
use crate::{Format, Upkeep};

/// The parameter that names a snapshot.
const SNAPSHOT: &str = "snapshot";

pub(crate) const FORMAT: Format = Format {
    word: "qcow2",
    summary: "QEMU's own: clusters, backing images, snapshots, compression",
    is_plain: false,
    packing: None,
    params: PARAMS,
    recognises: |head| header::begins(head.first()),
    open: |container, opening| open::open(container, opening),
    describe: describe::describe,
    write: Some(open::open_to_write),
    create: Some(create::CREATE),
    check: Some(check::check),
    upkeep: Upkeep {
        resize: Some(write::resize),
        snapshot: Some(write::change_snapshots),
        rebase: Some(rebase::REBASE),
        empty: Some(write::empty),
        amend: Some(write::amend),
        amended: write::AMENDED,
        repair: Some(repair::repair),
        bitmap: Some(write::change_bitmap),
    },
};

const PARAMS: &[Param] = &{
    let [passphrase, key_file, key_serial, key_format, key_secret] = inside::PARAMS;
    let snapshot = param(SNAPSHOT, "ID|NAME", "the disk as it was when this snapshot was made");
    [snapshot, passphrase, key_file, key_serial, key_format, key_secret]
};

/// The image contradicts itself.
fn corrupt(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, Fault::File, format!("the image is broken: {}", what.into()))
}
