//! A copy as a verb runs it: around the job of the library `transfer` it shows the progress,
//! handles signals, and has the user's words for what became of the target. `copy`, `convert` and
//! `dd` differ in their words, not in this.

mod front;
mod outline;
mod promise;
mod proof;
mod rate;
mod unread;

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgMatches};
use copy::Report;
use device::ErrorKind;
use disk::{Named, Stack};
use runtime::{Context, OperatorLog, Patience};
use transfer::changes::CopyChanges;
use transfer::job::{
    Advice, CopyJob, JobError, JobSource, PlannedJob, PreparedJob, PublishedJob, ReadyJob,
    TargetFate,
};

use self::front::Telling;
pub(crate) use self::outline::PlanForm;
pub(crate) use self::promise::TargetPromise;
pub(crate) use self::proof::{ProofFiles, ProofWish};
pub(crate) use self::rate::{rate, rate_of, rates};
use self::unread::Unread;
pub(crate) use self::unread::{UnreadWish, arguments as unread, wish as unread_wish};
use crate::arguments::{flag, value};
use crate::digest::file;
use crate::failure::{ExitResult, Failure, say};
use crate::image::{self, Source};
use crate::progress::{Counting, Display, Show, Signals};
use crate::sandbox::{self, Sandbox, Wish};
use crate::{force, patience};

/// A job, and what is around it.
pub(crate) struct CopyRequest {
    /// Those of the job, with what is known of their words.
    pub(crate) sources: Vec<Source>,
    pub(crate) job: CopyJob,
    /// What cannot be read is copied as zeroes.
    pub(crate) salvages: Option<UnreadWish>,
    /// Whether the user means it that the target becomes a raw disk.
    pub(crate) promise: TargetPromise,
    /// Says what both ends are.
    pub(crate) is_verbose: bool,
    /// Only what would be done is printed.
    pub(crate) plans: Option<PlanForm>,
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
        target: (Named, Stack),
    ) -> Result<Self, Failure> {
        let of =
            |source: &Source| JobSource { disk: source.disk.clone(), stack: source.stack.clone() };
        let job = CopyJob {
            keep_partial: image::is_given(matches, "keep-partial"),
            force: force::asked(matches),
            ..CopyJob::new(sources.iter().map(of).collect(), target)
        };
        Ok(Self {
            sources,
            job,
            salvages: None,
            promise: TargetPromise::Kept,
            is_verbose: false,
            plans: None,
            proof: None,
            patience: patience::asked(matches)?,
            show: Show::Nothing,
            warns: true,
            usage: 1,
            sandbox: sandbox::wish(matches),
        })
    }

    /// The same, with a job that was changed.
    pub(crate) fn with(self, change: impl FnOnce(CopyJob) -> CopyJob) -> Self {
        Self { job: change(self.job), ..self }
    }
}

/// Copies.
pub(crate) fn run(work: &CopyRequest) -> ExitResult {
    if let Some(form) = work.plans {
        return outline::show(work, form);
    }
    let proof = work.proof.as_ref().map(ProofFiles::open).transpose()?;
    let digest = proof.as_ref().map(ProofFiles::of_job).transpose()?;
    let unread = work.salvages.as_ref().map(|wish| Unread::begin(wish, work)).transpose()?;
    let salvages = unread.as_ref().map(|unread| unread.hook(work));
    let job = CopyJob { digest, salvages, ..work.job.clone() }.prepare()?;
    let sandbox = Sandbox::enter(work.sandbox, &job.job().reach())?;
    let display = Display::new(work.show, Counting::Data);
    match prepare_and_copy(work, job, sandbox, (display, Notes { proof, unread })) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err((display, failure, report)) => {
            let failure = failure.with_usage_code(work.usage);
            display.fail(&failure, report.as_deref());
            Ok(ExitCode::from(failure.code()))
        }
    }
}

/// What is noted of a copy.
struct Notes {
    proof: Option<ProofFiles>,
    unread: Option<Unread>,
}

type Failed = (Display, Failure, Option<Box<Report>>);

#[expect(clippy::result_large_err, reason = "once, at the end")]
fn prepare_and_copy(
    work: &CopyRequest,
    job: PreparedJob,
    sandbox: Sandbox,
    (display, notes): (Display, Notes),
) -> Result<(), Failed> {
    let log = OperatorLog::new(|line| say(&line.to_string()));
    let context = Context::default().with_log(log).with_patience(work.patience);
    let ready = open_both(work, job, &context, &display);
    let ready = ready.and_then(|ready| sandbox.shut().map(|_| ready));
    let result = match ready {
        Ok((ReadyJob::Copy(planned), watch)) => {
            copy_and_show(work, *planned, watch, (display, notes))
        }
        Ok((ReadyJob::Done { digest }, _)) => {
            display.note(&format!(
                "{}: already copied, and its samples are unchanged; nothing was done",
                work.job.target
            ));
            match notes.proof.zip(digest) {
                Some((proof, digest)) => proof
                    .say(digest, &work.job.target.to_string())
                    .map_err(|e| (Display::new(Show::Nothing, Counting::Data), e, None)),
                None => Ok(()),
            }
        }
        Err(failure) => Err((display, failure, None)),
    };
    context.control.end();
    result
}

type Watch = (Signals, std::os::unix::net::UnixStream);

fn open_both(
    work: &CopyRequest,
    job: PreparedJob,
    context: &Context,
    display: &Display,
) -> Result<(ReadyJob, Watch), Failure> {
    let front = Telling { work, display };
    let source = job.open_source(context, &front)?;
    if source.creates() {
        // From here on there may be something to remove.
        let signals = Signals::watch()?;
        return Ok((source.plan(&front)?, signals));
    }
    // A peer that does not answer can be left by Ctrl-C, as usual.
    Ok((source.plan(&front)?, Signals::watch()?))
}

/// Shows the progress and handles signals, while the job copies.
#[expect(clippy::result_large_err, reason = "once, at the end")]
fn copy_and_show(
    work: &CopyRequest,
    planned: PlannedJob,
    (signals, over): Watch,
    (mut display, Notes { proof, unread }): (Display, Notes),
) -> Result<(), Failed> {
    if work.is_verbose && work.show != Show::Json {
        display.note(&planned.words());
    }
    if let Some(source) = planned.mapped() {
        display.source(source);
    }
    let size = planned.size().unwrap_or(0);
    let ended = |fate: Option<TargetFate>, report: &Report| {
        let first = work.job.window.map_or(0, |(start, _)| start);
        let part = first..first.saturating_add(size);
        unread.as_ref().map_or(Ok(()), |unread| unread.end((part, fate), report, work))
    };
    let running = match planned.start(over) {
        Ok(running) => running,
        Err(e) => return Err((display, e.into(), None)),
    };
    let stopped = signals.follow(
        &mut display,
        || running.counts(),
        || running.report(),
        || running.cancel(),
        || running.abandon(),
    );
    let now = running.counts();
    let done = match running.wait() {
        Ok(settled) => settled.publish(),
        Err(mut e) => {
            let (kind, report) = (e.error.kind(), e.report.take());
            let fate = e.target.as_ref().map(|(_, fate)| *fate);
            let map = report.as_ref().map_or(Ok(()), |report| ended(fate, report));
            let goes_on = work.job.journal.is_some() && report.as_ref().is_some_and(|r| r.touched);
            e.report.clone_from(&report);
            let mut failure = Failure::from(e);
            if goes_on {
                failure = failure.and("; the same command resumes it");
            }
            if let Err(e) = map {
                failure = failure.and("; ").and(&e.line());
            }
            if kind == ErrorKind::Cancelled {
                failure = failure.with_code(stopped.unwrap_or(1));
            }
            return Err((display, failure, report));
        }
    };
    match done {
        Ok(PublishedJob { report, digest, verified }) => {
            let lacks = ended(Some(TargetFate::Complete), &report).err();
            let lacks = match lacks {
                Some(lacks) => Some((display, lacks, Some(Box::new(report)))),
                None => {
                    display.succeed(&now, &report);
                    None
                }
            };
            if verified && work.show != Show::Nothing && work.show != Show::Json {
                say(&format!("{}: verified", work.job.target));
            }
            if let (Some(proof), Some(digest)) = (proof, digest) {
                let said = proof.say(digest, &work.job.target.to_string());
                said.map_err(|e| (Display::new(Show::Nothing, Counting::Data), e, None))?;
            }
            lacks.map_or(Ok(()), Err)
        }
        Err(mut e) => {
            let report = e.report.take();
            let fate = e.target.as_ref().map(|(_, fate)| *fate);
            let map = report.as_ref().map_or(Ok(()), |report| ended(fate, report));
            let failure = Failure::from(e);
            let failure = match map {
                Ok(()) => failure,
                Err(map) => failure.and("; ").and(&map.line()),
            };
            Err((display, failure, report))
        }
    }
}

/// `--journal`.
pub(crate) fn journal() -> Arg {
    file("--journal FILE", "Note in FILE what is durable: the same command goes on from there")
        .long_help(
            "Record in FILE what is durable. If the copy is interrupted, killed or fails, the \
             target stays, and the same command resumes the copy; until it is complete, there is \
             a file TARGET.incomplete. If the source or target has changed by then, the command \
             says so and does nothing. With the journal of a complete copy, it compares samples \
             and writes nothing",
        )
}

/// Where that is.
pub(crate) fn journal_of(matches: &ArgMatches) -> Option<PathBuf> {
    matches.get_one::<PathBuf>("journal").cloned()
}

/// `--verify`.
pub(crate) fn verify() -> Arg {
    flag("--verify", "Read back what was written, and compare it with what was copied").long_help(
        "When the copy is complete and durable, read the data back, bypassing the page cache \
         where the system allows it, and compare it with the digest of the copied data. A copy \
         resumed from a journal, or of a range, reads its source again for this",
    )
}

/// `--changes`.
pub(crate) fn changes() -> Arg {
    value(
        "--changes FROM",
        "Copy only what changed: bitmap:NAME of the source, or a file that lists it",
    )
    .long_help(
        "Copy only what changed since the target last matched the source; nothing else in the \
             existing target is touched. FROM is bitmap:NAME, a dirty bitmap of the source (its \
             context is qemu:dirty-bitmap:NAME); or a file: a manifest of the last copy \
             (--manifest), JSON of `map --context`, `qemu-img map`, `rbd diff` or VMware, the \
             output of thin_delta, or a mapfile of ddrescue (what is not finished)",
    )
    .conflicts_with_all(["no-clobber", "wipe", "offset", "length", "target-offset"])
}

/// What it says. Reads the file.
pub(crate) fn changes_of(matches: &ArgMatches) -> Result<Option<CopyChanges>, Failure> {
    let Some(word) = image::word(matches, "changes") else { return Ok(None) };
    if let Some(bitmap) = CopyChanges::bitmap(word) {
        return Ok(Some(bitmap));
    }
    let path = device::text::path(word);
    let file = File::open(&path).map_err(|e| device::Error::os("open", e).on(path.display()))?;
    Ok(Some(CopyChanges::read(file).map_err(|e| e.on(path.display()))?))
}

/// The user's words for a job that ended.
impl From<JobError> for Failure {
    fn from(e: JobError) -> Self {
        let cure = match e.advice {
            None => "",
            Some(Advice::Create) => "; create the target: leave out -n",
            Some(Advice::Force) => " (--force writes to it anyway)",
            Some(Advice::Resize) => " (`diskferry resize` makes a file longer)",
        };
        let line = format!("{e}{cure}");
        if e.error.is_usage() { Self::usage(line) } else { Self::because(&e.error, line) }
    }
}
