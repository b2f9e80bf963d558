//! A job with a journal: what has become durable is noted, and the same job goes on where it was
//! stopped.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use copy::{CopyPlan, Durably, ListedRange, Options, RangeFate, Watched, Witness as _};
use device::{Edge, Result as DeviceResult, text};
use runtime::RangeSet;

use super::{CopyJob, JobError, placed, range};
use crate::changes::in_blocks;
use crate::digest::{DigestKind, DigestedRange, Digester};
use crate::identity::DiskIdentity;
use crate::journal::{CopyJournal, Progressed};
use crate::witness::{DurableStretch, StretchWitness};

/// A flush comes after this part of the source, in bytes within these bounds: what a kill loses is
/// that, and what is in flight.
const PART: u64 = 4096;
const FLUSHES: RangeInclusive<u64> = 4 << 20..=64 << 20;
/// Bytes in flight in each thread, of a small source.
const QUEUE: u64 = 2 << 20;

/// Bytes in a stretch whose digests are noted together, and in the shortest block: of shorter ones
/// the digests would be no little part of what is copied.
const STRETCH: u64 = 4 << 20;
const BLOCK: u64 = 4 << 10;

/// The end of the name of the file beside a target that says that it is not complete.
pub(crate) const MARK: &str = ".incomplete";
/// What it says, behind the name.
pub(super) const UNFINISHED: &str = " is not complete.";

/// The journal of a job.
#[derive(Clone, Debug)]
pub(super) struct Resuming {
    journal: Arc<CopyJournal>,
    /// The mark beside the target, where that is a file.
    mark: Option<PathBuf>,
}

impl Resuming {
    /// Opens the journal of a job, if it has one: of a job that can go on, so that one that is
    /// refused leaves no journal behind.
    pub(super) fn of(job: &CopyJob) -> Result<Option<Self>, JobError> {
        let Some(journal) = &job.journal else { return Ok(None) };
        can_go_on(job)?;
        let journal = Arc::new(CopyJournal::open(journal)?);
        let mark = mark_of(job);
        if let Some(mark) = &mark {
            placed::adopt(mark, &begins(job));
        }
        Ok(Some(Self { journal, mark }))
    }

    /// Whether the copy has begun before.
    pub(super) fn goes_on(&self) -> bool {
        self.journal.goes_on()
    }

    /// Relates both ends to the journal. Nothing has been changed yet. `None`: all was copied
    /// before, which was checked.
    pub(super) fn relate(
        &self,
        job: &CopyJob,
        (source, version): (&Edge, Option<&str>),
        target: &Edge,
    ) -> Result<Option<Remaining>, JobError> {
        let name = job.sources.first().map(|source| &source.disk);
        let name = name.ok_or_else(|| JobError::usage("a journal is of one source"))?;
        let from = DiskIdentity::of_source(name, source, version)?;
        let to = DiskIdentity::of_target(&job.target);
        let kind = job.digest.as_ref().map(|digest| digest.kind);
        let digested = kind.map(|kind| self.journal.digested(kind)).transpose()?;
        Ok(match self.journal.relate((&from, source), (&to, target), kind)? {
            Progressed::Begun => Some(Remaining { begins: true, durable: RangeSet::default() }),
            // What is durable and has no digest is read again.
            Progressed::Has(durable) => {
                let durable = digested.unwrap_or(durable);
                Some(Remaining { begins: false, durable })
            }
            Progressed::Done => None,
        })
    }

    /// What keeps the digests of a copy of so many bytes in the journal, and tells `digester` of
    /// them: first of those that are in the journal.
    pub(super) fn digests(
        &self,
        (kind, digester): (DigestKind, &Arc<Digester>),
        size: u64,
    ) -> DeviceResult<NotedDigests> {
        let held = self.journal.digested(kind)?;
        let stretch = STRETCH.max(kind.block);
        let witness = StretchWitness::new(kind, (stretch, 0..size), held)?;
        let noted = NotedDigests { witness: Arc::new(witness), digester: digester.clone(), size };
        self.journal.each_digested(|range, blocks| noted.tell(&range, blocks))?;
        Ok(noted)
    }

    /// The options of a copy that keeps it, of so many bytes.
    pub(super) fn options(
        &self,
        options: Options,
        size: u64,
        (left, noted): (&Remaining, Option<&NotedDigests>),
    ) -> Options {
        let journal = self.journal.clone();
        let witness = noted.map(|noted| Watched(noted.witness.clone()));
        let noted = noted.cloned();
        let tell = move |ranges: &RangeSet| {
            let stretches =
                noted.as_ref().map(|noted| noted.witness.durable(ranges)).transpose()?;
            let stretches = stretches.unwrap_or_default();
            journal.durable_with(ranges, &stretches)?;
            if let Some(noted) = &noted {
                noted.take(&stretches);
            }
            Ok(())
        };
        let every = (size / PART).clamp(*FLUSHES.start(), *FLUSHES.end());
        let small = every < *FLUSHES.end();
        Options {
            durably: Some(Durably::new(every, tell)),
            witness: witness.or(options.witness),
            // Zeroing in advance, by a process that was killed, must not overtake what the next one
            // writes.
            apart: false,
            // It was, when the copy began.
            target_is_zero: options.target_is_zero && left.begins,
            queue_size: options.queue_size.or(small.then_some(QUEUE)),
            ..options
        }
    }

    /// Marks the target, which has its name from now on, as not complete. A target that is not a
    /// file beside which another may be is not marked.
    pub(super) fn mark(&self, job: &CopyJob) -> device::Result<()> {
        let path = job.target.path().map(text::path);
        let is_file = path.is_some_and(|path| path.is_file());
        let Some(mark) = self.mark.as_deref().filter(|_| is_file) else { return Ok(()) };
        let journal = job.journal.as_deref().unwrap_or(mark).display().to_string();
        let text = format!("{} The journal of the copy: {journal}\n", begins(job));
        placed::write(mark, &text)
    }

    /// All was copied, and the target has its name.
    pub(super) fn done(&self) -> device::Result<()> {
        self.journal.done()?;
        self.mark.as_deref().map_or(Ok(()), placed::remove)
    }
}

/// Refuses a job that could not go on where it was stopped.
pub(super) fn can_go_on(job: &CopyJob) -> Result<(), JobError> {
    if job.sources.len() != 1 {
        return Err(JobError::usage("a journal is of one source"));
    }
    let image = job.target_stack.image();
    if let Some(format) = image.format()
        && (format.write.is_none() || image.compress)
    {
        return Err(JobError::usage(format!(
            "{}: a {} image like that is written once, in order, so that a copy into it cannot be \
             resumed: leave out the journal, or copy into an image that can be written \
             in any order, or a raw disk",
            job.target, format.word
        )));
    }
    if !job.is_there() && !disk::files_beside(&job.target, image).is_empty() {
        return Err(JobError::usage(format!(
            "{}: an image in several files is created as a whole, so that a copy into it cannot \
             be resumed: leave \
             out the journal, or create the image first and copy into it (-n)",
            job.target
        )));
    }
    if let Some(digest) = job.digest.as_ref().filter(|digest| digest.kind.block < BLOCK) {
        return Err(JobError::usage(format!(
            "{}: a journal keeps the digests of blocks, of {BLOCK} bytes at least: with {BLOCK} it has about 2 % of the disk's size",
            digest.kind
        )));
    }
    if job.digest.is_some() && (job.changes.is_some() || job.is_overlay) {
        return Err(JobError::usage(
            "a digest covers all of the source, and a copy of changes reads only part of it: \
             leave out the digest, or the changes",
        ));
    }
    Ok(())
}

/// The digests of a copy that are noted in its journal, as the digest of all is computed from them.
#[derive(Clone, Debug)]
pub(super) struct NotedDigests {
    witness: Arc<StretchWitness>,
    digester: Arc<Digester>,
    size: u64,
}

impl NotedDigests {
    /// Bytes of the disk.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Tells of a stretch that is durable.
    fn tell(&self, range: &std::ops::Range<u64>, blocks: Option<&[u8]>) {
        match blocks {
            Some(blocks) => self.digester.known(range.start, blocks, self.size),
            None => self.digester.zeroes(range.clone()),
        }
    }

    fn take(&self, stretches: &[DurableStretch]) {
        for DurableStretch { range: DigestedRange { range, digest }, blocks } in stretches {
            self.tell(range, digest.map(|_| &**blocks));
        }
    }
}

impl Resuming {
    /// Notes the rest, for the next run, which only checks.
    pub(super) fn note_rest(&self, noted: &NotedDigests) -> DeviceResult<()> {
        let rest = noted.witness.rest()?;
        self.journal.durable_with(&RangeSet::default(), &rest)?;
        noted.take(&rest);
        Ok(())
    }
}

/// The mark beside the target of a job with a journal, where that has a path.
pub(super) fn mark_of(job: &CopyJob) -> Option<PathBuf> {
    let mut name =
        text::path(job.target.path().filter(|_| job.journal.is_some())?).into_os_string();
    name.push(MARK);
    Some(name.into())
}

/// What a mark begins with.
fn begins(job: &CopyJob) -> String {
    format!("{}{UNFINISHED}", job.target)
}

/// What a journal leaves to do.
#[derive(Debug)]
pub(super) struct Remaining {
    /// Nothing was done before.
    begins: bool,
    /// What is in the target, and durable.
    durable: RangeSet,
}

impl Remaining {
    /// Of a plan, what is not durable.
    pub(super) fn of(&self, plan: CopyPlan, source: &Edge, target: &Edge) -> CopyPlan {
        let size = source.info().size;
        let list = match plan {
            _ if self.begins => return plan,
            CopyPlan::List(list) => list,
            CopyPlan::Map => vec![ListedRange { range: 0..size, kind: RangeFate::Data }],
        };
        let grid = range::grid(source, target);
        let left = |ListedRange { range, kind }: ListedRange| {
            let left = in_blocks(self.durable.gaps(range), grid, size);
            left.iter().map(|range| ListedRange { range, kind }).collect::<Vec<_>>()
        };
        CopyPlan::List(list.into_iter().flat_map(left).collect())
    }
}
