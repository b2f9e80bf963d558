//! A disk whose bytes are scattered over the files of an image, some of them packed: reading it,
//! and its map.
//!
//! A format says where bytes lie ([`Atlas`]), and unpacks what it packed. All else is here: what
//! continues in the disk and in its file is one read and one extent, what is packed close together
//! is read at once, and what is known without waiting is answered at once.

mod read;
mod resolve;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use device::{
    Abilities, Device, Edge, Error, Extent, Info, MapCost, Operation, Outcome, Result, StatusRun,
    Stored,
};
use runtime::{Context, StepBudget, WorkPool};

use super::cache::{Cache, Shelf};
use super::confused;
use super::layer::{Layer, Layered, at_once};

pub(crate) use resolve::DEPTH;

/// The most steps of one map query for a caller that waits. A map may end early.
const STEPS: usize = 1 << 20;
/// The most extents of one for a caller that does not.
const EXTENTS_NOW: usize = 64;

/// The place of a run of bytes of the disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Lies {
    /// Plain bytes, from this offset of a file of the image ([`Atlas::file`]); zeroes beyond its
    /// end.
    At(u64),
    /// Zeroes, with space allocated from this offset of the file.
    Zero(u64),
    /// In a cluster or grain that is unpacked as a whole.
    Packed(Packed),
    /// In the backing disk, at the same offset; zeroes beyond its end, or if there is none.
    Beneath,
    /// Nowhere: zeroes.
    Hole,
}

/// A compressed cluster or grain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Packed {
    /// Where it begins in the disk.
    pub(crate) start: u64,
    /// Its bytes unpacked.
    pub(crate) size: u64,
    /// Where it begins in the file.
    pub(crate) offset: u64,
    /// The most bytes that it takes there.
    pub(crate) len: u64,
}

/// A run of bytes with the same kind of place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Run {
    /// At least one byte.
    pub(crate) len: u64,
    pub(crate) lies: Lies,
}

impl Run {
    /// Extends it by the run after it, if that continues it in the same file.
    pub(crate) fn extend(&mut self, next: Self) -> bool {
        let goes_on = match (self.lies, next.lies) {
            (Lies::At(a), Lies::At(b)) | (Lies::Zero(a), Lies::Zero(b)) => {
                a.checked_add(self.len) == Some(b)
            }
            (Lies::Beneath, Lies::Beneath) | (Lies::Hole, Lies::Hole) => true,
            _ => false,
        };
        self.len += if goes_on { next.len } else { 0 };
        goes_on
    }
}

/// What the map of a file below says of plain bytes in it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Asks {
    /// Where they are zeroes, with space allocated.
    Always,
    /// The same, for stretches that are worth a request.
    Long,
    /// Nothing that is asked for.
    Never,
    /// All, as of a raw disk.
    AsItIs,
}

/// A result that may be waited for, of a method that is called by way of an object.
pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Where bytes of a disk lie, as a format says it.
pub(crate) trait Runs: Send + Sync + 'static {
    /// The place of `at`, and how far it goes: at most `len` (≥ 1) bytes. `None` if that would have
    /// to wait and `may_wait` is false.
    fn run(
        &self,
        at: u64,
        len: u64,
        may_wait: bool,
    ) -> impl Future<Output = Result<Option<Run>>> + Send;
}

/// The same as an object: all around it is compiled once, and not for each format.
pub(crate) trait AnyRuns: Send + Sync + 'static {
    /// The run at `at`, if it is known without waiting.
    fn run_now(&self, at: u64, len: u64) -> Result<Option<Run>>;

    /// The same, after waiting for it.
    fn run_later(&self, at: u64, len: u64) -> Later<'_, Option<Run>>;
}

impl<R: Runs> AnyRuns for R {
    fn run_now(&self, at: u64, len: u64) -> Result<Option<Run>> {
        at_once(self.run(at, len, false)).unwrap_or(Ok(None))
    }

    fn run_later(&self, at: u64, len: u64) -> Later<'_, Option<Run>> {
        Box::pin(self.run(at, len, true))
    }
}

/// The places of the bytes of a disk.
pub(crate) trait Atlas: AnyRuns {
    /// The most steps for a caller that may not wait: a step is one run.
    fn steps_now(&self) -> usize {
        4096
    }

    /// The file where the run at `at` lies, and its number in the image: 0 for the container.
    fn file(&self, at: u64) -> Option<(u16, &Edge)>;

    /// Bytes that such a file has now.
    fn length(&self, file: &Edge) -> u64 {
        file.info().size
    }

    /// All files of the image.
    fn files(&self) -> Vec<&Edge> {
        self.file(0).into_iter().map(|(_, file)| file).collect()
    }

    /// What the map of the file where the run at `at` lies is asked for.
    fn asks(&self, at: u64) -> Asks {
        let _ = at;
        Asks::Always
    }

    /// In which form plain bytes lie in their file. What [`file`](Self::file) gives is decrypted.
    fn form(&self) -> Stored {
        Stored::Plain
    }

    /// Unpacks the cluster or grain that begins at `start` of the disk into `unpacked`, which has
    /// room for all of it; `packed` may be longer than it is. Computes for long.
    fn unpack(&self, start: u64, packed: &[u8], unpacked: &mut [u8]) -> Result<()> {
        let _ = (start, packed, unpacked);
        Err(confused())
    }

    /// The status of a range in a context of the format's own, at most `max` (≥ 1) runs.
    fn status<'a>(
        &'a self,
        context: &'a str,
        range: (u64, u64),
        max: usize,
    ) -> Later<'a, Vec<StatusRun>> {
        let _ = (context, range, max);
        Box::pin(async { Err(Error::unsupported("status of another context")) })
    }
}

/// The disk.
pub(crate) struct Scattered {
    info: Info,
    pub(crate) backing: Option<Edge>,
    atlas: Arc<dyn Atlas>,
    /// What was unpacked and not all wanted, by its offset in the disk.
    unpacked: Shelf,
    /// Whether these are kept there.
    keeps_unpacked: bool,
    /// For computations.
    pub(crate) pool: WorkPool,
    /// The cost of asking files for holes, where that is optional.
    cost: MapCost,
}

/// One request: whether it may wait, and how far it may look.
struct Walk {
    may_wait: bool,
    /// Steps left.
    left: usize,
    budget: StepBudget,
    /// The run that was found behind the last one, and where it begins.
    ahead: Option<(u64, Run)>,
}

impl Walk {
    fn new(may_wait: bool, left: usize) -> Self {
        Self { may_wait, left, budget: StepBudget::default(), ahead: None }
    }
}

/// The description of a disk of `size` bytes in a container, which can be read and has a map.
pub(crate) fn disk_info(container: &Edge, size: u64) -> Info {
    let abilities = Abilities { extents: true, ..Abilities::READ };
    let Info { name, lanes, .. } = container.info();
    Info { abilities, lanes: *lanes, ..Info::new(name.clone(), size) }
}

impl Scattered {
    /// The disk that `info` describes.
    pub(crate) fn device(
        info: Info,
        context: &Context,
        backing: Option<Edge>,
        atlas: impl Atlas,
    ) -> Arc<dyn Device> {
        Layered::device(Self::new(info, context, backing, Arc::new(atlas)))
    }

    /// The same, for what writes to it.
    pub(crate) fn new(
        info: Info,
        context: &Context,
        backing: Option<Edge>,
        atlas: Arc<dyn Atlas>,
    ) -> Self {
        let (unpacked, pool) = (Cache::of(context).shelf(), context.pool.for_computing());
        let (keeps_unpacked, cost) = (true, MapCost::default());
        Self { info, backing, atlas, unpacked, keeps_unpacked, pool, cost }
    }

    /// Keeps nothing that was unpacked, for what writes packed runs in the place of others: they
    /// are kept by where they begin in the disk.
    pub(crate) fn keep_no_unpacked(&mut self) {
        self.keeps_unpacked = false;
    }

    /// The file where the run at `at` lies.
    fn file(&self, at: u64) -> Result<&Edge> {
        self.atlas.file(at).map(|(_, file)| file).ok_or_else(confused)
    }

    /// How many of `len` bytes at `offset` a file has.
    fn stored(&self, file: &Edge, offset: u64, len: u64) -> u64 {
        self.atlas.length(file).saturating_sub(offset).min(len)
    }

    /// Whether a range is known to be zero without reading it.
    pub(crate) async fn is_zero(&self, (start, end): (u64, u64)) -> Result<bool> {
        let (mut at, mut walk) = (start, Walk::new(true, usize::MAX));
        while at < end {
            let run = self.run(at, end - at, &mut walk).await?.ok_or_else(confused)?;
            match run.lies {
                Lies::Hole | Lies::Zero(_) => {}
                Lies::Beneath if self.backed(at, run.len).is_none() => {}
                Lies::At(_) | Lies::Beneath | Lies::Packed(_) => return Ok(false),
            }
            at += run.len;
        }
        Ok(true)
    }

    /// The backing disk, and how much of a range lies in it, if any does.
    fn backed(&self, at: u64, len: u64) -> Option<(&Edge, u64)> {
        let backing = self.backing.as_ref()?;
        let there = backing.info().size.checked_sub(at).filter(|there| *there > 0)?;
        Some((backing, there.min(len)))
    }

    /// The run at `at`, merged with the runs that continue it. `None`: that would have to wait, or
    /// there were too many steps.
    async fn run(&self, at: u64, len: u64, walk: &mut Walk) -> Result<Option<Run>> {
        let known = walk.ahead.take().filter(|(start, _)| *start == at);
        let first = match known {
            Some((_, run)) => Some(run),
            None => self.step(at, len, walk.may_wait, walk).await?,
        };
        let Some(mut run) = first else { return Ok(None) };
        while run.len < len && !matches!(run.lies, Lies::Packed(_)) {
            let next = at + run.len;
            // An error there is reported when that range is requested.
            let Ok(Some(found)) = self.step(next, len - run.len, false, walk).await else { break };
            if !(self.is_in_same_file(at, next, run.lies) && run.extend(found)) {
                walk.ahead = Some((next, found));
                break;
            }
        }
        Ok(Some(run))
    }

    async fn step(
        &self,
        at: u64,
        len: u64,
        may_wait: bool,
        walk: &mut Walk,
    ) -> Result<Option<Run>> {
        let Some(left) = walk.left.checked_sub(1) else { return Ok(None) };
        walk.left = left;
        if walk.may_wait {
            walk.budget.spend(&self.pool).await;
        }
        self.find(at, len, may_wait).await
    }

    /// The run at `at` as the format says it. `None`: that would have to wait.
    pub(crate) async fn find(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<Run>> {
        // What goes wrong is said by the attempt that waits, if one does.
        match self.atlas.run_now(at, len) {
            Err(_) | Ok(None) if may_wait => self.atlas.run_later(at, len).await,
            known => known,
        }
    }

    fn is_in_same_file(&self, at: u64, next: u64, lies: Lies) -> bool {
        let number = |at| self.atlas.file(at).map(|(number, _)| number);
        !matches!(lies, Lies::At(_) | Lies::Zero(_)) || number(at) == number(next)
    }
}

impl Layer for Scattered {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> Vec<&Edge> {
        self.atlas.files().into_iter().chain(&self.backing).collect()
    }

    async fn run(self: Arc<Self>, operation: Operation) -> Result<Outcome> {
        match operation {
            // Nothing was written.
            Operation::Flush | Operation::Prefetch { .. } => Ok(Outcome::Done),
            Operation::Read { offset, buffer } => {
                self.read(offset, buffer).await.map(Outcome::Read)
            }
            Operation::Resolve { offset, len, max } => {
                let mut walk = Walk::new(true, STEPS);
                let found = self.resolve((offset, len), max, &mut walk).await?;
                found.map(Outcome::Extents).ok_or_else(confused)
            }
            Operation::Status { context, offset, len, max } => {
                self.status(&context, (offset, len), max).await.map(Outcome::Status)
            }
            Operation::Take { .. } => Ok(Outcome::Taken(0)),
            Operation::Trim { .. } | Operation::Write { .. } | Operation::Zero { .. } => {
                Err(Error::unsupported("write to an image in place"))
            }
        }
    }

    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        let mut walk = Walk::new(false, self.atlas.steps_now());
        at_once(self.fill(offset, buffer, &mut walk)).unwrap_or(Ok(false))
    }

    fn resolve_now(&self, range: (u64, u64), max: usize, out: &mut Vec<Extent>) -> Result<bool> {
        let mut walk = Walk::new(false, self.atlas.steps_now());
        let found = at_once(self.resolve(range, max.min(EXTENTS_NOW), &mut walk));
        let found = found.transpose()?.flatten();
        let is_known = found.is_some();
        out.extend(found.into_iter().flatten());
        Ok(is_known)
    }
}
