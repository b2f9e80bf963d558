//! Making VHD images.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use device::{Device, Edge, Error, Result, values};

use crate::kit::fields::new_uuid;
use crate::kit::{Growing, Shape, Slots, blocks_with_data, clear_now, settle, write_table};
use crate::{DiskMap, Making, Measure};

use super::header::{
    DYNAMIC, Dynamic, FOOTER, Footer, Geometry, Kind, LARGEST_GEOMETRY, SECTOR, SECTORS_MAX,
};

const BLOCK: u64 = 2 << 20;
/// A container that seems this large has no fixed size, and gets one at the end.
const BOUND: u64 = 1 << 60;
/// Seconds from 1970 to 2000, where VHD's clock starts.
const YEAR_2000: u64 = 946_684_800;

struct Plan {
    footer: Footer,
    dynamic: Option<Dynamic>,
    /// The creator field, which tells other programs which size applies.
    creator: [u8; 4],
}

fn plan(making: &Making<'_>) -> Result<Plan> {
    if making.compress {
        return Err(Error::invalid("a VHD image cannot be compressed"));
    }
    let kinds = ["dynamic", "fixed"];
    let fixed = values::choice(making.options, "subformat", &kinds)? == Some(1);
    let force = values::on_off(making.options, "force_size")?.unwrap_or(false);
    let wanted = making.size.div_ceil(SECTOR);
    if wanted > SECTORS_MAX {
        let (most, size) = (SECTORS_MAX * SECTOR, making.size);
        return Err(Error::unfit(format!("a VHD image has at most {most} bytes, not {size}")));
    }
    let geometry = Geometry::around(wanted);
    let by_geometry = !force && geometry.sectors() != LARGEST_GEOMETRY;
    let sectors = if by_geometry { geometry.sectors() } else { wanted };
    let (kind, next) = if fixed { (Kind::Fixed, u64::MAX) } else { (Kind::Dynamic, FOOTER as u64) };
    let size = sectors * SECTOR;
    let dynamic = (!fixed).then(|| Dynamic {
        at: next,
        table: (FOOTER + DYNAMIC) as u64,
        entries: size.div_ceil(BLOCK),
        block: BLOCK,
        bytes: Vec::new(),
    });
    let creator = if by_geometry { *b"qemu" } else { *b"qem2" };
    Ok(Plan { footer: Footer { kind, size, next, geometry, id: new_uuid() }, dynamic, creator })
}

/// The offset of the first block with its bitmap. After the bitmap, a block's bytes are aligned to
/// sectors only.
fn start(dynamic: &Dynamic) -> u64 {
    (dynamic.table + dynamic.entries * 4).next_multiple_of(SECTOR)
}

pub(super) fn open(
    container: Edge,
    making: &Making<'_>,
    _: DiskMap<'_>,
) -> Result<Arc<dyn Device>> {
    let Plan { footer, dynamic, creator } = plan(making)?;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let seconds = u32::try_from(seconds.saturating_sub(YEAR_2000)).unwrap_or(u32::MAX);
    let (size, durable) = (footer.size, making.durable);
    let footer = footer.encode(creator, seconds);
    let Some(dynamic) = dynamic else {
        let end = size + FOOTER as u64;
        let room = container.info().size;
        // Readers look for the footer at the end of the container, so it must be there.
        if room != end && room < BOUND {
            let action = format!(
                "a fixed VHD ends with its container: that has {room} bytes, and not {end}"
            );
            return Err(Error::unfit(action));
        }
        clear_now(&container, 0, end)?;
        let shape = Shape { block: BLOCK, prefix: Vec::new(), start: 0, size, fixed: true };
        return Ok(Growing::device(container, making, shape, move |below: &Edge, _: &Slots| {
            settle(below, durable)?;
            below.write(&footer, size, false)?;
            Ok(end)
        }));
    };
    let start = start(&dynamic);
    clear_now(&container, 0, start)?;
    // Every sector of a block counts as written.
    let prefix = vec![0xff; usize::try_from(dynamic.bitmap()).unwrap_or(FOOTER)];
    let shape = Shape { block: BLOCK, prefix, start, size, fixed: false };
    let ends = shape.clone();
    Ok(Growing::device(container, making, shape, move |below: &Edge, slots: &Slots| {
        let end = ends.end(slots.used());
        // The table is padded to a sector.
        let entries = (start - dynamic.table) / 4;
        write_table(below, dynamic.table, entries, |block| {
            let at = slots.get(block).map(|room| ends.end(room) / SECTOR);
            at.and_then(|at| u32::try_from(at).ok()).unwrap_or(u32::MAX).to_be_bytes()
        })?;
        below.write(&dynamic.encode(), dynamic.at, false)?;
        below.write(&footer, end, false)?;
        settle(below, durable)?;
        below.write(&footer, 0, false)?;
        Ok(end + FOOTER as u64)
    }))
}

pub(super) fn measure(making: &Making<'_>, map: DiskMap<'_>) -> Result<Measure> {
    let Plan { footer, dynamic, .. } = plan(making)?;
    let Some(dynamic) = dynamic else {
        let all = footer.size + FOOTER as u64;
        return Ok(Measure { required: all, fully_allocated: all });
    };
    let with = |blocks: u64| start(&dynamic) + blocks * (dynamic.bitmap() + BLOCK) + FOOTER as u64;
    let required = with(blocks_with_data(map, BLOCK)?);
    Ok(Measure { required, fully_allocated: with(dynamic.entries) })
}
