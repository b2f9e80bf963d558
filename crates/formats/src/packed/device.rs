//! A compressed stream as a read-only disk.
//!
//! Decompressed data is cached in chunks, as much as a copy has in flight. One decoder makes the
//! chunks of a section in order; several sections run at once.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use device::{
    Abilities, BlockSizes, Buffer, Device, Edge, Error, Extent, ExtentKind, Info, Operation,
    Outcome, Result,
};
use runtime::{Gate, Mutex, where_there_is_time};

use crate::kit::{Layer, Layered, at_once, confused};

use super::Kind;
use super::cursor::Cursor;
use super::index::Index;

/// Bytes decompressed at a time.
const CHUNK: u64 = 256 << 10;
/// Chunks that are cached: 32 MiB.
const CHUNKS: usize = 128;
/// Decoders at a time.
const DECODERS: usize = 4;
/// Sections up to this many bytes are decompressed in parallel, so that a reader of scattered
/// ranges does not wait for data that it does not want.
const SHORT: u64 = 32 << 20;

struct Unpacked {
    info: Info,
    kind: &'static Kind,
    below: Edge,
    index: Index,
    /// One for each decoder; a section always has the same one.
    decoders: Vec<(Arc<Gate>, Mutex<Option<Standing>>)>,
    known: Mutex<Known>,
}

/// A decoder in a section, and the chunk that it makes next.
struct Standing {
    section: usize,
    chunk: u64,
    cursor: Cursor,
}

#[derive(Default)]
struct Known {
    chunks: HashMap<(usize, u64), (u64, Arc<Buffer>)>,
    /// Counts look-ups.
    now: u64,
}

pub(super) fn open(kind: &'static Kind, below: Edge, index: Index) -> Arc<dyn Device> {
    let short = index.sections.len() > 1 && index.longest() <= SHORT;
    let decoders = if short { DECODERS } else { 1 };
    let blocks = BlockSizes { preferred: 64 << 10, ..BlockSizes::ANY };
    let info = Info {
        blocks,
        abilities: Abilities::READ,
        // A sequential reader finds the decoder where it needs it.
        lanes: NonZeroUsize::new(decoders),
        ..Info::new(below.info().name.clone(), index.size)
    };
    let decoders = (0..decoders).map(|_| (Arc::default(), Mutex::default())).collect();
    Layered::device(Unpacked { info, kind, below, index, decoders, known: Mutex::default() })
}

impl Unpacked {
    /// The chunk at `offset`, and the offset in it.
    fn place(&self, offset: u64) -> (usize, u64, usize) {
        let section = self.index.find(offset);
        let within = offset - self.index.sections.get(section).map_or(0, |s| s.start);
        (section, within / CHUNK, usize::try_from(within % CHUNK).unwrap_or(0))
    }

    fn remembered(&self, at: (usize, u64)) -> Option<Arc<Buffer>> {
        let mut known = self.known.lock();
        known.now += 1;
        let now = known.now;
        let (used, chunk) = known.chunks.get_mut(&at)?;
        *used = now;
        Some(chunk.clone())
    }

    fn remember(&self, at: (usize, u64), chunk: Arc<Buffer>) {
        let mut known = self.known.lock();
        if known.chunks.len() >= CHUNKS {
            let oldest = known.chunks.iter().min_by_key(|(_, (used, _))| *used).map(|(at, _)| *at);
            oldest.and_then(|oldest| known.chunks.remove(&oldest));
        }
        known.now += 1;
        let now = known.now;
        known.chunks.insert(at, (now, chunk));
    }

    /// `None`: it would have to wait or be computed, and `may_wait` is false.
    async fn chunk(
        &self,
        section: usize,
        chunk: u64,
        may_wait: bool,
    ) -> Result<Option<Arc<Buffer>>> {
        let found = self.remembered((section, chunk));
        if found.is_some() || !may_wait {
            return Ok(found);
        }
        let decoder = self.decoders.get(section % self.decoders.len().max(1));
        let (gate, standing) = decoder.ok_or_else(confused)?;
        let _alone = gate.alone().await;
        if let Some(found) = self.remembered((section, chunk)) {
            return Ok(Some(found));
        }
        where_there_is_time(self.below.pool()).await;
        let last = standing.lock().take();
        let mut last = match last {
            Some(last) if last.section == section && last.chunk <= chunk => last,
            _ => Standing { section, chunk: 0, cursor: self.start(section)? },
        };
        let found = self.advance(&mut last, chunk).await?;
        *standing.lock() = Some(last);
        Ok(Some(found))
    }

    fn start(&self, section: usize) -> Result<Cursor> {
        let section = self.index.sections.get(section).ok_or_else(confused)?;
        let kept = self.index.kept.get(&section.start).map(|kept| kept.lock().copy());
        let decoder = match kept.flatten() {
            Some(decoder) => decoder,
            None => (self.kind.start)()?,
        };
        let end = section.input_end.min(self.below.info().size);
        let stream = usize::try_from(section.stream).unwrap_or(0);
        let prefix = self.index.prefixes.get(stream).map_or(&[][..], Vec::as_slice);
        Ok(Cursor::new(decoder, prefix, section.input, end))
    }

    /// Decompresses up to `chunk` and returns it; caches all chunks on the way.
    async fn advance(&self, standing: &mut Standing, chunk: u64) -> Result<Arc<Buffer>> {
        let section = self.index.sections.get(standing.section).ok_or_else(confused)?;
        let len = self.index.end(standing.section) - section.start;
        loop {
            let start = standing.chunk * CHUNK;
            let left = len.checked_sub(start).filter(|left| *left > 0).ok_or_else(confused)?;
            let mut buffer = Buffer::zeroed(usize::try_from(left.min(CHUNK)).unwrap_or(0));
            standing.cursor.fill(&self.below, &mut buffer).await?;
            if left <= CHUNK && section.ends {
                standing.cursor.drain(&self.below).await?;
            }
            let (made, buffer) = (standing.chunk, Arc::new(buffer));
            self.remember((standing.section, made), buffer.clone());
            standing.chunk += 1;
            if made == chunk {
                return Ok(buffer);
            }
        }
    }

    /// Fills all of `bytes`; false if that would have to wait.
    async fn fill(&self, offset: u64, bytes: &mut [u8], may_wait: bool) -> Result<bool> {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let (section, chunk, within) = self.place(at);
            let found = self.chunk(section, chunk, may_wait).await;
            let Some(found) = found.map_err(|e| e.on(&self.info.name))? else { return Ok(false) };
            let from = found.get(within..).filter(|from| !from.is_empty()).ok_or_else(confused)?;
            let n = from.len().min(rest.len());
            let (piece, after) = rest.split_at_mut(n);
            piece.copy_from_slice(from.get(..n).unwrap_or_default());
            (at, rest) = (at + n as u64, after);
        }
        Ok(true)
    }
}

impl Layer for Unpacked {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> Vec<&Edge> {
        vec![&self.below]
    }

    async fn run(self: Arc<Self>, operation: Operation) -> Result<Outcome> {
        match operation {
            Operation::Read { offset, mut buffer } => {
                self.fill(offset, &mut buffer, true).await?;
                Ok(Outcome::Read(buffer))
            }
            Operation::Resolve { offset, len, .. } => {
                Ok(Outcome::Extents(vec![Extent::new(offset, len, ExtentKind::Data)]))
            }
            Operation::Flush | Operation::Prefetch { .. } => Ok(Outcome::Done),
            Operation::Status { .. }
            | Operation::Take { .. }
            | Operation::Trim { .. }
            | Operation::Write { .. }
            | Operation::Zero { .. } => Err(Error::unsupported(operation.kind().name())),
        }
    }

    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        at_once(self.fill(offset, buffer, false)).unwrap_or(Ok(false))
    }

    fn resolve_now(
        &self,
        (offset, len): (u64, u64),
        _: usize,
        out: &mut Vec<Extent>,
    ) -> Result<bool> {
        out.push(Extent::new(offset, len, ExtentKind::Data));
        Ok(true)
    }
}
