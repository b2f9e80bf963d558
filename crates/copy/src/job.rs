//! One copy: what its threads share, and how it begins and ends.

use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use device::{Buffer, Edge, Error, ErrorKind, Fault, Info, Result, format_size};

use crate::mover::Movers;
use crate::options::Sizes;
use crate::queue::Queue;
use crate::ranges::ZeroRanges;
use crate::report::{Failure, Report};
use crate::units::Units;
use crate::worker::Worker;
use crate::zero_policy::ZeroPolicy;
use crate::{Cancel, Ends, Flush, Options, Progress, plan};

/// What the planner and the workers share.
pub(crate) struct Job {
    pub(crate) source: Edge,
    pub(crate) target: Edge,
    /// The size of the source.
    pub(crate) size: u64,
    pub(crate) sizes: Sizes,
    pub(crate) requests: usize,
    pub(crate) queue_size: u64,
    pub(crate) no_extents: bool,
    pub(crate) test_fast_zero: bool,
    pub(crate) flush: bool,
    pub(crate) ends: Ends,
    pub(crate) zero: ZeroPolicy,
    pub(crate) movers: Movers,
    pub(crate) queue: Queue,
    pub(crate) units: Units,
    pub(crate) ranges: ZeroRanges,
    pub(crate) progress: Progress,
    pub(crate) cancel: Cancel,
    zeroes: OnceLock<Arc<Buffer>>,
}

/// How often a waiting copy looks whether it shall stop.
pub(crate) const LOOK: Duration = Duration::from_millis(100);
/// How long a stopping copy waits for a planner to whom nobody answers.
const PATIENCE: Duration = Duration::from_secs(1);

/// Copies all of `source` to the beginning of `target`; what lies beyond in a longer target is
/// left alone. Returns when nothing is under way any more. `progress` counts from what it holds;
/// give it a new one.
///
/// # Errors
/// The first thing that went wrong, with how far the copy came. Nothing was changed if the
/// report says that the target was not touched.
pub fn run(
    source: &Edge,
    target: &Edge,
    options: &Options,
    progress: &Progress,
    cancel: &Cancel,
) -> std::result::Result<Report, Box<Failure>> {
    let size = source.info().size;
    let fail = |error: Error, report: Report| Err(Box::new(Failure { error, report }));
    if let Err(error) =
        options.check().and_then(|()| check_ends(source, target, options.flush == Flush::Must))
    {
        let left = if size > 0 { std::iter::once(0..size).collect() } else { Vec::new() };
        return fail(error, Report { total: size, left, ..Report::default() });
    }
    progress.begin(size);
    let began = Instant::now();
    let job = Arc::new(Job::new(source, target, options, progress, cancel));
    job.move_all();
    let mut error = job.queue.take_error();
    if error.is_none() {
        let finished = target.device().finish();
        let flushed = finished.and_then(|()| if job.flush { target.flush() } else { Ok(()) });
        error = flushed.err().map(|e| e.on(&target.info().name));
    }
    let left = job.queue.left(size);
    if error.is_none() && !left.is_empty() {
        let action = "copy: ended with work left";
        error = Some(Error::new(ErrorKind::Io, Fault::Us, action));
    }
    let report = job.report(left, began.elapsed());
    match error {
        Some(error) => fail(error, report),
        None => Ok(report),
    }
}

fn check_ends(source: &Edge, target: &Edge, flush: bool) -> Result<()> {
    let (from, to) = (source.info(), target.info());
    if !to.abilities.write {
        let action = "copy to it: it is read-only";
        return Err(Error::new(ErrorKind::ReadOnly, Fault::User, action).on(&to.name));
    }
    if flush && !to.abilities.flush {
        let action = "flush: it does not say how to make writes durable";
        return Err(Error::unsupported(action).on(&to.name));
    }
    if to.size < from.size {
        let size = |info: &Info| format!("{} bytes ({})", info.size, format_size(info.size));
        let action =
            format!("target is too small: {}, source {} has {}", size(to), from.name, size(from));
        return Err(Error::new(ErrorKind::NoSpace, Fault::User, action).on(&to.name));
    }
    Ok(())
}

impl Job {
    fn new(
        source: &Edge,
        target: &Edge,
        options: &Options,
        progress: &Progress,
        cancel: &Cancel,
    ) -> Self {
        let sizes = Sizes::of(source, target, options);
        Self {
            source: source.clone(),
            target: target.clone(),
            size: source.info().size,
            sizes,
            requests: options.requests,
            queue_size: options.queue_size,
            no_extents: options.no_extents,
            test_fast_zero: options.test_fast_zero,
            flush: options.flush != Flush::Never && target.info().abilities.flush,
            ends: options.ends,
            zero: ZeroPolicy::new(target, options),
            movers: Movers::new(options, sizes.granularity.is_some()),
            queue: Queue::default(),
            units: Units::default(),
            ranges: ZeroRanges::default(),
            progress: progress.clone(),
            cancel: cancel.clone(),
            zeroes: OnceLock::new(),
        }
    }

    /// A buffer of zeroes, one request long.
    pub(crate) fn zeroes(&self) -> &Arc<Buffer> {
        self.zeroes.get_or_init(|| {
            Arc::new(Buffer::zeroed(usize::try_from(self.sizes.request).unwrap_or(4096)))
        })
    }

    /// Runs the planner and the workers to the end, or to the first error.
    fn move_all(self: &Arc<Self>) {
        let mut workers = Vec::new();
        let planner = self.spawn("plan", |job| plan::plan(&job));
        for _ in 0..self.sizes.workers {
            workers.extend(self.spawn("copy", |job| Worker::open(job)?.run()));
        }
        for worker in workers {
            // A panic has already stopped the copy: see `Watch`.
            drop(worker.join());
        }
        self.end_of(planner);
    }

    /// A thread of the copy. Whatever goes wrong in it, or with making it, stops the copy.
    fn spawn(
        self: &Arc<Self>,
        name: &str,
        work: impl FnOnce(Arc<Self>) -> Result<()> + Send + 'static,
    ) -> Option<JoinHandle<()>> {
        let job = self.clone();
        let thread = Builder::new().name(name.into()).spawn(move || {
            let watch = Watch(job.clone());
            if let Err(error) = work(job.clone()) {
                job.queue.stop(error);
            }
            drop(watch);
        });
        thread.map_err(|e| self.queue.stop(Error::os("copy: start a thread", e))).ok()
    }

    /// Waits for the planner, but not for ever if nobody answers it. What it has under way then is
    /// counted as having changed the target, as with a worker that does not wait any longer.
    fn end_of(&self, planner: Option<JoinHandle<()>>) {
        let Some(planner) = planner else { return };
        let since = Instant::now();
        while !planner.is_finished() && since.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        if planner.is_finished() {
            drop(planner.join());
        }
    }

    fn report(&self, left: Vec<std::ops::Range<u64>>, elapsed: Duration) -> Report {
        let counted = self.progress.snapshot();
        Report {
            total: self.size,
            copied: counted.copied,
            zeroed: counted.zeroed,
            skipped: counted.skipped,
            elapsed,
            touched: self.progress.touched(),
            left,
        }
    }
}

/// Stops the copy when its thread panics.
struct Watch(Arc<Job>);

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let action = "copy: a worker panicked; this is a defect";
            self.0.queue.stop(Error::new(ErrorKind::Io, Fault::Us, action));
        }
    }
}
