//! Parallels' expanding disks, read-only: a header of 64 bytes, a table of blocks, and the blocks.

mod check;
mod header;
mod map;

use std::sync::Arc;

use device::{Device, Edge, Result};
use runtime::Context;

use crate::kit::fields::le32;
use crate::kit::{Scattered, Table, disk_info};
use crate::{Description, Format, Opening, Upkeep};

use header::{HEADER, Header, NEW, OLD};
use map::Map;

pub(crate) const FORMAT: Format = Format {
    word: "parallels",
    summary: "Parallels' expanding disk; read-only",
    is_plain: false,
    packing: None,
    params: &[],
    recognises: |head| head.has(0, OLD) || head.has(0, NEW),
    open,
    describe,
    write: None,
    create: None,
    check: Some(check::check),
    upkeep: Upkeep::NONE,
};

fn open(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let header = Header::read(&container)?;
    let shape = (header.entries, 4);
    let table =
        Table::new((&container, opening.context), "table", HEADER as u64, shape, |b, at| {
            le32(b, at).into()
        })?;
    let info = disk_info(&container, header.size);
    Ok(Scattered::device(info, opening.context, None, Map { header, table, container }))
}

fn describe(container: &Edge, _: &Context) -> Result<Description> {
    let header = Header::read(container)?;
    Ok(Description { virtual_size: header.size, dirty: header.in_use, ..Description::default() })
}
