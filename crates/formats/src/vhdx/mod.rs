//! VHDX: the disks of Hyper-V.
//!
//! All numbers are little-endian. Reads fixed, dynamic and differencing images (the parent through
//! the gate); the log of an image that was not closed is replayed in memory. Makes fixed and
//! dynamic ones, and writes them where they lie, through the log.

mod check;
mod crc;
mod create;
mod header;
mod journal;
mod log;
mod map;
mod metadata;
mod replayed;
#[cfg(test)]
mod tests;
mod write;

use std::sync::Arc;

use device::{Device, Edge, Result, param};
use runtime::Context;

use crate::kit::{Scattered, disk_info};
use crate::{Creator, Description, Format, NamedFile, Opening, Upkeep};

use header::{Guid, Header, Regions};
use map::Map;
use metadata::Metadata;

pub use crc::crc32c;

pub(crate) const FORMAT: Format = Format {
    word: "vhdx",
    summary: "VHDX, the disk image of Hyper-V",
    is_plain: false,
    packing: None,
    params: &[],
    recognises: |head| head.has(0, header::COOKIE),
    open,
    describe,
    write: Some(write::open),
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
        reads_zero: true,
        measure: create::measure,
        measure_bitmaps: crate::format::no_bitmaps,
    }),
    check: Some(check::check),
    upkeep: Upkeep::NONE,
};

/// The largest disk there is.
const SIZE_MAX: u64 = 64 << 40;
/// No file is longer.
const CONTAINER_MAX: u64 = 1 << 62;
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
