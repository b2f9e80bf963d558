//! The refcounts of an image that is written: clusters are taken, and given up.

use std::ops::Range;
use std::sync::Arc;

use device::{Error, ErrorKind, Fault, Result};

use super::super::corrupt;
use super::super::header::REFCOUNT_TABLE_AT;
use super::super::refcounts::{refcount, set_refcount};
use super::super::region::Region;
use super::super::tables::DataStore;
use super::{Attempt, State, Stop, Writer};
use crate::kit::blocks::Rank;

/// Blocks of refcounts that are looked at for one request, before it gets room at the end.
const LOOKED_AT: usize = 8;
/// The longest refcount table, in bytes: QEMU opens no image with a longer one.
const TABLE_MAX: u64 = 8 << 20;

/// Free clusters in a row for something long, and what they lack.
struct Row {
    /// Its clusters, and those of new refcount blocks after them.
    range: Range<u64>,
    /// Its own.
    clusters: u64,
    /// The numbers of the new blocks.
    missing: Vec<u64>,
    /// Entries that the refcount table has to have.
    entries: u64,
}

/// The refcounts in a block, as an attempt finds them.
pub(super) struct Counts {
    block: Arc<[u8]>,
    /// Of which clusters.
    units: Range<u64>,
    order: u32,
}

impl Counts {
    pub(super) fn has(&self, unit: u64) -> bool {
        self.units.contains(&unit)
    }

    /// That of a cluster, which it has.
    pub(super) fn of(&self, unit: u64) -> u64 {
        refcount(&self.block, unit - self.units.start, self.order)
    }
}

impl Writer {
    /// Refcounts in a cluster.
    fn in_cluster(&self) -> u64 {
        (self.geometry.cluster() * 8) >> self.refcount_order
    }

    /// Refcounts in a block of the cache.
    fn in_block(&self) -> u64 {
        (self.blocks.unit() * 8) >> self.refcount_order
    }

    /// Where the refcount of a cluster is in the container, in bytes; `None`: it has no block.
    fn home(&self, state: &State, unit: u64) -> Option<u64> {
        let index = usize::try_from(unit / self.in_cluster()).ok()?;
        let block = state.blocks.get(index).copied().filter(|block| *block != 0)?;
        let within = unit % self.in_cluster();
        Some(block + ((within << self.refcount_order) >> 3))
    }

    /// Takes up to `most` (≥ 1) clusters in a row for the image.
    pub(super) fn take(&self, state: &mut State, most: u64) -> Attempt<Range<u64>> {
        loop {
            let found = self.find(state, most)?;
            // Their refcounts are in one block of the cache.
            let until = (found.start / self.in_block() + 1) * self.in_block();
            let found = found.start..found.end.min(until);
            let bits = self.geometry.cluster_bits;
            let region =
                Region { offset: found.start << bits, len: (found.end - found.start) << bits };
            self.check_apart(region)?;
            let Some(home) = self.home(state, found.start) else {
                self.add_block(state, found.start)?;
                continue;
            };
            let block = self.block(home)?;
            let first = found.start % self.in_block();
            let used = (first..)
                .zip(found.clone())
                .find(|(index, _)| refcount(&block, *index, self.refcount_order) != 0);
            if let Some((_, used)) = used {
                // It was beyond what was looked at.
                state.room.take(&(used..used + 1));
                continue;
            }
            self.set(&block, home, found.clone(), |_| Some(1))?;
            state.room.take(&found);
            return Ok(found);
        }
    }

    /// Changes refcounts that are in one block.
    fn set(
        &self,
        block: &[u8],
        home: u64,
        units: Range<u64>,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<()> {
        let mut block = block.to_vec();
        for unit in units {
            let index = unit % self.in_block();
            let now = refcount(&block, index, self.refcount_order);
            if let Some(new) = change(now) {
                set_refcount(&mut block, index, self.refcount_order, new);
            }
        }
        self.blocks.change(self.blocks.start(home), Rank::First, &block)
    }

    /// Free clusters, where they are known or near, else at the end.
    fn find(&self, state: &mut State, most: u64) -> Attempt<Range<u64>> {
        let at_end = state.room.find_end(1).is_some();
        let mut looks = 0;
        loop {
            if let Some(found) = state.room.find_free(most) {
                return Ok(found);
            }
            if state.room.unknown().is_empty() || at_end && looks >= LOOKED_AT {
                break;
            }
            looks += 1;
            self.look(state)?;
        }
        state.room.find_end(most).ok_or_else(|| Stop::Failed(full()))
    }

    /// Looks at the next refcounts.
    fn look(&self, state: &mut State) -> Attempt<()> {
        let unknown = state.room.unknown();
        let from = unknown.start;
        let Some(home) = self.home(state, from) else {
            // None of them is used.
            let to = ((from / self.in_cluster() + 1) * self.in_cluster()).min(unknown.end);
            state.room.looked_at(to, std::iter::once(from..to));
            return Ok(());
        };
        let block = self.seen(home)?;
        let to = ((from / self.in_block() + 1) * self.in_block()).min(unknown.end);
        let is_free =
            |unit: &u64| refcount(&block, unit % self.in_block(), self.refcount_order) == 0;
        state.room.looked_at(to, (from..to).filter(is_free).map(|unit| unit..unit + 1));
        Ok(())
    }

    /// Makes the free cluster `unit` the one with its own refcount, and those of its neighbours.
    fn add_block(&self, state: &mut State, unit: u64) -> Attempt<()> {
        let index = usize::try_from(unit / self.in_cluster()).unwrap_or(usize::MAX);
        if index >= state.blocks.len() {
            return self.grow_table(state, index);
        }
        let entry = state.table_offset + index as u64 * 8;
        self.block(entry)?;
        let offset = unit << self.geometry.cluster_bits;
        self.new_block(offset, unit..unit + 1);
        self.blocks.change(entry, Rank::Second, &offset.to_be_bytes())?;
        if let Some(block) = state.blocks.get_mut(index) {
            *block = offset;
        }
        state.room.take(&(unit..unit + 1));
        Ok(())
    }

    /// A refcount block at `offset`, in which these clusters are used and no other.
    fn new_block(&self, offset: u64, used: Range<u64>) {
        let mut bytes = vec![0; usize::try_from(self.geometry.cluster()).unwrap_or(0)];
        for unit in used {
            set_refcount(&mut bytes, unit % self.in_cluster(), self.refcount_order, 1);
        }
        self.blocks.add(offset, Rank::First, &bytes);
        self.tables.write().insert(offset >> self.geometry.cluster_bits);
    }

    /// Takes so many clusters in a row.
    pub(super) fn take_row(&self, state: &mut State, clusters: u64) -> Attempt<Range<u64>> {
        loop {
            let row = self
                .find_row(state, clusters, |state, start| self.plan_row(state, start, clusters))?;
            let Range { start, end } = row.range;
            let bits = self.geometry.cluster_bits;
            self.check_apart(Region { offset: start << bits, len: (end - start) << bits })?;
            if row.entries > state.blocks.len() as u64 {
                self.grow_table(state, usize::try_from(row.entries - 1).unwrap_or(usize::MAX))?;
                continue;
            }
            let entry = |state: &State, index: u64| state.table_offset + index * 8;
            for index in &row.missing {
                self.block(entry(state, *index))?;
            }
            let entries = state.blocks.len();
            if !self.place_row(state, &row, entries)? {
                continue;
            }
            for (index, unit) in row.missing.iter().zip(row.range.start + clusters..) {
                let offset = unit << self.geometry.cluster_bits;
                let entry = entry(state, *index);
                self.blocks.change(entry, Rank::Second, &offset.to_be_bytes())?;
            }
            return Ok(row.range.start..row.range.start + clusters);
        }
    }

    /// Makes a longer refcount table, with the blocks that it needs for itself. Nothing refers to
    /// it until it is durable; then the header does.
    fn grow_table(&self, state: &mut State, wanted: usize) -> Attempt<()> {
        let (cluster, bits) = (self.geometry.cluster(), self.geometry.cluster_bits);
        let old_len = state.blocks.len();
        let (old_offset, old_clusters) = (state.table_offset, (old_len as u64 * 8) / cluster);
        let row = self.find_row(state, old_clusters + 1, |state, start| {
            self.plan_table(state, wanted, start)
        })?;
        self.block(0)?;
        let entries = usize::try_from(row.clusters * cluster / 8).unwrap_or(old_len);
        if !self.place_row(state, &row, entries)? {
            // The caller tries again.
            return Ok(());
        }
        let table: Vec<u8> = state.blocks.iter().flat_map(|block| block.to_be_bytes()).collect();
        state.table_offset = row.range.start << bits;
        self.blocks.add(state.table_offset, Rank::Second, &table);
        self.blocks.forget(old_offset, old_clusters << bits);
        let count = u32::try_from(row.clusters).unwrap_or(0);
        let header = [&state.table_offset.to_be_bytes()[..], &count.to_be_bytes()].concat();
        self.blocks.change(REFCOUNT_TABLE_AT, Rank::Second, &header)?;
        state.room.drop_units(old_offset >> bits..(old_offset >> bits) + old_clusters);
        let mut taken = self.taken.write();
        taken.retain(|(what, _)| *what != "refcount table");
        let region = Region { offset: state.table_offset, len: row.clusters << bits };
        taken.push(("refcount table", region));
        Ok(())
    }

    /// Counts the clusters of a row, in a refcount table with so many entries in memory, which may
    /// be longer than the one there is. False: one of them is used; it is known now.
    fn place_row(&self, state: &mut State, row: &Row, entries: usize) -> Attempt<bool> {
        let Range { start, end } = row.range;
        // All that exists and is changed is in memory first.
        let mut old = Vec::new();
        let mut unit = start;
        while unit < end {
            let until = ((unit / self.in_block() + 1) * self.in_block()).min(end);
            if let Some(home) = self.home(state, unit) {
                let block = self.block(home)?;
                let count = |unit| refcount(&block, unit % self.in_block(), self.refcount_order);
                if let Some(used) = (unit..until).find(|unit| count(*unit) != 0) {
                    // It was beyond what was looked at.
                    state.room.take(&(used..used + 1));
                    return Ok(false);
                }
                old.push((home, block, unit..until));
            }
            unit = until;
        }
        for (home, block, units) in old {
            self.set(&block, home, units, |_| Some(1))?;
        }
        state.blocks.resize(entries, 0);
        for (index, unit) in row.missing.iter().copied().zip(start + row.clusters..) {
            let (from, to) = (index * self.in_cluster(), (index + 1) * self.in_cluster());
            let offset = unit << self.geometry.cluster_bits;
            self.new_block(offset, from.max(start)..to.min(end));
            let slot = usize::try_from(index).ok().and_then(|index| state.blocks.get_mut(index));
            slot.into_iter().for_each(|slot| *slot = offset);
        }
        state.room.take(&row.range);
        Ok(true)
    }

    /// Room as `plan` has it for a free cluster: at the end, or, where nothing grows, in the first
    /// free clusters in a row that are enough, of at least `least`.
    fn find_row(
        &self,
        state: &mut State,
        least: u64,
        plan: impl Fn(&State, u64) -> Option<Row>,
    ) -> Attempt<Row> {
        if let Some(at_end) = state.room.find_end(u64::MAX) {
            let row = plan(state, at_end.start).filter(|row| row.range.end <= at_end.end);
            return row.ok_or_else(|| full().into());
        }
        loop {
            let fits = |range: Range<u64>| {
                let row = plan(state, range.start)?;
                (row.range.end <= range.end).then_some(row)
            };
            let is_long = |range: &Range<u64>| range.end - range.start >= least;
            if let Some(row) = state.room.free().filter(is_long).find_map(fits) {
                return Ok(row);
            }
            if state.room.unknown().is_empty() {
                return Err(full().into());
            }
            self.look(state)?;
        }
    }

    /// So many clusters that begin at a free cluster, followed by the blocks that they lack;
    /// `None`: no refcount table is so long.
    fn plan_row(&self, state: &State, start: u64, clusters: u64) -> Option<Row> {
        let mut missing: Vec<u64> = Vec::new();
        let mut end = start.checked_add(clusters)?;
        let mut index = start / self.in_cluster();
        while index * self.in_cluster() < end {
            if index >= TABLE_MAX / 8 {
                return None;
            }
            let known = usize::try_from(index).ok().and_then(|index| state.blocks.get(index));
            if known.is_none_or(|block| *block == 0) {
                missing.push(index);
                end += 1;
            }
            index += 1;
        }
        Some(Row { range: start..end, clusters, missing, entries: index })
    }

    /// A refcount table with an entry `wanted`, as such a row.
    fn plan_table(&self, state: &State, wanted: usize, start: u64) -> Option<Row> {
        let cluster = self.geometry.cluster();
        let old_len = state.blocks.len();
        let mut entries = (wanted.saturating_add(1)).max(old_len + old_len / 2) as u64;
        while entries <= TABLE_MAX / 8 {
            let clusters = (entries * 8).div_ceil(cluster);
            if clusters * cluster > TABLE_MAX {
                break;
            }
            let row = self.plan_row(state, start, clusters)?;
            if row.entries <= clusters * cluster / 8 {
                return Some(row);
            }
            entries = row.entries;
        }
        None
    }

    /// How many refer to a cluster.
    pub(super) fn count_of(&self, state: &State, unit: u64) -> Attempt<u64> {
        Ok(self.counts(state, unit)?.map_or(0, |counts| counts.of(unit)))
    }

    /// The refcounts that are in one block with that of a cluster; `None`: it has no block.
    pub(super) fn counts(&self, state: &State, unit: u64) -> Attempt<Option<Counts>> {
        let Some(home) = self.home(state, unit) else { return Ok(None) };
        let (block, first) = (self.block(home)?, unit - unit % self.in_block());
        let units = first..first + self.in_block();
        Ok(Some(Counts { block, units, order: self.refcount_order }))
    }

    /// Lets so many refer to a cluster that is counted.
    pub(super) fn set_count(&self, state: &State, unit: u64, count: u64) -> Attempt<()> {
        let home = self.home(state, unit).ok_or_else(|| not_counted(unit))?;
        let block = self.block(home)?;
        Ok(self.set(&block, home, unit..unit + 1, |_| Some(count))?)
    }

    /// The highest refcount that there is.
    pub(super) fn most(&self) -> u64 {
        u64::MAX >> (64 - (1u32 << self.refcount_order))
    }

    /// Counts one reference more to each of these, which are in use.
    pub(super) async fn count_up(&self, units: Range<u64>) -> Result<()> {
        let mut rest = units;
        while !rest.is_empty() {
            let until = (rest.start / self.in_block() + 1) * self.in_block();
            let piece = rest.start..rest.end.min(until);
            self.attempt(|state| {
                for unit in piece.clone() {
                    match self.count_of(state, unit)? {
                        0 => return Err(Stop::Failed(not_counted(unit))),
                        count if count >= self.most() => {
                            return Err(Stop::Failed(super::snapshots::too_many(self.most())));
                        }
                        _ => {}
                    }
                }
                let home = self.home(state, piece.start).ok_or_else(|| not_counted(piece.start))?;
                let block = self.block(home)?;
                Ok(self.set(&block, home, piece.clone(), |count| count.checked_add(1))?)
            })
            .await?;
            rest.start = piece.end;
        }
        Ok(())
    }

    /// Gives up clusters, each once: those to which nothing refers are free, if nothing sees them
    /// any more. What cannot be counted down stays in quarantine.
    pub(super) async fn release(&self, units: Vec<Range<u64>>, is_seen: bool) {
        for range in units {
            let mut rest = range;
            while !rest.is_empty() {
                let until = (rest.start / self.in_block() + 1) * self.in_block();
                let piece = rest.start..rest.end.min(until);
                match self.count_down(piece.clone()).await {
                    // They stay as they are until the image is opened again.
                    Ok(_) if is_seen => {}
                    Ok(free) => self.clear(free).await,
                    Err(_) => self.state().room.is_durable(vec![piece.clone()]),
                }
                rest.start = piece.end;
            }
        }
    }

    /// Counts down refcounts that are in one block; returns the clusters with none left, which the
    /// caller gives.
    pub(super) async fn count_down(&self, units: Range<u64>) -> Result<Vec<Range<u64>>> {
        self.attempt(|state| {
            let Some(home) = self.home(state, units.start) else { return Ok(Vec::new()) };
            let block = self.block(home)?;
            let mut free: Vec<Range<u64>> = Vec::new();
            for unit in units.clone() {
                if refcount(&block, unit % self.in_block(), self.refcount_order) == 1 {
                    match free.last_mut() {
                        Some(last) if last.end == unit => last.end += 1,
                        _ => free.push(unit..unit + 1),
                    }
                    self.tables.write().remove(&unit);
                }
            }
            self.set(&block, home, units.clone(), |count| count.checked_sub(1))?;
            free.iter().for_each(|range| state.room.leave(range));
            let bits = self.geometry.cluster_bits;
            let is_free = |at: &u64| free.iter().any(|range| range.contains(&(at >> bits)));
            // No compressed cluster is put behind one that is no more.
            state.packed_to = state.packed_to.filter(|at| !is_free(at));
            Ok(free)
        })
        .await
    }

    /// Gives the room of free clusters back to what the container lies in; then they can be taken.
    async fn clear(&self, free: Vec<Range<u64>>) {
        let bits = self.geometry.cluster_bits;
        for range in free {
            let offset = range.start << bits;
            let DataStore { container, edge } = &self.container;
            let len = container.length().saturating_sub(offset);
            let len = len.min((range.end - range.start) << bits);
            if len > 0 && edge.info().abilities.trim {
                // It is a hint.
                let _ = device::below::trim(edge, offset, len, false).await;
            }
            self.state().room.give(range);
        }
    }

    /// Gives back clusters that were taken and never referred to.
    pub(super) async fn give_back(&self, units: Range<u64>) {
        // Those of a data file are not counted.
        if self.geometry.data_file {
            return;
        }
        // Otherwise they are lost until the image is repaired.
        if let Ok(free) = self.count_down(units).await {
            free.into_iter().for_each(|range| self.state().room.give(range));
        }
    }
}

pub(super) fn not_counted(unit: u64) -> Error {
    corrupt(format!("cluster {unit} is referred to, and has a refcount of 0"))
}

fn full() -> Error {
    let action = "find space for a cluster in the container of the image";
    Error::new(ErrorKind::NoSpace, Fault::File, action)
}
