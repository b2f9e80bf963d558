//! VDI: VirtualBox's disks. A map, and blocks after it in any order, or missing.
//!
//! All numbers are little-endian. Reads dynamic and static images with blocks of any size. A
//! differencing image gives only its parent's identifier, so it is refused. Makes dynamic and
//! static ones, with blocks of 1 MiB, as QEMU and VirtualBox do.

mod check;
mod create;
mod header;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use device::{Device, Edge, Result, param};
use runtime::Context;

use crate::kit::fields::{corrupt, le32, lies_inside};
use crate::kit::{Atlas, Lies, Run, Scattered, Table, disk_info};
use crate::{Creator, Description, Format, Head, Opening};

use header::{Header, Kind};

pub(crate) const FORMAT: Format = Format {
    word: "vdi",
    summary: "VirtualBox's disk image",
    is_plain: false,
    is_packing: false,
    params: &[],
    recognises: |head: &Head| head.has(header::SIGNATURE_AT, &header::SIGNATURE),
    open,
    describe,
    create: Some(Creator {
        beside: None,
        options: &[param("static", "on|off", "whether all room is taken at once (off)")],
        open: create::open,
        over: crate::format::over_nothing,
        piped: |_| Ok(false),
        remake: None,
        measure: create::measure,
        measure_bitmaps: crate::format::no_bitmaps,
    }),
    check: Some(check::check),
};

/// A block that was never written, and one that was given up.
const ABSENT: u64 = 0xffff_ffff;
const GIVEN_UP: u64 = 0xffff_fffe;

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

/// Where the blocks lie.
struct Map {
    header: Header,
    table: Table,
    container: Edge,
}

impl Map {
    fn new((container, context): (&Edge, &Context), header: Header) -> Result<Self> {
        let shape = (header.blocks, 4);
        let table = Table::new((container, context), "block map", header.map, shape, |b, at| {
            le32(b, at).into()
        })?;
        Ok(Self { header, table, container: container.clone() })
    }
}

impl Atlas for Map {
    async fn run(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<Run>> {
        let (block, within) = (at / self.header.block, at % self.header.block);
        let len = len.min(self.header.block - within);
        let Some(entry) = self.table.entry(block, may_wait).await? else { return Ok(None) };
        let lies = match entry {
            ABSENT | GIVEN_UP => Lies::Hole,
            index => {
                let there = self.header.place(index).ok_or_else(|| {
                    corrupt(format!("its block {block} lies nowhere: its number is {index}"))
                })?;
                lies_inside(&self.container, "block", there + within, len)?;
                Lies::At(there + within)
            }
        };
        Ok(Some(Run { len, lies }))
    }

    fn file(&self, _: u64) -> Option<(u16, &Edge)> {
        Some((0, &self.container))
    }
}

impl Kind {
    fn of(number: u32) -> Result<Self> {
        match number {
            1 => Ok(Self::Dynamic),
            2 => Ok(Self::Static),
            other => Err(crate::kit::fields::foreign(format!(
                "a VDI image of kind {other} stands over others, which it names by identifiers only; \
                 flatten it with VBoxManage clonemedium"
            ))),
        }
    }
}
