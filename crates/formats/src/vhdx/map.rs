//! Where the blocks of a VHDX image lie.

use std::sync::Arc;

use device::{Edge, Result};
use runtime::Context;

use super::CONTAINER_MAX;
use super::header::{MIB, Regions};
use super::metadata::Metadata;
use super::write::Written;
use crate::kit::fields::{corrupt, le64, lies_within};
use crate::kit::{Atlas, Lies, Run, Runs, Table, WrittenFile, read};

pub(super) const ABSENT: u64 = 0;
const UNDEFINED: u64 = 1;
pub(super) const ZERO: u64 = 2;
const UNMAPPED: u64 = 3;
/// What was `UNMAPPED` in the draft of the format, and QEMU still knows.
const UNMAPPED_ONCE: u64 = 5;
pub(super) const PRESENT: u64 = 6;
pub(super) const PARTLY: u64 = 7;

/// Where the blocks lie.
pub(super) struct Map {
    pub(super) metadata: Metadata,
    regions: Regions,
    pub(super) table: Table,
    container: Edge,
    /// If the image is written.
    pub(super) written: Option<Written>,
}

impl Map {
    pub(super) fn new(
        (container, context): (&Edge, &Context),
        regions: Regions,
        metadata: Metadata,
    ) -> Result<Self> {
        let entries = metadata.entries();
        if entries * 8 > regions.bat.len {
            return Err(corrupt("the VHDX image is broken: its table of blocks is too short"));
        }
        let table = Table::new(
            (container, context),
            "table of blocks",
            regions.bat.offset,
            (entries, 8),
            le64,
        )?;
        Ok(Self { metadata, regions, table, container: container.clone(), written: None })
    }

    /// The same in an image that is written.
    pub(super) fn written(self, written: Written) -> Result<Self> {
        let file: &Arc<WrittenFile> = &written.file;
        let (table, container) = (self.table.written(file)?, file.edge.clone());
        Ok(Self { table, container, written: Some(written), ..self })
    }

    /// The entry of a block in the table, by its number: after each chunk of blocks comes one for
    /// their bitmap.
    pub(super) fn index(&self, block: u64) -> u64 {
        block + block / self.metadata.ratio()
    }

    /// The offset of a part of the block in an entry.
    pub(super) fn place(&self, entry: u64, len: u64) -> Result<u64> {
        let offset = (entry >> 20) * MIB;
        let Regions { bat, metadata, log } = self.regions;
        if offset > CONTAINER_MAX {
            return Err(corrupt("a block lies beyond the end of any file").at(offset));
        }
        let over = [bat, metadata, log].iter().any(|region| region.overlaps(offset, len));
        if offset < MIB || over {
            return Err(corrupt("a block overlaps the headers of the VHDX image").at(offset));
        }
        Ok(offset)
    }

    /// Where the bitmap of the chunk of blocks with `at` lies.
    pub(super) async fn bitmap(&self, at: u64, may_wait: bool) -> Result<Option<u64>> {
        let (block, ratio) = (at / self.metadata.block, self.metadata.ratio());
        let chunk = block / ratio;
        let entry = self.table.entry((chunk + 1) * ratio + chunk, may_wait).await?;
        let Some(entry) = entry else { return Ok(None) };
        if entry & 7 != PRESENT {
            return Err(corrupt(format!("the VHDX image has no bitmap for its block {block}")));
        }
        self.place(entry, MIB).map(Some)
    }

    /// The run of sectors from `at` on that are all here or all in the parent, and which of the
    /// two.
    async fn sectors(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<(u64, bool)>> {
        let (sector, index) = (self.metadata.sector, at / self.metadata.sector);
        let Some(bitmap) = self.bitmap(at, may_wait).await? else { return Ok(None) };
        // Bits of this chunk, as many as are asked for and no more than a page of them.
        let first = index % (1 << 23);
        let bits = (at % sector + len).div_ceil(sector).min(1 << 15);
        let (start, bytes) = (first / 8, (first % 8 + bits).div_ceil(8));
        lies_within(self.length(&self.container), "bitmap", bitmap + start, bytes)?;
        let found = match &self.written {
            Some(written) => written.file.blocks.bytes(bitmap + start, bytes, may_wait).await?,
            None => {
                let n = usize::try_from(bytes).unwrap_or(0);
                let found = read(&self.container, bitmap + start, n, may_wait).await?;
                found.map(|bits| bits.to_vec())
            }
        };
        let Some(found) = found else { return Ok(None) };
        // The lowest bit of a byte is the first sector.
        let bit = |i: u64| {
            let at = first % 8 + i;
            let byte = usize::try_from(at / 8).ok().and_then(|at| found.get(at));
            byte.is_some_and(|byte| byte & (1 << (at % 8)) != 0)
        };
        let here = bit(0);
        let run = (0..bits).find(|i| bit(*i) != here).unwrap_or(bits);
        Ok(Some((run * sector - at % sector, here)))
    }
}

impl Runs for Map {
    async fn run(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<Run>> {
        let (block, within) = (at / self.metadata.block, at % self.metadata.block);
        let mut len = len.min(self.metadata.block - within);
        let entry = self.table.entry(self.index(block), may_wait).await?;
        let Some(entry) = entry else { return Ok(None) };
        let differs = self.metadata.parent.is_some();
        let lies = match entry & 7 {
            ABSENT if differs => Lies::Beneath,
            ABSENT | UNDEFINED | ZERO | UNMAPPED | UNMAPPED_ONCE => Lies::Hole,
            PRESENT => Lies::At(self.place(entry, self.metadata.block)? + within),
            PARTLY if differs => {
                let Some((run, here)) = self.sectors(at, len, may_wait).await? else {
                    return Ok(None);
                };
                len = len.min(run);
                if here {
                    Lies::At(self.place(entry, self.metadata.block)? + within)
                } else {
                    Lies::Beneath
                }
            }
            state => {
                return Err(corrupt(format!(
                    "the VHDX image is broken: block {block} is in state {state}"
                )));
            }
        };
        if let Lies::At(there) = lies {
            lies_within(self.length(&self.container), "block", there, len)?;
        }
        Ok(Some(Run { len, lies }))
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
