//! Internal snapshots: made, applied and deleted.
//!
//! A snapshot is an L1 table of its own; whatever it leads to has one reference more. What is about
//! to be referred to is counted up first, and loses the flags that say that somebody has it alone;
//! then one sector of the header says what is so from now on; and only then what is no longer
//! referred to is counted down, and flags are set again. So whenever this is stopped, all snapshots
//! and the disk are what they were or what they were to be, and at most something is counted too
//! often.

use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use device::{Edge, Error, ErrorKind, Fault, Result};

use super::super::entry::{COMPRESSED, COPIED, l2_offset};
use super::super::header::{Header, L1_MAX, SIZE_AT, SNAPSHOTS_MAX, incompatible};
use super::super::refcounts::References;
use super::super::region::Region;
use super::super::snapshot::{self, SnapshotEntry, TABLE_MAX};
use super::super::{bitmap, check, corrupt, open};
use super::link::{EntryWords, words};
use super::offline::{done, writer};
use super::refcounts::Counts;
use super::{Attempt, State, Writer, clear_features};
use crate::kit::blocks::Rank;
use crate::kit::confused;
use crate::kit::numbers::be64;
use crate::{Opening, SnapshotChange};

const L1_AT: u64 = 36;
const SNAPSHOTS_AT: u64 = 60;
/// The longest name, in bytes: QEMU cuts off what is longer.
const NAME_MAX: usize = 255;

/// An image whose snapshots are changed.
struct Snapshots<'a> {
    container: &'a Edge,
    header: Header,
    snapshots: Vec<SnapshotEntry>,
    /// Bytes of the table.
    table_len: u64,
    /// The highest refcount.
    highest: u64,
    writer: Arc<Writer>,
}

/// A table in the container.
struct L1Table {
    offset: u64,
    entries: Vec<u64>,
}

/// Changes the snapshots of the image in `container`.
///
/// # Errors
/// It has no such snapshot, cannot be written as it is, or cannot count so many references: then
/// nothing is changed. Or the change failed.
pub(in super::super) fn change_snapshots(
    container: Edge,
    opening: &Opening<'_>,
    change: SnapshotChange<'_>,
) -> Result<()> {
    let header = open::header(&container)?;
    if header.has(incompatible::DATA_FILE) {
        return Err(Error::unsupported("an image with a data file has no snapshots"));
    }
    let (header, container) = open::to_change(&container, opening)?;
    let writer = writer(&container, &header, opening.context)?;
    let highest = check::check_sound(&container)?;
    let (snapshots, table_len) = snapshot::read(&container, &header)?;
    let image = Snapshots { container: &container, header, snapshots, table_len, highest, writer };
    match change {
        SnapshotChange::Create(name) => image.create(name),
        SnapshotChange::Apply(wanted) => image.apply(wanted),
        SnapshotChange::Delete(name) => image.delete(name),
    }
}

pub(super) fn too_many(most: u64) -> Error {
    let action = format!(
        "the refcounts of the image end at {most}, and a cluster would have more references; in an \
         image with `-o refcount_bits=16` there is room for more snapshots"
    );
    Error::new(ErrorKind::Limit, Fault::File, action)
}

fn none(wanted: &str) -> Error {
    let wanted = device::text::shown(wanted);
    Error::unfit(format!("there is no snapshot `{wanted}` in the image"))
}

impl Snapshots<'_> {
    fn active(&self) -> Result<L1Table> {
        self.table(self.header.l1_offset, self.header.l1_entries)
    }

    /// An L1 table.
    fn table(&self, offset: u64, entries: u32) -> Result<L1Table> {
        let region = Region { offset, len: u64::from(entries) * 8 };
        let (size, cluster) = (self.container.info().size, self.header.geometry().cluster());
        region.check("L1 table of the snapshot", size, cluster, L1_MAX)?;
        let mut bytes = vec![0; usize::try_from(region.len).unwrap_or(0)];
        self.container.read(&mut bytes, offset)?;
        let entries = bytes.chunks_exact(8).map(|entry| be64(entry, 0).unwrap_or(0)).collect();
        Ok(L1Table { offset, entries })
    }

    /// The clusters of a region that begins at one.
    fn units(&self, offset: u64, len: u64) -> Range<u64> {
        let bits = self.header.cluster_bits;
        offset >> bits..(offset >> bits) + len.div_ceil(1 << bits)
    }

    /// Entries of snapshots, byte by byte as they are: there may be more in them than is known.
    fn entries<'e>(&self, kept: impl Iterator<Item = &'e SnapshotEntry>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for Region { offset, len } in kept.map(|snapshot| snapshot.entry) {
            let start = bytes.len();
            bytes.resize(start + usize::try_from(len).unwrap_or(0), 0);
            self.container.read(bytes.get_mut(start..).unwrap_or_default(), offset)?;
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        Ok(bytes)
    }

    /// Refuses references that could not be counted.
    fn check_counts(&self, entries: &[u64]) -> Result<()> {
        // In a sound image no cluster gets more than it has.
        if self.highest <= self.writer.most() / 2 {
            return Ok(());
        }
        let (writer, entries) = (self.writer.clone(), entries.to_vec());
        done(async move { writer.check_counts(&entries).await })
    }

    fn create(self, name: &str) -> Result<()> {
        if name.len() > NAME_MAX {
            let action = format!("the name of a snapshot has at most {NAME_MAX} bytes");
            return Err(Error::invalid(action));
        }
        let active = self.active()?;
        self.check_counts(&active.entries)?;
        let mut table = self.entries(self.snapshots.iter())?;
        let numbers = self.snapshots.iter().map(|snapshot| number(&snapshot.known.id));
        let id = numbers.max().unwrap_or(0).saturating_add(1).to_string();
        let count = self.header.snapshot_count + 1;
        let entry = new_entry(self.header.l1_entries, self.header.size, &id, name);
        if count > SNAPSHOTS_MAX || (table.len() + entry.len()) as u64 > TABLE_MAX {
            return Err(Error::new(ErrorKind::Limit, Fault::File, "there are too many snapshots"));
        }
        let at = table.len();
        table.extend(entry);
        clear_features(self.container, &self.header)?;
        let old = self.units(self.header.snapshots_offset, self.table_len);
        let writer = self.writer.clone();
        done(async move {
            let l1 = writer.add_row(&shared(&active.entries)).await?;
            let place = l1.start << writer.geometry.cluster_bits;
            let field = table.get_mut(at..at + 8).ok_or_else(confused)?;
            field.copy_from_slice(&place.to_be_bytes());
            let table = match writer.add_row(&table).await {
                Ok(table) => table,
                Err(e) => return Err(writer.without([l1], e).await),
            };
            // Where there is no room for them, nothing is changed.
            if let Err(e) = writer.flush().await {
                return Err(writer.without([l1, table], e).await);
            }
            writer.raise(&active.entries).await?;
            writer.disown(&active).await?;
            writer.flush().await?;
            let place = table.start << writer.geometry.cluster_bits;
            writer.say(SNAPSHOTS_AT, &snapshots_field(count, place)).await?;
            writer.release(vec![old], false).await;
            writer.close().await
        })
    }

    fn apply(self, wanted: &str) -> Result<()> {
        let known = |is: &dyn Fn(&crate::Snapshot) -> bool| {
            self.snapshots.iter().find(|snapshot| is(&snapshot.known))
        };
        let found = known(&|known| known.id == wanted).or_else(|| known(&|k| k.name == wanted));
        let found = found.ok_or_else(|| none(wanted))?;
        if !bitmap::read(self.container, &self.header)?.is_empty() {
            // They would not say what the snapshot changes.
            let action = "apply a snapshot to an image that has dirty bitmaps; \
                          `diskferry bitmap --remove` removes them";
            return Err(Error::unsupported(action));
        }
        let size = found.known.virtual_size;
        let table = self.table(found.l1_offset, found.l1_entries)?;
        if self.header.geometry().l1_entries(size) > table.entries.len() as u64 {
            return Err(corrupt("the L1 table of the snapshot is too short for its disk"));
        }
        let active = self.active()?;
        self.check_counts(&table.entries)?;
        clear_features(self.container, &self.header)?;
        let old = self.units(active.offset, active.entries.len() as u64 * 8);
        let writer = self.writer.clone();
        done(async move {
            let new = writer.add_row(&shared(&table.entries)).await?;
            if let Err(e) = writer.flush().await {
                return Err(writer.without([new], e).await);
            }
            writer.raise(&table.entries).await?;
            writer.flush().await?;
            let place = new.start << writer.geometry.cluster_bits;
            let count = u32::try_from(table.entries.len()).map_err(|_| confused())?;
            let l1 = [&count.to_be_bytes()[..], &place.to_be_bytes()].concat();
            writer.change_header(&[(SIZE_AT, &size.to_be_bytes()), (L1_AT, &l1)]).await?;
            writer.lower(&active.entries).await?;
            writer.release(vec![old], false).await;
            writer.close().await
        })
    }

    fn delete(self, name: &str) -> Result<()> {
        let at = self.snapshots.iter().position(|snapshot| snapshot.known.name == name);
        let at = at.ok_or_else(|| none(name))?;
        let kept = self.snapshots.iter().enumerate().filter(|(n, _)| *n != at);
        let rest = self.entries(kept.map(|(_, snapshot)| snapshot))?;
        let gone = self.snapshots.get(at).ok_or_else(confused)?;
        let table = self.table(gone.l1_offset, gone.l1_entries)?;
        let active = self.active()?;
        clear_features(self.container, &self.header)?;
        let count = self.header.snapshot_count.saturating_sub(1);
        let mut old = vec![self.units(self.header.snapshots_offset, self.table_len)];
        old.push(self.units(table.offset, table.entries.len() as u64 * 8));
        let writer = self.writer.clone();
        done(async move {
            let mut place = 0;
            if count > 0 {
                let row = writer.add_row(&rest).await?;
                place = row.start << writer.geometry.cluster_bits;
                if let Err(e) = writer.flush().await {
                    return Err(writer.without([row], e).await);
                }
            }
            writer.say(SNAPSHOTS_AT, &snapshots_field(count, place)).await?;
            writer.lower(&table.entries).await?;
            writer.release(old, false).await;
            writer.own(&active).await?;
            writer.close().await
        })
    }
}

/// What the header says of the snapshot table.
fn snapshots_field(count: u32, offset: u64) -> Vec<u8> {
    [&count.to_be_bytes()[..], &offset.to_be_bytes()].concat()
}

/// The number that a text begins with.
fn number(id: &str) -> u64 {
    let digits = id.bytes().take_while(u8::is_ascii_digit).count();
    id.get(..digits).and_then(|id| id.parse().ok()).unwrap_or(0)
}

/// An entry of the snapshot table for what there is now. Where its L1 table is, is said later.
fn new_entry(l1_entries: u32, size: u64, id: &str, name: &str) -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let len = |text: &str| u16::try_from(text.len()).unwrap_or(0).to_be_bytes();
    let mut entry = vec![0; 8];
    entry.extend(l1_entries.to_be_bytes());
    entry.extend(len(id));
    entry.extend(len(name));
    entry.extend(u32::try_from(now.as_secs()).unwrap_or(u32::MAX).to_be_bytes());
    entry.extend(now.subsec_nanos().to_be_bytes());
    // The clock of a machine, and the bytes of its state.
    entry.extend([0; 12]);
    // Extra data: these bytes again, the size of the disk, and a count of instructions.
    entry.extend(24u32.to_be_bytes());
    entry.extend([0; 8]);
    entry.extend(size.to_be_bytes());
    entry.extend([0; 8]);
    entry.extend(id.as_bytes());
    entry.extend(name.as_bytes());
    entry.resize(entry.len().next_multiple_of(8), 0);
    entry
}

/// L1 entries of tables that others refer to, too.
fn shared(entries: &[u64]) -> Vec<u8> {
    entries.iter().flat_map(|entry| (entry & !COPIED).to_be_bytes()).collect()
}

/// Ranges in order, with those in one that follow one another. Those that overlap stay apart.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

impl Writer {
    /// A table in new clusters, to which nothing refers yet; an empty one is nowhere.
    pub(super) async fn add_row(&self, bytes: &[u8]) -> Result<Range<u64>> {
        if bytes.is_empty() {
            return Ok(0..0);
        }
        let cluster = usize::try_from(self.geometry.cluster()).map_err(|_| confused())?;
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().next_multiple_of(cluster), 0);
        let clusters = (bytes.len() / cluster) as u64;
        let row = self.attempt(|state| self.take_row(state, clusters)).await?;
        self.blocks.add(row.start << self.geometry.cluster_bits, Rank::Last, &bytes);
        Ok(row)
    }

    /// Gives back tables to which nothing refers, after a failure.
    pub(super) async fn without(
        &self,
        rows: impl IntoIterator<Item = Range<u64>>,
        why: Error,
    ) -> Error {
        for row in rows {
            let bits = self.geometry.cluster_bits;
            self.blocks.forget(row.start << bits, (row.end - row.start) << bits);
            self.release(vec![row], true).await;
        }
        // If that fails as well, they are lost until the image is repaired.
        let _ = self.flush().await;
        why
    }

    /// Changes the header, durably.
    async fn say(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.change_header(&[(at, bytes)]).await
    }

    /// Changes fields of the header, durably: those in one sector at once.
    pub(super) async fn change_header(&self, fields: &[(u64, &[u8])]) -> Result<()> {
        let mut pieces = Vec::new();
        for (mut at, mut rest) in fields.iter().copied() {
            while !rest.is_empty() {
                let room = usize::try_from(self.blocks.start(at) + self.blocks.unit() - at);
                let (piece, after) = rest.split_at(room.map_err(|_| confused())?.min(rest.len()));
                pieces.push((at, piece));
                (at, rest) = (at + piece.len() as u64, after);
            }
        }
        self.attempt(|_| {
            for (at, _) in &pieces {
                self.block(*at)?;
            }
            for (at, piece) in &pieces {
                self.blocks.change(*at, Rank::Second, piece)?;
            }
            Ok(())
        })
        .await?;
        self.flush().await
    }

    /// The L2 tables of an L1 table.
    fn tables_of(&self, entries: &[u64]) -> Result<Vec<u64>> {
        let tables = entries.iter().map(|entry| l2_offset(*entry, self.geometry));
        tables.filter_map(Result::transpose).collect()
    }

    /// The clusters of L2 tables.
    fn units_of(&self, tables: &[u64]) -> Vec<Range<u64>> {
        let bits = self.geometry.cluster_bits;
        joined(tables.iter().map(|table| table >> bits..(table >> bits) + 1).collect())
    }

    /// Where the blocks of a table begin.
    fn blocks_of(&self, table: u64) -> impl Iterator<Item = u64> {
        let step = usize::try_from(self.blocks.unit()).unwrap_or(usize::MAX);
        (table..table + self.geometry.cluster()).step_by(step)
    }

    fn words_of(&self, block: &[u8]) -> impl Iterator<Item = EntryWords> {
        let count = block.len() as u64 / self.geometry.entry_len();
        (0..count).map_while(move |n| words(block, n, self.geometry))
    }

    /// The clusters that the entries in a block of a table refer to.
    fn referred(&self, block: &[u8]) -> Result<Vec<Range<u64>>> {
        let entries = self.words_of(block).filter(|entry| *entry != (0, 0));
        let units = entries.map(|entry| self.counted(entry));
        let units = joined(units.filter_map(Result::transpose).collect::<Result<_>>()?);
        units.iter().try_for_each(|units| self.check_units_of_data(units))?;
        Ok(units)
    }

    /// Refuses another reference to all that L1 entries lead to, where it could not be counted.
    async fn check_counts(&self, entries: &[u64]) -> Result<()> {
        let (tables, bits) = (self.tables_of(entries)?, self.geometry.cluster_bits);
        let mut more = References::new(self.data.container.length(), bits);
        for table in &tables {
            for at in self.blocks_of(*table) {
                let block = self.blocks.load(at).await?;
                self.check_units(self.referred(&block)?, &mut more).await?;
            }
        }
        self.check_units(self.units_of(&tables), &mut more).await
    }

    async fn check_units(&self, units: Vec<Range<u64>>, more: &mut References) -> Result<()> {
        for unit in units.into_iter().flatten() {
            let count = self.attempt(|state| self.count_of(state, unit)).await?;
            if count <= self.most() / 2 {
                continue;
            }
            let bits = self.geometry.cluster_bits;
            more.add(Region { offset: unit << bits, len: 1 << bits }, 1)?;
            if u64::from(more.of(unit)) > self.most() - count {
                return Err(too_many(self.most()));
            }
        }
        Ok(())
    }

    /// Counts another reference to all that L1 entries lead to, which nobody has alone then.
    async fn raise(&self, entries: &[u64]) -> Result<()> {
        let tables = self.tables_of(entries)?;
        for table in &tables {
            for at in self.blocks_of(*table) {
                let block = self.blocks.load(at).await?;
                for units in self.referred(&block)? {
                    self.count_up(units).await?;
                }
                self.flag_block(at, false).await?;
            }
            self.save_much().await?;
        }
        for units in self.units_of(&tables) {
            self.count_up(units).await?;
        }
        Ok(())
    }

    /// Counts down all that L1 entries lead to, of which it is durable that nothing refers to them.
    async fn lower(&self, entries: &[u64]) -> Result<()> {
        let tables = self.tables_of(entries)?;
        for table in &tables {
            for at in self.blocks_of(*table) {
                let block = self.blocks.load(at).await?;
                self.release(self.referred(&block)?, false).await;
            }
            self.save_much().await?;
        }
        self.release(self.units_of(&tables), false).await;
        Ok(())
    }

    /// Sets the flag of all references in a block of a table that are the only ones, where they may
    /// have it, and clears that of the others.
    async fn flag_block(&self, at: u64, is_owned: bool) -> Result<()> {
        let step = self.geometry.entry_len();
        self.attempt(|state| {
            let (block, mut counts) = (self.block(at)?, None);
            let mut new = block.to_vec();
            for (n, entry) in (0u64..).zip(self.words_of(&block)) {
                let units = if entry == (0, 0) { None } else { self.counted(entry)? };
                let Some(units) = units.filter(|_| entry.0 & COMPRESSED == 0) else { continue };
                let flag = self.flag(state, units.start, is_owned, &mut counts)?;
                put(&mut new, n * step, entry.0 & !COPIED | flag)?;
            }
            if new[..] != block[..] {
                self.blocks.change(at, Rank::Last, &new)?;
            }
            Ok(())
        })
        .await
    }

    /// The flag of a reference to a cluster. `counts` are those that were looked at last in this
    /// attempt.
    fn flag(
        &self,
        state: &State,
        unit: u64,
        is_owned: bool,
        counts: &mut Option<Counts>,
    ) -> Attempt<u64> {
        if !is_owned {
            return Ok(0);
        }
        if counts.as_ref().is_none_or(|counts| !counts.has(unit)) {
            *counts = self.counts(state, unit)?;
        }
        let count = counts.as_ref().map_or(0, |counts| counts.of(unit));
        Ok(if count == 1 { COPIED } else { 0 })
    }

    /// Clears the flags of an L1 table.
    async fn disown(&self, l1: &L1Table) -> Result<()> {
        self.flag_l1(l1, false).await
    }

    /// Sets the flags of an L1 table, and of all that it leads to, which are the only references.
    async fn own(&self, l1: &L1Table) -> Result<()> {
        self.flag_l1(l1, true).await?;
        for table in self.tables_of(&l1.entries)? {
            let unit = table >> self.geometry.cluster_bits;
            // What a table refers to that has others has others, too.
            if self.attempt(|state| self.count_of(state, unit)).await? == 1 {
                for at in self.blocks_of(table) {
                    self.flag_block(at, true).await?;
                }
                self.save_much().await?;
            }
        }
        Ok(())
    }

    async fn flag_l1(&self, l1: &L1Table, is_owned: bool) -> Result<()> {
        let bits = self.geometry.cluster_bits;
        for (entry, at) in l1.entries.iter().zip((l1.offset..).step_by(8)) {
            let Some(table) = l2_offset(*entry, self.geometry)? else { continue };
            self.attempt(|state| {
                let flag = self.flag(state, table >> bits, is_owned, &mut None)?;
                let new = entry & !COPIED | flag;
                if new != *entry {
                    self.block(at)?;
                    self.blocks.change(at, Rank::Last, &new.to_be_bytes())?;
                }
                Ok(())
            })
            .await?;
        }
        Ok(())
    }
}

fn put(bytes: &mut [u8], at: u64, number: u64) -> Result<()> {
    let at = usize::try_from(at).map_err(|_| confused())?;
    let room = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..8)).ok_or_else(confused)?;
    room.copy_from_slice(&number.to_be_bytes());
    Ok(())
}
