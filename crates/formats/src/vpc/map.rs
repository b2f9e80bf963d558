//! Where the blocks of a VHD image lie.

use std::sync::Arc;

use device::{Edge, Result};
use runtime::Context;

use super::header::{Dynamic, Kind, SECTOR};
use super::write::Written;
use crate::kit::fields::{be32, corrupt, lies_within};
use crate::kit::{Atlas, Lies, Run, Runs, Table, WrittenFile, read};

/// A missing block.
pub(super) const ABSENT: u64 = 0xffff_ffff;

/// A fixed disk: all of it, at the beginning.
pub(super) struct Whole {
    pub(super) container: Edge,
    /// If it is written.
    pub(super) written: Option<Arc<WrittenFile>>,
}

impl Runs for Whole {
    async fn run(&self, at: u64, len: u64, _may_wait: bool) -> Result<Option<Run>> {
        Ok(Some(Run { len, lies: Lies::At(at) }))
    }
}

impl Atlas for Whole {
    fn file(&self, _: u64) -> Option<(u16, &Edge)> {
        Some((0, &self.container))
    }
}

/// Where the blocks lie, each behind a bitmap of its sectors.
pub(super) struct Map {
    pub(super) dynamic: Dynamic,
    pub(super) table: Table,
    container: Edge,
    /// Whether the bitmaps decide what is in the parent. Without a parent, unwritten sectors are
    /// zeroes in the block itself.
    pub(super) differs: bool,
    pub(super) written: Option<Written>,
}

impl Map {
    pub(super) fn new(
        (container, context): (&Edge, &Context),
        dynamic: Dynamic,
        kind: Kind,
    ) -> Result<Self> {
        let shape = (dynamic.entries, 4);
        let table = Table::new((container, context), "table", dynamic.table, shape, |b, at| {
            be32(b, at).into()
        })?;
        let differs = kind == Kind::Differencing;
        Ok(Self { dynamic, table, container: container.clone(), differs, written: None })
    }

    /// The same for an image that is written.
    pub(super) fn written(self, written: Written) -> Result<Self> {
        let (table, container) = (self.table.written(&written.file)?, written.file.edge.clone());
        Ok(Self { table, container, written: Some(written), ..self })
    }

    /// The run of sectors from `sector` on that are all here, or all in the parent.
    async fn sectors(
        &self,
        bitmap: u64,
        sector: u64,
        may_wait: bool,
    ) -> Result<Option<(u64, bool)>> {
        let len = self.dynamic.bitmap();
        let bits = match &self.written {
            Some(written) => written.file.blocks.bytes(bitmap, len, may_wait).await?,
            None => {
                let len = usize::try_from(len).unwrap_or(0);
                read(&self.container, bitmap, len, may_wait).await?.map(|bits| bits.to_vec())
            }
        };
        let Some(bits) = bits else { return Ok(None) };
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

impl Runs for Map {
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
            return Err(corrupt(format!("its block {block} overlaps its headers")).at(start));
        }
        lies_within(self.length(&self.container), "block", there, len)?;
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
}

impl Atlas for Map {
    fn file(&self, _: u64) -> Option<(u16, &Edge)> {
        Some((0, &self.container))
    }

    fn length(&self, file: &Edge) -> u64 {
        let written = self.written.as_ref().map(|written| written.file.container.length());
        written.unwrap_or_else(|| file.info().size)
    }
}
