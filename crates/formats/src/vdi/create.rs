//! Making VDI images.

use std::sync::Arc;

use device::{Device, Edge, Error, Result, values};

use crate::kit::{Growing, Shape, Slots, clear_now, settle, write_table};
use crate::{DiskMap, Making, Measure};

use super::header::{self, BLOCKS_MAX, Header, Kind};

const BLOCK: u64 = 1 << 20;
/// Blocks begin at a multiple of this, so that they can be shared with other files.
const ALIGN: u64 = 1 << 20;

/// The header of an empty image.
fn plan(making: &Making<'_>) -> Result<Header> {
    let fixed = values::on_off(making.options, "static")?.unwrap_or(false);
    let kind = if fixed { Kind::Static } else { Kind::Dynamic };
    let size = making.size.checked_next_multiple_of(512).unwrap_or(u64::MAX);
    let blocks = size.div_ceil(BLOCK);
    if blocks > BLOCKS_MAX {
        let most = BLOCKS_MAX * BLOCK;
        return Err(Error::unfit(format!("a VDI image has at most {most} bytes, not {size}")));
    }
    if making.compress {
        return Err(Error::invalid("a VDI image cannot be compressed"));
    }
    let map = header::LEN;
    let data = (map + blocks * 4).next_multiple_of(ALIGN);
    // All numbers have 32 bits.
    if data > u64::from(u32::MAX) {
        return Err(Error::unfit("a VDI image of that size has no space for its map"));
    }
    Ok(Header { kind, map, data, size, block: BLOCK, blocks, allocated: 0 })
}

pub(super) fn open(
    container: Edge,
    making: &Making<'_>,
    _: DiskMap<'_>,
) -> Result<Arc<dyn Device>> {
    let (header, durable) = (plan(making)?, making.durable);
    let (size, start) = (header.size, header.data);
    // An old header must not be taken for that of the new image.
    let fixed = header.kind == Kind::Static;
    let end = if fixed { start + header.blocks * BLOCK } else { start };
    clear_now(&container, 0, end)?;
    let shape = Shape { block: BLOCK, prefix: Vec::new(), start, size, fixed };
    Ok(Growing::device(container, making, shape, move |below: &Edge, slots: &Slots| {
        write_table(below, header.map, header.blocks, |block| entry(slots.get(block)))?;
        settle(below, durable)?;
        let header = Header { allocated: slots.used(), ..header.clone() };
        below.write(&header.encode(), 0, false)?;
        Ok(header.data + slots.used() * BLOCK)
    }))
}

/// An entry of the map; a block without a slot is absent.
fn entry(room: Option<u64>) -> [u8; 4] {
    let room = room.and_then(|room| u32::try_from(room).ok());
    room.unwrap_or(u32::MAX).to_le_bytes()
}

pub(super) fn measure(making: &Making<'_>, map: DiskMap<'_>) -> Result<Measure> {
    let header = plan(making)?;
    let fully_allocated = header.data + header.blocks * BLOCK;
    let blocks = match header.kind {
        Kind::Static => header.blocks,
        Kind::Dynamic => crate::kit::blocks_with_data(map, BLOCK)?,
    };
    Ok(Measure { required: header.data + blocks * BLOCK, fully_allocated })
}
