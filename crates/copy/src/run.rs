//! One copy from its beginning to its end: passes over the ranges to copy, until all of them are in
//! the target and the target cannot have forgotten any.

use std::ops::Range;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use device::{Edge, Error, ErrorKind, Fault, Order, Result};
use runtime::having_time;

use crate::account::CopyAccount;
use crate::answer::flush;
use crate::job::Job;
use crate::ledger::Ledger;
use crate::pair::Pair;
use crate::plan::{Span, within};
use crate::queue::Queue;
use crate::sums::Sums;
use crate::worker::Worker;
use crate::zero::{Zeroes, claim};
use crate::{
    Cancel, CopyPlan, FailedCopy, Options, Progress, Reflink, Report, Watched, Witness, again,
    planner, share, shown,
};
use runtime::RangeSet;

/// How long a stopping copy waits for a planner that gets no answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often forgotten ranges are copied again if nothing becomes durable.
const IN_VAIN: usize = 3;

/// Copies the ranges of `plan` from `source` to the same offsets in `target`; the rest of the
/// target is left alone. Returns when nothing is in flight any more. `progress` should be a new
/// one: counting starts from its values.
///
/// # Errors
/// The first thing that went wrong, with how far the copy came. Nothing was changed if the
/// report says that the target was not touched.
pub fn run(
    source: &Edge,
    target: &Edge,
    plan: &CopyPlan,
    options: &Options,
    progress: &Progress,
    cancel: &Cancel,
) -> std::result::Result<Report, Box<FailedCopy>> {
    let size = source.info().size;
    let copy = match Copy::new(source, target, plan, options, progress, cancel) {
        Ok(copy) => copy,
        Err(error) => {
            let left = if size > 0 { std::iter::once(0..size).collect() } else { Vec::new() };
            let report = Report { total: size, left, ..Report::default() };
            return Err(Box::new(FailedCopy { error, report }));
        }
    };
    let total = copy.spans.iter().map(|s| s.range.end - s.range.start).sum();
    progress.begin(total);
    let began = Instant::now();
    let (left, outcome) = copy.go();
    let confirmed = outcome.as_ref().map_or(0, |confirmed| *confirmed);
    let counted = progress.snapshot();
    let report = Report {
        total,
        copied: counted.copied,
        zeroed: counted.zeroed,
        skipped: counted.skipped,
        confirmed,
        elapsed: began.elapsed(),
        touched: progress.touched(),
        left,
    };
    match outcome {
        Err(error) => Err(Box::new(FailedCopy { error, report })),
        Ok(_) => Ok(report),
    }
}

/// What all passes share.
struct Copy<'a> {
    pair: Arc<Pair>,
    /// What is to be copied.
    spans: Vec<Span>,
    /// That is all of the source.
    whole: bool,
    ledger: Option<Arc<Ledger>>,
    /// Sums of what was read, if the source may be lost and come back.
    sums: Option<Arc<Sums>>,
    options: &'a Options,
    progress: &'a Progress,
    cancel: &'a Cancel,
}

impl<'a> Copy<'a> {
    fn new(
        source: &Edge,
        target: &Edge,
        plan: &CopyPlan,
        options: &'a Options,
        progress: &'a Progress,
        cancel: &'a Cancel,
    ) -> Result<Self> {
        let pair = Pair::new(source, target, options)?;
        let whole = matches!(plan, CopyPlan::Map);
        if !whole && options.target_is_zero {
            let action = "copy by a list: the rest of the target may hold anything, so the target \
                          is not known to be zero";
            return Err(Error::invalid(action));
        }
        let spans = plan.spans(pair.size, pair.sizes.grid)?;
        let told: u64 = spans.iter().map(|s| s.range.end - s.range.start).sum();
        if told < pair.size && target.info().order != Order::Any {
            let action = "copy by a list: the target is written as a stream, and nothing in it can be \
                          left alone";
            return Err(Error::invalid(action).on(&target.info().name));
        }
        let durably = options.durably.as_ref();
        if durably.is_some() && !pair.flush {
            let action = "keep a journal: it cannot make writes durable";
            return Err(Error::unsupported(action).on(&target.info().name));
        }
        let forgets = pair.flush && pair.target.device().session().is_some();
        let ledger = (forgets || durably.is_some())
            .then(|| Arc::new(Ledger::new(&pair.target, pair.sizes.request, durably)));
        let sums = || Arc::new(Sums::new(pair.size, pair.source_epoch()));
        let sums = pair.source.device().may_return().then(sums);
        Ok(Self { pair: Arc::new(pair), spans, whole, ledger, sums, options, progress, cancel })
    }

    /// Copies all of it at once, or in passes until nothing is lost; then finishes. Returns what is
    /// left, and how many bytes were confirmed.
    fn go(&self) -> (Vec<Range<u64>>, Result<u64>) {
        let all = || self.spans.iter().map(|s| s.range.clone()).collect();
        match self.before() {
            Ok(true) => return (Vec::new(), self.finish(0)),
            Ok(false) => {}
            Err(e) => return (all(), Err(e)),
        }
        let (mut spans, mut whole, mut in_vain) = (self.spans.clone(), self.whole, 0);
        let epoch = self.pair.target_epoch();
        loop {
            let durable = self.durable();
            let (mut left, mut outcome) = self.pass(spans.clone(), whole);
            if outcome.is_ok() {
                outcome = self.settle();
            }
            let lost = self.ledger.as_ref().map_or_else(RangeSet::default, |l| l.take_lost());
            let lost = self.sums.as_ref().map_or(lost.clone(), |sums| sums.forget(&lost));
            spans = within(&self.spans, lost.iter());
            whole = false;
            let done = outcome.is_ok() && spans.is_empty();
            let confirmed = if done { self.confirm() } else { Ok(0) };
            let confirmed = match confirmed {
                Ok(confirmed) => confirmed,
                Err(e) => return (all(), Err(e)),
            };
            if outcome.is_ok() && self.ledger.is_none() && self.pair.target_epoch() != epoch {
                return (all(), Err(self.forgotten()));
            }
            if done {
                return (Vec::new(), self.finish(confirmed));
            }
            left.add_all(&spans.iter().map(|s| s.range.clone()).collect());
            in_vain = if self.durable() > durable { 0 } else { in_vain + 1 };
            if outcome.is_ok() && in_vain > IN_VAIN {
                let action = "copy: the connection broke repeatedly, each time before the writes \
                              could be made durable";
                let error = Error::new(ErrorKind::Disconnected, Fault::Peer, action);
                outcome = Err(error.on(&self.pair.target.info().name));
            }
            if let Err(e) = outcome {
                return (left.iter().collect(), Err(e));
            }
            self.progress.take_back(left.len());
        }
    }

    /// The work before the first pass: checks a claim about the target, and shares all blocks, if
    /// possible. Returns whether it did.
    fn before(&self) -> Result<bool> {
        if self.options.target_is_zero && self.options.check_zero {
            claim::check(&self.pair, self.cancel, self.options.no_extents)?;
        }
        if !self.whole {
            return Ok(false);
        }
        let shared = share::all(&self.pair, self.options, self.progress, self.cancel)?;
        if let Some(witness) = self.witness().filter(|_| shared) {
            shown::all(&self.pair, &*witness, self.options, self.cancel)?;
        }
        Ok(shared)
    }

    fn witness(&self) -> Option<Arc<dyn Witness>> {
        self.options.witness.as_ref().map(|Watched(witness)| witness.clone())
    }

    /// All was read. If the source's server was lost and came back meanwhile: makes sure that it is
    /// all of one disk.
    fn confirm(&self) -> Result<u64> {
        let Some(sums) = &self.sums else { return Ok(0) };
        self.progress.compare(again::is_due(&self.pair, sums));
        let confirmed = again::check(&self.pair, (sums, &self.spans), self.options, self.cancel);
        self.progress.compare(false);
        confirmed
    }

    /// The target may have forgotten something, and without a flush it is not known what.
    fn forgotten(&self) -> Error {
        let action = "copy: the connection was replaced, and earlier writes were not flushed, so \
                      they may be lost";
        let error = Error::new(ErrorKind::Disconnected, Fault::Peer, action);
        error.on(&self.pair.target.info().name)
    }

    fn durable(&self) -> u64 {
        self.ledger.as_ref().map_or(0, |ledger| ledger.durable())
    }

    /// Copies these spans; returns what is left, and the first error.
    fn pass(&self, spans: Vec<Span>, whole: bool) -> (RangeSet, Result<()>) {
        // Blocks that are shared are not allocated, and not written.
        let takes = self.pair.target.info().abilities.take
            && !self.options.allocated
            && !self.options.wipe
            && self.options.reflink != Reflink::Never
            // What is taken is not seen.
            && self.sums.is_none();
        let job = Arc::new(Job {
            pair: self.pair.clone(),
            spans,
            whole,
            account: CopyAccount {
                queue: Queue::default(),
                ledger: self.ledger.clone(),
                progress: self.progress.clone(),
                cancel: self.cancel.clone(),
            },
            zeroes: Zeroes::new(&self.pair, self.options),
            takes,
            // What is taken is read for a witness: by all workers, so runs are cut.
            shares: (takes && self.witness().is_none()).into(),
            no_extents: self.options.no_extents,
            witness: self.witness(),
            sums: self.sums.clone(),
        });
        move_all(&job);
        let left = job.account.queue.left(&job.spans);
        let outcome = match job.account.queue.take_error() {
            Some(error) => Err(error),
            None if left.is_empty() => Ok(()),
            None => Err(Error::new(ErrorKind::Io, Fault::Us, "copy: ended with work left")),
        };
        (left, outcome)
    }

    /// Makes durable what the target could forget.
    fn settle(&self) -> Result<()> {
        let Some(ledger) = &self.ledger else { return Ok(()) };
        ledger.begin();
        ledger.ended(flush(&self.pair.target, self.cancel))
    }

    /// All is written, and so much of it confirmed.
    fn finish(&self, confirmed: u64) -> Result<u64> {
        let target = &self.pair.target;
        target.device().finish().map_err(|e| e.on(&target.info().name))?;
        if self.pair.flush {
            flush(target, self.cancel)?;
        }
        Ok(confirmed)
    }
}

/// Runs the planner and the workers to the end, or to the first error.
fn move_all(job: &Arc<Job>) {
    let mut workers = Vec::new();
    let planner = spawn(job, "plan", |job| planner::plan(&job));
    for _ in 0..job.pair.sizes.workers {
        // A worker may compute (unpack, pack) on its own thread.
        let work = |job| having_time(|| Worker::open(job)?.run());
        workers.extend(spawn(job, "copy", work));
    }
    for worker in workers {
        // A panic has already stopped the copy: see `Watch`.
        drop(worker.join());
    }
    end_of(planner);
}

/// A thread of the copy. An error in it, or in starting it, stops the copy.
fn spawn(
    job: &Arc<Job>,
    name: &str,
    work: impl FnOnce(Arc<Job>) -> Result<()> + Send + 'static,
) -> Option<JoinHandle<()>> {
    let theirs = job.clone();
    let thread = Builder::new().name(name.into()).spawn(move || {
        let watch = Watch(theirs.clone());
        if let Err(error) = work(theirs.clone()) {
            theirs.account.queue.stop(error);
        }
        drop(watch);
    });
    thread.map_err(|e| job.account.queue.stop(Error::os("copy: start a thread", e))).ok()
}

/// Waits for the planner, but not for ever if it gets no answer. What it has in flight then is
/// counted as having changed the target, as with a worker that does not wait any longer.
fn end_of(planner: Option<JoinHandle<()>>) {
    let Some(planner) = planner else { return };
    let since = Instant::now();
    while !planner.is_finished() && since.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    if planner.is_finished() {
        drop(planner.join());
    }
}

/// Stops the copy when its thread panics.
struct Watch(Arc<Job>);

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let action = "copy: a worker panicked; this is a defect";
            self.0.account.queue.stop(Error::new(ErrorKind::Io, Fault::Us, action));
        }
    }
}
