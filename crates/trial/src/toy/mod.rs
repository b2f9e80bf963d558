//! A minimal image format, which relies on the contract just as real ones do.
//!
//! Clusters are scattered over two files, by a table at the start of the first. Some are
//! compressed, and unallocated ones come from a backing disk. Discarded clusters are freed, and
//! reused once all earlier leases are gone. The files, and the backing disk, are whatever an
//! [`Edge`] is around.
//!
//! Nothing here holds a thread while it waits, and requests that memory can answer are answered at
//! once. Unflushed writes may be lost. The files do not grow: they are created at full size.

mod map;
mod pack;
mod room;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use device::below::{confused, flush, read_or_wait, write};
use device::{
    Abilities, BlockSizes, Buffer, Device, Done, Edge, Error, Info, Now, Operation, Outcome,
    Result, Slice, ZeroFlags,
};
use runtime::{Gate, Mutex, MutexGuard, WorkPool, each, spawn, wait_for};

use room::{Lease, Room, Slot};
use table::Entry;

/// Clusters of one request in flight at a time.
const WIDTH: usize = 8;

/// How an image is used.
#[derive(Clone, Copy, Debug)]
pub struct ToySettings {
    /// Bytes of a cluster, a power of two from 512 to 1 MiB.
    pub cluster: u32,
    /// Every other cluster is packed, if it becomes half as long.
    pub packs: bool,
    /// Each cluster is written once, after all others.
    pub append_only: bool,
    /// Bytes that may be freed and still seen by a reader before no more places are given.
    pub bound: u64,
}

impl Default for ToySettings {
    fn default() -> Self {
        Self { cluster: 4096, packs: true, append_only: false, bound: 1 << 20 }
    }
}

/// Counters of an image.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ToyCounts {
    /// Slots that were used again after they had been freed.
    pub reused: usize,
    /// Bytes that were freed and may still be seen.
    pub held: u64,
    /// Reads, at once or not, that found what they wanted.
    pub reads: usize,
}

/// The image. Cheap to clone.
#[derive(Clone)]
pub struct Toy(Arc<ToyImage>);

struct ToyImage {
    info: Info,
    settings: ToySettings,
    files: [Edge; 2],
    backing: Option<Edge>,
    pool: WorkPool,
    state: Mutex<State>,
    /// One at a time writes the table.
    writing: Arc<Gate>,
    reads: AtomicUsize,
}

struct State {
    table: Vec<Entry>,
    room: Room,
}

impl std::fmt::Debug for Toy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Toy({} bytes)", self.0.info.size)
    }
}

impl Toy {
    /// A new image of `size` bytes: nothing is in it, and nothing of it is in the files before it
    /// is flushed, or finished.
    #[must_use]
    pub fn create(
        files: [Edge; 2],
        backing: Option<Edge>,
        size: u64,
        settings: ToySettings,
    ) -> Self {
        let clusters = size.div_ceil(u64::from(settings.cluster));
        let table = vec![Entry::Absent; usize::try_from(clusters).unwrap()];
        Self::new(files, backing, size, settings, table)
    }

    /// The image that is in the files. Of the settings, the clusters are what they are.
    ///
    /// # Errors
    /// There is none, or it is broken; it cannot be read.
    pub fn open(files: [Edge; 2], backing: Option<Edge>, settings: ToySettings) -> Result<Self> {
        let mut header = [0; 512];
        files[0].read(&mut header, 0)?;
        let (size, cluster) = table::decode_header(&header)?;
        let clusters = usize::try_from(size.div_ceil(u64::from(cluster))).unwrap();
        let room = table::room_for(clusters);
        files[0].check("read the table of", 0, room)?;
        let mut bytes = vec![0; usize::try_from(room).unwrap()];
        files[0].read(&mut bytes, 0)?;
        let sizes = files.each_ref().map(|file| file.info().size);
        let table = table::decode(&bytes, (cluster, clusters), sizes)?;
        Ok(Self::new(files, backing, size, ToySettings { cluster, ..settings }, table))
    }

    fn new(
        files: [Edge; 2],
        backing: Option<Edge>,
        size: u64,
        settings: ToySettings,
        table: Vec<Entry>,
    ) -> Self {
        let write = files.iter().all(|file| file.info().abilities.write);
        let cluster = settings.cluster;
        let mut ends = [table::room_for(table.len()), 0];
        for slot in table.iter().filter_map(|entry| entry.slot()) {
            let end = &mut ends[usize::from(slot.file)];
            *end = (*end).max(slot.offset + slot.len);
        }
        let info = Info {
            blocks: BlockSizes { minimum: cluster, preferred: cluster, maximum: 8 * cluster },
            abilities: Abilities {
                write,
                flush: true,
                trim: write && !settings.append_only,
                zero: write,
                fast_zero: write,
                extents: true,
                ..Abilities::READ
            },
            ..Info::new("toy", size)
        };
        let sizes = files.each_ref().map(|file| file.info().size);
        Self(Arc::new(ToyImage {
            info,
            settings,
            pool: files[0].pool().clone(),
            files,
            backing,
            state: Mutex::new(State { table, room: Room::new(sizes, ends) }),
            writing: Arc::default(),
            reads: AtomicUsize::new(0),
        }))
    }

    /// With an edge in front.
    #[must_use]
    pub fn edge(&self) -> Edge {
        Edge::new(Arc::new(self.clone()), self.0.pool.clone())
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> ToyCounts {
        let room = &mut self.0.state().room;
        let reads = self.0.reads.load(Ordering::SeqCst);
        ToyCounts { reused: room.reused, held: room.held(), reads }
    }
}

impl Device for Toy {
    fn info(&self) -> &Info {
        &self.0.info
    }

    fn submit(&self, operation: Operation, done: Done) {
        let image = self.0.clone();
        spawn(async move { done(image.run(operation).await) });
    }

    fn now(&self, now: Now<'_>) -> Result<bool> {
        match now {
            Now::Read { offset, buffer } => {
                let mut rest = buffer;
                for (at, len) in self.0.cut(offset, rest.len()) {
                    let (piece, after) = rest.split_at_mut(len);
                    rest = after;
                    match at_once(self.0.read_piece(at, len, false)).transpose()?.flatten() {
                        Some(bytes) => piece.copy_from_slice(&bytes),
                        None => return Ok(false),
                    }
                }
                Ok(true)
            }
            Now::Resolve { offset, len, max, out } => {
                let found = at_once(self.0.resolve((offset, len), max, false));
                let found = found.transpose()?.flatten();
                let known = found.is_some();
                out.extend(found.into_iter().flatten());
                Ok(known)
            }
            Now::Write { .. } => Ok(false),
        }
    }

    fn finish(&self) -> Result<()> {
        let image = self.0.clone();
        let written = wait_for(|promise| {
            spawn(async move { promise.keep(image.write_back().await) });
        });
        written.unwrap_or_else(|| Err(Error::unanswered()))?;
        self.0.files.iter().try_for_each(|file| file.device().finish())
    }
}

impl ToyImage {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The cluster at `offset`, and how far in it that is.
    fn cluster(&self, offset: u64) -> (usize, u64) {
        let cluster = u64::from(self.settings.cluster);
        (usize::try_from(offset / cluster).unwrap(), offset % cluster)
    }

    /// The bytes of a cluster.
    fn len_of(&self, cluster: usize) -> usize {
        let len = u64::from(self.settings.cluster);
        usize::try_from(len.min(self.info.size - cluster as u64 * len)).unwrap()
    }

    /// A range in pieces, each in one cluster.
    fn cut(&self, offset: u64, len: usize) -> impl Iterator<Item = (u64, usize)> + Send + use<> {
        let cluster = u64::from(self.settings.cluster);
        let end = offset + len as u64;
        let mut at = offset;
        std::iter::from_fn(move || {
            let next = (at - at % cluster + cluster).min(end);
            let piece = (at, usize::try_from(next - at).unwrap());
            (std::mem::replace(&mut at, next) < end).then_some(piece)
        })
    }

    async fn run(self: Arc<Self>, operation: Operation) -> Result<Outcome> {
        match operation {
            Operation::Flush => return self.write_back().await.map(|()| Outcome::Done),
            Operation::Prefetch { .. } => {}
            Operation::Read { offset, buffer } => {
                return self.read(offset, buffer).await.map(Outcome::Read);
            }
            Operation::Resolve { offset, len, max } => {
                let found = self.resolve((offset, len), max, true).await?;
                return found.map(Outcome::Extents).ok_or_else(confused);
            }
            Operation::Status { .. } => return Err(Error::unsupported("status")),
            Operation::Take { .. } => return Ok(Outcome::Taken(0)),
            Operation::Trim { offset, len, .. } => self.discard(offset, len)?,
            Operation::Write { offset, data, .. } => self.write(offset, data).await?,
            Operation::Zero { offset, len, flags } => self.zero(offset, len, flags)?,
        }
        Ok(Outcome::Done)
    }

    async fn read(self: Arc<Self>, offset: u64, buffer: Buffer) -> Result<Buffer> {
        let (pool, pieces) = (self.pool.clone(), self.cut(offset, buffer.len()));
        let whole = Arc::new(Mutex::new(buffer));
        let into = whole.clone();
        let reads = pieces.map(move |(at, len)| {
            let (me, into) = (self.clone(), into.clone());
            async move {
                let piece = me.read_piece(at, len, true).await?.ok_or_else(confused)?;
                let start = usize::try_from(at - offset).unwrap();
                into.lock()[start..start + len].copy_from_slice(&piece);
                Result::Ok(())
            }
        });
        each(&pool, WIDTH, reads).await?;
        let mut whole = whole.lock();
        Ok(std::mem::replace(&mut *whole, Buffer::zeroed(0)))
    }

    /// Bytes of one cluster; `None` if they would have to be waited for, and `may_wait` is false.
    async fn read_piece(&self, at: u64, len: usize, may_wait: bool) -> Result<Option<Buffer>> {
        let (cluster, within) = self.cluster(at);
        // What lies there is not reused meanwhile.
        let (entry, _lease) = self.entry(cluster);
        let found = match entry {
            Entry::Absent => self.read_backing(at, len, may_wait).await?,
            Entry::Zero => Some(Buffer::zeroed(len)),
            Entry::Plain(slot) => {
                read_or_wait(self.file(slot), slot.offset + within, len, may_wait).await?
            }
            Entry::Packed(slot, packed) => {
                let packed = usize::try_from(packed).unwrap();
                let packed = read_or_wait(self.file(slot), slot.offset, packed, may_wait).await?;
                let within = usize::try_from(within).unwrap();
                let unpack = |packed: Buffer| {
                    let all = pack::unpack(&packed, self.len_of(cluster));
                    let all = all.ok_or_else(|| table::corrupt("packed cluster").at(at))?;
                    Result::Ok(Buffer::copy_of(&all[within..within + len]))
                };
                packed.map(unpack).transpose()?
            }
        };
        self.reads.fetch_add(usize::from(found.is_some()), Ordering::SeqCst);
        Ok(found)
    }

    async fn read_backing(&self, at: u64, len: usize, may_wait: bool) -> Result<Option<Buffer>> {
        let Some((backing, there)) = self.backed(at, len as u64) else {
            return Ok(Some(Buffer::zeroed(len)));
        };
        let there = usize::try_from(there).unwrap();
        let Some(found) = read_or_wait(backing, at, there, may_wait).await? else {
            return Ok(None);
        };
        if there == len {
            return Ok(Some(found));
        }
        let mut bytes = Buffer::zeroed(len);
        bytes[..there].copy_from_slice(&found);
        Ok(Some(bytes))
    }

    /// The backing disk, and how much of a range lies in it, if any does.
    fn backed(&self, at: u64, len: u64) -> Option<(&Edge, u64)> {
        let backing = self.backing.as_ref()?;
        let there = backing.info().size.checked_sub(at).filter(|there| *there > 0)?;
        Some((backing, there.min(len)))
    }

    /// Where a cluster is, and a lease of that.
    fn entry(&self, cluster: usize) -> (Entry, Lease) {
        let state = self.state();
        (state.table[cluster], state.room.lease())
    }

    fn file(&self, slot: Slot) -> &Edge {
        &self.files[usize::from(slot.file)]
    }

    async fn write(self: Arc<Self>, offset: u64, data: Slice) -> Result<()> {
        let pool = self.pool.clone();
        let (first, _) = self.cluster(offset);
        let pieces = data.into_pieces(usize::try_from(self.settings.cluster).unwrap());
        let writes = (first..).zip(pieces).map(move |(cluster, data)| {
            let me = self.clone();
            async move { me.write_cluster(cluster, data).await }
        });
        each(&pool, WIDTH, writes).await
    }

    async fn write_cluster(&self, cluster: usize, data: Slice) -> Result<()> {
        let packed = if self.settings.packs && cluster % 2 == 1 { pack::pack(&data) } else { None };
        // A write to a slot has a lease too: another may free it meanwhile.
        let (old, _lease) = self.entry(cluster);
        if self.settings.append_only && old != Entry::Absent {
            return Err(Error::unsupported("write what was written: the image is append-only"));
        }
        if let (Entry::Plain(slot), None) = (old, &packed) {
            return write(self.file(slot), slot.offset, data, false).await;
        }
        let len = packed.as_ref().map_or(u64::from(self.settings.cluster), |p| p.len() as u64);
        let slot = self.state().room.allocate(len)?;
        let new = match packed.as_ref().and_then(|packed| u32::try_from(packed.len()).ok()) {
            Some(len) => Entry::Packed(slot, len),
            None => Entry::Plain(slot),
        };
        let data = packed.map_or(data, |packed| Buffer::copy_of(&packed).into());
        let written = write(self.file(slot), slot.offset, data, false).await;
        let state = &mut *self.state();
        let free = match written {
            Ok(()) => std::mem::replace(&mut state.table[cluster], new),
            Err(_) => new,
        };
        free.slot().into_iter().for_each(|slot| state.room.free(slot));
        written
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        if !flags.may_unmap {
            return Err(Error::unsupported("zero and keep the room"));
        }
        self.discard(offset, len)
    }

    /// Makes whole clusters read as zeroes, and frees their room.
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let (first, _) = self.cluster(offset);
        let (last, _) = self.cluster(offset + len - 1);
        let new = if self.backing.is_some() { Entry::Zero } else { Entry::Absent };
        let State { table, room } = &mut *self.state();
        let clusters = &mut table[first..=last];
        if self.settings.append_only && clusters.iter().any(|entry| *entry != Entry::Absent) {
            return Err(Error::unsupported("zero what was written: the image is append-only"));
        }
        for entry in clusters {
            let old = std::mem::replace(entry, new);
            old.slot().into_iter().for_each(|slot| room.free(slot));
        }
        Ok(())
    }

    /// Makes the data durable, then the table.
    async fn write_back(&self) -> Result<()> {
        if !self.info.abilities.write {
            return Ok(());
        }
        let _alone = self.writing.alone().await;
        let bytes = table::encode(self.info.size, self.settings.cluster, &self.state().table);
        for file in &self.files {
            flush(file).await?;
        }
        write(&self.files[0], 0, Buffer::copy_of(&bytes).into(), false).await?;
        flush(&self.files[0]).await
    }
}

/// The result of `work` if it need not wait.
fn at_once<T>(work: impl Future<Output = T>) -> Option<T> {
    match std::pin::pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}
