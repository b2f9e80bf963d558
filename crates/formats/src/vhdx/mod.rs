//! VHDX: the disks of Hyper-V.
//!
//! All numbers are little-endian. Reads fixed, dynamic and differencing images (the parent through
//! the gate); the log of an image that was not closed is replayed in memory. Makes fixed and
//! dynamic ones.

mod check;
mod crc;
mod create;
mod header;
mod log;
mod metadata;
mod replayed;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use device::{Device, Edge, Result, param};
use runtime::Context;

use crate::kit::fields::{corrupt, le64, lies_inside};
use crate::kit::{Atlas, Lies, Run, Scattered, Table, disk_info, read};
use crate::{Creator, Description, Format, NamedFile, Opening};

use header::{Guid, Header, MIB, Regions};
use metadata::Metadata;

pub(crate) const FORMAT: Format = Format {
    word: "vhdx",
    summary: "VHDX, the disk image of Hyper-V",
    is_plain: false,
    is_packing: false,
    params: &[],
    recognises: |head| head.has(0, header::COOKIE),
    open,
    describe,
    create: Some(Creator {
        beside: None,
        options: &[
            param("subformat", "dynamic|fixed", "whether room is taken as it is needed (dynamic)"),
            param("block_size", "SIZE", "bytes of a block, 1M to 256M; 0 chooses by the disk (0)"),
            param("log_size", "SIZE", "bytes of the log, whole MiB (1M)"),
            param(
                "block_state_zero",
                "on|off",
                "blocks that are not there are said to be zero (on)",
            ),
        ],
        open: create::open,
        over: crate::format::over_nothing,
        piped: |_| Ok(false),
        remake: None,
        measure: create::measure,
        measure_bitmaps: crate::format::no_bitmaps,
    }),
    check: Some(check::check),
};

/// The largest disk there is.
const SIZE_MAX: u64 = 64 << 40;
/// No file is longer.
const CONTAINER_MAX: u64 = 1 << 62;

const ABSENT: u64 = 0;
const UNDEFINED: u64 = 1;
const ZERO: u64 = 2;
const UNMAPPED: u64 = 3;
/// What was `UNMAPPED` in the draft of the format, and QEMU still knows.
const UNMAPPED_ONCE: u64 = 5;
const PRESENT: u64 = 6;
const PARTLY: u64 = 7;

/// An image with its log replayed, and what it says.
struct VhdxImage {
    container: Edge,
    dirty: bool,
    regions: Regions,
    metadata: Metadata,
}

impl VhdxImage {
    fn read(container: Edge) -> Result<Self> {
        let header = Header::read(&container)?;
        let changes = log::read(&container, &header)?;
        let dirty = changes.is_some();
        let container = match changes {
            Some(changes) => {
                let pool = container.pool().clone();
                Edge::new(replayed::open(container, changes), pool)
            }
            None => container,
        };
        let regions = Regions::read(&container, header.log)?;
        let metadata = Metadata::read(&container, regions.metadata)?;
        Ok(Self { container, dirty, regions, metadata })
    }
}

fn open(container: Edge, opening: &Opening<'_>) -> Result<Arc<dyn Device>> {
    let VhdxImage { container, regions, metadata, .. } = VhdxImage::read(container)?;
    let backing = match &metadata.parent {
        Some(parent) => Some(parent.open(FORMAT.word, opening.files, id_of)?),
        None => None,
    };
    let info = disk_info(&container, metadata.size);
    let map = Map::new((&container, opening.context), regions, metadata)?;
    Ok(Scattered::device(info, opening.context, backing, map))
}

/// The identifier of an image's data, by which one over it knows it.
fn id_of(container: &Edge) -> Result<Guid> {
    Header::read(container).map(|header| header.data)
}

fn describe(container: &Edge, _: &Context) -> Result<Description> {
    let VhdxImage { dirty, metadata, .. } = VhdxImage::read(container.clone())?;
    let parent = metadata.parent.and_then(|parent| parent.names.into_iter().next());
    Ok(Description {
        virtual_size: metadata.size,
        cluster_size: Some(metadata.block),
        backing: parent.map(|name| NamedFile { name, format: Some(FORMAT.word.into()) }),
        dirty,
        ..Description::default()
    })
}

/// Where the blocks lie.
struct Map {
    metadata: Metadata,
    regions: Regions,
    table: Table,
    container: Edge,
}

impl Map {
    fn new(
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
        Ok(Self { metadata, regions, table, container: container.clone() })
    }

    /// The offset of a part of the block in an entry.
    fn place(&self, entry: u64, len: u64) -> Result<u64> {
        let offset = (entry >> 20) * MIB;
        let Regions { bat, metadata, log } = self.regions;
        if offset > CONTAINER_MAX {
            return Err(corrupt("a block lies behind where any file ends").at(offset));
        }
        let over = [bat, metadata, log].iter().any(|region| region.overlaps(offset, len));
        if offset < MIB || over {
            return Err(corrupt("a block lies over the headers of the VHDX image").at(offset));
        }
        Ok(offset)
    }

    /// The run of sectors from `at` on that are all here or all in the parent, and which of the
    /// two.
    async fn sectors(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<(u64, bool)>> {
        let (sector, ratio) = (self.metadata.sector, self.metadata.ratio());
        let (block, index) = (at / self.metadata.block, at / sector);
        let chunk = block / ratio;
        let entry = self.table.entry((chunk + 1) * ratio + chunk, may_wait).await?;
        let Some(entry) = entry else { return Ok(None) };
        if entry & 7 != PRESENT {
            return Err(corrupt(format!("the VHDX image has no bitmap for its block {block}")));
        }
        let bitmap = self.place(entry, MIB)?;
        // Bits of this chunk, as many as are asked for and no more than a page of them.
        let first = index % (1 << 23);
        let bits = (at % sector + len).div_ceil(sector).min(1 << 15);
        let (start, bytes) = (first / 8, (first % 8 + bits).div_ceil(8));
        let n = usize::try_from(bytes).unwrap_or(0);
        lies_inside(&self.container, "bitmap", bitmap + start, bytes)?;
        let Some(found) = read(&self.container, bitmap + start, n, may_wait).await? else {
            return Ok(None);
        };
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

impl Atlas for Map {
    async fn run(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<Run>> {
        let (block, within) = (at / self.metadata.block, at % self.metadata.block);
        let mut len = len.min(self.metadata.block - within);
        let index = block + block / self.metadata.ratio();
        let Some(entry) = self.table.entry(index, may_wait).await? else { return Ok(None) };
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
            lies_inside(&self.container, "block", there, len)?;
        }
        Ok(Some(Run { len, lies }))
    }

    fn file(&self, _: u64) -> Option<(u16, &Edge)> {
        Some((0, &self.container))
    }
}
