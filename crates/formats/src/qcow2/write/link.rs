//! Tables that refer to clusters: where a write goes, and what refers to a new cluster.

use device::Result;

use super::super::corrupt;
use super::super::entry::{COPIED, Entry, OFFSET, ZERO, l2_offset};
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

/// What becomes of a cluster of the disk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Becomes {
    /// It is in the container from this offset on, alone.
    At(u64),
    /// It reads as zeroes, and has no room.
    Zero,
    /// It is in no table.
    Absent,
}

impl Becomes {
    fn entry(self) -> u64 {
        match self {
            Self::At(offset) => offset | COPIED,
            Self::Zero => ZERO,
            Self::Absent => 0,
        }
    }
}

impl Writer {
    /// The entry of the table for `at` in the L1 table, and its number there.
    fn l1(&self, map: &Map, at: u64) -> (usize, u64) {
        let index = usize::try_from(at / self.geometry.l2_covers()).unwrap_or(usize::MAX);
        (index, map.l1_entry(index))
    }

    /// The place of the entry for `at` in a table.
    fn place(&self, table: u64, at: u64) -> u64 {
        table + at % self.geometry.l2_covers() / self.geometry.cluster() * 8
    }

    /// The end of what the table for `at` would tell, if there is none.
    pub(super) fn end_without_table(&self, map: &Map, at: u64) -> Option<u64> {
        let (_, l1) = self.l1(map, at);
        let covers = self.geometry.l2_covers();
        (l1 & OFFSET == 0).then(|| (at / covers + 1).saturating_mul(covers))
    }

    /// The end of the clusters whose entries are in one block of the cache with that for `at`.
    pub(super) fn end_of_block(&self, at: u64) -> u64 {
        let covers = self.blocks.unit() / 8 * self.geometry.cluster();
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
        let block = self.block(place)?;
        let within = usize::try_from(place - self.blocks.start(place)).unwrap_or(usize::MAX);
        let mut found: Option<Spot> = None;
        let mut next = at;
        for entry in block.get(within..).unwrap_or_default().chunks_exact(8) {
            if next >= end {
                break;
            }
            let entry = be64(entry, 0).unwrap_or(0);
            let len = (cluster - next % cluster).min(end - next);
            let spot = match Entry::decode(entry, 0, self.geometry)? {
                Entry::Plain(offset) if entry & COPIED != 0 => {
                    let offset = offset + next % cluster;
                    self.check_apart(Region { offset, len })?;
                    let length = self.container.length();
                    if offset >= length.next_multiple_of(cluster) {
                        let action = format!("a cluster lies beyond the end ({length} bytes)");
                        return Err(Stop::Failed(corrupt(action).at(offset)));
                    }
                    Spot::Here { offset, len }
                }
                _ => Spot::New { len },
            };
            match (&mut found, spot) {
                (None, spot) => found = Some(spot),
                (Some(Spot::New { len }), Spot::New { len: more }) => *len += more,
                (Some(Spot::Here { offset, len }), Spot::Here { offset: follows, len: more })
                    if *offset + *len == follows =>
                {
                    *len += more
                }
                _ => break,
            }
            next += len;
        }
        found.ok_or_else(|| Stop::Failed(crate::kit::confused()))
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
        let (mut bytes, cluster) = (Vec::new(), self.geometry.cluster());
        let step = usize::try_from(self.blocks.unit()).unwrap_or(usize::MAX);
        for block in (table..table + cluster).step_by(step) {
            bytes.extend_from_slice(&self.blocks.load(block).await?);
        }
        Ok(Some(Some(bytes)))
    }

    /// A table of these bytes for `at`, instead of none or of one that others refer to.
    async fn add_table(&self, map: &Map, at: u64, bytes: &[u8]) -> Result<()> {
        let bits = self.geometry.cluster_bits;
        self.attempt(|state| {
            let (index, l1) = self.l1(map, at);
            if l1 & COPIED != 0 {
                // Another task was first.
                return Ok(());
            }
            let place = self.l1_offset + index as u64 * 8;
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
            let old = block.get(within..).unwrap_or_default().chunks_exact(8);
            let (mut bytes, mut dropped) = (Vec::new(), Vec::new());
            for (n, entry) in (0..count).zip(old) {
                let entry = be64(entry, 0).unwrap_or(0);
                let (start, len) = match Entry::decode(entry, 0, self.geometry)? {
                    Entry::Plain(offset) | Entry::ZeroAt(offset) => (offset, 1),
                    Entry::Packed { offset, len } => (offset, len),
                    Entry::Absent | Entry::Zero | Entry::Parts(_) => (0, 0),
                };
                if len > 0 {
                    dropped.push(start >> bits..((start + len - 1) >> bits) + 1);
                }
                bytes.extend(fate(n).entry().to_be_bytes());
            }
            if bytes.len() as u64 != count * 8 {
                return Err(Stop::Failed(crate::kit::confused()));
            }
            debug_assert!((0..count).all(|n| fate(n).entry() & OFFSET & ((1 << bits) - 1) == 0));
            self.blocks.change(place, Rank::Last, &bytes)?;
            dropped.into_iter().for_each(|units| state.room.drop_units(units));
            Ok(())
        })
        .await
    }
}
