//! A disk whose plain bytes are scattered over a container: reading it, and its map.
//!
//! A format only maps an offset ([`Atlas`]). Neighbours in the disk that are neighbours in the
//! container are one read and one extent.

use std::future::Future;
use std::sync::Arc;

use device::{
    Abilities, Buffer, Edge, Error, Extent, ExtentKind, Home, Info, Operation, Outcome, Result,
    Stored, merge_extent,
};
use runtime::StepBudget;

use super::layer::{Layer, at_once};
use super::{confused, read, resolve};

/// The most runs to merge at a time.
const JOINED: usize = 1024;
/// The most steps of one map query, for a caller that may wait and one that may not. A map may end
/// early.
const STEPS: usize = 1024;
const STEPS_NOW: usize = 16;

/// The place of a run of bytes of the disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Lies {
    /// Plain bytes, from this offset of the container.
    At(u64),
    /// In the backing disk, at the same offset; zeroes beyond its end, or if there is none.
    Beneath,
    /// Nowhere: zeroes.
    Hole,
}

/// A run of bytes with the same kind of place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Run {
    /// At least one byte.
    pub(crate) len: u64,
    pub(crate) lies: Lies,
}

/// The places of the bytes of a disk.
pub(crate) trait Atlas: Send + Sync + 'static {
    /// The place of `at`, and how far it goes: at most `len` (≥ 1) bytes. `None` if that would have
    /// to wait and `may_wait` is false.
    fn run(
        &self,
        at: u64,
        len: u64,
        may_wait: bool,
    ) -> impl Future<Output = Result<Option<Run>>> + Send;
}

impl<A: Atlas> Atlas for Arc<A> {
    async fn run(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<Run>> {
        A::run(self, at, len, may_wait).await
    }
}

/// The disk.
pub(crate) struct Scattered<A> {
    info: Info,
    below: Edge,
    backing: Option<Edge>,
    atlas: A,
}

impl<A: Atlas> Scattered<A> {
    /// A disk that can be read, of so many bytes.
    pub(crate) fn new(size: u64, below: Edge, backing: Option<Edge>, atlas: A) -> Self {
        let abilities = Abilities { extents: true, ..Abilities::READ };
        let Info { name, lanes, .. } = below.info();
        let info = Info { abilities, lanes: *lanes, ..Info::new(name.clone(), size) };
        Self { info, below, backing, atlas }
    }

    /// The same, with all bytes from `offset` on.
    pub(crate) fn flat(mut self, offset: u64) -> Self {
        if !self.below.info().abilities.observed {
            self.info.flat = self.below.info().flat.as_ref().map(|flat| flat.advanced(offset));
        }
        self
    }

    /// The run at `at`, merged with the runs that continue it.
    async fn joined(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<Run>> {
        let Some(mut run) = self.atlas.run(at, len, may_wait).await? else { return Ok(None) };
        for _ in 0..JOINED {
            if run.len >= len {
                break;
            }
            // An error there is reported when that range is requested.
            let next = self.atlas.run(at + run.len, len - run.len, false).await;
            match (next, run.lies) {
                (Ok(Some(Run { len, lies: Lies::At(next) })), Lies::At(first))
                    if next == first + run.len =>
                {
                    run.len += len;
                }
                (Ok(Some(next)), Lies::Hole | Lies::Beneath) if next.lies == run.lies => {
                    run.len += next.len;
                }
                _ => break,
            }
        }
        Ok(Some(run))
    }

    pub(crate) async fn read(&self, offset: u64, mut buffer: Buffer) -> Result<Buffer> {
        let len = buffer.len() as u64;
        let run = self.joined(offset, len, true).await?.ok_or_else(confused)?;
        match run.lies {
            Lies::At(there) if run.len == len => {
                device::below::read(&self.below, there, buffer).await
            }
            _ => {
                self.fill(offset, &mut buffer, true).await?;
                Ok(buffer)
            }
        }
    }

    /// Fills all of `bytes`; false if that would have to wait.
    async fn fill(&self, offset: u64, bytes: &mut [u8], may_wait: bool) -> Result<bool> {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let Some(run) = self.joined(at, rest.len() as u64, may_wait).await? else {
                return Ok(false);
            };
            let len = usize::try_from(run.len).unwrap_or(usize::MAX).min(rest.len());
            let (piece, after) = rest.split_at_mut(len);
            let known = match run.lies {
                Lies::At(there) => get(&self.below, there, piece, may_wait).await?,
                Lies::Hole => {
                    piece.fill(0);
                    true
                }
                Lies::Beneath => self.fill_beneath(at, piece, may_wait).await?,
            };
            if !known {
                return Ok(false);
            }
            (at, rest) = (at + run.len, after);
        }
        Ok(true)
    }

    async fn fill_beneath(&self, at: u64, piece: &mut [u8], may_wait: bool) -> Result<bool> {
        let there = self.beneath(at, piece.len() as u64).map_or(0, |(_, there)| there);
        let (lies, beyond) = piece.split_at_mut(usize::try_from(there).unwrap_or(0));
        beyond.fill(0);
        match &self.backing {
            Some(backing) if !lies.is_empty() => get(backing, at, lies, may_wait).await,
            _ => Ok(true),
        }
    }

    /// The backing disk, and how much of a range lies in it, if any does.
    fn beneath(&self, at: u64, len: u64) -> Option<(&Edge, u64)> {
        let backing = self.backing.as_ref()?;
        let there = backing.info().size.checked_sub(at).filter(|there| *there > 0)?;
        Some((backing, there.min(len)))
    }

    pub(crate) async fn resolve(
        &self,
        (offset, len): (u64, u64),
        max: usize,
        may_wait: bool,
    ) -> Result<Option<Vec<Extent>>> {
        let (mut found, mut at, end) = (Vec::new(), offset, offset + len);
        let mut budget = StepBudget::default();
        for _ in 0..if may_wait { STEPS } else { STEPS_NOW } {
            if at >= end || found.len() > max {
                break;
            }
            if may_wait {
                budget.spend(self.below.pool()).await;
            }
            let Some(run) = self.joined(at, end - at, may_wait).await? else { return Ok(None) };
            let known = match run.lies {
                Lies::Hole => Some(vec![Extent::new(at, run.len, ExtentKind::Hole)]),
                Lies::Beneath => self.resolve_beneath(at, run.len, max, may_wait).await?,
                Lies::At(there) => self.resolve_plain((at, run.len), there, max, may_wait).await?,
            };
            let Some(known) = known else { return Ok(None) };
            at = known.last().map_or(end, Extent::end);
            known.into_iter().for_each(|extent| merge_extent(&mut found, extent));
        }
        found.truncate(max);
        Ok(Some(found))
    }

    async fn resolve_beneath(
        &self,
        at: u64,
        len: u64,
        max: usize,
        may_wait: bool,
    ) -> Result<Option<Vec<Extent>>> {
        let Some((backing, there)) = self.beneath(at, len) else {
            return Ok(Some(vec![Extent::new(at, len, ExtentKind::Hole).absent()]));
        };
        let found = resolve(backing, (at, there), max, may_wait).await?;
        Ok(found.map(|found| found.into_iter().map(Extent::deeper).collect()))
    }

    /// The map of plain bytes in the container, which may have holes there.
    async fn resolve_plain(
        &self,
        (at, len): (u64, u64),
        there: u64,
        max: usize,
        may_wait: bool,
    ) -> Result<Option<Vec<Extent>>> {
        let home = Home { file: 0, offset: there, stored: Stored::Plain };
        let all = Extent { home: Some(home), ..Extent::new(at, len, ExtentKind::Data) };
        let info = self.below.info();
        let place = info.flat.as_ref().map(|flat| flat.advanced(there));
        if info.abilities.observed || !info.abilities.extents {
            return Ok(Some(vec![all.at(place)]));
        }
        let Some(pieces) = resolve(&self.below, (there, len), max, may_wait).await? else {
            return Ok(None);
        };
        let part = |piece: Extent| {
            let start = at + piece.start.checked_sub(there)?;
            let part = all.part(start, start.saturating_add(piece.len))?;
            let kind = if piece.kind.reads_zero() { ExtentKind::Zero } else { ExtentKind::Data };
            Some(Extent { kind, ..part }.at(piece.place.filter(|_| kind == ExtentKind::Data)))
        };
        Ok(Some(pieces.into_iter().filter_map(part).collect()))
    }
}

/// Fills `bytes` from a disk below; false if that would have to wait.
async fn get(below: &Edge, offset: u64, bytes: &mut [u8], may_wait: bool) -> Result<bool> {
    if below.read_now(bytes, offset)? {
        return Ok(true);
    }
    if !may_wait {
        return Ok(false);
    }
    let found = read(below, offset, bytes.len(), true).await?.ok_or_else(confused)?;
    if found.len() != bytes.len() {
        return Err(confused());
    }
    bytes.copy_from_slice(&found);
    Ok(true)
}

impl<A: Atlas> Layer for Scattered<A> {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> Vec<&Edge> {
        std::iter::once(&self.below).chain(&self.backing).collect()
    }

    async fn run(self: Arc<Self>, operation: Operation) -> Result<Outcome> {
        match operation {
            Operation::Flush | Operation::Prefetch { .. } => Ok(Outcome::Done),
            Operation::Read { offset, buffer } => {
                self.read(offset, buffer).await.map(Outcome::Read)
            }
            Operation::Resolve { offset, len, max } => {
                let found = self.resolve((offset, len), max, true).await?;
                found.map(Outcome::Extents).ok_or_else(confused)
            }
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

    fn resolve_now(&self, range: (u64, u64), max: usize, out: &mut Vec<Extent>) -> Result<bool> {
        let found = at_once(self.resolve(range, max, false)).transpose()?.flatten();
        let known = found.is_some();
        out.extend(found.into_iter().flatten());
        Ok(known)
    }
}
