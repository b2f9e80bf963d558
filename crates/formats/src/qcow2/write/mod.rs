//! Writing into an image where it lies.
//!
//! A write into a cluster that the image has for itself is done at its place, at once. Any other
//! gets a new cluster ([`data`], [`packed`]): its bytes are written first, then the tables refer to
//! it ([`link`]), and only then is what was there before given up ([`refcounts`]). Tables are
//! changed in memory, under a lock that is never held while anything is read or written, and saved
//! in an order in which the container holds a sound image at every moment: at most with clusters
//! that nothing refers to. What would be written over metadata is refused, and the image is marked
//! as corrupt, as QEMU does.

mod amend;
mod anew;
mod bitmaps;
mod data;
mod directory;
mod heading;
mod image;
mod link;
mod offline;
mod packed;
mod refcounts;
mod resize;
mod snapshots;

use std::collections::HashSet;
use std::sync::Arc;

use device::{Edge, Error, ErrorKind, Fault, Result};
use runtime::{Gate, Mutex, MutexGuard, RangeLocks, RwLock};

use super::bitmap::{self, Bitmap};
use super::corrupt;
use super::entry::{Geometry, l2_offset};
use super::header::{AUTOCLEAR_AT, Encryption, Header, INCOMPATIBLE_AT, autoclear, incompatible};
use super::refcounts::Refcounts;
use super::region::Region;
use super::snapshot;
use super::stream::ContainerReader;
use super::tables::{DataStore, Written};
use super::tracked::Tracked;
use crate::kit::blocks::{Blocks, Rank};
use crate::kit::flush;
use crate::kit::numbers::be64;
use crate::kit::room::{Lease, Room};

pub(super) use amend::{OPTIONS as AMENDED, amend};
pub(super) use directory::change_bitmap;
pub(super) use image::WrittenImage;
pub(super) use offline::{empty, part};
pub(super) use resize::resize;
pub(super) use snapshots::change_snapshots;

/// Bytes of changed tables that are saved before anything else is changed.
const UNSAVED_MAX: u64 = 8 << 20;
/// Bytes in quarantine from which no more places are given.
const HELD_MAX: u64 = 64 << 20;

/// What is needed to write into an image.
pub(super) struct Writer {
    container: DataStore,
    /// It, decrypted, or a data file.
    data: DataStore,
    /// What was never written reads as noise.
    is_encrypted: bool,
    /// A data file holds the disk as it is, also to those that do not know the image.
    is_raw: bool,
    blocks: Arc<Blocks>,
    geometry: Geometry,
    refcount_order: u32,
    /// Of the header; `None`: it has no such field.
    incompatible: Option<u64>,
    /// Where no data may be, besides single clusters: the regions that the header names.
    taken: Arc<RwLock<Vec<(&'static str, Region)>>>,
    /// Clusters with L2 tables and refcount blocks.
    tables: RwLock<HashSet<u64>>,
    state: Mutex<State>,
    /// In clusters of the disk: those that get other clusters of the container.
    locks: RangeLocks,
    saving: Arc<Gate>,
    saves: Mutex<Saves>,
    /// Enabled bitmaps.
    tracked: Vec<Arc<Tracked>>,
    /// Before `saving`.
    marking: Arc<Gate>,
    /// Whole clusters that get a new place are compressed.
    packing: Option<packed::Packing>,
}

struct State {
    room: Room,
    /// Offsets of the refcount blocks; 0: there is none.
    blocks: Vec<u64>,
    /// Where this table is.
    table_offset: u64,
    l1_offset: u64,
    is_corrupt: bool,
    /// The end of the last compressed cluster, if the next one may share a cluster with it.
    packed_to: Option<u64>,
}

/// Whether several entries of the L1 table may lead to one L2 table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Sharing {
    /// Such an image is not written.
    Refused,
    /// Each is to get its own.
    Ended,
}

/// Which flushes have been asked for, and which were answered, by number.
#[derive(Default)]
struct Saves {
    asked: u64,
    done: u64,
}

/// Why an attempt to change tables ended. It has changed nothing.
enum Stop {
    /// It needs this block in memory.
    Wants(u64),
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

type Attempt<T> = std::result::Result<T, Stop>;

/// Refuses an image that cannot be written as it is.
///
/// # Errors
/// With what is in the way, and what helps.
pub(super) fn check(header: &Header, snapshot: Option<&str>) -> Result<()> {
    let has = |feature| header.has(feature);
    let why = if snapshot.is_some() {
        "a snapshot is never changed"
    } else if has(incompatible::CORRUPT) {
        "it is marked as corrupt; `diskferry check -r all` repairs it"
    } else if has(incompatible::DATA_FILE) && header.snapshot_count > 0 {
        "it has snapshots and a data file, where both have the same clusters"
    } else {
        return Ok(());
    };
    let action = format!("cannot be written: {why}");
    Err(Error::new(ErrorKind::ReadOnly, Fault::File, action))
}

/// Refuses an image whose refcounts are out of date.
///
/// # Errors
/// With what helps.
pub(super) fn check_closed(header: &Header) -> Result<()> {
    if !header.has(incompatible::DIRTY) {
        return Ok(());
    }
    let action = "cannot be changed: it was not closed, and its refcounts are out of date; \
                  `diskferry check -r all` repairs it";
    Err(Error::new(ErrorKind::ReadOnly, Fault::File, action))
}

/// Refuses a container in which nothing is durable.
///
/// # Errors
/// With where images are written.
pub(super) fn check_container(container: &Edge) -> Result<()> {
    if !container.device().may_return() && container.info().abilities.flush {
        return Ok(());
    }
    let action = "cannot be written: images are written in place only in a file, on a block \
                  device or in memory, never over a connection that may be replaced";
    Err(Error::new(ErrorKind::ReadOnly, Fault::User, action))
}

/// Refuses an image with bitmaps that would no longer be true, and that nobody may change.
///
/// # Errors
/// With what helps.
pub(super) fn check_bitmaps(bitmaps: &[Bitmap]) -> Result<()> {
    let is_strange = |bitmap: &&Bitmap| bitmap.is_enabled() && bitmap.is_strange;
    let (name, why) = if let Some(name) = bitmap::ambiguous(bitmaps).first() {
        (*name, "is there twice")
    } else if let Some(Bitmap { name, .. }) = bitmaps.iter().find(is_strange) {
        (&**name, "has data of an unknown kind, and would become invalid")
    } else {
        return Ok(());
    };
    let action = format!(
        "cannot be written: its bitmap `{}` {why}; `qemu-img bitmap --remove FILE BITMAP` removes it",
        device::text::shown(name)
    );
    Err(Error::new(ErrorKind::ReadOnly, Fault::File, action))
}

/// Clears what would no longer be true: whatever this program does not know, it does not keep.
pub(super) fn clear_features(container: &Edge, header: &Header) -> Result<()> {
    let raw = if header.is_data_file_raw() { autoclear::DATA_FILE_RAW } else { 0 };
    let bitmaps = if header.usable_bitmaps().is_some() { autoclear::BITMAPS } else { 0 };
    let kept = raw | bitmaps;
    if header.version >= 3 && header.autoclear != kept {
        container.write(&kept.to_be_bytes(), AUTOCLEAR_AT, false)?;
        container.flush()?;
    }
    Ok(())
}

impl Writer {
    /// For an image that was checked, in `file` as it is now, which the container continues.
    ///
    /// # Errors
    /// Tables cannot be read, or lie over one another.
    pub(super) fn open(
        file: &Edge,
        header: &Header,
        Written { container, edge, blocks, data, tracked }: Written,
        taken: Arc<RwLock<Vec<(&'static str, Region)>>>,
        sharing: Sharing,
    ) -> Result<Self> {
        let geometry = header.geometry();
        let cluster = geometry.cluster();
        let step = usize::try_from(cluster).unwrap_or(usize::MAX);
        let counts = Refcounts::read(file, header)?.blocks().to_vec();
        protect_snapshots(file, header, &taken)?;
        if let Some(region) = header.encryption_header {
            taken.write().push(("header of the encryption", region));
        }
        let mut tables = HashSet::new();
        let mut add = |what: &str, offset: u64| -> Result<()> {
            let region = Region { offset, len: cluster };
            region.check(what, file.info().size, cluster, cluster)?;
            if !tables.insert(offset / cluster) {
                return Err(corrupt(format!("the {what} overlaps another table")).at(offset));
            }
            let over = taken.read().iter().find(|(_, taken)| taken.meets(region)).copied();
            match over {
                Some((other, _)) => {
                    Err(corrupt(format!("the {what} overlaps the {other}")).at(offset))
                }
                None => Ok(()),
            }
        };
        for offset in counts.iter().filter(|offset| **offset != 0) {
            add("refcount block", *offset)?;
        }
        let len = u64::from(header.l1_entries) * 8;
        let mut l1 = ContainerReader::new(file, "L1 table", header.l1_offset, len);
        let mut seen = HashSet::new();
        for _ in 0..header.l1_entries {
            let Some(offset) = l2_offset(be64(l1.take(8)?, 0).unwrap_or(0), geometry)? else {
                continue;
            };
            if seen.insert(offset) {
                add("L2 table", offset)?;
            } else if sharing == Sharing::Refused {
                let action = "several entries of the L1 table lead to one L2 table; `diskferry check \
                              -r all` gives each its own";
                return Err(corrupt(action).at(offset));
            }
        }
        for bitmap in bitmap::read(file, header)? {
            let len = u64::from(bitmap.table_entries) * 8;
            for offset in (bitmap.table_offset..bitmap.table_offset + len).step_by(step) {
                add("table of a bitmap", offset)?;
            }
        }
        let limit = container.limit() / cluster;
        let end = if edge.device().info().size == file.info().size {
            // It does not grow.
            limit
        } else {
            container.length().div_ceil(cluster)
        };
        let state = State {
            room: Room::new(end, limit.min(1 << (56 - geometry.cluster_bits))),
            blocks: counts,
            table_offset: header.refcount_table_offset,
            l1_offset: header.l1_offset,
            is_corrupt: false,
            packed_to: None,
        };
        Ok(Self {
            container: DataStore { container, edge },
            data,
            is_encrypted: header.encryption != Encryption::None,
            is_raw: header.is_data_file_raw(),
            blocks,
            geometry,
            refcount_order: header.refcount_order,
            incompatible: (header.version >= 3).then_some(header.incompatible),
            taken,
            tables: RwLock::new(tables),
            state: Mutex::new(state),
            locks: RangeLocks::default(),
            saving: Arc::default(),
            saves: Mutex::default(),
            tracked,
            marking: Arc::default(),
            packing: None,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The right to see, and to write to, what is where it is now.
    pub(super) fn lease(&self) -> Lease {
        self.state().room.lease()
    }

    /// Whether places may be given: what is freed does not pile up behind readers.
    pub(super) fn gives_places(&self) -> bool {
        self.state().room.held() < HELD_MAX >> self.geometry.cluster_bits
    }

    /// Makes an attempt to change tables until all that it needs is in memory.
    async fn attempt<T>(&self, mut change: impl FnMut(&mut State) -> Attempt<T>) -> Result<T> {
        let mut pins = Vec::new();
        loop {
            let stop = {
                let mut state = self.state();
                if state.is_corrupt {
                    return Err(refused());
                }
                match change(&mut state) {
                    Ok(done) => return Ok(done),
                    Err(stop) => stop,
                }
            };
            match stop {
                Stop::Wants(at) => pins.push(self.blocks.pin(at).await?),
                Stop::Failed(e) if e.kind() == ErrorKind::Corrupt => {
                    return Err(self.is_corrupt(e).await);
                }
                Stop::Failed(e) => return Err(e),
            }
        }
    }

    /// The block with the byte at `at`, which this attempt may change.
    fn block(&self, at: u64) -> Attempt<Arc<[u8]>> {
        let start = self.blocks.start(at);
        self.blocks.held(start).ok_or(Stop::Wants(start))
    }

    /// The same, to be looked at.
    fn seen(&self, at: u64) -> Attempt<Arc<[u8]>> {
        let start = self.blocks.start(at);
        self.blocks.get(start).ok_or(Stop::Wants(start))
    }

    /// Refuses clusters of data that hold metadata, or are not in the file, whose last one may be
    /// cut off.
    fn check_data(&self, Region { offset, len }: Region) -> Result<()> {
        let cluster = self.geometry.cluster();
        let start = offset - offset % cluster;
        let end = offset.saturating_add(len).next_multiple_of(cluster);
        self.check_apart(Region { offset: start, len: end - start })?;
        let length = self.data.container.length();
        if end <= length.next_multiple_of(cluster) {
            return Ok(());
        }
        let action = format!("a cluster lies beyond the end of the file ({length} bytes)");
        Err(corrupt(action).at(offset))
    }

    /// Refuses clusters of the container that hold metadata.
    fn check_apart(&self, region: Region) -> Result<()> {
        if let Some((what, _)) = self.taken.read().iter().find(|(_, taken)| taken.meets(region)) {
            return Err(corrupt(format!("data would overlap the {what}")).at(region.offset));
        }
        let tables = self.tables.read();
        let bits = self.geometry.cluster_bits;
        let last = region.offset + region.len.saturating_sub(1);
        let units = region.offset >> bits..(last >> bits) + 1;
        // Many clusters may be looked for among few tables, and few among many.
        let met = match units.end - units.start > tables.len() as u64 {
            true => tables.iter().copied().find(|unit| units.contains(unit)),
            false => units.into_iter().find(|unit| tables.contains(unit)),
        };
        match met {
            Some(unit) => Err(corrupt("data would overlap a table").at(unit << bits)),
            None => Ok(()),
        }
    }

    /// Marks the image with the next flush, and refuses further writes. Returns why.
    async fn is_corrupt(&self, why: Error) -> Error {
        let was = std::mem::replace(&mut self.state().is_corrupt, true);
        let mark = async {
            let Some(features) = self.incompatible.filter(|_| !was) else { return Ok(()) };
            let _pin = self.blocks.pin(0).await?;
            let features = (features | incompatible::CORRUPT).to_be_bytes();
            self.blocks.change(INCOMPATIBLE_AT, Rank::Second, &features)
        };
        match mark.await {
            Ok(()) => why,
            Err(e) => why.with_source(e),
        }
    }

    /// Makes everything durable that was written, and the tables that refer to it.
    ///
    /// # Errors
    /// Nothing can be assumed durable.
    pub(super) async fn flush(&self) -> Result<()> {
        let number = {
            let mut saves = self.saves.lock();
            saves.asked += 1;
            saves.asked
        };
        let _alone = self.saving.alone().await;
        let asked = {
            let saves = self.saves.lock();
            if saves.done >= number {
                return Ok(());
            }
            saves.asked
        };
        self.save().await?;
        self.saves.lock().done = asked;
        Ok(())
    }

    async fn save(&self) -> Result<()> {
        let (snapshot, dropped) = {
            let mut state = self.state();
            (self.blocks.snapshot(), state.room.dropped())
        };
        let saved = match self.flush_data().await {
            Ok(()) => self.blocks.save(&snapshot).await,
            Err(e) => Err(e),
        };
        let unseen = {
            let room = &mut self.state().room;
            match &saved {
                Ok(()) => room.is_durable(dropped),
                Err(_) => room.is_not_durable(dropped),
            }
            if saved.is_ok() { room.unseen() } else { Vec::new() }
        };
        saved?;
        self.release(unseen, false).await;
        Ok(())
    }

    /// Makes the data durable that are in a file of their own. The others are with the tables.
    async fn flush_data(&self) -> Result<()> {
        if self.geometry.data_file { flush(&self.data.edge).await } else { Ok(()) }
    }

    /// Saves what has piled up.
    async fn save_much(&self) -> Result<()> {
        if self.blocks.unsaved() > UNSAVED_MAX { self.flush().await } else { Ok(()) }
    }

    /// Saves everything: the image is what it would be if nothing had gone wrong.
    ///
    /// # Errors
    /// As for [`flush`](Self::flush).
    pub(super) async fn close(&self) -> Result<()> {
        self.save_bitmaps().await?;
        // What is freed is counted after the tables that no longer refer to it are saved.
        for _ in 0..3 {
            if !self.is_unsaved() {
                break;
            }
            self.flush().await?;
            let _alone = self.saving.alone().await;
            let seen = self.state().room.still_seen();
            self.release(seen, true).await;
        }
        Ok(())
    }

    /// Whether something is left for [`close`](Self::close).
    pub(super) fn is_unsaved(&self) -> bool {
        self.is_tracking() || self.blocks.unsaved() > 0 || self.state().room.owes()
    }
}

fn refused() -> Error {
    let action = "the image is corrupt, and no longer written; `qemu-img check` shows why";
    Error::new(ErrorKind::Io, Fault::File, action)
}

/// Adds the tables of the snapshots to what is not written over.
fn protect_snapshots(
    file: &Edge,
    header: &Header,
    taken: &RwLock<Vec<(&'static str, Region)>>,
) -> Result<()> {
    let (snapshots, len) = snapshot::read(file, header)?;
    let mut taken = taken.write();
    if len > 0 {
        taken.push(("snapshot table", Region { offset: header.snapshots_offset, len }));
    }
    for snapshot in snapshots.iter().filter(|snapshot| snapshot.l1_entries > 0) {
        let len = u64::from(snapshot.l1_entries) * 8;
        taken.push(("L1 table of a snapshot", Region { offset: snapshot.l1_offset, len }));
    }
    Ok(())
}
