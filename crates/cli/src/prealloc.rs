//! `diskferry prealloc`: allocates a file or block device in advance.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::time::Instant;

use ::copy::{CopyCounts, Report};
use clap::{Arg, ArgMatches, Command};
use device::{Error, ErrorKind, format_size};
use disk::{
    Allocation, Named, OpenOptions, Preallocated, Preallocation, PreallocationWatch, ZeroMethod,
};
use serde_json::{Map, Value, json};

use crate::arguments::{disk, flag, json_flag, named, size, value};
use crate::failure::{ExitResult, Failure, USAGE};
use crate::force;
use crate::image;
use crate::output;
use crate::output::VERSION;
use crate::progress::{self, Counting, Display, Show, Signals};
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "prealloc",
    summary: "Preallocate a file or block device",
    about: "The contents never change: only holes and unwritten extents are touched. `written` \
            writes zeroes by the best available method, so that later writes do not change the \
            file system's metadata; `unwritten` allocates, like fallocate(1); `sparse` sets the \
            length. The method is reported. The result is durable when the command ends, and \
            running it again completes an interrupted run. See docs/prealloc.md.",
    example: "  diskferry prealloc --size 64M disk.raw\n  \
              diskferry prealloc --size 1G --mode unwritten --json other.raw",
    status: "130, 143, 129: SIGINT, SIGTERM or SIGHUP stopped it.",
    usage: USAGE,
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let command = command
        .arg(
            disk()
                .value_name("FILE")
                .help("A file, which is created if it is missing, or a block device"),
        )
        .arg(value("--size SIZE", "Make the file at least this long [default: its length]"))
        .arg(value("-o, --offset SIZE", "Where the range begins").default_value("0"))
        .arg(value("-l, --length SIZE", "How long it is [default: to the end]"))
        .arg(flag("-n, --keep-size", "Keep the length of the file").short_alias('k'))
        .arg(mode_argument("mode").help("sparse, unwritten or written [default: written]"))
        .arg(value("--rate BYTES", "Zero at most this many bytes a second"))
        .arg(force::argument())
        .arg(json_flag().help("Print what was done as JSON"));
    progress::arguments(command)
}

/// An option that names a mode.
pub(crate) fn mode_argument(id: &'static str) -> Arg {
    value(id, "")
        .value_name("MODE")
        .value_parser(["sparse", "unwritten", "written"])
        .hide_possible_values(true)
}

/// The mode that the option `id` names.
pub(crate) fn mode(matches: &ArgMatches, id: &str) -> Option<Allocation> {
    image::word(matches, id).and_then(image::allocation)
}

fn word(mode: Allocation) -> &'static str {
    match mode {
        Allocation::Sparse => "sparse",
        Allocation::Unwritten => "unwritten",
        Allocation::Written => "written",
    }
}

fn wish(matches: &ArgMatches) -> Result<Preallocation, Failure> {
    let size = |id| size(matches, id);
    let rate = match size("rate")? {
        None => None,
        Some(rate) => {
            let none = || Failure::usage("--rate: must be at least a byte a second");
            Some(NonZeroU64::new(rate).ok_or_else(none)?)
        }
    };
    Ok(Preallocation {
        size: size("size")?,
        offset: size("offset")?.unwrap_or(0),
        length: size("length")?,
        keep_size: matches.get_flag("keep-size"),
        mode: mode(matches, "mode").unwrap_or(Allocation::Written),
        rate,
    })
}

fn run(matches: &ArgMatches) -> ExitResult {
    let (disk, wish) = (named(matches)?, wish(matches)?);
    let force = force::asked(matches);
    force::refuse_used(&disk, force)?;
    let options = OpenOptions { force, ..OpenOptions::read_write() };
    let began = Instant::now();
    let show = Show::asked(matches);
    let mut display = Display::new(show, Counting::All("preallocated"));
    let watch = PreallocationWatch::default();
    let (result, stopped) = work(&disk, (&wish, &options), &watch, &mut display, began)?;
    let (done, total) = watch.progress();
    match result {
        Ok(done) => {
            let (total, elapsed) = (done.length, began.elapsed());
            let report = Report { total, zeroed: total, elapsed, ..Report::default() };
            let now = CopyCounts { total, zeroed: total, elapsed, ..CopyCounts::default() };
            display.succeed(&now, &report);
            print(matches, &disk, wish.mode, &done)
        }
        Err(e) => {
            let failure = explain(&e, done, total, stopped);
            let code = failure.code();
            display.fail(&failure, None);
            Ok(ExitCode::from(code))
        }
    }
}

type Worked = (Result<Preallocated, Error>, Option<u8>);

/// Works in a thread of its own, while this one shows the progress and handles signals. Also
/// returns the exit status of the signal that stopped it, if one did.
fn work(
    disk: &Named,
    (wish, options): (&Preallocation, &OpenOptions),
    watch: &PreallocationWatch,
    display: &mut Display,
    began: Instant,
) -> Result<Worked, Failure> {
    let (signals, over) = Signals::watch()?;
    let (result, stopped) = std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            let result = disk.preallocate(wish, options, watch);
            drop(over);
            result
        });
        let now = || {
            let ((zeroed, total), elapsed) = (watch.progress(), began.elapsed());
            CopyCounts { total, zeroed, elapsed, ..CopyCounts::default() }
        };
        let asked = Cell::new(false);
        let stop = || {
            watch.stop();
            !asked.replace(true)
        };
        // After a second signal to stop, a second run completes the work.
        let stopped = signals.follow(display, now, || {}, stop, || {});
        (working.join(), stopped)
    });
    let result = result.map_err(|_| Failure::new("prealloc: panicked; this is a defect"))?;
    Ok((result, stopped))
}

/// Why it is not complete, and how much of it is done.
fn explain(e: &Error, done: u64, total: u64, stopped: Option<u8>) -> Failure {
    if e.is_usage() {
        return Failure::usage(e);
    }
    let (of, total) = (format_size(done), format_size(total));
    let failure = Failure::because(
        e,
        match done {
            0 => format!("{e}; nothing was zeroed"),
            _ => format!("{e}; {of} of {total} are done, and the same command completes it"),
        },
    );
    match stopped.filter(|_| e.kind() == ErrorKind::Cancelled) {
        Some(code) => failure.with_code(code),
        None => failure,
    }
}

/// How it was zeroed, as JSON.
fn way(mode: Allocation, done: &Preallocated) -> &'static str {
    let most = done.ways.iter().max_by_key(|(_, n)| *n);
    match (mode, most) {
        (Allocation::Sparse, _) => "length",
        (Allocation::Unwritten, _) => "fallocate",
        (Allocation::Written, Some((way, _))) => way.word(),
        (Allocation::Written, None) => "nothing",
    }
}

fn print(matches: &ArgMatches, disk: &Named, mode: Allocation, done: &Preallocated) -> ExitResult {
    if matches.get_flag("json") {
        let ways: Map<String, Value> =
            done.ways.iter().map(|(way, n)| (way.word().to_owned(), json!(n))).collect();
        let value = json!({
            "version": VERSION,
            "filename": disk.to_string(),
            "size": done.size,
            "offset": done.offset,
            "length": done.length,
            "mode": word(mode),
            "way": way(mode, done),
            "zeroed": done.zeroed(),
            "kept": done.kept,
            "ways": ways,
            "why": done.why,
            "checked": done.checked,
        });
        return output::finish(|out| writeln!(out, "{value}").map(|()| ExitCode::SUCCESS));
    }
    if matches.get_flag("quiet") {
        return Ok(ExitCode::SUCCESS);
    }
    output::text(&format!("{}\n", tell(disk, mode, done)))
}

/// The same for people.
fn tell(disk: &Named, mode: Allocation, done: &Preallocated) -> String {
    let length = format_size(done.length);
    let mut line = match mode {
        Allocation::Sparse => {
            return format!("{disk}: {} long, nothing allocated", format_size(done.size));
        }
        Allocation::Unwritten => format!("{disk}: {length} allocated, not written"),
        Allocation::Written => format!("{disk}: {length} written"),
    };
    if mode == Allocation::Written {
        let by = |way: ZeroMethod| match way {
            ZeroMethod::WriteZeroes => "zeroed by the disk itself (FALLOC_FL_WRITE_ZEROES)",
            ZeroMethod::ZeroOut => "zeroed by the kernel (BLKZEROOUT)",
            ZeroMethod::Direct => "zeroed by direct writes",
            ZeroMethod::Cached => "zeroed by writes through the page cache",
        };
        let mut parts: Vec<_> =
            done.ways.iter().map(|(way, n)| format!("{} {}", format_size(*n), by(*way))).collect();
        if done.kept > 0 {
            parts.push(format!("{} left unchanged", format_size(done.kept)));
        }
        if !parts.is_empty() {
            line += &format!(": {}", parts.join(", "));
        }
        if let Some(why) = done.why.as_ref().filter(|_| !done.ways.is_empty()) {
            line += &format!(" ({why})");
        }
    }
    let checked = match (done.checked, mode) {
        (true, Allocation::Written) => "; the map has no unwritten extent",
        (true, _) => "; the map has no hole",
        (false, _) => "; there is no map to check it with",
    };
    line + checked
}
