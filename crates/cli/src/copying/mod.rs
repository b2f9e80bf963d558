//! A copy as a verb runs it: it opens both ends, shows the progress, handles signals, and keeps or
//! removes what it made. `copy`, `convert` and `dd` differ in their words, not in this.

mod ends;
mod journal;
mod overlay;
mod promise;
mod proof;
mod range;
mod rate;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::ArgMatches;
use copy::{Cancel, CopyPlan, Flush, Options, Progress, Report};
use device::{Edge, ErrorKind, Reach, Use, format_size};
use disk::{Created, Holds, Made, Named, Stack};
use runtime::{Context, OperatorLog, Patience};

use self::ends::{Input, Related};
use self::journal::{GoesOn, Journaling};
pub(crate) use self::promise::TargetPromise;
pub(crate) use self::proof::{CopyProof, ProofFiles, ProofWish};
pub(crate) use self::rate::rate;
use crate::failure::{ExitResult, Failure, say};
use crate::image::{self, Source};
use crate::progress::{Counting, Display, Show, Signals};
use crate::sandbox::{self, Sandbox, Wish};
use crate::{force, patience};

/// What is to be copied, and how: everything that is decided before anything is opened.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent wishes, each an option")]
pub(crate) struct CopyRequest {
    /// At least one; several are one disk, one behind the other.
    pub(crate) sources: Arc<[Source]>,
    /// Only this range of it: the first byte, and how many at most.
    pub(crate) window: Option<(u64, u64)>,
    /// The offset in the target that they go to; the rest of it stays as it is.
    pub(crate) at: Option<u64>,
    /// What cannot be read is copied as zeroes.
    pub(crate) salvages: bool,
    /// The sources are not locked against others.
    pub(crate) shares: bool,
    pub(crate) target: Named,
    /// Its format, and filters over it.
    pub(crate) target_stack: Stack,
    /// Filters over the target once it is made: they do not hide that it was.
    pub(crate) over_target: Option<Stack>,
    /// The target is an overlay: only the source's own layer is copied.
    pub(crate) is_overlay: bool,
    /// Whether the user means it that the target becomes a raw disk.
    pub(crate) promise: TargetPromise,
    /// The target exists, and is written as it is; nothing is created.
    pub(crate) exists: bool,
    /// An existing target is left alone.
    pub(crate) is_new: bool,
    /// Says what both ends are.
    pub(crate) is_verbose: bool,
    /// A new file has its name at once, and not only when it is complete.
    pub(crate) keep_partial: bool,
    /// A block device is written although the system uses it.
    pub(crate) force: bool,
    pub(crate) connections: usize,
    pub(crate) options: Options,
    /// Where it is noted how far the copy is, so that the same command goes on.
    pub(crate) journal: Option<PathBuf>,
    /// What is said of the contents at the end.
    pub(crate) proof: Option<ProofWish>,
    /// How long to wait for servers.
    pub(crate) patience: Patience,
    pub(crate) show: Show,
    /// Whether to print notes.
    pub(crate) warns: bool,
    /// The exit status for wrong usage.
    pub(crate) usage: u8,
    pub(crate) sandbox: Wish,
}

impl CopyRequest {
    /// All of the sources, to the beginning of a target that is created, with nothing else wished
    /// for than what all verbs that copy can be told.
    pub(crate) fn new(
        matches: &ArgMatches,
        sources: Vec<Source>,
        (target, target_stack): (Named, Stack),
    ) -> Result<Self, Failure> {
        Ok(Self {
            sources: sources.into(),
            window: None,
            at: None,
            salvages: false,
            shares: false,
            target,
            target_stack,
            over_target: None,
            is_overlay: false,
            promise: TargetPromise::Kept,
            exists: false,
            is_new: false,
            is_verbose: false,
            keep_partial: image::is_given(matches, "keep-partial"),
            force: force::asked(matches),
            connections: 8,
            options: Options::default(),
            journal: None,
            proof: None,
            patience: patience::asked(matches)?,
            show: Show::Nothing,
            warns: true,
            usage: 1,
            sandbox: sandbox::wish(matches),
        })
    }

    /// What its ends need of the system.
    fn reach(&self) -> Reach {
        let sources = self.sources.iter().map(Source::reach).fold(Reach::default(), Reach::and);
        let how = if self.exists { Use::Write } else { Use::Make };
        let over = self.over_target.as_ref().map(Stack::reaches).unwrap_or_default();
        sources.and(disk::reach(&self.target, &self.target_stack, how)).and(over)
    }
}

/// Copies.
pub(crate) fn run(work: &CopyRequest) -> ExitResult {
    let files = Notes {
        proof: work.proof.as_ref().map(ProofFiles::open).transpose()?,
        journal: work.journal.as_deref().map(Journaling::open).transpose()?,
    };
    let related = ends::relate(work);
    let sandbox = Sandbox::enter(work.sandbox, &work.reach())?;
    let display = Display::new(work.show, Counting::Data);
    match prepare_and_copy(work, related, sandbox, (display, files)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err((display, failure, report)) => {
            let failure = failure.with_usage_code(work.usage);
            display.fail(&failure, report.as_ref());
            Ok(ExitCode::from(failure.code()))
        }
    }
}

/// What is noted of the copy, in files that are open.
struct Notes {
    proof: Option<ProofFiles>,
    journal: Option<Journaling>,
}

type Failed = (Display, Failure, Option<Report>);

#[expect(clippy::result_large_err, reason = "once, at the end")]
fn prepare_and_copy(
    work: &CopyRequest,
    related: Result<Related, Failure>,
    sandbox: Sandbox,
    (display, files): (Display, Notes),
) -> Result<(), Failed> {
    let log = OperatorLog::new(|line| say(&line.to_string()));
    let context = Context::default().with_log(log).with_patience(work.patience);
    let opened = open_both(work, related, &context, &display);
    let opened = opened.and_then(|opened| sandbox.shut().map(|_| opened));
    let result = match opened {
        Ok((source, target, signals)) => {
            if work.is_verbose && work.show != Show::Json {
                display.note(&ends::words(&source, &target));
            }
            copy_and_show(work, (source, files), &target, signals, display, &context)
        }
        Err(failure) => Err((display, failure, None)),
    };
    context.control.end();
    result
}

type Watch = (Signals, std::os::unix::net::UnixStream);

/// The target, open.
struct Target {
    created: Created,
    /// The target itself, below the filters that do not hide that it is new.
    bottom: Edge,
    /// It shares no bytes with the source, and that is proven.
    apart: bool,
    /// Bytes of the disk below the overlay, if only the source's own layer is copied.
    below: Option<u64>,
}

fn open_both(
    work: &CopyRequest,
    related: Result<Related, Failure>,
    context: &Context,
    display: &Display,
) -> Result<(Input, Target, Watch), Failure> {
    let (source, files) = ends::open_source(work, context, display)?;
    if work.target.may_be_made() {
        // From here on there may be something to remove.
        let signals = Signals::watch()?;
        let target = ends::open_target(work, (&source, &files), related, context, display)?;
        return Ok((source, target, signals));
    }
    // A peer that does not answer can be left by Ctrl-C, as usual.
    let target = ends::open_target(work, (&source, &files), related, context, display)?;
    Ok((source, target, Signals::watch()?))
}

/// Copies in a thread of its own, while this one shows the progress and handles signals.
#[expect(clippy::result_large_err, reason = "once, at the end")]
fn copy_and_show(
    work: &CopyRequest,
    (mut source, notes): (Input, Notes),
    target: &Target,
    (signals, over): Watch,
    mut display: Display,
    context: &Context,
) -> Result<(), Failed> {
    let Target { created: Created { edge: target, holds, made }, bottom, apart, below } = target;
    let made = made.as_deref();
    let goes_on = match (&notes.journal, source.disk()) {
        (Some(journal), Some(source)) => match found(journal, work, source, (target, made)) {
            Ok(GoesOn::Done(what)) => {
                display.note(&what);
                return Ok(());
            }
            Ok(GoesOn::With(plan)) => Some(plan),
            Err(failure) => {
                // Of the copy in the journal nothing is removed.
                if let Some(made) = made {
                    made.remove();
                }
                return Err((display, failure, None));
            }
        },
        _ => None,
    };
    if let Some(made) = made.filter(|_| work.keep_partial) {
        made.keep();
    }
    let proof = notes.proof.map(|files| files.begin(source.size()));
    let options = Options {
        witness: proof.as_ref().map(CopyProof::watched),
        apart: *apart,
        anew: Some(ends::anew(work, context)),
        ..for_target(*holds, work.options.clone())
    };
    let options = match &notes.journal {
        Some(journal) => journal.options(options, source.size().unwrap_or(0), goes_on.as_ref()),
        None => options,
    };
    if let Input::Disk(source) = &source
        && below.is_none()
        && !(options.no_extents || options.wipe || options.written)
    {
        display.source(source);
    }
    let (progress, cancel) = (Progress::default(), Cancel::default());
    let stop = cancel.clone();
    context.control.when_stopped(move || stop.cancel());
    let (result, stopped) = std::thread::scope(|scope| {
        let (progress, cancel) = (&progress, &cancel);
        let options = &options;
        let copying = scope.spawn(move || {
            let result = match &mut source {
                Input::Disk(source) => plan(source, target, (goes_on, *below), cancel)
                    .and_then(|plan| copy::run(source, target, &plan, options, progress, cancel)),
                Input::Stream(stream) => {
                    let mut read = |buffer: &mut [u8], wait| stream.read(buffer, wait);
                    let resize = |size| bottom.device().resize(size);
                    copy::stream(&mut read, target, &resize, options, progress, cancel)
                }
            };
            // What filters still hold is part of the copy, and may take as long as the copy did.
            context.control.end();
            drop(over);
            result
        });
        let stop = || {
            let is_news = !cancel.is_cancelled();
            cancel.cancel();
            is_news
        };
        let leave = || {
            // The partial file is removed all the same.
            if let Some(made) = made {
                made.remove();
            }
            disk::abandon();
        };
        let report = || context.control.report();
        let now = || progress.snapshot();
        let stopped = signals.follow(&mut display, now, report, stop, leave);
        (copying.join(), stopped)
    });
    let now = progress.snapshot();
    let Ok(result) = result else {
        if let Some(made) = made {
            made.remove();
        }
        let failure = Failure::new("copy: panicked; this is a defect");
        return Err((display, failure, None));
    };
    match result {
        Ok(report) => match publish(target, made, options.flush != Flush::Never, context) {
            Ok(()) => {
                if let Some(journal) = &notes.journal
                    && let Err(failure) = journal.done()
                {
                    return Err((display, failure, Some(report)));
                }
                display.succeed(&now, &report);
                let name = work.target.to_string();
                let Some(proof) = proof else { return Ok(()) };
                let said = proof.say(report.total, &name);
                said.map_err(|e| (Display::new(Show::Nothing, Counting::Data), e, None))
            }
            Err(failure) => Err((display, failure, Some(report))),
        },
        Err(failed) => {
            let removed = made.is_some_and(Made::remove);
            let mut failure = explain(&failed, &target.info().name, removed);
            if notes.journal.is_some() && failed.report.touched {
                failure = failure.and("; the same command goes on");
            }
            if failed.error.kind() == ErrorKind::Cancelled {
                failure = failure.with_code(stopped.unwrap_or(1));
            }
            Err((display, failure, Some(failed.report)))
        }
    }
}

/// What is left to do by the journal, whose target has to be there after a power failure, too.
fn found(
    journal: &Journaling,
    work: &CopyRequest,
    source: &Edge,
    (target, made): (&Edge, Option<&dyn Made>),
) -> Result<GoesOn, Failure> {
    if let Some(Err(e)) = made.map(Made::sync_name) {
        return Err(Failure::new(format!("{}: sync its directory: {e}", target.info().name)));
    }
    journal.relate(work, source, target)
}

/// The options for a target that holds this.
fn for_target(holds: Holds, options: Options) -> Options {
    match holds {
        Holds::Zeroes => Options { target_is_zero: true, check_zero: false, ..options },
        // As if it had been emptied: what is not data becomes a hole.
        Holds::Old => Options { target_is_zero: false, skip_zeroes: false, ..options },
        Holds::Unknown => options,
    }
}

/// Gives the target, to which all bytes were copied, its name, and keeps it.
fn publish(
    target: &Edge,
    made: Option<&dyn Made>,
    durable: bool,
    context: &Context,
) -> Result<(), Failure> {
    if let Some(complaint) = context.control.take_complaints().first() {
        let removed = made.is_some_and(Made::remove);
        let end = if removed { "; the target was removed" } else { "" };
        return Err(Failure::new(format!("{complaint}{end}")));
    }
    let (Some(made), name) = (made, &target.info().name) else { return Ok(()) };
    if let Err(e) = made.appear() {
        made.remove();
        let what = format!("{name}: all bytes were copied, but it could not get its name: {e}");
        return Err(Failure::new(what));
    }
    if durable && let Err(e) = made.sync_name() {
        let what = "all bytes were copied, but its name may not last";
        return Err(Failure::new(format!("{name}: sync its directory: {e}; {what}")));
    }
    made.keep();
    Ok(())
}

/// The plan: all of the source, or what an overlay does not get from below.
fn plan(
    source: &Edge,
    target: &Edge,
    (goes_on, below): (Option<CopyPlan>, Option<u64>),
    cancel: &Cancel,
) -> Result<CopyPlan, Box<copy::FailedCopy>> {
    if let Some(plan) = goes_on {
        return Ok(plan);
    }
    let Some(below) = below else { return Ok(CopyPlan::Map) };
    overlay::plan(source, target, below, cancel).map_err(|error| {
        let total = source.info().size;
        let report =
            Report { total, left: std::iter::once(0..total).collect(), ..Report::default() };
        Box::new(copy::FailedCopy { error, report })
    })
}

/// The cause, and the state of the target.
fn explain(failed: &copy::FailedCopy, target: &str, removed: bool) -> Failure {
    let (error, report) = (&failed.error, &failed.report);
    let (done, total) = (report.done(), report.total);
    let progress = format!("{} of {} copied", format_size(done), format_size(total));
    let what = match (removed, report.touched, report.left.first()) {
        (true, _, _) => format!("{error}; {target} was removed ({progress})"),
        (false, false, Some(_)) => format!("{error}; {target} was not written"),
        (false, true, Some(left)) => {
            format!("{error}; {target} is incomplete: {progress}, the first gap at {}", left.start)
        }
        (false, _, None) => {
            format!(
                "{error}; all bytes were written, but {target} may not keep them, nor have its length"
            )
        }
    };
    Failure::because(error, what)
}
