//! Reading: adjacent grains are one read below. Compressed ones are decompressed into the caller's
//! buffer, on threads that have time.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use device::{Buffer, Edge, Error, Extent, Info, Operation, Outcome, Result, below};
use runtime::{Promised, StepBudget, where_there_is_time};

use super::codec;
use super::header::broken;
use super::image::{Kind, Part, Pool};
use super::pages::Kept;
use super::sparse::{Found, Sparse};
use crate::kit::{Layer, at_once, confused};

/// Reads below that are in flight for one request.
const WIDTH: usize = 16;
/// The longest read below of compressed grains, in bytes.
const LONGEST: u64 = 1 << 20;

/// An image being read.
pub(super) struct Reader {
    pub(super) info: Info,
    pub(super) parts: Vec<Part>,
    pub(super) backing: Option<Edge>,
    pub(super) kept: Kept,
    pub(super) pool: Pool,
}

/// A range of the disk of one kind.
pub(super) struct Piece<'a> {
    pub(super) at: u64,
    /// In bytes; never 0.
    pub(super) len: u64,
    pub(super) what: What<'a>,
}

/// The kind of a range.
pub(super) enum What<'a> {
    /// Zeroes; whether the image says so, or says nothing.
    Zero { present: bool },
    /// Data of the parent.
    Backing(&'a Edge),
    /// Plain bytes in a file of the image; the last field says whether it is a flat extent.
    Plain(&'a Edge, u16, u64, bool),
    /// All or a part of a compressed grain.
    Packed(Packed<'a>),
}

/// A compressed grain.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a> {
    pub(super) sparse: &'a Sparse,
    pub(super) file: u16,
    /// Its offset, and the most bytes it may take there.
    pub(super) at: u64,
    pub(super) longest: u64,
    grain: u64,
    /// The offset of the range in it, in bytes.
    within: usize,
}

impl Packed<'_> {
    fn key(&self) -> (usize, u64) {
        (self.sparse.number, self.grain)
    }

    /// Bytes that it must contain.
    fn len(&self) -> usize {
        let layout = &self.sparse.layout;
        let start = self.grain.saturating_mul(layout.grain);
        usize::try_from(layout.capacity.saturating_sub(start).min(layout.grain)).unwrap_or(0)
    }
}

impl Layer for Reader {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> Vec<&Edge> {
        let files = self.parts.iter().filter_map(|part| match &part.kind {
            Kind::Zero => None,
            Kind::Flat(file, ..) => Some(file),
            Kind::Sparse(sparse, _) => Some(&sparse.file),
        });
        files.chain(&self.backing).collect()
    }

    async fn run(self: Arc<Self>, operation: Operation) -> Result<Outcome> {
        match operation {
            Operation::Read { offset, buffer } => {
                self.read(offset, buffer).await.map(Outcome::Read)
            }
            Operation::Resolve { offset, len, max } => {
                let found = self.resolve((offset, len), max, true).await?;
                found.map(Outcome::Extents).ok_or_else(confused)
            }
            Operation::Flush | Operation::Prefetch { .. } => Ok(Outcome::Done),
            Operation::Status { .. } => Err(Error::unsupported("status")),
            Operation::Take { .. } => Ok(Outcome::Taken(0)),
            Operation::Trim { .. } | Operation::Write { .. } | Operation::Zero { .. } => {
                Err(Error::unsupported("write to an image of this format"))
            }
        }
    }

    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        at_once(self.read_what_is_here(offset, buffer)).unwrap_or(Ok(false))
    }

    fn resolve_now(&self, range: (u64, u64), max: usize, out: &mut Vec<Extent>) -> Result<bool> {
        let found = at_once(self.resolve(range, max, false)).transpose()?.flatten();
        let known = found.is_some();
        out.extend(found.into_iter().flatten());
        Ok(known)
    }
}

impl Reader {
    /// The range at `at`, up to `most` bytes; `None` if that would have to wait and `may_wait` is
    /// false.
    pub(super) async fn piece(
        &self,
        at: u64,
        most: u64,
        may_wait: bool,
    ) -> Result<Option<Piece<'_>>> {
        let index = self.parts.partition_point(|part| part.end <= at);
        let part = self.parts.get(index).ok_or_else(|| broken("a hole between extents").at(at))?;
        let (within, most) = (at - part.start, most.min(part.end - at));
        let piece = |len, what| Some(Piece { at, len, what });
        let (sparse, number) = match &part.kind {
            Kind::Zero => return Ok(piece(most, What::Zero { present: true })),
            Kind::Flat(file, number, offset) => {
                return Ok(piece(most, What::Plain(file, *number, offset + within, true)));
            }
            Kind::Sparse(sparse, number) => (sparse, *number),
        };
        let size = sparse.layout.grain;
        let (grain, within) = (within / size, within % size);
        let grains = most.saturating_add(within).div_ceil(size);
        let Some(run) = sparse.run(&self.kept, grain, grains, may_wait).await? else {
            return Ok(None);
        };
        let len = run.grains.saturating_mul(size).saturating_sub(within).min(most);
        Ok(match run.found {
            Found::Zero => piece(len, What::Zero { present: true }),
            Found::Plain(offset) => {
                piece(len, What::Plain(&sparse.file, number, offset + within, false))
            }
            Found::Packed(offset, longest) => {
                let within = usize::try_from(within).unwrap_or(0);
                let packed = Packed { sparse, file: number, at: offset, longest, grain, within };
                piece(len, What::Packed(packed))
            }
            Found::Absent => {
                let there = self.backing.as_ref().map(|b| (b, b.info().size.saturating_sub(at)));
                match there.filter(|(_, there)| *there > 0) {
                    Some((backing, there)) => piece(len.min(there), What::Backing(backing)),
                    None => piece(len, What::Zero { present: false }),
                }
            }
        })
    }

    /// Fills the buffer if nothing has to wait or be computed.
    async fn read_what_is_here(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        let (mut rest, mut at) = (buffer, offset);
        while !rest.is_empty() {
            let Some(piece) = self.piece(at, rest.len() as u64, false).await? else {
                return Ok(false);
            };
            let (slot, after) = cut(rest, piece.len)?;
            let here = match piece.what {
                What::Zero { .. } => {
                    slot.fill(0);
                    true
                }
                What::Backing(file) => file.read_now(slot, at)?,
                What::Plain(file, _, from, _) => file.read_now(slot, from)?,
                What::Packed(packed) => self.copy_kept(packed, slot),
            };
            if !here {
                return Ok(false);
            }
            (rest, at) = (after, at + piece.len);
        }
        Ok(true)
    }

    /// Fills `slot` from a decompressed grain, if it is cached.
    fn copy_kept(&self, packed: Packed<'_>, slot: &mut [u8]) -> bool {
        let Some(grain) = self.kept.grain(packed.key()) else { return false };
        let bytes = grain.get(packed.within..).and_then(|bytes| bytes.get(..slot.len()));
        bytes.map(|bytes| slot.copy_from_slice(bytes)).is_some()
    }

    async fn read(&self, offset: u64, buffer: Buffer) -> Result<Buffer> {
        let len = buffer.len();
        let mut filling = Filling { buffer, waits: VecDeque::new(), group: None };
        let (mut done, mut budget) = (0, StepBudget::default());
        while done < len {
            budget.spend(&self.pool).await;
            let (at, left) = (offset + done as u64, (len - done) as u64);
            let piece = self.piece(at, left, true).await?.ok_or_else(confused)?;
            let range = done..done + usize::try_from(piece.len).map_err(|_| confused())?;
            if let (What::Plain(file, _, from, _), true) = (&piece.what, range.len() == len) {
                return below::read(file, *from, filling.buffer).await;
            }
            done = range.end;
            self.start(&mut filling, piece, range)?;
            while filling.waits.len() > WIDTH {
                self.settle(&mut filling).await?;
            }
        }
        filling.end_group()?;
        while !filling.waits.is_empty() {
            self.settle(&mut filling).await?;
        }
        Ok(filling.buffer)
    }

    /// Starts a read of a piece, or fills its range of the buffer at once.
    fn start<'a>(
        &'a self,
        filling: &mut Filling<'a>,
        piece: Piece<'a>,
        range: Range<usize>,
    ) -> Result<()> {
        match piece.what {
            What::Zero { .. } => filling.slot(range)?.fill(0),
            What::Backing(file) => filling.copy(file, piece.at, range)?,
            What::Plain(file, _, from, _) => filling.copy(file, from, range)?,
            What::Packed(packed) => {
                if !self.copy_kept(packed, filling.slot(range.clone())?) {
                    filling.unpack(packed, range)?;
                }
            }
        }
        Ok(())
    }

    /// Waits for the oldest read, and fills its ranges of the buffer.
    async fn settle(&self, filling: &mut Filling<'_>) -> Result<()> {
        let Some(wait) = filling.waits.pop_front() else { return Ok(()) };
        let bytes = wait.bytes.get().await?;
        match wait.into {
            Into::Range(range) => filling.slot(range)?.copy_from_slice(&bytes),
            Into::Grains(group) => {
                where_there_is_time(&self.pool).await;
                for (packed, range) in group.members {
                    let from = usize::try_from(packed.at - group.start).unwrap_or(usize::MAX);
                    let stored = bytes.get(from..).unwrap_or_default();
                    let slot = filling.slot(range)?;
                    self.unpack(packed, stored, slot).map_err(|e| e.at(packed.at))?;
                }
            }
        }
        Ok(())
    }

    /// Decompresses a grain into `slot`, or the part of it that is wanted.
    fn unpack(&self, packed: Packed<'_>, stored: &[u8], slot: &mut [u8]) -> Result<()> {
        let layout = &packed.sparse.layout;
        let longest = usize::try_from(packed.sparse.longest_packed()).unwrap_or(usize::MAX);
        let stored = stored.get(..longest).unwrap_or(stored);
        let sector = packed.grain.saturating_mul(layout.grain / 512);
        let payload = codec::payload(stored, layout.markers, sector)?;
        let (all, size) = (packed.len(), usize::try_from(layout.grain).unwrap_or(0));
        if slot.len() == size {
            return enough(codec::unpack(payload, slot)?, all);
        }
        let mut grain = vec![0; size];
        enough(codec::unpack(payload, &mut grain)?, all)?;
        let wanted = grain.get(packed.within..).and_then(|bytes| bytes.get(..slot.len()));
        slot.copy_from_slice(wanted.ok_or_else(confused)?);
        self.kept.keep(packed.key(), grain.into());
        Ok(())
    }
}

/// A grain must cover its whole range of the disk.
fn enough(found: usize, needed: usize) -> Result<()> {
    if found < needed {
        return Err(broken(format!("a grain holds {found} bytes instead of {needed}")));
    }
    Ok(())
}

/// A buffer that is being filled.
struct Filling<'a> {
    buffer: Buffer,
    waits: VecDeque<Wait<'a>>,
    /// Compressed grains gathered for one read.
    group: Option<Group<'a>>,
}

/// A read below, and its purpose.
struct Wait<'a> {
    bytes: Bytes,
    into: Into<'a>,
}

enum Bytes {
    Here(Buffer),
    Coming(Promised<Result<Outcome>>),
}

enum Into<'a> {
    Range(Range<usize>),
    Grains(Group<'a>),
}

/// Compressed grains that lie side by side in a file.
struct Group<'a> {
    file: &'a Edge,
    start: u64,
    end: u64,
    members: Vec<(Packed<'a>, Range<usize>)>,
}

impl Bytes {
    /// Starts a read of `len` bytes.
    fn start(file: &Edge, offset: u64, len: usize) -> Result<Self> {
        let mut buffer = Buffer::zeroed(len);
        if file.read_now(&mut buffer, offset)? {
            return Ok(Self::Here(buffer));
        }
        Ok(Self::Coming(below::submit(file, Operation::Read { offset, buffer })))
    }

    async fn get(self) -> Result<Buffer> {
        match self {
            Self::Here(buffer) => Ok(buffer),
            Self::Coming(answer) => match below::ended(answer).await? {
                Outcome::Read(buffer) => Ok(buffer),
                _ => Err(confused()),
            },
        }
    }
}

impl<'a> Filling<'a> {
    fn slot(&mut self, range: Range<usize>) -> Result<&mut [u8]> {
        self.buffer.get_mut(range).ok_or_else(confused)
    }

    /// Fills a range with bytes of a file.
    fn copy(&mut self, file: &Edge, from: u64, range: Range<usize>) -> Result<()> {
        let slot = self.slot(range.clone())?;
        if !file.read_now(slot, from)? {
            let bytes = Bytes::start(file, from, range.len())?;
            self.waits.push_back(Wait { bytes, into: Into::Range(range) });
        }
        Ok(())
    }

    /// Reads a compressed grain, together with its neighbours.
    fn unpack(&mut self, packed: Packed<'a>, range: Range<usize>) -> Result<()> {
        let end = packed.at.saturating_add(packed.longest);
        if let Some(group) = &mut self.group
            && std::ptr::eq(group.file, &raw const packed.sparse.file)
            && (group.start..=group.end).contains(&packed.at)
            && end.saturating_sub(group.start) <= LONGEST
        {
            group.end = group.end.max(end);
            group.members.push((packed, range));
            return Ok(());
        }
        self.end_group()?;
        let (file, members) = (&packed.sparse.file, vec![(packed, range)]);
        self.group = Some(Group { file, start: packed.at, end, members });
        Ok(())
    }

    /// Starts the read of the grains that were gathered.
    fn end_group(&mut self) -> Result<()> {
        let Some(group) = self.group.take() else { return Ok(()) };
        let len = usize::try_from(group.end - group.start).map_err(|_| confused())?;
        let bytes = Bytes::start(group.file, group.start, len)?;
        self.waits.push_back(Wait { bytes, into: Into::Grains(group) });
        Ok(())
    }
}

/// The first `len` bytes of a buffer, and the rest.
fn cut(buffer: &mut [u8], len: u64) -> Result<(&mut [u8], &mut [u8])> {
    let len = usize::try_from(len).map_err(|_| confused())?;
    buffer.split_at_mut_checked(len).ok_or_else(confused)
}
