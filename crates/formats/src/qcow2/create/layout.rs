//! The metadata of an image, and their places.
//!
//! Refcounts count themselves, so their number is found by trying until it fits. If the map is
//! known (all clusters have their place), the metadata come before the data, which can then be
//! written in one pass; otherwise they are appended, and only the header is in front.

use device::{Error, Result};

use super::options::CreateOptions;
use crate::qcow2::entry::Geometry;

/// Bytes of an entry of the L1 table and of the refcount table.
const ENTRY: u64 = 8;
/// QEMU's limits, in bytes.
const L1_MAX: u64 = 32 << 20;
const REFCOUNT_TABLE_MAX: u64 = 8 << 20;

/// The shape and size of an image's tables.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Shape {
    pub(super) geometry: Geometry,
    /// A refcount is of 2^order bits.
    pub(super) refcount_order: u32,
    /// Bytes of the disk: whole sectors.
    pub(super) size: u64,
}

impl Shape {
    /// # Errors
    /// No image with these options can have a disk of `size` bytes.
    pub(super) fn new(options: &CreateOptions, size: u64) -> Result<Self> {
        let geometry = Geometry {
            cluster_bits: options.cluster_bits,
            extended: options.extended,
            zeroes: options.version >= 3,
            data_file: options.data_file.is_some(),
        };
        let most = L1_MAX / ENTRY;
        let Some(size) = size
            .checked_next_multiple_of(512)
            .filter(|size| geometry.l1_entries(*size) <= most && *size <= i64::MAX.unsigned_abs())
        else {
            let most = device::format_size(most.saturating_mul(geometry.l2_covers()));
            let action = format!("clusters of {} bytes allow at most {most}", geometry.cluster());
            return Err(Error::invalid(format!("{action}; choose a greater cluster_size")));
        };
        Ok(Self { geometry, refcount_order: options.refcount_order, size })
    }

    /// Clusters of the disk, the last of which may be cut off.
    pub(super) fn disk(self) -> u64 {
        self.size.div_ceil(self.geometry.cluster())
    }

    pub(super) fn l1_entries(self) -> u64 {
        self.geometry.l1_entries(self.size)
    }

    pub(super) fn l1_clusters(self) -> u64 {
        (self.l1_entries() * ENTRY).div_ceil(self.geometry.cluster())
    }

    /// Refcounts in a block, which fills a cluster.
    pub(super) fn counts(self) -> u64 {
        (self.geometry.cluster() * 8) >> self.refcount_order
    }

    /// The largest refcount that is used here.
    pub(super) fn most(self) -> u16 {
        match 1u32 << self.refcount_order {
            bits @ 1..=8 => (1 << bits) - 1,
            _ => u16::MAX,
        }
    }

    /// The refcount tables for `others` clusters and themselves.
    pub(super) fn refcounts(self, others: u64) -> Refcounts {
        let (mut blocks, mut table) = (0, 0);
        loop {
            let clusters = others + blocks + table;
            let more = clusters.div_ceil(self.counts());
            let wide = (more * ENTRY).div_ceil(self.geometry.cluster());
            if (more, wide) == (blocks, table) {
                return Refcounts { blocks, table };
            }
            (blocks, table) = (more, wide);
        }
    }

    /// All metadata before the data, if every cluster has a place.
    ///
    /// # Errors
    /// There would be too many refcounts.
    pub(super) fn in_front(self) -> Result<Layout> {
        self.in_front_of(self.l1_entries(), self.disk())
    }

    /// All metadata before so many clusters of data, with so many L2 tables.
    ///
    /// # Errors
    /// There would be too many refcounts.
    pub(super) fn in_front_of(self, l2_clusters: u64, clusters: u64) -> Result<Layout> {
        let (l1, others) = (1, 1 + self.l1_clusters() + l2_clusters + clusters);
        let l2 = l1 + self.l1_clusters();
        let refcounts = self.refcounts(others);
        let blocks = l2 + l2_clusters;
        let table = blocks + refcounts.blocks;
        let disk = table + refcounts.table;
        let end = disk + clusters;
        Layout { l1, l2, blocks, table, refcounts, disk, end }.check(self)
    }

    /// All metadata after the first `used` clusters, with so many L2 tables.
    ///
    /// # Errors
    /// There would be too many refcounts.
    pub(super) fn behind(self, used: u64, l2_clusters: u64) -> Result<Layout> {
        let refcounts = self.refcounts(used + l2_clusters + self.l1_clusters());
        let l2 = used;
        let l1 = l2 + l2_clusters;
        let blocks = l1 + self.l1_clusters();
        let table = blocks + refcounts.blocks;
        let end = table + refcounts.table;
        Layout { l1, l2, blocks, table, refcounts, disk: 1, end }.check(self)
    }
}

/// How many clusters hold refcounts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Refcounts {
    pub(super) blocks: u64,
    pub(super) table: u64,
}

/// The places of all parts: cluster numbers in the container.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Layout {
    pub(super) l1: u64,
    /// The first L2 table; the others follow it.
    pub(super) l2: u64,
    pub(super) blocks: u64,
    pub(super) table: u64,
    pub(super) refcounts: Refcounts,
    /// Where the data begin.
    pub(super) disk: u64,
    /// Where the image ends.
    pub(super) end: u64,
}

impl Layout {
    fn check(self, shape: Shape) -> Result<Self> {
        if self.refcounts.table * shape.geometry.cluster() > REFCOUNT_TABLE_MAX {
            let action =
                "the refcount table would be longer than 8 MiB; choose a greater cluster_size";
            return Err(Error::invalid(action));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(cluster_bits: u32, refcount_order: u32, size: u64) -> Shape {
        let geometry = Geometry { cluster_bits, extended: false, zeroes: true, data_file: false };
        Shape { geometry, refcount_order, size }
    }

    #[test]
    fn refcounts_count_everything_and_themselves_and_no_more_than_that() {
        for cluster_bits in [9, 12, 16, 21] {
            for order in 0..=6 {
                for others in [1, 3, 100, 4095, 70_000, 1_000_003] {
                    let shape = shape(cluster_bits, order, 0);
                    let Refcounts { blocks, table } = shape.refcounts(others);
                    let all = others + blocks + table;
                    assert!(blocks * shape.counts() >= all);
                    assert!((blocks - 1) * shape.counts() < all, "{cluster_bits} {order} {others}");
                    assert_eq!(table, (blocks * 8).div_ceil(1 << cluster_bits));
                }
            }
        }
    }

    #[test]
    fn in_front_nothing_lies_over_anything_and_the_disk_is_last() {
        for (bits, size) in [(9, 512), (9, 10 << 20), (16, 0), (16, 1 << 40), (21, 3 << 41)] {
            let shape = shape(bits, 4, size);
            let layout = shape.in_front().unwrap();
            assert_eq!(layout.l1, 1);
            assert_eq!(layout.l2, 1 + shape.l1_clusters());
            assert_eq!(layout.blocks, layout.l2 + shape.l1_entries());
            assert_eq!(layout.disk, layout.table + layout.refcounts.table);
            assert_eq!(layout.end, layout.disk + shape.disk());
            assert!(layout.refcounts.blocks * shape.counts() >= layout.end);
        }
    }

    #[test]
    fn the_greatest_refcount_is_that_of_its_width() {
        let most: Vec<_> = (0..=6).map(|order| shape(16, order, 0).most()).collect();
        assert_eq!(most, [1, 3, 15, 255, 65535, 65535, 65535]);
    }
}
