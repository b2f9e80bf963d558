//! `diskferry compare`: whether two images hold the same disk.

mod digests;
mod drawn;
mod far;

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Instant;

use clap::{ArgMatches, Command};
use compare::{Difference, Doing, FailedComparison, Options, Progress, Report, Side};
use copy::CopyCounts;
use device::Edge;

use crate::arguments::{disk_as, flag, value};
use crate::failure::{ExitResult, Failure};
use crate::image::{self, Source};
use crate::output;
use crate::progress::{Counting, Display, Show, percent};
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "compare",
    summary: "Compare the contents of two disks",
    about: "The options are those of `qemu-img compare`. Ranges that are empty in both maps are \
            not read. If one disk is longer, its remainder must read as zeroes. Without -f and -F \
            the formats are guessed. A disk named ssh://[USER@]HOST[:PORT]/PATH stays on its \
            machine: `ssh` starts `diskferry digest` there, and only digests are sent; then the \
            offset is that of the stretch of 4 MiB in which they first differ.",
    example: "  diskferry compare pattern:8M pattern:8M\n  \
              diskferry compare memory:1M 'memory:2M' || echo they differ\n  \
              diskferry compare --picture pattern:8M memory:8M || true",
    status: "1: they differ. 2: an image cannot be opened. 3: the map of an image cannot be read. \
             4: an image cannot be read.",
    usage: 1,
    arguments,
    run,
};

/// Exit statuses.
const DIFFER: u8 = 1;
const NOT_OPEN: u8 = 2;
const NO_MAP: u8 = 3;
const NOT_READ: u8 = 4;

fn arguments(command: Command) -> Command {
    let command = command
        .arg(disk_as("source", "FIRST", "A path, URI or DEVICE:ARG?key=value; or ssh://HOST/PATH"))
        .arg(disk_as("target", "SECOND", "The same"))
        .arg(
            image::format_argument("-f, --format", "Format of FIRST [default: a guess]")
                .alias("a-format"),
        )
        .arg(image::format_argument("-F, --second-format", "Format of SECOND").alias("b-format"))
        .arg(flag("-s, --strict", "The sizes, and which ranges are data, must be the same too"))
        .arg(
            flag("--picture", "Draw where they differ, all of it")
                .conflicts_with_all(["strict", "progress", "quiet"]),
        )
        .arg(
            flag("--svg", "Draw it as an SVG document")
                .conflicts_with_all(["strict", "progress", "quiet", "picture"]),
        )
        .arg(flag("-p, --progress", "Show how much is done on standard output"))
        .arg(flag("-q, --quiet", "Print errors only"))
        .arg(
            value("--remote-program PATH", "The program at an ssh:// disk's machine")
                .long_help(
                    "The program that is started on the machine of an ssh:// disk [default: diskferry, looked for in PATH]",
                ),
        )
        .arg(image::cache_argument());
    image::arguments(command)
}

fn run(matches: &ArgMatches) -> ExitResult {
    image::check_objects(matches)?;
    let (picture, svg) = (matches.get_flag("picture"), matches.get_flag("svg"));
    if digests::are_needed(matches) {
        if picture || svg {
            return Err(Failure::usage(
                "--picture, --svg: these compare bytes, and for a disk behind ssh there are only \
                 digests",
            ));
        }
        return digests::run(matches);
    }
    if image::word(matches, "remote-program").is_some() {
        return Err(Failure::usage("--remote-program: neither disk is named ssh://HOST/PATH"));
    }
    let quiet = matches.get_flag("quiet");
    let named = |id: &str, format: &str| {
        Source::of(matches, image::word(matches, id).unwrap_or_default(), format)
    };
    let (first, second) = (named("source", "format")?, named("target", "second-format")?);
    image::confine(matches, [&first, &second])?;
    let context = image::context(matches)?;
    let options = image::reading(matches);
    let open = |source: &Source| -> Result<Edge, Failure> {
        let opened = source.open(&options, &context);
        let opened = opened.map_err(|failure| failure.with_code(NOT_OPEN))?;
        Ok(if quiet { opened } else { opened.tell() }.edge)
    };
    let (first, second) = (open(&first)?, open(&second)?);
    if picture || svg {
        return drawn::draw((&first, &second), svg);
    }
    let options = Options { strict: matches.get_flag("strict"), threads: None };
    match watched((&first, &second), &options, Show::of_image(matches)) {
        Ok(report) => tell(&report, (&first, &second), quiet),
        Err(undone) => Err(explain(&undone, (&first, &second))),
    }
}

/// Compares, while another thread shows how far it is.
fn watched(
    ends: (&Edge, &Edge),
    options: &Options,
    show: Show,
) -> Result<Report, FailedComparison> {
    let progress = Progress::default();
    let mut watch = Watch::new(show, 0);
    let Some(period) = watch.display.period() else {
        return compare::run(ends.0, ends.1, options, &progress);
    };
    let (over, is_over) = channel::<()>();
    std::thread::scope(|scope| {
        let progress = &progress;
        scope.spawn(move || {
            while is_over.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                let (done, total) = progress.now();
                watch.total = total;
                watch.passed(done);
            }
            watch.end();
        });
        let result = compare::run(ends.0, ends.1, options, progress);
        drop(over);
        result
    })
}

/// Shows how far a comparison is.
struct Watch {
    show: Show,
    display: Display,
    began: Instant,
    shown: Instant,
    /// Bytes to compare.
    total: u64,
}

impl Watch {
    fn new(show: Show, total: u64) -> Self {
        let (display, began) = (Display::new(show, Counting::All("compared")), Instant::now());
        Self { show, display, began, shown: began, total }
    }

    /// So many bytes are compared. Shown ten times a second at most.
    fn passed(&mut self, done: u64) {
        if self.display.period().is_none_or(|period| self.shown.elapsed() < period) {
            return;
        }
        self.shown = Instant::now();
        let (total, elapsed) = (self.total, self.began.elapsed());
        self.display.tick(&CopyCounts { copied: done, total, elapsed, ..CopyCounts::default() });
    }

    fn end(self) {
        if self.show == Show::Percent {
            percent(1, 1, '\n');
        }
        self.display.end();
    }
}

fn tell(report: &Report, (first, second): (&Edge, &Edge), quiet: bool) -> ExitResult {
    let shorter = first.info().size.min(second.info().size);
    let (line, code) = match report.difference {
        None => ("Images are identical.".to_owned(), 0),
        Some(Difference::Content(at)) => (format!("Content mismatch at offset {at}!"), DIFFER),
        Some(Difference::Allocation(at)) => {
            (format!("Strict mode: Offset {at} block status mismatch!"), DIFFER)
        }
        Some(Difference::Size) => ("Strict mode: Image size mismatch!".to_owned(), DIFFER),
    };
    let beyond = match report.difference {
        None => true,
        Some(Difference::Content(at)) => at >= shorter,
        Some(Difference::Allocation(_) | Difference::Size) => false,
    };
    output::verdict(code, |out| {
        if !quiet && beyond && !report.same_size {
            writeln!(out, "Warning: Image size mismatch!")?;
        }
        if !quiet {
            writeln!(out, "{line}")?;
        }
        Ok(())
    })
}

fn explain(undone: &FailedComparison, (first, second): (&Edge, &Edge)) -> Failure {
    let disk = match undone.end {
        Side::First => first,
        Side::Second => second,
    };
    let (name, at, error) = (&disk.info().name, undone.offset, &undone.error);
    match undone.doing {
        Doing::Map => {
            let what = format!("{name}: cannot tell where there is data, at offset {at}: {error}");
            Failure::new(what).with_code(NO_MAP)
        }
        Doing::Read => {
            let what = format!("Error while reading offset {at} of {name}: {error}");
            Failure::new(what).with_code(NOT_READ)
        }
    }
}
