//! Tables that refer to clusters: where a write goes, and what refers to a new cluster.

use std::ops::Range;

use device::Result;

use super::super::corrupt;
use super::super::entry::{COMPRESSED, COPIED, Entry, Geometry, OFFSET, Parts, ZERO, l2_offset};
use super::super::map::Map;
use super::super::region::Region;
use super::{Attempt, Stop, Writer};
use crate::kit::blocks::Rank;
use crate::kit::numbers::be64;

/// Where bytes of the disk are to be written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Spot {
    /// At this offset of the container, so many bytes in a row.
    Here { offset: u64, len: u64 },
    /// In clusters that they do not have yet: so many bytes.
    New { len: u64 },
}

impl Spot {
    pub(super) fn len(self) -> u64 {
        match self {
            Self::Here { len, .. } | Self::New { len } => len,
        }
    }
}

/// An entry of a table; its second half is 0 where entries are not extended.
pub(super) type EntryWords = (u64, u64);

/// All subclusters.
const ALL: u64 = u32::MAX as u64;

/// What becomes of a cluster of the disk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Becomes {
    /// It is in the container from this offset on, alone.
    At(u64),
    /// The same for some of its subclusters.
    PartlyAt(u64, Parts),
    /// It is compressed, and this is its entry.
    Packed(u64),
    /// It reads as zeroes, and has no room.
    Zero,
    /// It is in no table.
    Absent,
}

impl Becomes {
    fn words(self, geometry: Geometry) -> EntryWords {
        let parts = if geometry.extended { ALL } else { 0 };
        match self {
            Self::At(offset) => (offset | COPIED, parts),
            Self::PartlyAt(offset, Parts { here, zero, .. }) => {
                debug_assert!(geometry.extended && here & zero == 0);
                (offset | COPIED, u64::from(zero) << 32 | u64::from(here))
            }
            Self::Packed(entry) => (entry, 0),
            Self::Zero if geometry.extended => (0, ALL << 32),
            Self::Zero => (ZERO, 0),
            Self::Absent => (0, 0),
        }
    }
}

/// The entry with this number in a part of a table.
pub(super) fn words(entries: &[u8], n: u64, geometry: Geometry) -> Option<EntryWords> {
    let at = usize::try_from(n * geometry.entry_len()).ok()?;
    let parts = if geometry.extended { be64(entries, at + 8)? } else { 0 };
    Some((be64(entries, at)?, parts))
}

impl Writer {
    /// The entry of the table for `at` in the L1 table, and its number there.
    fn l1(&self, map: &Map, at: u64) -> (usize, u64) {
        let index = usize::try_from(at / self.geometry.l2_covers()).unwrap_or(usize::MAX);
        (index, map.l1_entry(index))
    }

    /// The place of the entry for `at` in a table.
    fn place(&self, table: u64, at: u64) -> u64 {
        table + at % self.geometry.l2_covers() / self.geometry.cluster() * self.geometry.entry_len()
    }

    /// The end of what the table for `at` would tell, if there is none.
    pub(super) fn end_without_table(&self, map: &Map, at: u64) -> Option<u64> {
        let (_, l1) = self.l1(map, at);
        let covers = self.geometry.l2_covers();
        (l1 & OFFSET == 0).then(|| (at / covers + 1).saturating_mul(covers))
    }

    /// The end of the clusters whose entries are in one block of the cache with that for `at`.
    pub(super) fn end_of_block(&self, at: u64) -> u64 {
        let covers = self.blocks.unit() / self.geometry.entry_len() * self.geometry.cluster();
        (at / covers + 1).saturating_mul(covers)
    }

    /// Where `at` is written, and how many of the bytes up to `end` go there in a row. Bytes that
    /// are `Here` stay there while a lease from before is held.
    pub(super) fn spot(&self, map: &Map, at: u64, end: u64) -> Attempt<Spot> {
        let (cluster, end) = (self.geometry.cluster(), end.min(self.end_of_block(at)));
        let (_, l1) = self.l1(map, at);
        let table = l2_offset(l1, self.geometry)?;
        let Some(table) = table.filter(|_| l1 & COPIED != 0) else {
            return Ok(Spot::New { len: end - at });
        };
        let place = self.place(table, at);
        let block = self.seen(place)?;
        let within = usize::try_from(place - self.blocks.start(place)).unwrap_or(usize::MAX);
        let entries = block.get(within..).unwrap_or_default();
        let (mut found, mut next): (Option<Spot>, _) = (None, at);
        while next < end {
            let words = words(entries, next / cluster - at / cluster, self.geometry);
            let spot = self.spot_in(words.ok_or_else(crate::kit::confused)?, next, end)?;
            match (&mut found, spot) {
                (None, spot) => found = Some(spot),
                (Some(Spot::New { len }), Spot::New { len: more }) => *len += more,
                (Some(Spot::Here { offset, len }), Spot::Here { offset: follows, len: more })
                    if *offset + *len == follows =>
                {
                    *len += more;
                }
                _ => break,
            }
            next += spot.len();
        }
        found.ok_or_else(|| Stop::Failed(crate::kit::confused()))
    }

    /// The same in one cluster.
    fn spot_in(&self, (entry, parts): EntryWords, at: u64, end: u64) -> Result<Spot> {
        let cluster = self.geometry.cluster();
        let within = at % cluster;
        let len = (cluster - within).min(end - at);
        let (offset, is_here, len) = match Entry::decode(entry, parts, self.geometry)? {
            Entry::Plain(offset) => (offset, true, len),
            Entry::Parts(Parts { offset: Some(offset), here, .. }) => {
                let first = within / self.geometry.part();
                let rest = here >> first;
                let alike =
                    if rest & 1 == 1 { rest.trailing_ones() } else { rest.trailing_zeros() };
                let to = (first + u64::from(alike)).saturating_mul(self.geometry.part());
                (offset, rest & 1 == 1, len.min(to - within))
            }
            _ => (0, false, len),
        };
        if entry & COPIED == 0 || !is_here {
            // What it has now is going to be given up.
            self.dropped((entry, parts), (0, 0))?;
            return Ok(Spot::New { len });
        }
        let offset = offset + within;
        self.check_place(Region { offset, len }, at)?;
        Ok(Spot::Here { offset, len })
    }

    /// Refuses to write over what is no data of the disk at `at`.
    fn check_place(&self, region: Region, at: u64) -> Result<()> {
        let Region { offset, .. } = region;
        if !self.geometry.data_file {
            return self.check_data(region);
        }
        if offset != at {
            let action = "a cluster lies elsewhere in the data file than on the disk";
            return Err(corrupt(action).at(offset));
        }
        let length = self.data.container.length();
        if offset >= length.next_multiple_of(self.geometry.cluster()) {
            let action = format!("a cluster lies beyond the end of the file ({length} bytes)");
            return Err(corrupt(action).at(offset));
        }
        Ok(())
    }

    /// Whether the cluster at `at` reads as zeroes, as its entry says.
    pub(super) fn reads_zero(&self, map: &Map, at: u64) -> Attempt<bool> {
        let (_, l1) = self.l1(map, at);
        let Some(table) = l2_offset(l1, self.geometry)? else { return Ok(false) };
        let place = self.place(table, at);
        let block = self.block(place)?;
        let within = usize::try_from(place - self.blocks.start(place)).unwrap_or(usize::MAX);
        let words = words(block.get(within..).unwrap_or_default(), 0, self.geometry);
        let (entry, parts) = words.ok_or_else(crate::kit::confused)?;
        let entry = Entry::decode(entry, parts, self.geometry)?;
        Ok(matches!(entry, Entry::Zero | Entry::ZeroAt(_)))
    }

    /// How new bytes at `at` can join what the image has of their cluster, or will have: its
    /// subclusters, and their place, if there is one already. `None`: all of it has to be copied.
    pub(super) fn parts(&self, map: &Map, at: u64) -> Attempt<Option<Parts>> {
        let nothing = Parts { offset: None, here: 0, zero: 0 };
        let (_, l1) = self.l1(map, at);
        let Some(table) = l2_offset(l1, self.geometry)? else { return Ok(Some(nothing)) };
        let place = self.place(table, at);
        let block = self.seen(place)?;
        let within = usize::try_from(place - self.blocks.start(place)).unwrap_or(usize::MAX);
        let words = words(block.get(within..).unwrap_or_default(), 0, self.geometry);
        let (entry, parts) = words.ok_or_else(crate::kit::confused)?;
        let is_own = l1 & COPIED != 0 && entry & COPIED != 0;
        let all = Parts { zero: u32::MAX, ..nothing };
        let known = match Entry::decode(entry, parts, self.geometry)? {
            Entry::Absent => nothing,
            Entry::Zero => all,
            Entry::ZeroAt(offset) => Parts { offset: is_own.then_some(offset), ..all },
            Entry::Parts(parts) if is_own || parts.offset.is_none() => parts,
            Entry::Parts(_) | Entry::Plain(_) | Entry::Packed { .. } => return Ok(None),
        };
        if let Some(offset) = known.offset {
            let len = self.geometry.cluster();
            self.check_place(Region { offset, len }, at - at % len)?;
        }
        Ok(Some(known))
    }

    /// Lets tables say what becomes of `count` clusters from `at` on, whose entries are in one
    /// block of the cache. What was there is dropped.
    pub(super) async fn link(
        &self,
        map: &Map,
        at: u64,
        count: u64,
        fate: impl Fn(u64) -> Becomes,
    ) -> Result<()> {
        let Some(copied) = self.table_to_copy(map, at).await? else {
            // Nothing is in it, and nothing is to be.
            if (0..count).all(|n| matches!(fate(n), Becomes::Absent)) {
                return Ok(());
            }
            let empty = vec![0; usize::try_from(self.geometry.cluster()).unwrap_or(0)];
            self.add_table(map, at, &empty).await?;
            return self.set_entries(map, at, count, fate).await;
        };
        if let Some(bytes) = copied {
            self.add_table(map, at, &bytes).await?;
        }
        self.set_entries(map, at, count, fate).await
    }

    /// `None`: there is no table for `at`. Otherwise its bytes, if others refer to it too.
    async fn table_to_copy(&self, map: &Map, at: u64) -> Result<Option<Option<Vec<u8>>>> {
        let (_, l1) = self.l1(map, at);
        let Some(table) = l2_offset(l1, self.geometry)? else { return Ok(None) };
        if l1 & COPIED != 0 {
            return Ok(Some(None));
        }
        // It is never changed.
        self.table_bytes(table).await.map(|bytes| Some(Some(bytes)))
    }

    /// Lets the table for `at`, if there is one, be the image's own.
    pub(super) async fn own_table(&self, map: &Map, at: u64) -> Result<()> {
        match self.table_to_copy(map, at).await? {
            Some(Some(bytes)) => self.add_table(map, at, &bytes).await,
            _ => Ok(()),
        }
    }

    /// A table of these bytes for `at`, instead of none or of one that others refer to.
    async fn add_table(&self, map: &Map, at: u64, bytes: &[u8]) -> Result<()> {
        let bits = self.geometry.cluster_bits;
        self.attempt(|state| {
            let (index, l1) = self.l1(map, at);
            // A flag without a table is a damage that costs nothing.
            if l1 & COPIED != 0 && l2_offset(l1, self.geometry)?.is_some() {
                // Another task was first.
                return Ok(());
            }
            let place = state.l1_offset + index as u64 * 8;
            self.block(place)?;
            let unit = self.take(state, 1)?.start;
            let offset = unit << bits;
            self.blocks.add(offset, Rank::Last, bytes);
            self.tables.write().insert(unit);
            self.blocks.change(place, Rank::Last, &(offset | COPIED).to_be_bytes())?;
            map.set_l1_entry(index, offset | COPIED);
            if let Some(old) = l2_offset(l1, self.geometry)? {
                state.room.drop_units(old >> bits..(old >> bits) + 1);
            }
            Ok(())
        })
        .await
    }

    /// Drops the table of an entry with this number in the L1 table, if there is one, and all that
    /// it refers to.
    pub(super) async fn drop_table(&self, index: usize, entry: u64) -> Result<()> {
        let Some(table) = l2_offset(entry, self.geometry)? else { return Ok(()) };
        let (bits, bytes) = (self.geometry.cluster_bits, self.table_bytes(table).await?);
        let mut dropped = Vec::new();
        for n in 0..self.geometry.l2_entries() {
            let old = words(&bytes, n, self.geometry).ok_or_else(crate::kit::confused)?;
            dropped.extend(self.dropped(old, (0, 0))?);
        }
        dropped.push(table >> bits..(table >> bits) + 1);
        self.attempt(|state| {
            let place = state.l1_offset + index as u64 * 8;
            self.block(place)?;
            self.blocks.change(place, Rank::Last, &[0; 8])?;
            dropped.iter().cloned().for_each(|units| state.room.drop_units(units));
            Ok(())
        })
        .await?;
        self.save_much().await
    }

    /// The L2 table at `table`, which nobody changes now.
    pub(super) async fn table_bytes(&self, table: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let step = usize::try_from(self.blocks.unit()).unwrap_or(usize::MAX);
        for block in (table..table + self.geometry.cluster()).step_by(step) {
            bytes.extend_from_slice(&self.blocks.load(block).await?);
        }
        Ok(bytes)
    }

    async fn set_entries(
        &self,
        map: &Map,
        at: u64,
        count: u64,
        fate: impl Fn(u64) -> Becomes,
    ) -> Result<()> {
        debug_assert!(at.is_multiple_of(self.geometry.cluster()));
        let bits = self.geometry.cluster_bits;
        self.attempt(|state| {
            let (_, l1) = self.l1(map, at);
            let table = l2_offset(l1, self.geometry)?;
            let table = table.ok_or_else(crate::kit::confused)?;
            let place = self.place(table, at);
            let block = self.block(place)?;
            let within = usize::try_from(place - self.blocks.start(place)).unwrap_or(usize::MAX);
            let entries = block.get(within..).unwrap_or_default();
            let (mut bytes, mut dropped) = (Vec::new(), Vec::new());
            for n in 0..count {
                let old = words(entries, n, self.geometry).ok_or_else(crate::kit::confused)?;
                let new = fate(n).words(self.geometry);
                debug_assert!(new.0 & COMPRESSED != 0 || new.0 & OFFSET & ((1 << bits) - 1) == 0);
                dropped.extend(self.dropped(old, new)?);
                bytes.extend(new.0.to_be_bytes());
                if self.geometry.extended {
                    bytes.extend(new.1.to_be_bytes());
                }
            }
            self.blocks.change(place, Rank::Last, &bytes)?;
            dropped.into_iter().for_each(|units| state.room.drop_units(units));
            Ok(())
        })
        .await
    }

    /// The clusters of the container to which an entry no longer refers. Refuses to give up what is
    /// no data.
    pub(super) fn dropped(&self, old: EntryWords, new: EntryWords) -> Result<Option<Range<u64>>> {
        let Some(units) = self.counted(old)? else { return Ok(None) };
        let is_one = (old.0 | new.0) & COMPRESSED == 0;
        if is_one && new.0 & OFFSET == units.start << self.geometry.cluster_bits {
            return Ok(None);
        }
        self.check_units_of_data(&units)?;
        Ok(Some(units))
    }

    /// The clusters of the container that an entry refers to, whatever they are.
    pub(super) fn counted(&self, entry: EntryWords) -> Result<Option<Range<u64>>> {
        let bits = self.geometry.cluster_bits;
        let (start, len) = match Entry::decode(entry.0, entry.1, self.geometry)? {
            // Those of a data file are not counted.
            _ if self.geometry.data_file => return Ok(None),
            Entry::Plain(offset)
            | Entry::ZeroAt(offset)
            | Entry::Parts(Parts { offset: Some(offset), .. }) => (offset, 1),
            Entry::Packed { offset, len } => (offset, len),
            Entry::Absent | Entry::Zero | Entry::Parts(_) => return Ok(None),
        };
        Ok(Some(start >> bits..((start + len - 1) >> bits) + 1))
    }

    /// Refuses clusters that are no data.
    pub(super) fn check_units_of_data(&self, units: &Range<u64>) -> Result<()> {
        let bits = self.geometry.cluster_bits;
        let (offset, len) = (units.start << bits, (units.end - units.start) << bits);
        self.check_data(Region { offset, len })
    }
}
