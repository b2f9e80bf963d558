//! The place of each cluster of the disk, as far as known, and the used part of the container.
//!
//! Entries have the format of L2 tables. A table of only zeroes is one entry here.

use std::collections::BTreeMap;
use std::ops::Range;

use device::{Error, ErrorKind, Fault, Result};

use super::layout::Shape;
use crate::qcow2::entry::{COMPRESSED, COPIED, Entry, OFFSET, ZERO};

/// The allocator of container clusters, in ascending order.
#[derive(Debug)]
pub(super) struct Room {
    next: u64,
    /// The most clusters.
    limit: u64,
    /// Clusters that were returned unwritten; a request for at most as many gets them.
    spare: Vec<Range<u64>>,
}

impl Room {
    /// For a container of `size` bytes, whose first cluster holds the header.
    pub(super) fn new(shape: Shape, size: u64) -> Self {
        // An entry has 56 bits for an offset.
        let limit = size.min(1 << 56) >> shape.geometry.cluster_bits;
        Self { next: 1, limit, spare: Vec::new() }
    }

    /// All used clusters lie before this.
    pub(super) fn end(&self) -> u64 {
        self.next
    }

    /// `len` clusters in a row.
    pub(super) fn take(&mut self, len: u64) -> Result<u64> {
        if let Some(spare) = self.spare.iter_mut().find(|spare| len <= spare.end - spare.start) {
            let start = spare.start;
            spare.start += len;
            self.spare.retain(|spare| !spare.is_empty());
            return Ok(start);
        }
        if len > self.limit.saturating_sub(self.next) {
            let action = "allocate a cluster: the image would be larger than its container";
            return Err(Error::new(ErrorKind::NoSpace, Fault::File, action));
        }
        let start = self.next;
        self.next += len;
        Ok(start)
    }

    /// Returns clusters that were not written to, and never will be.
    pub(super) fn give_back(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // Neighbours are one range, which more requests fit into; at the end nothing is left over.
        let mut range = range;
        self.spare.retain(|other| {
            let (before, after) = (other.end == range.start, other.start == range.end);
            range = if before { other.start..range.end } else { range.clone() };
            range = if after { range.start..other.end } else { range.clone() };
            !(before || after)
        });
        if range.end == self.next {
            self.next = range.start;
        } else {
            self.spare.push(range);
        }
    }
}

/// The known clusters of an L2 table.
#[derive(Debug)]
pub(super) enum Table {
    Zero,
    Entries(Box<[u64]>),
}

/// The places of the clusters of the disk.
#[derive(Debug)]
pub(super) struct Clusters {
    shape: Shape,
    tables: BTreeMap<u64, Table>,
}

impl Clusters {
    pub(super) fn new(shape: Shape) -> Self {
        Self { shape, tables: BTreeMap::new() }
    }

    fn split(&self, cluster: u64) -> (u64, usize) {
        let entries = self.shape.geometry.l2_entries();
        (cluster / entries, usize::try_from(cluster % entries).unwrap_or(usize::MAX))
    }

    /// The entry of a cluster; 0: not allocated.
    pub(super) fn get(&self, cluster: u64) -> u64 {
        let (table, at) = self.split(cluster);
        match self.tables.get(&table) {
            None => 0,
            Some(Table::Zero) => ZERO,
            Some(Table::Entries(entries)) => entries.get(at).copied().unwrap_or(0),
        }
    }

    pub(super) fn set(&mut self, cluster: u64, entry: u64) {
        let (table, at) = self.split(cluster);
        let len = usize::try_from(self.shape.geometry.l2_entries()).unwrap_or(0);
        let fresh = |entry| Table::Entries(vec![entry; len].into());
        let table = self.tables.entry(table).or_insert_with(|| fresh(0));
        if matches!(table, Table::Zero) {
            *table = fresh(ZERO);
        }
        if let Table::Entries(entries) = table
            && let Some(old) = entries.get_mut(at)
        {
            *old = entry;
        }
    }

    /// Makes clusters zero, whole tables at a time if possible. None of them may be allocated.
    pub(super) fn set_zero(&mut self, clusters: Range<u64>) {
        let per_table = self.shape.geometry.l2_entries();
        let mut at = clusters.start;
        while at < clusters.end {
            let last = (at + 1).next_multiple_of(per_table).min(self.shape.disk());
            if at.is_multiple_of(per_table) && last <= clusters.end {
                self.tables.insert(at / per_table, Table::Zero);
                at = last;
            } else {
                self.set(at, ZERO);
                at += 1;
            }
        }
    }

    /// The tables that there are, with their numbers.
    pub(super) fn tables(&self) -> &BTreeMap<u64, Table> {
        &self.tables
    }

    /// The first cluster with an entry, from `cluster` up to `end`; or `end`.
    pub(super) fn next_known(&self, cluster: u64, end: u64) -> u64 {
        let (table, _) = self.split(cluster);
        let per_table = self.shape.geometry.l2_entries();
        if self.tables.contains_key(&table) {
            return cluster;
        }
        let next = self.tables.range(table..).next().map(|(table, _)| table * per_table);
        next.unwrap_or(end).min(end)
    }

    /// Reference counts of the first `end` clusters of the container.
    pub(super) fn counts(&self, end: u64) -> Result<Vec<u16>> {
        let len = usize::try_from(end).map_err(|_| Error::invalid("too many clusters"))?;
        let mut counts = vec![0u16; len];
        let entries = self.tables.values().flat_map(|table| match table {
            Table::Zero => &[][..],
            Table::Entries(entries) => entries,
        });
        for entry in entries {
            let Some(home) = home(*entry, self.shape) else { continue };
            for cluster in home {
                let count = usize::try_from(cluster).ok().and_then(|at| counts.get_mut(at));
                let Some(count) = count else { continue };
                *count = count.saturating_add(1);
            }
        }
        Ok(counts)
    }
}

/// The offset of an entry's cluster, if it is uncompressed.
pub(super) fn plain(entry: u64) -> Option<u64> {
    (entry & COPIED != 0).then_some(entry & OFFSET)
}

/// The clusters of the container in which an entry's cluster lies.
fn home(entry: u64, shape: Shape) -> Option<Range<u64>> {
    let bits = shape.geometry.cluster_bits;
    if entry & COMPRESSED != 0 {
        let decoded = Entry::decode(entry, 0, shape.geometry).ok()?;
        let Entry::Packed { offset, len } = decoded else { return None };
        return Some(offset >> bits..((offset + len - 1) >> bits) + 1);
    }
    // Clusters of a data file are not in the container.
    plain(entry)
        .filter(|_| !shape.geometry.data_file)
        .map(|offset| offset >> bits..(offset >> bits) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qcow2::entry::Geometry;

    fn shape(cluster_bits: u32, clusters: u64) -> Shape {
        let geometry = Geometry { cluster_bits, extended: false, zeroes: true, data_file: false };
        Shape { geometry, refcount_order: 4, size: clusters << cluster_bits }
    }

    #[test]
    fn what_is_given_back_is_given_out_again_and_the_end_moves_back() {
        let mut room = Room::new(shape(9, 10), 20 * 512);
        assert_eq!(room.take(3).unwrap(), 1);
        assert_eq!(room.take(4).unwrap(), 4);
        assert_eq!(room.take(2).unwrap(), 8);
        room.give_back(8..10);
        assert_eq!(room.end(), 8);
        room.give_back(4..6);
        assert_eq!(room.take(12).unwrap(), 8);
        assert_eq!(room.take(1).unwrap(), 4);
        assert_eq!(room.take(1).unwrap(), 5);
        assert_eq!(room.take(1).unwrap_err().kind(), ErrorKind::NoSpace);
        // In whatever order it comes back: neighbours are one range, and nothing is left over at
        // the end.
        room.give_back(4..6);
        room.give_back(8..20);
        room.give_back(6..8);
        assert_eq!((room.end(), room.spare.len()), (4, 0));
        assert_eq!(room.take(16).unwrap(), 4);
        room.give_back(4..6);
        room.give_back(8..10);
        room.give_back(6..8);
        assert_eq!(room.take(6).unwrap(), 4);
    }

    #[test]
    fn a_table_of_zeroes_is_one_entry_until_it_is_written() {
        let mut clusters = Clusters::new(shape(9, 200));
        clusters.set_zero(3..200);
        assert_eq!(clusters.tables().len(), 4);
        assert!(matches!(clusters.tables()[&3], Table::Zero), "the last one is cut off");
        clusters.set(130, COPIED | 512);
        let found: Vec<_> = [2, 3, 129, 130, 131].map(|c| clusters.get(c)).into();
        assert_eq!(found, [0, ZERO, ZERO, COPIED | 512, ZERO]);
        assert_eq!(Clusters::new(shape(9, 200)).next_known(5, 200), 200);
    }

    #[test]
    fn a_packed_cluster_counts_where_it_begins_and_where_it_ends() {
        let shape = shape(9, 4);
        let mut clusters = Clusters::new(shape);
        clusters.set(0, shape.geometry.packed(512 + 500, 100).unwrap());
        clusters.set(1, shape.geometry.packed(1024 + 88, 300).unwrap());
        clusters.set(2, COPIED | (3 * 512));
        clusters.set(3, ZERO);
        assert_eq!(clusters.counts(5).unwrap(), [0, 1, 2, 1, 0]);
    }
}
