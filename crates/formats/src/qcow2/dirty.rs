//! Reads a dirty bitmap: which parts of the disk were written since it was made.

use std::sync::Arc;

use device::{Result, StatusRun, merge_run};
use runtime::{StepBudget, WorkPool};

use super::bitmap::Bitmap;
use super::corrupt;
use super::entry::OFFSET;
use super::tables::{TableSlice, Tables};
use super::tracked::Tracked;
use crate::kit::confused;

/// The flag of an unallocated cluster of bits that are all ones.
pub(super) const ONES: u64 = 1;

/// A bitmap as a status context.
pub(super) struct Dirty {
    /// Its name for clients.
    pub(super) context: Arc<str>,
    pub(super) bitmap: Bitmap,
    /// What was written since it was opened, if that is tracked.
    tracked: Option<Arc<Tracked>>,
}

impl Dirty {
    pub(super) fn new(bitmap: Bitmap, tracked: &[Arc<Tracked>]) -> Self {
        let context = format!("qemu:dirty-bitmap:{}", device::text::shown(&bitmap.name));
        let tracked = tracked.iter().find(|tracked| tracked.bitmap == bitmap).cloned();
        Self { context: context.into(), bitmap, tracked }
    }
}

/// The place of the bits for a part of the disk.
enum Bits {
    All(bool),
    /// In this slice of a cluster.
    In(TableSlice),
}

/// The status of a range: 1 if it was written, else 0. At most `max` (≥ 1) runs.
pub(super) async fn runs(
    tables: &Tables,
    dirty: &Dirty,
    (offset, len): (u64, u64),
    max: usize,
    pool: &WorkPool,
) -> Result<Vec<StatusRun>> {
    let (mut at, end, mut found) = (offset, offset + len, Vec::new());
    let mut budget = StepBudget::default();
    let bits = u32::from(dirty.bitmap.granularity_bits);
    while at < end && found.len() <= max {
        budget.spend(pool).await;
        let first = at >> bits;
        // Whatever is not here any more when this was looked at, is there.
        let fresh = dirty.tracked.as_ref().map(|tracked| tracked.fresh(first));
        let (known, until) = bits_at(tables, &dirty.bitmap, first).await?;
        let (fresh, until) = fresh.map_or((None, until), |(bits, end)| (bits, until.min(end)));
        for bit in first..until {
            let value = match &known {
                Bits::All(value) => *value,
                Bits::In(slice) => is_set(slice, bit, tables)?,
            };
            let value = value || fresh.as_ref().is_some_and(|bits| is_set_in(bits, bit));
            // The rest is the same.
            let is_one = matches!(known, Bits::All(_)) && fresh.is_none();
            let last = if is_one { until } else { bit + 1 };
            let to = last.saturating_mul(1 << bits).min(end);
            merge_run(&mut found, StatusRun { len: to - at, value: value.into() });
            at = to;
            if at >= end || found.len() > max || last == until {
                break;
            }
        }
    }
    found.truncate(max);
    Ok(found)
}

/// Bits in a cluster.
fn in_cluster(tables: &Tables) -> u64 {
    tables.geometry.cluster() * 8
}

fn is_set(slice: &TableSlice, bit: u64, tables: &Tables) -> Result<bool> {
    let byte = slice.byte(bit % in_cluster(tables) / 8).ok_or_else(confused)?;
    Ok(byte >> (bit % 8) & 1 != 0)
}

/// Whether a bit is set in a chunk of bits.
fn is_set_in(chunk: &[u8], bit: u64) -> bool {
    let within = usize::try_from(bit % (chunk.len() as u64 * 8)).unwrap_or(0);
    chunk.get(within / 8).is_some_and(|byte| byte >> (within % 8) & 1 != 0)
}

/// The place of bit `bit`, and the last bit that this place covers.
async fn bits_at(tables: &Tables, bitmap: &Bitmap, bit: u64) -> Result<(Bits, u64)> {
    let cluster = tables.geometry.cluster();
    let index = bit / in_cluster(tables);
    if index >= u64::from(bitmap.table_entries) {
        return Err(corrupt("the table of a bitmap is too short").at(bitmap.table_offset));
    }
    // The table may be longer than a cluster.
    let table = bitmap.table_offset + index * 8 / cluster * cluster;
    let at = index * 8 % cluster;
    let slice = tables.slice(table, (at, at + 8), true).await?.ok_or_else(confused)?;
    let entry = slice.number(at).ok_or_else(confused)?;
    let until = (index + 1) * in_cluster(tables);
    let offset = entry & OFFSET;
    if offset == 0 {
        return Ok((Bits::All(entry & ONES != 0), until));
    }
    let at = bit % in_cluster(tables) / 8;
    let slice = tables.slice(offset, (at, at + 1), true).await?.ok_or_else(confused)?;
    let until = until.min(index * in_cluster(tables) + slice.end() * 8);
    Ok((Bits::In(slice), until))
}
