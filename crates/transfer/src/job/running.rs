//! A job while it copies, when all is copied, and when the target has its name.

use std::sync::Arc;
use std::thread::JoinHandle;

use copy::{Cancel, CopyCounts, CopyPlan, FailedCopy, Flush, Options, Progress, Report};
use device::{Edge, Error, ErrorKind, Fault};
use runtime::Context;

use super::made::MadeTarget;
use super::planned::{PlannedJob, digest_of};
use super::resuming::{NotedDigests, Remaining, Resuming};
use super::source::Input;
use super::target::Target;
use super::verify::{Copied, verify};
use super::{CopyJob, JobError, TargetFate, overlay, range};
use crate::changes::CopyChanges;
use crate::digest::ContentDigest;
use crate::proof::ContentProof;

/// A job that copies, in a thread of its own.
#[derive(Debug)]
pub struct RunningJob {
    thread: JoinHandle<Result<Report, Box<FailedCopy>>>,
    progress: Progress,
    cancel: Cancel,
    ending: Ending,
}

/// What is left to do when all is copied.
#[derive(Debug)]
struct Ending {
    job: Arc<CopyJob>,
    /// `None` for a stream.
    source: Option<Edge>,
    target: Arc<Target>,
    making: MadeTarget,
    context: Context,
    flushes: bool,
    resuming: Option<Resuming>,
    proof: Option<ContentProof>,
    noted: Option<NotedDigests>,
}

/// A job of which all bytes are in the target.
#[derive(Debug)]
pub struct SettledJob {
    ending: Ending,
    report: Report,
}

/// A job that is done: the target is complete, has its name, and is durable if it was to be.
#[derive(Debug)]
pub struct PublishedJob {
    /// The account of the copy.
    pub report: Report,
    /// The digest of what was copied, if there was to be one.
    pub digest: Option<device::Result<ContentDigest>>,
    /// Whether what was written was read back, and is what was copied.
    pub verified: bool,
}

impl PlannedJob {
    /// Begins to copy. `over` is dropped when the copy has ended.
    ///
    /// # Errors
    /// There are no more threads; nothing was changed.
    pub fn start(self, over: impl Send + 'static) -> Result<RunningJob, JobError> {
        let Self { job, context, mut source, target, options, left, resuming, proof, noted } = self;
        let (progress, cancel) = (job.progress.clone(), job.cancel.clone());
        let stop = cancel.clone();
        context.control.when_stopped(move || stop.cancel());
        let (making, target) = (target.making.clone(), Arc::new(target));
        let flushes = options.flush != Flush::Never;
        let (filled, by) = (target.clone(), job.clone());
        let disk = source.disk().cloned();
        let (counts, stopped, ends) = (progress.clone(), cancel.clone(), context.clone());
        let work = move || {
            let (target, progress, cancel) = (&filled.edge, &counts, &stopped);
            let changes = || Some((by.changes.as_ref()?, &options, &ends));
            let result = match &mut source {
                Input::Disk(source) => plan(source, &filled, (changes(), left.as_ref()), cancel)
                    .and_then(|plan| copy::run(source, target, &plan, &options, progress, cancel)),
                Input::Stream(stream) => {
                    let mut read = |buffer: &mut [u8], wait| stream.read(buffer, wait);
                    let resize = |size| filled.bottom.device().resize(size);
                    copy::stream(&mut read, target, &resize, &options, progress, cancel)
                }
            };
            // What filters still hold is part of the copy, and may take as long as the copy did.
            ends.control.end();
            drop(over);
            result
        };
        let thread = std::thread::Builder::new().name("job".into()).spawn(work);
        let thread = thread.map_err(|e| Error::os("start a thread", e))?;
        let ending =
            Ending { job, source: disk, target, making, context, flushes, resuming, proof, noted };
        Ok(RunningJob { thread, progress, cancel, ending })
    }
}

/// The plan: all of the source, what the journal leaves, or what an overlay does not get from
/// below.
fn plan(
    source: &Edge,
    target: &Target,
    (changes, left): (Option<(&CopyChanges, &Options, &Context)>, Option<&Remaining>),
    cancel: &Cancel,
) -> Result<CopyPlan, Box<FailedCopy>> {
    let grid = range::grid(source, &target.edge);
    let whole = match (changes, target.below) {
        (Some((changes, options, context)), _) => {
            changes.plan(source, grid, options, cancel, context)
        }
        (None, Some(below)) => overlay::plan(source, &target.edge, below, cancel),
        (None, None) => Ok(CopyPlan::Map),
    };
    let plan = whole.map_err(|error| {
        let total = source.info().size;
        let report =
            Report { total, left: std::iter::once(0..total).collect(), ..Report::default() };
        Box::new(FailedCopy { error, report })
    })?;
    Ok(match left {
        Some(left) => left.of(plan, source, &target.edge),
        None => plan,
    })
}

impl RunningJob {
    /// How far it is.
    #[must_use]
    pub fn counts(&self) -> CopyCounts {
        let measured = self.ending.context.control.measures()();
        let (name, _) = disk::HOLDS_BACK;
        let held_back = measured.iter().any(|gauge| gauge.name == name && gauge.value > 0);
        CopyCounts { held_back, ..self.progress.snapshot() }
    }

    /// Asks it to stop. Returns whether it was not asked before.
    pub fn cancel(&self) -> bool {
        let is_news = !self.cancel.is_cancelled();
        self.cancel.cancel();
        is_news
    }

    /// The process is about to end although the copy has not, since some device does not answer:
    /// what was created is removed all the same.
    pub fn abandon(&self) {
        self.ending.making.remove();
        disk::abandon();
    }

    /// What the context of the job is asked to report of itself.
    pub fn report(&self) {
        self.ending.context.control.report();
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The copy failed or was cancelled, with what became of the target.
    pub fn wait(self) -> Result<SettledJob, JobError> {
        let Self { thread, ending, .. } = self;
        match thread.join() {
            Ok(Ok(report)) => Ok(SettledJob { ending, report }),
            Ok(Err(failed)) => Err(ending.explain(*failed)),
            Err(_) => {
                ending.making.remove();
                Err(Error::new(ErrorKind::Io, Fault::Us, "copy: panicked; this is a defect").into())
            }
        }
    }
}

impl Ending {
    /// The cause, and the state of the target.
    fn explain(&self, FailedCopy { error, report }: FailedCopy) -> JobError {
        let removed = self.making.remove();
        let fate = match (removed, report.touched, report.left.first()) {
            (true, _, _) => TargetFate::Removed,
            (false, false, Some(_)) => TargetFate::Untouched,
            (false, true, Some(left)) => TargetFate::Incomplete { gap: left.start },
            (false, _, None) => TargetFate::InDoubt,
        };
        let error = JobError::from(error).with_target(self.target.name(), fate);
        JobError { report: Some(Box::new(report)), ..error }
    }
}

impl SettledJob {
    /// Gives the target its name, and keeps it.
    ///
    /// # Errors
    /// A filter lost something, or the name cannot be given; what was created is removed. Or the
    /// name or the journal may not last.
    pub fn publish(self) -> Result<PublishedJob, JobError> {
        let Self { ending, report } = self;
        let report = Box::new(report);
        let done = ending.publish();
        let digest = ending.proof.as_ref().map(|proof| ending.digest(proof, &report));
        let done = done.and_then(|()| ending.verify(&report, digest.as_ref()));
        // Only now: the next run must not take for done what was seen to be wrong.
        let done = done.and_then(|verified| ending.note().map(|()| verified));
        match done {
            Ok(verified) => {
                let digest = digest.filter(|_| ending.job.digest.is_some());
                Ok(PublishedJob { report: *report, digest, verified })
            }
            Err(error) => Err(JobError { report: Some(report), ..error }),
        }
    }
}

impl Ending {
    /// The digest of what was copied, now and by earlier runs.
    fn digest(&self, proof: &ContentProof, report: &Report) -> device::Result<ContentDigest> {
        let Some((resuming, noted)) = self.resuming.as_ref().zip(self.noted.as_ref()) else {
            return proof.finish(report.total);
        };
        resuming.note_rest(noted)?;
        proof.finish(noted.size())
    }

    /// Reads back what was written, if that is wished for.
    fn verify(
        &self,
        report: &Report,
        digest: Option<&device::Result<ContentDigest>>,
    ) -> Result<bool, JobError> {
        if !self.job.verifies {
            return Ok(false);
        }
        let source = self.source.as_ref();
        let size = source.map_or(report.total, |source| source.info().size);
        let kind = digest_of(&self.job).map(|wished| wished.kind);
        let digest = kind.zip(digest.and_then(|digest| digest.as_ref().ok()));
        let copied = Copied { source, size, digest };
        let verified = verify(&self.job, &copied, &self.context);
        let failed = |e| JobError::from(e).with_target(self.target.name(), TargetFate::InDoubt);
        verified.map(|()| true).map_err(failed)
    }

    /// Notes in the journal that all is done.
    fn note(&self) -> Result<(), JobError> {
        let Some(resuming) = &self.resuming else { return Ok(()) };
        let failed = |e| JobError::from(e).with_target(self.target.name(), TargetFate::Complete);
        resuming.done().map_err(failed)
    }

    fn publish(&self) -> Result<(), JobError> {
        let name = self.target.name();
        if let Some(complaint) = self.context.control.take_complaints().first() {
            let removed = self.making.remove();
            let error = Error::new(ErrorKind::Io, Fault::File, complaint.to_string());
            let fate = if removed { TargetFate::Removed } else { TargetFate::InDoubt };
            return Err(JobError::from(error).with_target(name, fate));
        }
        if let Some(made) = self.making.made() {
            if let Err(e) = made.appear() {
                made.remove();
                let what = "all bytes were copied, but it could not get its name";
                return Err(Error::os(what, e).on(name).into());
            }
            if self.flushes
                && let Err(e) = made.sync_name()
            {
                // It has its name, and all bytes.
                made.keep();
                let error = JobError::from(Error::os("sync its directory", e).on(name));
                return Err(error.with_target(name, TargetFate::NameInDoubt));
            }
            made.keep();
        }
        Ok(())
    }
}
