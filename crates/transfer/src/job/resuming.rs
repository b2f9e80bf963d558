//! A job with a journal: what has become durable is noted, and the same job goes on where it was
//! stopped.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use copy::{CopyPlan, Durably, ListedRange, Options, RangeFate};
use device::{Edge, text};
use runtime::RangeSet;

use super::{CopyJob, JobError, placed, range};
use crate::changes::in_blocks;
use crate::journal::{CopyJournal, DiskIdentity, Progressed};

/// A flush comes after this part of the source, in bytes within these bounds: what a kill loses is
/// that, and what is in flight.
const PART: u64 = 4096;
const FLUSHES: RangeInclusive<u64> = 4 << 20..=64 << 20;
/// Bytes in flight in each thread, of a small source.
const QUEUE: u64 = 2 << 20;

/// The end of the name of the file beside a target that says that it is not complete.
pub(crate) const MARK: &str = ".incomplete";

/// The journal of a job.
#[derive(Clone, Debug)]
pub(super) struct Resuming {
    journal: Arc<CopyJournal>,
    /// The mark beside the target, where that is a file.
    mark: Option<PathBuf>,
}

impl Resuming {
    pub(super) fn of(journal: CopyJournal, job: &CopyJob) -> Result<Self, JobError> {
        if job.sources.len() != 1 {
            return Err(JobError::usage("a journal is of one source"));
        }
        let image = job.target_stack.image();
        if let Some(format) = image.format()
            && (format.write.is_none() || image.compress)
        {
            return Err(JobError::usage(format!(
                "{}: a {} image like that is written once, from its beginning to its end, so that a copy \
                 into it cannot go on: leave out the journal, or copy into an image that can be written \
                 in any order, or a raw disk",
                job.target, format.word
            )));
        }
        if !job.is_there() && !disk::files_beside(&job.target, image).is_empty() {
            return Err(JobError::usage(format!(
                "{}: an image in several files is created as a whole, so that a copy into it cannot go on: leave \
                 out the journal, or create the image first and copy into it (-n)",
                job.target
            )));
        }
        let mark = mark_of(job);
        if let Some(mark) = &mark {
            placed::adopt(mark, &begins(job));
        }
        Ok(Self { journal: Arc::new(journal), mark })
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
        Ok(match self.journal.relate((&from, source), (&to, target))? {
            Progressed::Begun => Some(Remaining { begins: true, durable: RangeSet::default() }),
            Progressed::Has(durable) => Some(Remaining { begins: false, durable }),
            Progressed::Done => None,
        })
    }

    /// The options of a copy that keeps it, of so many bytes.
    pub(super) fn options(&self, options: Options, size: u64, left: &Remaining) -> Options {
        let journal = self.journal.clone();
        let every = (size / PART).clamp(*FLUSHES.start(), *FLUSHES.end());
        let small = every < *FLUSHES.end();
        Options {
            durably: Some(Durably::new(every, move |ranges| journal.durable(ranges))),
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

/// The mark beside the target of a job with a journal, where that has a path.
pub(super) fn mark_of(job: &CopyJob) -> Option<PathBuf> {
    let mut name =
        text::path(job.target.path().filter(|_| job.journal.is_some())?).into_os_string();
    name.push(MARK);
    Some(name.into())
}

/// What a mark begins with.
fn begins(job: &CopyJob) -> String {
    format!("{} is not complete.", job.target)
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
