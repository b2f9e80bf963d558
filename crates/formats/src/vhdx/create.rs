//! Making VHDX images: the first MiB, the log, the metadata, the table of blocks, and the blocks.

use std::sync::Arc;

use device::{Device, Edge, Error, Result, values};

use crate::kit::{Growing, Shape, Slots, blocks_with_data, clear_now, settle, write_table};
use crate::{DiskMap, Making, Measure};

use super::SIZE_MAX;
use super::header::{MIB, Region, Regions};
use super::map::{ABSENT, PRESENT, ZERO};
use super::metadata::Metadata;

#[derive(Clone)]
struct Plan {
    regions: Regions,
    metadata: Metadata,
    /// The state of a missing block.
    absent: u64,
    /// Where the first block begins.
    start: u64,
}

/// As in QEMU: larger blocks for larger disks.
fn block_for(size: u64) -> u64 {
    match size {
        n if n > 32 << 40 => 64 * MIB,
        n if n > 100 << 30 => 32 * MIB,
        n if n > 1 << 30 => 16 * MIB,
        _ => 8 * MIB,
    }
}

fn plan(making: &Making<'_>) -> Result<Plan> {
    if making.compress {
        return Err(Error::invalid("a VHDX image cannot be compressed"));
    }
    let options = making.options;
    let size = making.size.checked_next_multiple_of(512).unwrap_or(u64::MAX);
    if size > SIZE_MAX {
        return Err(Error::unfit(format!("a VHDX image has at most 64 TiB, and not {size} bytes")));
    }
    let fixed = values::choice(options, "subformat", &["dynamic", "fixed"])? == Some(1);
    let block = match values::size(options, "block_size")?.unwrap_or(0) {
        0 => block_for(size),
        given if given.is_power_of_two() && (MIB..=256 * MIB).contains(&given) => given,
        _ => return Err(Error::invalid("block_size: must be a power of two from 1M to 256M")),
    };
    let log = match values::size(options, "log_size")?.unwrap_or(MIB) {
        0 => MIB,
        given if given.is_multiple_of(MIB) && given <= 64 * MIB => given,
        _ => return Err(Error::invalid("log_size: must be whole MiB, at most 64M")),
    };
    let zero = values::on_off(options, "block_state_zero")?.unwrap_or(true);
    let metadata = Metadata { size, block, sector: 512, fixed, parent: None };
    let log = Region { offset: MIB, len: log };
    let table = Region { offset: log.offset + log.len, len: MIB };
    // For a disk without blocks, QEMU computes the count minus one in 32 bits, and opens only
    // images with room for that many.
    let entries = match size {
        0 => u64::from(u32::MAX) / metadata.ratio() + 1,
        _ => metadata.entries(),
    };
    let len = (entries * 8).next_multiple_of(MIB);
    let bat = Region { offset: table.offset + table.len, len };
    let regions = Regions { bat, metadata: table, log };
    let absent = if zero { ZERO } else { ABSENT };
    Ok(Plan { regions, metadata, absent, start: bat.offset + bat.len })
}

impl Plan {
    fn end(&self, blocks: u64) -> u64 {
        self.start + blocks * self.metadata.block
    }

    /// Writes all but the blocks; `place` gives the place of a block.
    fn write(&self, below: &Edge, durable: bool, place: impl Fn(u64) -> Option<u64>) -> Result<()> {
        let (ratio, bat) = (self.metadata.ratio(), self.regions.bat);
        write_table(below, bat.offset, self.metadata.entries(), |index| {
            let (chunk, within) = (index / (ratio + 1), index % (ratio + 1));
            let entry = match place(chunk * ratio + within) {
                // Between the blocks are the entries of bitmaps, which do not exist.
                _ if within == ratio => ABSENT,
                Some(offset) => ((offset / MIB) << 20) | PRESENT,
                None => self.absent,
            };
            entry.to_le_bytes()
        })?;
        below.write(&self.metadata.encode(), self.regions.metadata.offset, false)?;
        self.regions.write(below, || settle(below, durable))
    }
}

pub(super) fn open(
    container: Edge,
    making: &Making<'_>,
    _: DiskMap<'_>,
) -> Result<Arc<dyn Device>> {
    let (plan, durable) = (plan(making)?, making.durable);
    let (size, start, blocks) = (plan.metadata.size, plan.start, plan.metadata.blocks());
    let Metadata { block, fixed, .. } = plan.metadata;
    clear_now(&container, 0, if fixed { plan.end(blocks) } else { start })?;
    let shape = Shape { block, prefix: Vec::new(), start, size, fixed };
    Ok(Growing::device(container, making, shape, move |below: &Edge, slots: &Slots| {
        plan.write(below, durable, |block| slots.get(block).map(|room| plan.end(room)))?;
        Ok(plan.end(slots.used()))
    }))
}

pub(super) fn measure(making: &Making<'_>, map: DiskMap<'_>) -> Result<Measure> {
    let plan = plan(making)?;
    let all = plan.metadata.blocks();
    let blocks = match plan.metadata.fixed {
        true => all,
        false => blocks_with_data(map, plan.metadata.block)?,
    };
    Ok(Measure { required: plan.end(blocks), fully_allocated: plan.end(all) })
}
