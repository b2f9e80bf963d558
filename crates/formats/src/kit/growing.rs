//! A new image of equal blocks, each of which gets the next slot in the container at its first
//! write, or has it from the start, in the order of the disk.
//!
//! The format writes the metadata at the end. Until then, nothing in the container says where a
//! block is.

use std::sync::Arc;

use device::{
    Abilities, BlockSizes, Buffer, Device, Edge, ErrorKind, Extent, ExtentKind, Info, Operation,
    Outcome, Place, Result, Slice, ZeroFlags,
};
use runtime::{Gate, Mutex};

use crate::{DiskMap, Making};

use super::fields::corrupt;
use super::layer::{Layer, Layered};
use super::scattered::{Asks, Atlas, Lies, Run, Runs, Scattered};
use super::{ask, confused, resolve, take, write, zero};

/// Entries in a chunk.
const CHUNK: u64 = 1024;
/// Bytes of a table in one write.
const PIECE: usize = 1 << 20;
/// Gates, each for many blocks.
const GATES: u64 = 64;

/// Writes the tables and, last, the header into a container with these blocks. Returns the final
/// length of the container.
type Close = Box<dyn Fn(&Edge, &Slots) -> Result<u64> + Send + Sync>;

/// The layout that all blocks share.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Bytes of the disk in a block, at least one.
    pub(crate) block: u64,
    /// Bytes of the prefix of each block.
    pub(crate) prefix: Vec<u8>,
    /// Where the first one begins in the container, with its prefix.
    pub(crate) start: u64,
    /// Bytes of the disk.
    pub(crate) size: u64,
    /// All blocks have their slots, without a prefix, and read as zeroes.
    pub(crate) fixed: bool,
}

impl Shape {
    fn stride(&self) -> u64 {
        self.block + self.prefix.len() as u64
    }

    /// The offset of the data in slot `slot`.
    pub(crate) fn place(&self, slot: u64) -> u64 {
        self.start + slot * self.stride() + self.prefix.len() as u64
    }

    /// The first byte after so many blocks.
    pub(crate) fn end(&self, slots: u64) -> u64 {
        self.start + slots * self.stride()
    }
}

/// The slot of each block, in the order of their first writes.
pub(crate) struct Slots {
    shape: Shape,
    below: Edge,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Chunks of entries (slot numbers); empty chunks are missing.
    chunks: Vec<Option<Box<[Entry]>>>,
    used: u64,
}

/// A block.
#[derive(Clone, Copy, Default)]
struct Entry {
    /// Its slot, counted from 1; 0: none.
    room: u32,
    /// Its unwritten parts read as zeroes.
    ready: bool,
}

impl Slots {
    /// The number of slots.
    pub(crate) fn used(&self) -> u64 {
        let Shape { size, block, fixed, .. } = self.shape;
        if fixed { size.div_ceil(block) } else { self.inner.lock().used }
    }

    /// The slot of a block that was written to.
    pub(crate) fn get(&self, block: u64) -> Option<u64> {
        if self.shape.fixed {
            return Some(block);
        }
        let entry = self.entry(block);
        if entry.ready { u64::from(entry.room).checked_sub(1) } else { None }
    }

    fn entry(&self, block: u64) -> Entry {
        let inner = self.inner.lock();
        let chunk = usize::try_from(block / CHUNK).ok().and_then(|chunk| inner.chunks.get(chunk));
        let chunk = chunk.and_then(Option::as_ref);
        chunk.and_then(|chunk| chunk.get(within(block))).copied().unwrap_or_default()
    }

    /// The first block from `block` on that may have a slot, or `end`.
    fn skip(&self, block: u64, end: u64) -> u64 {
        let inner = self.inner.lock();
        let mut at = block;
        while at < end {
            let chunk = usize::try_from(at / CHUNK).ok().and_then(|chunk| inner.chunks.get(chunk));
            match chunk {
                None => return end,
                Some(Some(_)) => return at,
                Some(None) => at = (at / CHUNK + 1) * CHUNK,
            }
        }
        end
    }

    /// Gives a block a slot, if it has none. Returns its place.
    fn room(&self, block: u64) -> Result<u64> {
        let full = || corrupt("the image has more blocks than its format can count");
        let mut inner = self.inner.lock();
        let chunk = usize::try_from(block / CHUNK).map_err(|_| full())?;
        if inner.chunks.len() <= chunk {
            inner.chunks.resize_with(chunk + 1, || None);
        }
        let Inner { chunks, used } = &mut *inner;
        let new = || vec![Entry::default(); usize::try_from(CHUNK).unwrap_or(0)].into_boxed_slice();
        let chunk = chunks.get_mut(chunk).map(|chunk| chunk.get_or_insert_with(new));
        let entry = chunk.and_then(|chunk| chunk.get_mut(within(block))).ok_or_else(full)?;
        if entry.room == 0 {
            entry.room = u32::try_from(*used + 1).map_err(|_| full())?;
            *used += 1;
        }
        Ok(u64::from(entry.room - 1))
    }

    fn set_ready(&self, block: u64) {
        let mut inner = self.inner.lock();
        let chunk = usize::try_from(block / CHUNK).ok();
        let chunk = chunk.and_then(|chunk| inner.chunks.get_mut(chunk)).and_then(Option::as_mut);
        if let Some(entry) = chunk.and_then(|chunk| chunk.get_mut(within(block))) {
            entry.ready = true;
        }
    }
}

fn within(block: u64) -> usize {
    usize::try_from(block % CHUNK).unwrap_or(0)
}

impl Runs for Slots {
    async fn run(&self, at: u64, len: u64, _may_wait: bool) -> Result<Option<Run>> {
        if self.shape.fixed {
            return Ok(Some(Run { len, lies: Lies::At(self.shape.start + at) }));
        }
        let (block, within) = (at / self.shape.block, at % self.shape.block);
        let (lies, len) = match self.get(block) {
            Some(room) => {
                (Lies::At(self.shape.place(room) + within), len.min(self.shape.block - within))
            }
            None => {
                let end = (at + len).div_ceil(self.shape.block);
                let next = self.skip(block, end).max(block + 1);
                (Lies::Hole, len.min(next * self.shape.block - at))
            }
        };
        Ok(Some(Run { len, lies }))
    }
}

impl Atlas for Slots {
    fn file(&self, _: u64) -> Option<(u16, &Edge)> {
        Some((0, &self.below))
    }

    fn asks(&self, _: u64) -> Asks {
        if self.shape.fixed { Asks::AsItIs } else { Asks::Always }
    }
}

/// An image that grows, block by block.
pub(crate) struct Growing {
    disk: Arc<Scattered>,
    /// The map of `disk`.
    slots: Arc<Slots>,
    gates: Vec<Arc<Gate>>,
    close: Close,
    /// Whether unwritten ranges of the container read as zeroes.
    zeroed: bool,
}

impl Growing {
    pub(crate) fn device(
        below: Edge,
        making: &Making<'_>,
        shape: Shape,
        close: impl Fn(&Edge, &Slots) -> Result<u64> + Send + Sync + 'static,
    ) -> Arc<dyn Device> {
        let container = below.info();
        let abilities = Abilities {
            write: true,
            flush: true,
            zero: true,
            fast_zero: container.abilities.fast_zero,
            take: container.abilities.take,
            extents: true,
            ..Abilities::READ
        };
        let blocks = BlockSizes { preferred: container.blocks.preferred, ..BlockSizes::ANY };
        let info = Info { abilities, blocks, ..Info::new(container.name.clone(), shape.size) };
        let slots = Arc::new(Slots { shape, below, inner: Mutex::default() });
        let disk = Arc::new(Scattered::new(info, making.context, None, slots.clone()));
        let gates = (0..GATES).map(|_| Arc::default()).collect();
        let (close, zeroed) = (Box::new(close), making.zeroed);
        Layered::device(Self { disk, slots, gates, close, zeroed })
    }

    fn slots(&self) -> &Slots {
        &self.slots
    }

    fn container(&self) -> &Edge {
        &self.slots().below
    }

    /// The block at `at`, the offset in it, and how much of `len` lies in it.
    fn cut(&self, at: u64, len: u64) -> (u64, u64, u64) {
        let Shape { block, fixed, .. } = self.slots().shape;
        if fixed { (0, at, len) } else { (at / block, at % block, len.min(block - at % block)) }
    }

    /// Makes room for a block. `fill`, given its place, then writes all or a part of it; the rest
    /// reads as zeroes.
    async fn put<T>(
        &self,
        (block, within, len): (u64, u64, u64),
        fill: impl AsyncFnOnce(u64) -> Result<T>,
    ) -> Result<T> {
        let shape = &self.slots().shape;
        if let Some(room) = self.slots().get(block) {
            return fill(shape.place(room) + within).await;
        }
        let gate = usize::try_from(block % GATES).ok().and_then(|gate| self.gates.get(gate));
        let alone = gate.ok_or_else(confused)?.alone().await;
        let room = self.slots().room(block)?;
        if self.slots().get(block).is_none() {
            if len < shape.block && !self.zeroed {
                clear(self.container(), shape.place(room), shape.block).await?;
            }
            if !shape.prefix.is_empty() {
                let prefix = Buffer::copy_of(&shape.prefix);
                let at = shape.place(room) - shape.prefix.len() as u64;
                write(self.container(), at, prefix.into(), false).await?;
            }
            if len == shape.block {
                let done = fill(shape.place(room) + within).await?;
                self.slots().set_ready(block);
                return Ok(done);
            }
            self.slots().set_ready(block);
        }
        drop(alone);
        fill(shape.place(room) + within).await
    }

    async fn write(&self, offset: u64, mut data: Slice) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let (block, within, len) = self.cut(at, (data.len() - done) as u64);
            let n = usize::try_from(len).map_err(|_| confused())?;
            let piece = data.share(done, n).ok_or_else(confused)?;
            let below = self.container();
            self.put((block, within, len), async |there| write(below, there, piece, false).await)
                .await?;
            done += n;
        }
        Ok(())
    }

    /// A block without a slot reads as zeroes already.
    async fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        let (mut at, end, mut flags) = (offset, offset + len, flags);
        while at < end {
            let (block, within, len) = self.cut(at, end - at);
            if flags.may_unmap && self.slots().get(block).is_none() {
                let last = end.div_ceil(self.slots().shape.block);
                let next = self.slots().skip(block, last).max(block + 1);
                at = (next * self.slots().shape.block).min(end);
                continue;
            }
            let below = self.container();
            let zeroed = self
                .put((block, within, len), async |offset| zero(below, offset, len, flags).await);
            zeroed.await?;
            // Only the first piece may refuse.
            flags.fast_only = false;
            at += len;
        }
        Ok(())
    }

    async fn take(&self, offset: u64, len: u64, from: Place, share_only: bool) -> Result<u64> {
        let mut done = 0;
        while done < len {
            let (block, within, len) = self.cut(offset + done, len - done);
            let (below, from) = (self.container(), from.advanced(done));
            // If only a part of a new block could be shared, the rest is not known to be zero.
            // `put` handles that, if told that the block may not be filled.
            let part = len.min(self.slots().shape.block - 1);
            let piece = (block, within, if len > part { part } else { len });
            let taken = self
                .put(piece, async |there| take(below, (there, len), from, share_only).await)
                .await?;
            done += taken;
            if taken < len {
                break;
            }
        }
        Ok(done)
    }
}

impl Layer for Growing {
    fn info(&self) -> &Info {
        self.disk.info()
    }

    fn below(&self) -> Vec<&Edge> {
        self.disk.below()
    }

    async fn run(self: Arc<Self>, operation: Operation) -> Result<Outcome> {
        match operation {
            Operation::Flush => ask(self.container(), Operation::Flush).await,
            Operation::Take { offset, len, from, share_only } => {
                self.take(offset, len, from, share_only).await.map(Outcome::Taken)
            }
            Operation::Write { offset, data, .. } => {
                self.write(offset, data).await.map(|()| Outcome::Done)
            }
            Operation::Zero { offset, len, flags } => {
                self.zero(offset, len, flags).await.map(|()| Outcome::Done)
            }
            Operation::Read { .. }
            | Operation::Resolve { .. }
            | Operation::Prefetch { .. }
            | Operation::Status { .. }
            | Operation::Trim { .. } => self.disk.clone().run(operation).await,
        }
    }

    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        self.disk.read_now(offset, buffer)
    }

    async fn finish(self: Arc<Self>) -> Result<()> {
        let below = self.container();
        let len = (self.close)(below, self.slots())?;
        below.device().resize(len)?;
        below.device().finish()
    }
}

/// Writes a table of `entries` entries of `WIDTH` bytes, from the first on.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write_table<const WIDTH: usize>(
    below: &Edge,
    offset: u64,
    entries: u64,
    entry: impl Fn(u64) -> [u8; WIDTH],
) -> Result<()> {
    let (mut bytes, mut at) = (Vec::with_capacity(PIECE), offset);
    for index in 0..entries {
        bytes.extend(entry(index));
        if bytes.len() >= PIECE || index + 1 == entries {
            below.write(&bytes, at, false)?;
            at += bytes.len() as u64;
            bytes.clear();
        }
    }
    Ok(())
}

/// If wanted, all data is durable now: the part that makes the image valid comes next.
///
/// # Errors
/// What the disk says.
pub(crate) fn settle(below: &Edge, durable: bool) -> Result<()> {
    if durable { below.flush() } else { Ok(()) }
}

/// Makes a range of a container read as zeroes, if it does not already: new space in a growing
/// container is empty.
async fn clear(below: &Edge, offset: u64, len: u64) -> Result<()> {
    let empty = resolve(below, (offset, len), 1, true).await?;
    if is_hole(empty.as_deref().unwrap_or_default(), len) {
        return Ok(());
    }
    let flags = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
    zero(below, offset, len, flags).await
}

/// The same, for callers that may wait.
///
/// # Errors
/// The range does not exist, or cannot be zeroed.
pub(crate) fn clear_now(below: &Edge, offset: u64, len: u64) -> Result<()> {
    below.check("make an image of", offset, len).map_err(|e| match e.kind() {
        ErrorKind::OutOfBounds => {
            below.info().keep_size(offset.saturating_add(len)).err().unwrap_or(e)
        }
        _ => e,
    })?;
    if len == 0 {
        return Ok(());
    }
    let mut found = Vec::new();
    below.resolve(offset, len, 1, &mut found)?;
    if is_hole(&found, len) {
        return Ok(());
    }
    below.zero(offset, len, ZeroFlags { may_unmap: true, ..ZeroFlags::default() })
}

/// How many blocks of `block` bytes a disk has that hold data.
///
/// # Errors
/// What the map says.
pub(crate) fn blocks_with_data(map: DiskMap<'_>, block: u64) -> Result<u64> {
    let (mut count, mut next) = (0, 0);
    for extent in map {
        let extent = extent?;
        if extent.kind == ExtentKind::Data {
            let (first, end) = ((extent.start / block).max(next), extent.end().div_ceil(block));
            count += end.saturating_sub(first);
            next = next.max(end);
        }
    }
    Ok(count)
}

fn is_hole(found: &[Extent], len: u64) -> bool {
    matches!(found, [only] if only.kind.reads_zero() && only.len == len)
}
