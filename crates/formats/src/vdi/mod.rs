//! VDI: VirtualBox's disks. A map, and blocks after it in any order, or missing.
//!
//! All numbers are little-endian. Reads dynamic and static images with blocks of any size. A
//! differencing image gives only its parent's identifier, so it is refused. Makes dynamic and
//! static ones, with blocks of 1 MiB, as QEMU and VirtualBox do, and writes them where they lie.

mod check;
mod create;
mod header;
mod map;
#[cfg(test)]
mod tests;
mod write;

use std::sync::Arc;

use device::{Device, Edge, Result, param};
use runtime::Context;

use crate::kit::{Scattered, disk_info};
use crate::{Creator, Description, Format, Head, Opening, Upkeep};

use header::Header;
use map::Map;

pub(crate) const FORMAT: Format = Format {
    word: "vdi",
    summary: "VirtualBox's disk image",
    is_plain: false,
    packing: None,
    params: &[],
    recognises: |head: &Head| head.has(header::SIGNATURE_AT, &header::SIGNATURE),
    open,
    describe,
    write: Some(write::open),
    create: Some(Creator {
        beside: None,
        options: &[param("static", "on|off", "whether all room is taken at once (off)")],
        open: create::open,
        over: crate::format::over_nothing,
        piped: |_| Ok(false),
        remake: None,
        reads_zero: true,
        measure: create::measure,
        measure_bitmaps: crate::format::no_bitmaps,
    }),
    check: Some(check::check),
    upkeep: Upkeep::NONE,
};

fn open(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let header = Header::read(&container)?;
    let map = Map::new((&container, opening.context), header.clone())?;
    Ok(Scattered::device(disk_info(&container, header.size), opening.context, None, map))
}

fn describe(container: &Edge, _: &Context) -> Result<Description> {
    let header = Header::read(container)?;
    Ok(Description {
        virtual_size: header.size,
        cluster_size: Some(header.block),
        ..Description::default()
    })
}
