//! Entries of L1 and L2 tables.

use device::Result;

use super::corrupt;

/// The cluster belongs to this table alone: its refcount is 1.
pub(super) const COPIED: u64 = 1 << 63;
/// L2: the cluster is compressed.
pub(super) const COMPRESSED: u64 = 1 << 62;
/// L2: the cluster reads as zeroes, allocated or not. Not with extended entries, nor in version 2.
pub(super) const ZERO: u64 = 1;
/// Bits of an offset in the container.
pub(super) const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// Subclusters of a cluster, with extended entries.
pub(super) const SUBCLUSTERS: u32 = 32;
/// The unit of compressed lengths.
pub(super) const SECTOR: u64 = 512;

/// The layout of an image's tables.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Geometry {
    pub(super) cluster_bits: u32,
    /// Entries of 16 bytes, with subclusters.
    pub(super) extended: bool,
    /// Clusters may read as zeroes: version 3.
    pub(super) zeroes: bool,
    /// Clusters lie in a data file.
    pub(super) data_file: bool,
}

impl Geometry {
    /// Bytes of a cluster.
    pub(super) fn cluster(self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bytes of a slice of a table, in which it is kept in memory.
    pub(super) fn slice(self) -> u64 {
        self.cluster().min(4096)
    }

    /// Bytes of an L2 entry.
    pub(super) fn entry_len(self) -> u64 {
        if self.extended { 16 } else { 8 }
    }

    /// Entries of an L2 table, which fills a cluster.
    pub(super) fn l2_entries(self) -> u64 {
        self.cluster() / self.entry_len()
    }

    /// Bytes of the disk that an L2 table covers.
    pub(super) fn l2_covers(self) -> u64 {
        self.l2_entries() * self.cluster()
    }

    /// Bytes of the smallest part of the disk that is allocated by itself.
    pub(super) fn part(self) -> u64 {
        if self.extended { self.cluster() / u64::from(SUBCLUSTERS) } else { self.cluster() }
    }

    /// L1 entries of a disk of `size` bytes.
    pub(super) fn l1_entries(self, size: u64) -> u64 {
        size.div_ceil(self.l2_covers())
    }

    /// The position of the length in the entry of a compressed cluster.
    fn length_shift(self) -> u32 {
        62 - (self.cluster_bits - 8)
    }

    /// Sectors that a compressed cluster may touch.
    pub(super) fn most_sectors(self) -> u64 {
        1 << (self.cluster_bits - 8)
    }

    /// The entry of a cluster that was compressed to `len` (≥ 1) bytes at `offset`; `None` if these
    /// do not fit.
    pub(super) fn packed(self, offset: u64, len: u64) -> Option<u64> {
        let last = offset.checked_add(len.checked_sub(1)?)?;
        let sectors = last / SECTOR - offset / SECTOR + 1;
        let fits = sectors <= self.most_sectors() && offset >> self.length_shift() == 0;
        fits.then_some(COMPRESSED | (sectors - 1) << self.length_shift() | offset)
    }
}

/// The offset of the L2 table in an L1 entry; `None`: there is none.
pub(super) fn l2_offset(entry: u64, geometry: Geometry) -> Result<Option<u64>> {
    let offset = entry & OFFSET;
    if !offset.is_multiple_of(geometry.cluster()) {
        return Err(corrupt("an L2 table does not begin at a cluster").at(offset));
    }
    Ok((offset != 0).then_some(offset))
}

/// The meaning of an L2 entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Entry {
    /// Not allocated.
    Absent,
    /// It reads as zeroes.
    Zero,
    /// It reads as zeroes, and has space allocated.
    ZeroAt(u64),
    /// Plain bytes.
    Plain(u64),
    /// Compressed.
    Packed {
        /// The offset of the first byte.
        offset: u64,
        /// The length; bytes after the cluster's own end belong to others.
        len: u64,
    },
    /// Its subclusters differ.
    Parts(Parts),
}

/// Subclusters of a cluster: a bit each, the lowest for the first.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Parts {
    /// The offset of the space for all of them, if allocated.
    pub(super) offset: Option<u64>,
    /// The allocated ones.
    pub(super) here: u32,
    /// The ones that read as zeroes.
    pub(super) zero: u32,
}

impl Entry {
    /// Decodes an entry, with its second half if entries are extended (0 otherwise).
    ///
    /// # Errors
    /// The entry is invalid.
    pub(super) fn decode(entry: u64, parts: u64, geometry: Geometry) -> Result<Self> {
        let offset = entry & OFFSET;
        if entry & COMPRESSED != 0 {
            return Self::decode_packed(entry, geometry);
        }
        if !offset.is_multiple_of(geometry.cluster()) {
            return Err(corrupt("a cluster of data does not begin at a cluster").at(offset));
        }
        // The first cluster of a data file is at 0.
        let has_room = offset != 0 || geometry.data_file && entry & COPIED != 0;
        if geometry.extended {
            return Self::decode_parts(has_room.then_some(offset), parts);
        }
        if entry & ZERO != 0 && !geometry.zeroes {
            return Err(corrupt("a cluster of zeroes in an image of version 2"));
        }
        Ok(match (entry & ZERO != 0, has_room) {
            (true, true) => Self::ZeroAt(offset),
            (true, false) => Self::Zero,
            (false, true) => Self::Plain(offset),
            (false, false) => Self::Absent,
        })
    }

    fn decode_packed(entry: u64, geometry: Geometry) -> Result<Self> {
        if geometry.data_file {
            return Err(corrupt("a compressed cluster in an image with a data file"));
        }
        let shift = geometry.length_shift();
        let offset = entry & ((1 << shift) - 1);
        let sectors = (entry >> shift & (geometry.most_sectors() - 1)) + 1;
        if offset < geometry.cluster() {
            return Err(corrupt("a compressed cluster overlaps the header").at(offset));
        }
        Ok(Self::Packed { offset, len: sectors * SECTOR - offset % SECTOR })
    }

    #[allow(clippy::cast_possible_truncation, reason = "two halves of a number")]
    fn decode_parts(offset: Option<u64>, parts: u64) -> Result<Self> {
        let (here, zero) = (parts as u32, (parts >> 32) as u32);
        if here & zero != 0 || offset.is_none() && here != 0 {
            let error = corrupt("a subcluster is zero and here, or here and nowhere");
            return Err(offset.map_or(error.duplicate(), |at| error.at(at)));
        }
        Ok(match (offset, here, zero) {
            (None, 0, 0) => Self::Absent,
            (None, 0, u32::MAX) => Self::Zero,
            (Some(offset), u32::MAX, 0) => Self::Plain(offset),
            (Some(offset), 0, u32::MAX) => Self::ZeroAt(offset),
            _ => Self::Parts(Parts { offset, here, zero }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Geometry =
        Geometry { cluster_bits: 16, extended: false, zeroes: true, data_file: false };

    fn decode(entry: u64, parts: u64, geometry: Geometry) -> Option<Entry> {
        Entry::decode(entry, parts, geometry).ok()
    }

    #[test]
    fn an_entry_says_what_its_bits_say_and_what_cannot_be_is_refused() {
        let at = 0x50000;
        assert_eq!(decode(0, 0, PLAIN), Some(Entry::Absent));
        assert_eq!(decode(ZERO, 0, PLAIN), Some(Entry::Zero));
        assert_eq!(decode(at | ZERO, 0, PLAIN), Some(Entry::ZeroAt(at)));
        assert_eq!(decode(at | COPIED, 0, PLAIN), Some(Entry::Plain(at)));
        assert_eq!(decode(at + 512, 0, PLAIN), None);
        assert_eq!(decode(ZERO, 0, Geometry { zeroes: false, ..PLAIN }), None);
        let data_file = Geometry { data_file: true, ..PLAIN };
        assert_eq!(decode(COPIED, 0, data_file), Some(Entry::Plain(0)));
        assert_eq!(decode(0, 0, data_file), Some(Entry::Absent));
        assert_eq!(decode(COMPRESSED | at, 0, data_file), None);
        assert_eq!(decode(COMPRESSED | 7, 0, PLAIN), None, "over the header");
    }

    #[test]
    fn what_is_compressed_ends_with_its_last_sector_in_clusters_of_any_size() {
        for cluster_bits in 9..=21 {
            let geometry = Geometry { cluster_bits, ..PLAIN };
            let most = geometry.most_sectors() * SECTOR;
            let base = geometry.cluster() * 5;
            for (offset, len) in [(base, 1), (base + 511, 1), (base + 511, 2), (base, most)] {
                let entry = geometry.packed(offset, len).unwrap();
                let end = (offset + len).next_multiple_of(SECTOR);
                let packed = Entry::Packed { offset, len: end - offset };
                assert_eq!(decode(entry, 0, geometry), Some(packed), "{cluster_bits} {len}");
            }
            assert_eq!(geometry.packed(base + 1, most), None);
            assert_eq!(geometry.packed(1 << 61, 1), None);
        }
    }

    #[test]
    fn subclusters_are_here_or_zero_or_neither_and_never_both() {
        let geometry = Geometry { extended: true, ..PLAIN };
        let (at, all) = (0x70000, u64::from(u32::MAX));
        assert_eq!(decode(0, 0, geometry), Some(Entry::Absent));
        assert_eq!(decode(0, all << 32, geometry), Some(Entry::Zero));
        assert_eq!(decode(at, all, geometry), Some(Entry::Plain(at)));
        assert_eq!(decode(at, all << 32, geometry), Some(Entry::ZeroAt(at)));
        let parts = Parts { offset: Some(at), here: 1, zero: 2 };
        assert_eq!(decode(at, 2 << 32 | 1, geometry), Some(Entry::Parts(parts)));
        assert_eq!(decode(at, 1 << 32 | 1, geometry), None);
        assert_eq!(decode(0, 1, geometry), None);
    }
}
