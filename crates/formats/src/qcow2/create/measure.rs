//! The size of an image, as `qemu-img measure` counts it, including all tables.

use device::{Error, Result};

use super::layout::Shape;
use super::options::{CreateOptions, Qcow2Preallocation};
use crate::format::{Making, Measure};
use crate::{DiskMap, StoredBitmap, qcow2::bitmap};

pub(super) fn measure(making: &Making<'_>, map: DiskMap<'_>) -> Result<Measure> {
    let options = CreateOptions::read(making.options, making.compress)?;
    let shape = Shape::new(&options, making.size)?;
    let cluster = shape.geometry.cluster();
    let disk = shape.disk() * cluster;
    // Whole tables, as QEMU counts them: the last L2 table and the L1 table are full.
    let l2_tables = shape.disk().div_ceil(shape.geometry.l2_entries());
    let l1_clusters = (l2_tables * 8).div_ceil(cluster);
    let key = options.encryption.as_ref().map_or(0, |new| new.len.div_ceil(cluster));
    let others = 1 + key + l2_tables + l1_clusters + shape.disk();
    let refcounts = shape.refcounts(others);
    let fully_allocated = (others + refcounts.blocks + refcounts.table)
        .checked_mul(cluster)
        .ok_or_else(|| Error::invalid("the image would be too large"))?;
    let room =
        matches!(options.preallocation, Qcow2Preallocation::Falloc | Qcow2Preallocation::Full);
    let mut map = map.peekable();
    // Over a backing image what the source has may differ everywhere; an image without a source
    // holds nothing.
    let differs = options.backing.is_some() && map.peek().is_some();
    let data = if room || differs { disk } else { clusters_of(&mut map, cluster)? };
    let outside = if options.data_file.is_some() { disk } else { 0 };
    Ok(Measure {
        required: (fully_allocated - disk + data).saturating_sub(outside.min(data)),
        fully_allocated: fully_allocated - outside,
    })
}

/// Bytes of the clusters with data.
fn clusters_of(map: DiskMap<'_>, cluster: u64) -> Result<u64> {
    let (mut clusters, mut counted) = (0, 0);
    for extent in map {
        let extent = extent?;
        if extent.kind.reads_zero() || extent.len == 0 {
            continue;
        }
        let first = (extent.start / cluster).max(counted);
        counted = counted.max(extent.end().div_ceil(cluster));
        clusters += counted.saturating_sub(first);
    }
    Ok(clusters * cluster)
}

/// Bytes of all clusters, tables and the directory of these bitmaps, with every bit of them there.
pub(super) fn bitmaps(making: &Making<'_>, bitmaps: &[StoredBitmap]) -> Result<Option<u64>> {
    let options = CreateOptions::read(making.options, making.compress)?;
    if options.version < 3 {
        return Ok(None);
    }
    let cluster = Shape::new(&options, making.size)?.geometry.cluster();
    let (mut clusters, mut directory) = (0_u64, 0_u64);
    for StoredBitmap { name, granularity } in bitmaps {
        let bits = making.size.div_ceil((*granularity).max(1));
        let data = bits.div_ceil(8).div_ceil(cluster);
        clusters = clusters.saturating_add(data).saturating_add((data * 8).div_ceil(cluster));
        directory = directory.saturating_add(bitmap::entry_len(name));
    }
    let clusters = clusters.saturating_add(directory.div_ceil(cluster));
    Ok(Some(clusters.saturating_mul(cluster)))
}
