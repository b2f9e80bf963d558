//! `--journal`: the copy notes what has become durable, and the same command goes on where it was
//! stopped.

use std::path::Path;
use std::sync::Arc;

use copy::{CopyPlan, Durably, ListedRange, Options, RangeFate};
use device::Edge;
use runtime::RangeSet;
use transfer::{CopyJournal, DiskIdentity, Progressed};

use super::CopyRequest;
use crate::failure::Failure;

/// A flush comes after this part of the source, in bytes within these bounds: what a kill loses is
/// that, and what is in flight.
const PART: u64 = 2048;
const FLUSHES: std::ops::RangeInclusive<u64> = 4 << 20..=64 << 20;
/// Bytes in flight in each thread, of a small source.
const QUEUE: u64 = 4 << 20;

/// The journal of the copy.
pub(super) struct Journaling(Arc<CopyJournal>);

/// What is left to do.
pub(super) enum GoesOn {
    With(CopyPlan),
    /// Nothing: it was checked that all is there. In words.
    Done(String),
}

impl Journaling {
    /// Opens it, before there is a sandbox.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        Ok(Self(Arc::new(CopyJournal::open(path)?)))
    }

    /// Relates both ends to the journal. Nothing has been changed yet.
    pub(super) fn relate(
        &self,
        work: &CopyRequest,
        source: &Edge,
        target: &Edge,
    ) -> Result<GoesOn, Failure> {
        let names: Vec<_> = work.sources.iter().map(|source| &source.disk).collect();
        let [name] = names[..] else {
            return Err(Failure::usage("--journal: a journal is of one source"));
        };
        let from = DiskIdentity::of_source(name, source)?;
        let to = DiskIdentity::of_target(&work.target);
        let size = source.info().size;
        Ok(match self.0.relate((&from, source), (&to, target))? {
            Progressed::Begun => GoesOn::With(CopyPlan::Map),
            Progressed::Done => GoesOn::Done(format!(
                "{}: was copied before, and samples of it are as they were; nothing was done",
                work.target
            )),
            Progressed::Has(durable) => {
                let blocks = (source.info().blocks.minimum, target.info().blocks.minimum);
                let grid = u64::from(blocks.0.max(blocks.1).max(1));
                GoesOn::With(CopyPlan::List(left(&durable, size, grid)))
            }
        })
    }

    /// The options of a copy that keeps it, of so many bytes.
    pub(super) fn options(&self, options: Options, size: u64, plan: Option<&CopyPlan>) -> Options {
        let is_whole = matches!(plan, Some(CopyPlan::Map));
        let journal = self.0.clone();
        let every = (size / PART).clamp(*FLUSHES.start(), *FLUSHES.end());
        let small = every < *FLUSHES.end();
        Options {
            durably: Some(Durably::new(every, move |ranges| journal.durable(ranges))),
            // Zeroing in advance, by a process that was killed, must not overtake what the next one
            // writes.
            apart: false,
            // It was, when the copy began.
            target_is_zero: options.target_is_zero && is_whole,
            queue_size: options.queue_size.or(small.then_some(QUEUE)),
            ..options
        }
    }

    /// All was copied, and the target has its name.
    pub(super) fn done(&self) -> Result<(), Failure> {
        let done = self.0.done();
        done.map_err(|e| Failure::new(format!("{e}; all bytes were copied")))
    }
}

/// What is not durable, in whole blocks.
fn left(durable: &RangeSet, size: u64, grid: u64) -> Vec<ListedRange> {
    let whole = |range: std::ops::Range<u64>| {
        range.start - range.start % grid..range.end.next_multiple_of(grid).min(size)
    };
    let left: RangeSet = durable.gaps(0..size).map(whole).collect();
    left.iter().map(|range| ListedRange { range, kind: RangeFate::Data }).collect()
}
