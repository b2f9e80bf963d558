//! Refcounts as the image has them, and as they should be.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use device::{Edge, Result};

use super::check::too_much;
use super::header::{Header, REFCOUNT_ORDER_MAX};
use super::region::Region;
use super::stream::ContainerReader;
use crate::kit::numbers::{be16, be32, be64};

/// Clusters per chunk of counters, and the most chunks.
const LOT: usize = 1024;
const LOTS_MAX: usize = 1 << 16;
/// The most clusters behind the end that are noted.
const BEHIND_MAX: usize = 1 << 20;
/// Refcount blocks to cache.
const BLOCKS_KEPT: usize = 32;

/// The references to each cluster of the container.
pub(super) struct References {
    cluster_bits: u32,
    clusters: u64,
    lots: BTreeMap<u64, Box<[u32; LOT]>>,
    /// Clusters behind the end that are referred to all the same: they are lost.
    behind: BTreeSet<u64>,
}

impl References {
    pub(super) fn new(size: u64, cluster_bits: u32) -> Self {
        Self {
            cluster_bits,
            clusters: size.div_ceil(1 << cluster_bits),
            lots: BTreeMap::new(),
            behind: BTreeSet::new(),
        }
    }

    /// Whether all of it is in clusters of the container, the last of which may be cut off.
    pub(super) fn holds(&self, region: Region) -> bool {
        let end = self.clusters << self.cluster_bits;
        region.offset <= end && region.len <= end - region.offset
    }

    /// Counts references to each cluster that the region touches; `false`: not all of it is in the
    /// container. Its first and last cluster behind the end are noted.
    pub(super) fn add(&mut self, region: Region, times: u32) -> Result<bool> {
        if region.len == 0 {
            return Ok(true);
        }
        let is_here = self.holds(region);
        let first = region.offset >> self.cluster_bits;
        let last = region.offset.saturating_add(region.len - 1) >> self.cluster_bits;
        for cluster in first..(last + 1).min(self.clusters) {
            let count = self.count(cluster)?;
            *count = count.saturating_add(times);
        }
        if !is_here && self.behind.len() < BEHIND_MAX {
            self.behind.insert(first.max(self.clusters));
            self.behind.insert(last);
        }
        Ok(is_here)
    }

    /// Which of these clusters, behind the end of the container, are referred to.
    pub(super) fn behind(&self, clusters: Range<u64>) -> impl Iterator<Item = u64> {
        self.behind.range(clusters).copied()
    }

    fn count(&mut self, cluster: u64) -> Result<&mut u32> {
        let lot = cluster / LOT as u64;
        if self.lots.len() >= LOTS_MAX && !self.lots.contains_key(&lot) {
            return Err(too_much("the image has too many clusters"));
        }
        let lot = self.lots.entry(lot).or_insert_with(|| Box::new([0; LOT]));
        let within = usize::try_from(cluster % LOT as u64).unwrap_or(0);
        lot.get_mut(within).ok_or_else(|| too_much("a cluster is out of reach"))
    }

    /// The references to a cluster.
    pub(super) fn of(&self, cluster: u64) -> u32 {
        let lot = self.lots.get(&(cluster / LOT as u64));
        let within = usize::try_from(cluster % LOT as u64).unwrap_or(0);
        lot.and_then(|lot| lot.get(within)).copied().unwrap_or(0)
    }

    /// Forgets one reference to each cluster of a region that was counted.
    pub(super) fn remove(&mut self, region: Region) -> Result<()> {
        let first = region.offset >> self.cluster_bits;
        let count = (region.len + (1 << self.cluster_bits) - 1) >> self.cluster_bits;
        for cluster in first..first + count {
            let count = self.count(cluster)?;
            *count = count.saturating_sub(1);
        }
        Ok(())
    }

    /// Clusters of the container.
    pub(super) fn clusters(&self) -> u64 {
        self.clusters
    }

    /// The most references to one cluster.
    pub(super) fn most(&self) -> u32 {
        self.lots.values().flat_map(|lot| lot.iter()).copied().max().unwrap_or(0)
    }

    /// The clusters from `from` up to `to` that are referred to, and how often.
    pub(super) fn within(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u32)> {
        let lots = self.lots.range(from / LOT as u64..to.div_ceil(LOT as u64));
        let all = lots.flat_map(|(lot, counts)| (lot * LOT as u64..).zip(counts.iter().copied()));
        all.filter(move |(cluster, count)| (from..to).contains(cluster) && *count > 0)
    }
}

/// The refcounts of an image.
pub(super) struct Refcounts<'a> {
    container: &'a Edge,
    cluster: usize,
    order: u32,
    /// Offsets of the blocks, and whatever stands in the bits that have no meaning; 0: all its
    /// refcounts are 0.
    blocks: Vec<u64>,
    kept: HashMap<u64, Vec<u8>>,
    /// The block that was asked for last, with its offset: neighbours are in it.
    last: (u64, Vec<u8>),
}

impl<'a> Refcounts<'a> {
    /// Reads the table. It was checked to be in the container, and not too long.
    pub(super) fn read(container: &'a Edge, header: &Header) -> Result<Self> {
        let cluster = header.geometry().cluster();
        let len = u64::from(header.refcount_table_clusters) * cluster;
        let offset = header.refcount_table_offset;
        let mut entries = ContainerReader::new(container, "refcount table", offset, len);
        let blocks = (0..len / 8).map(|_| Ok(be64(entries.take(8)?, 0).unwrap_or(0)));
        Ok(Self {
            container,
            cluster: usize::try_from(cluster).unwrap_or(0),
            order: header.refcount_order,
            blocks: blocks.collect::<Result<_>>()?,
            kept: HashMap::new(),
            last: (0, Vec::new()),
        })
    }

    pub(super) fn blocks(&self) -> &[u64] {
        &self.blocks
    }

    /// Treats all refcounts of a block as 0.
    pub(super) fn forget(&mut self, index: usize) {
        if let Some(block) = self.blocks.get_mut(index) {
            *block = 0;
        }
    }

    /// Refcounts in a block.
    pub(super) fn in_block(&self) -> u64 {
        (self.cluster as u64 * 8) >> self.order
    }

    /// Writes the numbers of references into the blocks, where `is_wanted` says so of a refcount
    /// and a number of references that differ. All clusters in use have a block.
    pub(super) fn mend(
        &mut self,
        container: &Edge,
        references: &References,
        is_wanted: impl Fn(u64, u64) -> bool,
    ) -> Result<()> {
        self.kept.clear();
        self.last = (0, Vec::new());
        for (i, offset) in (0u64..).zip(self.blocks.iter().copied()) {
            let each = self.in_block();
            let (from, to) = (i * each, (i * each + each).min(references.clusters));
            if from >= to {
                break;
            }
            if offset == 0 {
                continue;
            }
            let (mut block, mut is_changed) = (self.read_block(offset)?, false);
            for cluster in from..to {
                let now = refcount(&block, cluster - from, self.order);
                let count = references.of(cluster).into();
                if now != count && is_wanted(now, count) {
                    set_refcount(&mut block, cluster - from, self.order, count);
                    is_changed = true;
                }
            }
            if is_changed {
                container.write(&block, offset, false)?;
            }
        }
        Ok(())
    }

    /// The refcount of a cluster.
    pub(super) fn of(&mut self, cluster: u64) -> Result<u64> {
        let index = usize::try_from(cluster / self.in_block()).unwrap_or(usize::MAX);
        let Some(offset) = self.blocks.get(index).copied().filter(|offset| *offset != 0) else {
            return Ok(0);
        };
        if self.last.0 != offset {
            let block = match self.kept.remove(&offset) {
                Some(block) => block,
                None => self.read_block(offset)?,
            };
            if self.kept.len() >= BLOCKS_KEPT {
                self.kept.clear();
            }
            let (before, block) = std::mem::replace(&mut self.last, (offset, block));
            self.kept.insert(before, block);
        }
        Ok(refcount(&self.last.1, cluster % self.in_block(), self.order))
    }

    /// A block; zeroes beyond the end of the file.
    fn read_block(&self, offset: u64) -> Result<Vec<u8>> {
        let mut block = vec![0; self.cluster];
        let there = self.container.info().size.saturating_sub(offset);
        let there = usize::try_from(there).unwrap_or(usize::MAX).min(block.len());
        if there > 0 {
            self.container.read(block.get_mut(..there).unwrap_or_default(), offset)?;
        }
        Ok(block)
    }

    /// Visits each cluster with a refcount or references: the cluster, and both numbers.
    pub(super) fn compare(
        &mut self,
        references: &References,
        mut tell: impl FnMut(u64, u64, u64),
    ) -> Result<()> {
        self.kept.clear();
        self.last = (0, Vec::new());
        let (each, order) = (self.in_block(), self.order);
        for (i, offset) in (0u64..).zip(self.blocks.iter().copied()) {
            let (from, to) = (i * each, (i * each + each).min(references.clusters));
            if from >= to {
                break;
            }
            if offset == 0 {
                references.within(from, to).for_each(|(c, count)| tell(c, 0, count.into()));
                continue;
            }
            let block = self.read_block(offset)?;
            for cluster in from..to {
                let (refcount, count) =
                    (refcount(&block, cluster - from, order), references.of(cluster));
                if refcount > 0 || count > 0 {
                    tell(cluster, refcount, count.into());
                }
            }
        }
        let covered = self.blocks.len() as u64 * each;
        let beyond = references.within(covered, references.clusters.max(covered));
        beyond.for_each(|(cluster, count)| tell(cluster, 0, count.into()));
        Ok(())
    }
}

/// A refcount of 2^`order` bits in a block: big-endian, or lowest bits first below a byte.
pub(super) fn refcount(block: &[u8], index: u64, order: u32) -> u64 {
    let at = usize::try_from((index << order) / 8).unwrap_or(usize::MAX);
    let byte = || block.get(at).copied();
    let found = match order {
        0..=2 => byte().map(|byte| {
            let shift = (index << order) % 8;
            u64::from(byte) >> shift & ((1 << (1 << order)) - 1)
        }),
        3 => byte().map(u64::from),
        4 => be16(block, at).map(u64::from),
        5 => be32(block, at).map(u64::from),
        _ => be64(block, at),
    };
    found.unwrap_or(0)
}

/// Stores a refcount in a block; it must fit.
pub(super) fn set_refcount(block: &mut [u8], index: u64, order: u32, count: u64) {
    let at = usize::try_from((index << order) / 8).unwrap_or(usize::MAX);
    debug_assert!(
        order == REFCOUNT_ORDER_MAX || count >> (1 << order) == 0,
        "{count} of 2^{order}"
    );
    if order < 3 {
        let (shift, mask) = ((index << order) % 8, (1u64 << (1 << order)) - 1);
        if let Some(byte) = block.get_mut(at) {
            let new = u64::from(*byte) & !(mask << shift) | (count & mask) << shift;
            *byte = u8::try_from(new).unwrap_or(*byte);
        }
        return;
    }
    let bytes = count.to_be_bytes();
    let len = 1 << (order - 3);
    let room = block.get_mut(at..).and_then(|rest| rest.get_mut(..len));
    if let (Some(room), Some(low)) = (room, bytes.get(bytes.len() - len..)) {
        room.copy_from_slice(low);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refcount_of_any_width_is_read_as_it_was_stored_and_no_other_changes() {
        for order in 0..=REFCOUNT_ORDER_MAX {
            let mut block = vec![0; 64];
            let count = (64 * 8) >> order;
            let most = if order == 6 { u64::MAX } else { (1 << (1 << order)) - 1 };
            for index in 0..count {
                set_refcount(&mut block, index, order, most);
                set_refcount(&mut block, index, order, most - index % 2);
            }
            for index in 0..count {
                assert_eq!(refcount(&block, index, order), most - index % 2, "{order} {index}");
            }
        }
    }
}
