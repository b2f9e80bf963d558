//! Writing into images with one level of blocks, of which new ones get the next room in a file.
//!
//! A write into a block that is there goes to its place, at once. Any other takes room for its
//! block, writes it there with what is below, and then lets the tables refer to it. What is zeroed
//! or trimmed keeps its place, so nothing is ever used again for something else.

use std::ops::Range;
use std::sync::Arc;

use device::{
    Abilities, Buffer, Device, Edge, Error, Extent, Info, Operation, Outcome, Result, Slice,
    ZeroFlags, below,
};
use runtime::{BlockAccess, Context, Promised, RangeLocks, StepBudget};

use super::confused;
use super::file::WrittenFile;
use super::layer::{Layer, Layered};
use super::scattered::{Atlas, Later, Lies, Run, Scattered};

/// The most bytes that are filled or copied at a time.
const AT_ONCE: u64 = 1 << 20;
/// Bytes of a sector.
const SECTOR: u64 = 512;

/// Room for a new block.
#[derive(Clone, Debug)]
pub(crate) struct NewBlock {
    /// Where its first byte lies in the file.
    pub(crate) at: u64,
    /// What stands in front of it there.
    pub(crate) front: Vec<u8>,
    /// It reads as zeroes until it is written.
    pub(crate) is_zero: bool,
}

/// An image that is written.
pub(crate) trait Appends: Atlas {
    /// The files that are written.
    fn written(&self) -> Vec<&WrittenFile>;

    /// That in which the byte at `at` lies, or will.
    fn written_at(&self, at: u64) -> Option<&WrittenFile>;

    /// The block of the disk with the byte at `at`. The last one may reach beyond the disk.
    fn block(&self, at: u64) -> Range<u64>;

    /// Whether [`prepare`](Self::prepare) would do nothing.
    fn is_prepared(&self, at: u64, len: u64) -> bool {
        let _ = (at, len);
        true
    }

    /// What must be done before a range that is there is changed in its place, or anything at all.
    fn prepare(&self, at: u64, len: u64) -> Later<'_, ()> {
        let _ = (at, len);
        Box::pin(async { Ok(()) })
    }

    /// Of a block that has room already, the sectors with the bytes from `at` on that are below:
    /// which of the disk, and where the first of them belongs. `None`: it has no room.
    fn part(&self, at: u64, len: u64) -> Later<'_, Option<(Range<u64>, u64)>> {
        let _ = (at, len);
        Box::pin(async { Ok(None) })
    }

    /// Lets the tables say that the sectors of a [`part`](Self::part) are there. They are written.
    fn link_part(&self, part: Range<u64>) -> Later<'_, ()> {
        let _ = part;
        Box::pin(async { Err(confused()) })
    }

    /// Takes room for the block that begins at `start`.
    ///
    /// # Errors
    /// There is none.
    fn take(&self, start: u64) -> Result<NewBlock>;

    /// What stands behind every new block in its file.
    fn behind(&self) -> &[u8] {
        &[]
    }

    /// Room is not needed: nothing will refer to it.
    fn give_back(&self, start: u64, block: NewBlock);

    /// Lets the tables say that the block that begins at `start` is there. It is written.
    fn link<'a>(&'a self, start: u64, block: &'a NewBlock) -> Later<'a, ()>;

    /// Makes a file durable, and its metadata.
    fn save<'a>(&'a self, file: &'a WrittenFile) -> Later<'a, ()> {
        Box::pin(file.flush())
    }

    /// After everything was, when nothing more is written.
    fn close(&self) -> Later<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Whether something is left for [`close`](Self::close).
    fn is_open(&self) -> bool {
        false
    }
}

/// What an image whose bytes are in these files can do when it is written.
pub(crate) fn written_info(info: Info, files: &[&WrittenFile]) -> Info {
    let all = |has: fn(Abilities) -> bool| files.iter().all(|file| has(file.edge.info().abilities));
    let abilities = Abilities {
        write: true,
        flush: true,
        trim: all(|below| below.trim),
        zero: all(|below| below.zero),
        fast_zero: all(|below| below.fast_zero),
        ..info.abilities
    };
    Info { abilities, flat: None, ..info }
}

/// The disk in an image that is written.
pub(crate) struct Appending {
    disk: Arc<Scattered>,
    /// The map of `disk`.
    map: Arc<dyn Appends>,
    /// In bytes of the disk: blocks that get room.
    locks: RangeLocks,
}

/// A write at its place: the answer is owed.
type BegunWrite = Promised<Result<Outcome>>;

impl Appending {
    /// The disk that `info` describes, which is saved in the end.
    pub(crate) fn device(
        info: Info,
        context: &Context,
        backing: Option<Edge>,
        map: impl Appends,
    ) -> Arc<dyn Device> {
        let map: Arc<dyn Appends> = Arc::new(map);
        let disk = Arc::new(Scattered::new(info, context, backing, map.clone()));
        Layered::saved_at_the_end(Self { disk, map, locks: RangeLocks::default() }, context)
    }

    fn file(&self, at: u64) -> Result<&WrittenFile> {
        self.map.written_at(at).ok_or_else(confused)
    }

    fn end(&self) -> u64 {
        self.disk.info().size
    }

    async fn run_at(&self, at: u64, len: u64) -> Result<Run> {
        self.disk.find(at, len, true).await?.ok_or_else(confused)
    }

    /// Before a range that is there is changed in its place, or anything at all.
    async fn prepare(&self, at: u64, len: u64) -> Result<()> {
        if self.map.is_prepared(at, len) { Ok(()) } else { self.map.prepare(at, len).await }
    }

    /// Writes at once what is there in one run; false if it would have to wait.
    fn try_write(&self, offset: u64, data: &[u8]) -> Result<bool> {
        let len = data.len() as u64;
        if !self.map.is_prepared(offset, len) {
            return Ok(false);
        }
        // What goes wrong is said by the write that waits.
        match self.map.run_now(offset, len) {
            Ok(Some(Run { len: there, lies: Lies::At(place) })) if there >= len => {
                self.file(offset)?.edge.write_now(data, place, false)
            }
            _ => Ok(false),
        }
    }

    async fn write(&self, offset: u64, mut data: Slice) -> Result<()> {
        let (mut at, end) = (offset, offset + data.len() as u64);
        let (mut result, mut here) = (Ok(()), Vec::new());
        while at < end && result.is_ok() {
            let part = share(&mut data, at - offset, end - at)?;
            match self.write_next(at, part).await {
                Ok((len, in_flight)) => {
                    at += len;
                    here.extend(in_flight);
                }
                Err(e) => result = Err(e),
            }
        }
        for write in here {
            result = result.and(below::ended(write).await.map(drop));
        }
        result
    }

    /// Writes the beginning of `data`, or begins to: how many bytes.
    async fn write_next(&self, at: u64, mut data: Slice) -> Result<(u64, Option<BegunWrite>)> {
        let wanted = data.len() as u64;
        let run = self.run_at(at, wanted).await?;
        let len = run.len.min(wanted);
        self.prepare(at, len).await?;
        let data = share(&mut data, 0, len)?;
        match run.lies {
            Lies::At(place) => {
                let write = Operation::Write { offset: place, data, fua: false };
                Ok((len, Some(below::submit(&self.file(at)?.edge, write))))
            }
            Lies::Beneath | Lies::Hole | Lies::Zero(_) => {
                self.write_new(at, data).await.map(|()| (len, None))
            }
            Lies::Packed(_) => Err(Error::unsupported("write into what is packed")),
        }
    }

    /// Writes bytes whose blocks another task may be about to make.
    async fn write_new(&self, offset: u64, mut data: Slice) -> Result<()> {
        let end = offset + data.len() as u64;
        let whole = self.map.block(offset).start..self.map.block(end - 1).end;
        let _own = self.locks.take(whole, BlockAccess::Own).await;
        let mut at = offset;
        while at < end {
            let run = self.run_at(at, end - at).await?;
            let to_end = self.map.block(at).end.min(end) - at;
            let len = match run.lies {
                Lies::At(place) => {
                    let len = run.len.min(end - at);
                    let part = share(&mut data, at - offset, len)?;
                    self.prepare(at, len).await?;
                    below::write(&self.file(at)?.edge, place, part, false).await?;
                    len
                }
                _ => {
                    let len = run.len.min(end - at).min(AT_ONCE);
                    let part = self.map.part(at, len).await?;
                    let len = if part.is_some() { len } else { to_end };
                    let data = share(&mut data, at - offset, len)?;
                    match part {
                        Some((sectors, place)) => self.write_part(at, data, sectors, place).await?,
                        None => self.write_block(at, data).await?,
                    }
                    len
                }
            };
            at += len;
        }
        Ok(())
    }

    /// Puts sectors where they belong, of which `data` is new, and the rest is as it is below.
    async fn write_part(
        &self,
        at: u64,
        data: Slice,
        sectors: Range<u64>,
        place: u64,
    ) -> Result<()> {
        let (file, end) = (self.file(at)?, at + data.len() as u64);
        let mut bytes = self.before(sectors.start, sectors.end, (at, end)).await?;
        put(&mut bytes, at - sectors.start, &data)?;
        below::write(&file.edge, place, bytes.into(), false).await?;
        self.map.link_part(sectors).await?;
        if file.has_much() { self.flush().await } else { Ok(()) }
    }

    /// Makes the block with `at`, of which `data` is new, and the rest is as it was.
    async fn write_block(&self, at: u64, data: Slice) -> Result<()> {
        let (file, block) = (self.file(at)?, self.map.block(at));
        let new = self.map.take(block.start)?;
        let made = match self.fill(file, &new, block.clone(), (at, data)).await {
            Ok(()) => self.map.link(block.start, &new).await,
            Err(e) => Err(e),
        };
        if made.is_err() {
            self.map.give_back(block.start, new);
        }
        made?;
        if file.has_much() { self.flush().await } else { Ok(()) }
    }

    /// Writes all of a new block, and makes the file as long as it needs.
    async fn fill(
        &self,
        file: &WrittenFile,
        new: &NewBlock,
        block: Range<u64>,
        (at, mut data): (u64, Slice),
    ) -> Result<()> {
        let end = at + data.len() as u64;
        let last = new.at + (block.end - block.start);
        let begin = new.at.checked_sub(new.front.len() as u64).ok_or_else(confused)?;
        for (at, bytes) in [(last, self.map.behind()), (begin, &new.front[..])] {
            if !bytes.is_empty() {
                below::write(&file.edge, at, Buffer::copy_of(bytes).into(), false).await?;
            }
        }
        let mut piece = block.start;
        while piece < block.end {
            let until = block.end.min(piece + AT_ONCE);
            let place = new.at + (piece - block.start);
            let (from, to) = (at.clamp(piece, until), end.clamp(piece, until));
            let is_known = async |range| Ok::<_, Error>(new.is_zero && self.is_zero(range).await?);
            if from > piece && to == from && is_known((piece, until)).await? {
                // Nothing of it is written.
            } else if is_known((piece, from)).await? && is_known((to, until)).await? {
                if from < to {
                    let part = share(&mut data, from - at, to - from)?;
                    below::write(&file.edge, place + (from - piece), part, false).await?;
                }
            } else {
                let mut bytes = self.before(piece, until, (from, to)).await?;
                if from < to {
                    put(&mut bytes, from - piece, &share(&mut data, from - at, to - from)?)?;
                }
                below::write(&file.edge, place, bytes.into(), false).await?;
            }
            piece = until;
        }
        // A block is there as a whole. What was written of it is not written over.
        let missing = last.saturating_sub(file.container.length()).min(SECTOR);
        if missing > 0 {
            let zeroes = Buffer::zeroed(usize::try_from(missing).map_err(|_| confused())?);
            below::write(&file.edge, last - missing, zeroes.into(), false).await?;
        }
        Ok(())
    }

    /// The bytes of a range as they are, besides some of them that are going to be written.
    async fn before(&self, start: u64, end: u64, (from, to): (u64, u64)) -> Result<Buffer> {
        let mut bytes = Buffer::zeroed(usize::try_from(end - start).map_err(|_| confused())?);
        for (from, to) in [(start, from), (to, end)] {
            // What is behind the end of the disk is zero.
            let to = to.min(self.end());
            if from < to && !self.is_zero((from, to)).await? {
                let old = Buffer::zeroed(usize::try_from(to - from).map_err(|_| confused())?);
                let old = self.disk.clone().read(from, old).await?;
                put(&mut bytes, from - start, &old)?;
            }
        }
        Ok(bytes)
    }

    /// Whether a range, as far as the disk goes, is known to be zero without reading it.
    async fn is_zero(&self, (start, end): (u64, u64)) -> Result<bool> {
        self.disk.is_zero((start, end.min(self.end()))).await
    }

    /// Makes a range read as zeroes, where it is.
    async fn zero(&self, offset: u64, len: u64, mut flags: ZeroFlags) -> Result<()> {
        let (mut at, end, mut budget) = (offset, offset + len, StepBudget::default());
        while at < end {
            budget.spend(&self.disk.pool).await;
            let run = self.run_at(at, end - at).await?;
            let len = run.len.min(end - at);
            match run.lies {
                Lies::At(place) => {
                    self.prepare(at, len).await?;
                    below::zero(&self.file(at)?.edge, place, len, flags).await?;
                    // Only the first part that changes anything may refuse to be slow.
                    flags.fast_only = false;
                }
                Lies::Hole | Lies::Zero(_) => {}
                _ if self.is_zero((at, at + len)).await? => {}
                _ if flags.fast_only => return Err(Error::not_fast()),
                _ => self.write_zeroes(at..at + len).await?,
            }
            at += len;
        }
        Ok(())
    }

    async fn write_zeroes(&self, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(AT_ONCE);
            let zeroes = Buffer::zeroed(usize::try_from(len).map_err(|_| confused())?);
            self.write(at, zeroes.into()).await?;
            at += len;
        }
        Ok(())
    }

    /// Says of what is there that it is no longer needed. It keeps its room in the tables.
    async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        let (mut at, end, mut budget) = (offset, offset + len, StepBudget::default());
        while at < end {
            budget.spend(&self.disk.pool).await;
            let run = self.run_at(at, end - at).await?;
            let len = run.len.min(end - at);
            if let Lies::At(place) = run.lies {
                self.prepare(at, len).await?;
                below::trim(&self.file(at)?.edge, place, len, false).await?;
            }
            at += len;
        }
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        for file in self.map.written() {
            self.map.save(file).await?;
        }
        Ok(())
    }
}

impl Layer for Appending {
    fn info(&self) -> &Info {
        self.disk.info()
    }

    fn below(&self) -> Vec<&Edge> {
        self.disk.below()
    }

    async fn run(self: Arc<Self>, operation: Operation) -> Result<Outcome> {
        let done = |()| Outcome::Done;
        match operation {
            Operation::Flush => self.flush().await.map(done),
            Operation::Trim { offset, len, .. } => self.trim(offset, len).await.map(done),
            Operation::Write { offset, data, .. } => self.write(offset, data).await.map(done),
            Operation::Zero { offset, len, flags } => self.zero(offset, len, flags).await.map(done),
            operation => Layer::run(self.disk.clone(), operation).await,
        }
    }

    async fn finish(self: Arc<Self>) -> Result<()> {
        self.flush().await?;
        self.map.close().await
    }

    fn is_unsaved(&self) -> bool {
        self.map.is_open() || self.map.written().iter().any(|file| file.is_unsaved())
    }

    fn write_now(&self, offset: u64, data: &[u8]) -> Result<bool> {
        self.try_write(offset, data)
    }

    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        self.disk.read_now(offset, buffer)
    }

    fn resolve_now(&self, range: (u64, u64), max: usize, out: &mut Vec<Extent>) -> Result<bool> {
        self.disk.resolve_now(range, max, out)
    }
}

fn share(data: &mut Slice, start: u64, len: u64) -> Result<Slice> {
    let range = usize::try_from(start).ok().zip(usize::try_from(len).ok());
    range.and_then(|(start, len)| data.share(start, len)).ok_or_else(confused)
}

fn put(to: &mut Buffer, at: u64, bytes: &[u8]) -> Result<()> {
    let room = usize::try_from(at).ok().and_then(|at| to.get_mut(at..)?.get_mut(..bytes.len()));
    room.ok_or_else(confused)?.copy_from_slice(bytes);
    Ok(())
}
