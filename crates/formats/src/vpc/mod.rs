//! VHD, which QEMU calls vpc: the disks of Virtual PC, Hyper-V before 2012, Xen and Azure.
//!
//! All numbers are big-endian. Reads fixed, dynamic and differencing images (the parent through the
//! gate), makes fixed and dynamic ones. How large a disk is depends on the creator: see [`header`].

mod create;
mod header;
mod parent;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use device::{Device, Edge, Result, param};
use runtime::Context;

use crate::kit::fields::{be32, corrupt, lies_inside};
use crate::kit::{Atlas, Lies, Run, Scattered, Table, disk_info, read};
use crate::{Creator, Description, Format, NamedFile, Opening};

use header::{Dynamic, Footer, Kind, SECTOR};

pub(crate) const FORMAT: Format = Format {
    word: "vpc",
    summary: "VHD, the disk image of Virtual PC, Hyper-V and Azure",
    is_plain: false,
    is_packing: false,
    params: &[],
    recognises: header::recognises,
    open,
    describe,
    create: Some(Creator {
        beside: None,
        options: &[
            param("subformat", "dynamic|fixed", "whether room is taken as it is needed (dynamic)"),
            param("force_size", "on|off", "the size as it is, not rounded up to cylinders (off)"),
        ],
        open: create::open,
        over: crate::format::over_nothing,
        piped: |_| Ok(false),
        remake: None,
        measure: create::measure,
        measure_bitmaps: crate::format::no_bitmaps,
    }),
    check: None,
};

/// A missing block.
const ABSENT: u64 = 0xffff_ffff;

fn open(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let footer = Footer::read(&container)?;
    if footer.kind == Kind::Fixed {
        lies_inside(&container, "disk", 0, footer.size)?;
        let mut info = disk_info(&container, footer.size);
        if !container.info().abilities.observed {
            info.flat = container.info().flat.clone();
        }
        return Ok(Scattered::device(info, opening.context, None, Whole { container }));
    }
    let dynamic = Dynamic::read(&container, &footer)?;
    let backing = match footer.kind {
        Kind::Differencing => Some(parent::open(&container, &dynamic, opening.files)?),
        Kind::Fixed | Kind::Dynamic => None,
    };
    let map = Map::new((&container, opening.context), dynamic, footer.kind)?;
    let info = disk_info(&container, footer.size);
    Ok(Scattered::device(info, opening.context, backing, map))
}

fn describe(container: &Edge, _: &Context) -> Result<Description> {
    let footer = Footer::read(container)?;
    let mut told = Description { virtual_size: footer.size, ..Description::default() };
    if footer.kind != Kind::Fixed {
        let dynamic = Dynamic::read(container, &footer)?;
        told.cluster_size = Some(dynamic.block);
        if footer.kind == Kind::Differencing {
            let name = parent::names(container, &dynamic)?.into_iter().next();
            told.backing = name.map(|name| NamedFile { name, format: Some(FORMAT.word.into()) });
        }
    }
    Ok(told)
}

/// A fixed disk: all of it, at the beginning.
struct Whole {
    container: Edge,
}

impl Atlas for Whole {
    async fn run(&self, at: u64, len: u64, _may_wait: bool) -> Result<Option<Run>> {
        Ok(Some(Run { len, lies: Lies::At(at) }))
    }

    fn file(&self, _: u64) -> Option<(u16, &Edge)> {
        Some((0, &self.container))
    }
}

/// Where the blocks lie, each behind a bitmap of its sectors.
struct Map {
    dynamic: Dynamic,
    table: Table,
    container: Edge,
    /// Whether the bitmaps decide what is in the parent. Without a parent, unwritten sectors are
    /// zeroes in the block itself.
    differs: bool,
}

impl Map {
    fn new((container, context): (&Edge, &Context), dynamic: Dynamic, kind: Kind) -> Result<Self> {
        let shape = (dynamic.entries, 4);
        let table = Table::new((container, context), "table", dynamic.table, shape, |b, at| {
            be32(b, at).into()
        })?;
        let differs = kind == Kind::Differencing;
        Ok(Self { dynamic, table, container: container.clone(), differs })
    }

    /// The run of sectors from `sector` on that are all here, or all in the parent.
    async fn sectors(
        &self,
        bitmap: u64,
        sector: u64,
        may_wait: bool,
    ) -> Result<Option<(u64, bool)>> {
        let len = usize::try_from(self.dynamic.bitmap()).unwrap_or(0);
        let Some(bits) = read(&self.container, bitmap, len, may_wait).await? else {
            return Ok(None);
        };
        // The highest bit of a byte is the first sector.
        let bit = |sector: u64| {
            let byte = usize::try_from(sector / 8).ok().and_then(|at| bits.get(at));
            byte.is_some_and(|byte| byte & (0x80 >> (sector % 8)) != 0)
        };
        let (first, all) = (bit(sector), self.dynamic.block / SECTOR);
        let end = (sector..all).find(|s| bit(*s) != first).unwrap_or(all);
        Ok(Some((end - sector, first)))
    }
}

impl Atlas for Map {
    async fn run(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<Run>> {
        let (block, within) = (at / self.dynamic.block, at % self.dynamic.block);
        let mut len = len.min(self.dynamic.block - within);
        let Some(entry) = self.table.entry(block, may_wait).await? else { return Ok(None) };
        if entry == ABSENT {
            let lies = if self.differs { Lies::Beneath } else { Lies::Hole };
            return Ok(Some(Run { len, lies }));
        }
        let start = entry * SECTOR;
        let there = start + self.dynamic.bitmap() + within;
        let (table, table_len) = self.table.range();
        // A block that overlaps the headers or the table would expose these as data.
        let overlaps = |(other, n): (u64, u64)| {
            start < other + n && other < start + self.dynamic.bitmap() + self.dynamic.block
        };
        if overlaps((0, SECTOR)) || overlaps(self.dynamic.range()) || overlaps((table, table_len)) {
            return Err(corrupt(format!("its block {block} lies over its headers")).at(start));
        }
        lies_inside(&self.container, "block", there, len)?;
        if self.differs {
            let Some((sectors, here)) = self.sectors(start, within / SECTOR, may_wait).await?
            else {
                return Ok(None);
            };
            len = len.min(sectors * SECTOR - within % SECTOR);
            if !here {
                return Ok(Some(Run { len, lies: Lies::Beneath }));
            }
        }
        Ok(Some(Run { len, lies: Lies::At(there) }))
    }

    fn file(&self, _: u64) -> Option<(u16, &Edge)> {
        Some((0, &self.container))
    }
}
