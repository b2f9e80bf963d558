//! Blocks of a disk that are kept beside it, in a temporary file: what `cow` and `cache` share.
//!
//! Each block is [`BlockState::Below`], or stored here, or a hole. A block is stored as a whole, so
//! a write to a part of one reads the rest from below first. Only the callers write below. An
//! operation locks the blocks that it touches and no others, and no waiting task holds a thread.
//!
//! Readers of the map ask here first and below afterwards: whatever was written before they began
//! is in one of the two, even if blocks move meanwhile.

mod file;
mod on_read;
mod states;
mod system;

use runtime::{Mutex, MutexGuard, Promised, RangeLock, RangeLocks, to_usize};
use std::ops::Range;

use device::{
    Buffer, Edge, Error, ErrorKind, Extent, ExtentKind, Fault, Operation, Outcome, Params, Result,
    Slice, merge_extent, values,
};

use crate::kit::below;

pub(crate) use file::{TempFile, ended as file_ended};
pub(crate) use on_read::OnRead;
pub(crate) use runtime::BlockAccess;
pub(crate) use states::BlockState;
use states::States;

/// Parts of one read that are in flight at a time.
const WIDTH: usize = 16;

/// Questions to the map below for one answer.
const QUESTIONS: usize = 32;

/// Bytes read from below at a time if no client waits for them.
const PREFETCH: u64 = 4 << 20;

/// The smallest and the largest block, in bytes.
const BLOCKS: std::ops::RangeInclusive<u64> = 4096..=32 << 20;

/// The value of `key`, the size of a block, in bytes.
///
/// # Errors
/// It is not a power of two from 4K to 32M.
pub(crate) fn block_size(params: &Params, key: &str) -> Result<u64> {
    let size = values::size(params, key)?.unwrap_or(64 << 10);
    if size.is_power_of_two() && BLOCKS.contains(&size) {
        return Ok(size);
    }
    let text = params.get(key).unwrap_or_default();
    Err(values::not_a(key, text, "a power of two from 4K to 32M"))
}

/// The blocks.
pub(crate) struct Store {
    /// Bytes of a block: a power of two.
    block: u64,
    /// Bytes of the disk; its last block may be short.
    size: u64,
    states: Mutex<States>,
    pub(crate) locks: RangeLocks,
    pub(crate) file: TempFile,
}

/// A part of a read that is in flight.
enum Part {
    Below(Promised<Result<Outcome>>),
    Here(Promised<Result<Buffer>>),
    Zero,
}

pub(crate) fn confused() -> Error {
    Error::new(
        ErrorKind::Io,
        Fault::Us,
        "the state of a stored block makes no sense; this is a defect",
    )
}

impl Store {
    /// No blocks yet, of the disk `below`.
    pub(crate) fn new(block: u64, below: &Edge, file: TempFile) -> Self {
        let block = block.max(u64::from(below.info().blocks.minimum));
        let size = below.info().size;
        Self { block, size, states: Mutex::default(), locks: RangeLocks::default(), file }
    }

    /// Whether `below` may be another path to the disk that the blocks belong to.
    pub(crate) fn fits(&self, below: &Edge) -> bool {
        let info = below.info();
        self.size == info.size && self.block.is_multiple_of(u64::from(info.blocks.minimum.max(1)))
    }

    /// Refuses blocks whose states would take too much memory.
    ///
    /// # Errors
    /// `NoMemory`.
    pub(crate) fn admit(&self, blocks: &Range<u64>) -> Result<()> {
        if !self.states().is_full(blocks) {
            return Ok(());
        }
        let action = "remember more blocks of a disk: they are too many";
        Err(Error::new(ErrorKind::NoMemory, Fault::User, action))
    }

    /// The states of the blocks. Do not hold the lock for long.
    pub(crate) fn states(&self) -> MutexGuard<'_, States> {
        self.states.lock()
    }

    /// The runs of blocks of a range that are in `state`, each looked for when it is its turn.
    pub(crate) fn runs(
        &self,
        mut rest: Range<u64>,
        state: BlockState,
    ) -> impl Iterator<Item = Range<u64>> {
        std::iter::from_fn(move || {
            let run = self.states().next(rest.clone(), state)?;
            rest.start = run.end;
            Some(run)
        })
    }

    /// Bytes of a block.
    pub(crate) fn block(&self) -> u64 {
        self.block
    }

    /// The blocks that a range touches.
    pub(crate) fn touched(&self, offset: u64, len: u64) -> Range<u64> {
        offset / self.block..(offset + len).div_ceil(self.block)
    }

    /// The blocks that lie wholly in a range; the last block of the disk counts as whole.
    pub(crate) fn whole(&self, offset: u64, len: u64) -> Range<u64> {
        let end = offset + len;
        let start = offset.div_ceil(self.block);
        let last = if end == self.size { end.div_ceil(self.block) } else { end / self.block };
        start..last.max(start)
    }

    /// The byte range of some blocks: offset and length.
    pub(crate) fn span(&self, blocks: &Range<u64>) -> (u64, u64) {
        let start = (blocks.start * self.block).min(self.size);
        let end = blocks.end.saturating_mul(self.block).min(self.size);
        (start, end.saturating_sub(start))
    }

    /// Reads from wherever the bytes are.
    pub(crate) async fn read(
        &self,
        below: &Edge,
        offset: u64,
        mut buffer: Buffer,
    ) -> Result<Buffer> {
        let parts = self.parts(offset, buffer.len() as u64);
        if let [(_, state)] = parts.as_slice() {
            return self.start(below, *state, offset, buffer).await;
        }
        for wave in parts.chunks(WIDTH) {
            let started: Vec<_> = wave.iter().map(|part| self.begin(below, part)).collect();
            for ((range, _), part) in wave.iter().zip(started) {
                let within = to_usize(range.start - offset)..to_usize(range.end - offset);
                let target = buffer.get_mut(within).ok_or_else(confused)?;
                match part.ended().await? {
                    Some(part) if part.len() == target.len() => target.copy_from_slice(&part),
                    Some(_) => return Err(confused()),
                    None => target.fill(0),
                }
            }
        }
        Ok(buffer)
    }

    /// Splits a range into parts that come from one place each.
    fn parts(&self, offset: u64, len: u64) -> Vec<(Range<u64>, BlockState)> {
        let (mut at, end) = (offset, offset + len);
        let mut parts = Vec::new();
        let states = self.states();
        while at < end {
            let place = |s: BlockState| match s {
                BlockState::Copy | BlockState::Changed => BlockState::Changed,
                other => other,
            };
            let (state, run) = states.run(self.touched(at, end - at), place);
            let stop = run.end.saturating_mul(self.block).min(end);
            parts.push((at..stop, state));
            at = stop;
        }
        parts
    }

    fn begin(&self, below: &Edge, (range, state): &(Range<u64>, BlockState)) -> Part {
        let (offset, len) = (range.start, to_usize(range.end - range.start));
        match state {
            BlockState::Hole => Part::Zero,
            BlockState::Below => {
                let buffer = Buffer::zeroed(len);
                Part::Below(below::submit(below, Operation::Read { offset, buffer }))
            }
            BlockState::Copy | BlockState::Changed => {
                Part::Here(self.file.read(offset, Buffer::zeroed(len)))
            }
        }
    }

    /// Reads a whole request from one place.
    async fn start(
        &self,
        below: &Edge,
        state: BlockState,
        offset: u64,
        mut buffer: Buffer,
    ) -> Result<Buffer> {
        match state {
            BlockState::Below => below::read(below, offset, buffer).await,
            BlockState::Copy | BlockState::Changed => {
                file::ended(self.file.read(offset, buffer)).await
            }
            BlockState::Hole => {
                buffer.fill(0);
                Ok(buffer)
            }
        }
    }

    /// Writes here. If this fails, nothing of it is stored, unless the blocks were stored before;
    /// then the contents of the range, and only of the range, are undefined.
    ///
    /// # Errors
    /// No space is left, or the rest of a block could not be read.
    pub(crate) async fn write(&self, below: &Edge, offset: u64, data: Slice) -> Result<()> {
        let blocks = self.touched(offset, data.len() as u64);
        if blocks.is_empty() {
            return Ok(());
        }
        let held = self.locks.take(blocks.clone(), BlockAccess::Write).await;
        let here = self.states().all(blocks.clone(), BlockState::is_here);
        if here {
            return self.write_here(held, blocks, offset, data).await;
        }
        drop(held);
        self.admit(&blocks)?;
        let _held = self.locks.take(blocks, BlockAccess::Own).await;
        self.bring_and_write(below, offset, data).await
    }

    async fn write_here(
        &self,
        _held: RangeLock,
        blocks: Range<u64>,
        offset: u64,
        data: Slice,
    ) -> Result<()> {
        // First, because after a failure half-way the block is no copy of the one below any more.
        self.states().set(blocks, BlockState::Changed);
        self.file.write(offset, data).await
    }

    /// Writes to blocks that the caller holds exclusively.
    ///
    /// # Errors
    /// As for `write`.
    pub(crate) async fn bring_and_write(
        &self,
        below: &Edge,
        offset: u64,
        mut data: Slice,
    ) -> Result<()> {
        for (range, whole) in self.segments(offset, data.len() as u64) {
            let (from, n) = (to_usize(range.start - offset), to_usize(range.end - range.start));
            let part = data.share(from, n).ok_or_else(confused)?;
            if whole {
                self.write_whole(range, part).await?;
            } else {
                self.write_part(below, range.start, part).await?;
            }
        }
        Ok(())
    }

    /// Splits a range into segments: parts of one block, and whole blocks together (`true`).
    pub(crate) fn segments(&self, offset: u64, len: u64) -> Vec<(Range<u64>, bool)> {
        let (end, whole) = (offset + len, self.whole(offset, len));
        let (start, n) = self.span(&whole);
        let (start, stop) = match n {
            // At most two partial blocks, which meet here if they meet at all.
            0 => {
                let border = offset.next_multiple_of(self.block).clamp(offset, end);
                (border, border)
            }
            n => (start, start + n),
        };
        let all = [(offset..start, false), (start..stop, true), (stop..end, false)];
        all.into_iter().filter(|(range, _)| !range.is_empty()).collect()
    }

    async fn write_whole(&self, range: Range<u64>, data: Slice) -> Result<()> {
        let blocks = self.touched(range.start, range.end - range.start);
        let written = self.file.write(range.start, data).await;
        if written.is_ok() {
            self.states().set(blocks, BlockState::Changed);
            return written;
        }
        // A block that is half written is no copy any more.
        self.doubt(&blocks);
        written
    }

    /// Writes to a part of a block that the caller holds exclusively.
    async fn write_part(&self, below: &Edge, offset: u64, part: Slice) -> Result<()> {
        let block = offset / self.block;
        let state = self.states().get(block);
        let blocks = block..block + 1;
        if state.is_here() {
            self.states().set(blocks, BlockState::Changed);
            return self.file.write(offset, part).await;
        }
        let (start, len) = self.span(&blocks);
        let buffer = Buffer::zeroed(to_usize(len));
        let mut whole = self.start(below, state, start, buffer).await?;
        let within = to_usize(offset - start)..to_usize(offset - start).saturating_add(part.len());
        whole.get_mut(within).ok_or_else(confused)?.copy_from_slice(&part);
        self.file.write_by_page(start, whole.into()).await?;
        self.states().set(blocks, BlockState::Changed);
        Ok(())
    }

    /// Reads the blocks of a short range that are only below, all at once. Blocks that find no room
    /// stay below.
    pub(crate) async fn fill(&self, below: &Edge, offset: u64, len: u64) -> Result<()> {
        let mut all = self.touched(offset, len);
        while !all.is_empty() && !self.file.is_full() {
            let Some(run) = self.states().next(all.clone(), BlockState::Below) else {
                return Ok(());
            };
            all.start = run.end;
            if self.states().is_full(&run) {
                return Ok(());
            }
            let _held = self.locks.take(run.clone(), BlockAccess::Own).await;
            self.fill_own(below, run).await?;
        }
        Ok(())
    }

    /// The same for a range of any length, a few MiB at a time.
    pub(crate) async fn prefetch(&self, below: &Edge, offset: u64, len: u64) -> Result<()> {
        let (mut at, end) = (offset, offset + len);
        while at < end && !self.file.is_full() {
            let step = (PREFETCH - at % PREFETCH).min(end - at);
            self.fill(below, at, step).await?;
            at += step;
        }
        Ok(())
    }

    /// Reads in blocks that the caller holds exclusively.
    async fn fill_own(&self, below: &Edge, blocks: Range<u64>) -> Result<()> {
        for run in self.runs(blocks, BlockState::Below) {
            let (start, n) = self.span(&run);
            let brought = below::read(below, start, Buffer::zeroed(to_usize(n))).await?;
            if self.file.write(start, brought.into()).await.is_ok() {
                self.states().set(run, BlockState::Copy);
            }
        }
        Ok(())
    }

    /// Turns blocks that the caller holds exclusively into holes.
    pub(crate) async fn make_hole(&self, blocks: Range<u64>) {
        self.drop_bytes(blocks, BlockState::Hole).await;
    }

    /// Drops blocks that the caller holds exclusively and that are, or read as, what is below.
    pub(crate) async fn forget(&self, blocks: Range<u64>) {
        self.drop_bytes(blocks, BlockState::Below).await;
    }

    async fn drop_bytes(&self, blocks: Range<u64>, state: BlockState) {
        self.states().set(blocks.clone(), state);
        let (start, len) = self.span(&blocks);
        self.file.punch(start, len).await;
    }

    /// A write failed half-way, here or below. The blocks no longer count as copies, or the disk
    /// would change under its readers when they are dropped. Their bytes stay for current readers;
    /// see `tidy`.
    pub(crate) fn doubt(&self, blocks: &Range<u64>) {
        let mut states = self.states();
        let mut rest = blocks.clone();
        while let Some(run) = states.next(rest.clone(), BlockState::Copy) {
            rest.start = run.end;
            states.set(run, BlockState::Below);
        }
    }

    /// Frees the space of blocks that are only below. The caller holds none of them.
    pub(crate) async fn tidy(&self, blocks: Range<u64>) {
        let _held = self.locks.take(blocks.clone(), BlockAccess::Own).await;
        for run in self.runs(blocks, BlockState::Below) {
            let (start, len) = self.span(&run);
            self.file.punch(start, len).await;
        }
    }

    /// The map of a range, from the states here and the map below.
    pub(crate) async fn resolve(
        &self,
        below: &Edge,
        offset: u64,
        len: u64,
        max: usize,
    ) -> Result<Vec<Extent>> {
        let (mut at, end, mut questions) = (offset, offset + len, 0);
        let mut found = Vec::new();
        while at < end && found.len() < max && questions < QUESTIONS {
            let kind = |s: BlockState| match s {
                BlockState::Changed => Some(ExtentKind::Data),
                BlockState::Hole => Some(ExtentKind::Hole),
                BlockState::Below | BlockState::Copy => None,
            };
            let (kind, run) = self.states().run(self.touched(at, end - at), kind);
            let stop = run.end.saturating_mul(self.block).min(end);
            if let Some(kind) = kind {
                merge_extent(&mut found, Extent::new(at, stop - at, kind));
                at = stop;
                continue;
            }
            questions += 1;
            let room = max - found.len();
            for extent in below::resolve(below, at, stop - at, room).await? {
                at = extent.end();
                // Its place below is right only until it is written here.
                merge_extent(&mut found, Extent { place: None, ..extent });
            }
        }
        Ok(found)
    }
}

impl Part {
    async fn ended(self) -> Result<Option<Buffer>> {
        match self {
            Self::Zero => Ok(None),
            Self::Here(answer) => file::ended(answer).await.map(Some),
            Self::Below(answer) => match below::ended(answer).await? {
                Outcome::Read(buffer) => Ok(Some(buffer)),
                _ => Err(confused()),
            },
        }
    }
}
