//! vmdk: a disk in one sparse file, in a stream of compressed grains, or in extents that a
//! descriptor names.
//!
//! All kinds are read: monolithicSparse and -Flat, twoGbMaxExtentSparse and -Flat, streamOptimized
//! (with the directory in front or in a footer), vmfs, vmfsSparse (COWD) and seSparse, with
//! parents. Only the gate opens extents and parents. Hosted sparse extents and flat ones, also
//! split, are written where they lie.

mod check;
mod codec;
mod create;
mod describe;
mod descriptor;
mod grains;
mod header;
mod map;
mod open;
mod sparse;
#[cfg(test)]
mod tests;
mod write;

use crate::{Format, Head, Upkeep};

pub(crate) const FORMAT: Format = Format {
    word: "vmdk",
    summary: "VMware's format: sparse, flat, split, streamOptimized",
    is_plain: false,
    packing: None,
    params: &[],
    recognises,
    open: open::open,
    describe: describe::describe,
    write: Some(write::open),
    create: Some(create::CREATOR),
    check: Some(check::check),
    upkeep: Upkeep::NONE,
};

fn recognises(head: &Head) -> bool {
    let is = |magic: &[u8]| head.has(0, magic);
    is(header::KDMV) || is(header::COWD) || descriptor::is_one(head.first())
}
