//! `diskferry copy`: copies a disk to a disk.

mod arguments;
mod settings;
mod target;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use clap::ArgMatches;
use copy::{Cancel, Ends, Flush, Plan, Progress, Report};
use device::{Edge, ErrorKind, Info, format_size};
use disk::{Created, Holds, Made, Opened};
use runtime::{Context, Log};

use crate::failure::{Failure, Outcome, say};
use crate::progress::{Counting, Display, Event, Signals};
use crate::verb::Verb;
use settings::Settings;

pub(crate) const VERB: Verb = Verb {
    name: "copy",
    summary: "Copy a disk to a disk",
    about: "A file that is missing is made; one that is there is written over, and is as long as \
            the source in the end. Any other target must be at least as large as the source, and \
            what lies beyond is left alone. Holes are not read and zeroes become holes. With \
            --target-filter a file that is there keeps its length: the filter may show only a \
            part of it. What was copied is durable when the command ends, if the target can \
            flush. SIGUSR1 shows at once how far it is. When a copy fails, a file that it made \
            is removed.",
    example: "  diskferry copy sparse-random:1G disk.raw\n  \
              diskferry serve memory 1G --run 'diskferry copy disk.raw \"$uri\"'\n  \
              diskferry copy --source-filter='rate?rate=8G' disk.raw copy.raw\n  \
              diskferry copy --progress=json disk.raw null:",
    status: "130, 143, 129: SIGINT, SIGTERM or SIGHUP stopped it.",
    arguments: arguments::arguments,
    run,
};

fn run(matches: &ArgMatches) -> Outcome {
    let settings = Settings::resolve(matches)?;
    let display = Display::new(settings.show, Counting::Data);
    match prepare_and_copy(&settings, display) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err((display, failure, report)) => {
            display.fail(&failure, report.as_ref());
            Ok(ExitCode::from(failure.code()))
        }
    }
}

type Failed = (Display, Failure, Option<Report>);

#[expect(clippy::result_large_err, reason = "once, at the end")]
fn prepare_and_copy(settings: &Settings, display: Display) -> Result<(), Failed> {
    let log = Log::new(|line| say(&line.to_string()));
    let context = Context::default().with_log(log);
    let result = match open_both(settings, &context, &display) {
        Ok((source, target, signals)) => {
            copy_and_show(settings, &source, &target, signals, display, &context)
        }
        Err(failure) => Err((display, failure, None)),
    };
    context.control.end();
    result
}

type Watch = (Signals, std::os::unix::net::UnixStream);
type Target = (Created, Ends);

fn open_both(
    settings: &Settings,
    context: &Context,
    display: &Display,
) -> Result<(Edge, Target, Watch), Failure> {
    let Opened { below, edge: source, .. } = target::open_source(settings, context)?;
    let size = source.info().size;
    if let Some(lost) = rounded_off(below.info().size, source.info()) {
        let name = &source.info().name;
        display.warn(&format!(
            "{name}: the last {lost} bytes are not copied: seen through --source-filter it ends \
             with a whole block of {} bytes",
            source.info().blocks.minimum
        ));
    }
    if settings.target.may_be_made() {
        // From here on there may be something to remove.
        let signals = Signals::watch()?;
        return Ok((source, target::open(settings, size, context)?, signals));
    }
    // A peer that does not answer can be left by Ctrl-C, as usual.
    let target = target::open(settings, size, context)?;
    Ok((source, target, Signals::watch()?))
}

/// How many bytes of a disk a filter leaves out because they are no whole block.
fn rounded_off(size: u64, seen: &Info) -> Option<u64> {
    let rest = size % u64::from(seen.blocks.minimum.max(1));
    (rest > 0 && seen.size == size - rest).then_some(rest)
}

/// Copies in a thread of its own, while this one shows how far it is and listens to signals.
#[expect(clippy::result_large_err, reason = "once, at the end")]
fn copy_and_show(
    settings: &Settings,
    source: &Edge,
    (target, ends): &Target,
    (signals, over): Watch,
    mut display: Display,
    context: &Context,
) -> Result<(), Failed> {
    let Created { edge: target, holds, made } = target;
    let made = made.as_deref();
    if let Some(made) = made.filter(|_| settings.keep_partial) {
        made.keep();
    }
    let mut options = settings.options.clone();
    options.ends = *ends;
    match holds {
        Holds::Zeroes => options.target_is_zero = true,
        // As if it had been emptied: what is no data becomes a hole.
        Holds::Old => (options.target_is_zero, options.skip_zeroes) = (false, false),
        Holds::Unknown => {}
    }
    let (progress, cancel) = (Progress::default(), Cancel::default());
    let stop = cancel.clone();
    context.control.when_stopped(move || stop.cancel());
    let stop_code = Arc::new(AtomicU8::new(1));
    let result = std::thread::scope(|scope| {
        let (progress, cancel) = (&progress, &cancel);
        let options = &options;
        let copying = scope.spawn(move || {
            let result = copy::run(source, target, &Plan::Map, options, progress, cancel);
            // What filters still hold is part of the copy, and may take as long as it.
            context.control.end();
            drop(over);
            result
        });
        let show = |display: &mut Display| {
            display.line(&progress.snapshot());
            context.control.report();
        };
        follow(&signals, &mut display, (progress, &show), cancel, &stop_code, made);
        copying.join()
    });
    let now = progress.snapshot();
    let Ok(result) = result else {
        if let Some(made) = made {
            made.remove();
        }
        let failure = Failure::new("copy: panicked; this is a defect");
        return Err((display, failure, None));
    };
    let synced = |made: &dyn Made| made.sync_name().map_err(|e| format!("sync its directory: {e}"));
    match result {
        Ok(report) => {
            if let Some(complaint) = context.control.take_complaints().first() {
                let removed = made.is_some_and(Made::remove);
                let end = if removed { "; the target was removed" } else { "" };
                let failure = Failure::new(format!("{complaint}{end}"));
                return Err((display, failure, Some(report)));
            }
            if let Some(Err(e)) = made.map(Made::appear) {
                made.map(Made::remove);
                let name = &target.info().name;
                let what = format!("{name}: all bytes were copied, but it has no name: {e}");
                return Err((display, Failure::new(what), Some(report)));
            }
            let durable = options.flush != Flush::Never;
            if let Some(Err(e)) = made.filter(|_| durable).map(synced) {
                let name = &target.info().name;
                let what = "all bytes were copied, but its name may not last";
                let failure = Failure::new(format!("{name}: {e}; {what}"));
                return Err((display, failure, Some(report)));
            }
            if let Some(made) = made {
                made.keep();
            }
            display.succeed(&now, &report);
            Ok(())
        }
        Err(failed) => {
            let removed = made.is_some_and(Made::remove);
            let mut failure = explain(&failed, &target.info().name, removed);
            if failed.error.kind() == ErrorKind::Cancelled {
                failure = failure.with_code(stop_code.load(SeqCst));
            }
            Err((display, failure, Some(failed.report)))
        }
    }
}

/// Until the copy is over.
fn follow(
    signals: &Signals,
    display: &mut Display,
    (progress, show): (&Progress, &dyn Fn(&mut Display)),
    cancel: &Cancel,
    stop_code: &AtomicU8,
    made: Option<&dyn Made>,
) {
    loop {
        match signals.next(display.period()) {
            Some(Event::Over) => return,
            Some(Event::Show) => show(display),
            Some(Event::Stop(code)) if cancel.is_cancelled() => {
                // Asked twice: something does not answer. The half file goes all the same.
                if let Some(made) = made {
                    made.remove();
                }
                disk::abandon();
                std::process::exit(code.into());
            }
            Some(Event::Stop(code)) => {
                stop_code.store(code, SeqCst);
                cancel.cancel();
            }
            None => display.tick(&progress.snapshot()),
        }
    }
}

/// The cause, and what state the target is in.
fn explain(failed: &copy::Failure, target: &str, removed: bool) -> Failure {
    let (error, report) = (&failed.error, &failed.report);
    let (done, total) = (report.done(), report.total);
    let progress = format!("{} of {} copied", format_size(done), format_size(total));
    Failure::new(match (removed, report.touched, report.left.first()) {
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
    })
}
