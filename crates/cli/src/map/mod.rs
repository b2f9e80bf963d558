//! `diskferry map`: where a disk has data and where it is empty, or what it is in another status
//! context.
//!
//! Runs are printed as they come, so that a disk of any size needs no more memory than a small one;
//! neighbours of one kind are one line. The columns and the JSON are those of `nbdinfo --map`, and
//! with `--output` those of `qemu-img map`.

mod image;
mod picture;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{ArgMatches, Command};
use device::{Edge, Error, ErrorKind, Extent, ExtentKind, Fault, StatusRun};
use disk::OpenOptions;
use runtime::Context;

use crate::arguments::{disk, flag, json_flag, size as size_of, value};
use crate::failure::{ExitResult, Failure};
use crate::image::{self as images, OpenImage, Source};
use crate::names::is_qemu_img;
use crate::progress::has_blocks;
use crate::verb::Verb;
use crate::{colors, output};
pub(crate) use picture::{Picture, escaped};

pub(crate) const VERB: Verb = Verb {
    name: "map",
    summary: "Show where a disk has data and holes",
    about: "A line for each extent: first byte, bytes, type (bit 0: hole, bit 1: reads as \
            zeroes), and the type in words. Ranges not known to be empty count as data. --context \
            prints another metadata context, with its types. --output prints what `qemu-img map` \
            prints. Without -f the format of an image is guessed.",
    example: "  diskferry map 'sparse-random:1G?seed=7'",
    status: "",
    usage: 1,
    arguments,
    run,
};

/// The context that every disk has.
const ALLOCATION: &str = "base:allocation";

/// Runs asked for at a time.
const MANY: usize = 16 << 10;
/// Most types to keep totals of: a context may have any numbers.
const TYPES: usize = 16 << 10;

fn arguments(command: Command) -> Command {
    let totals = flag("--totals", "Print one line for each type: bytes, percentage, type");
    let context =
        value("--context NAME", "Print this status context, such as qemu:dirty-bitmap:NAME");
    let picture = flag("--picture", "Draw it: each character is a part of the disk")
        .conflicts_with_all(["json", "totals"]);
    let svg = flag("--svg", "Draw it as an SVG document")
        .conflicts_with_all(["json", "totals", "picture"]);
    let output = images::output_argument()
        .conflicts_with_all(["json", "totals", "context", "picture", "svg"]);
    let command = command
        .arg(disk())
        .arg(json_flag().help("Print JSON as nbdinfo does"))
        .arg(totals)
        .arg(picture)
        .arg(svg)
        .arg(context)
        .arg(output)
        .arg(images::format_argument("-f, --format", "Format [default: a guess]"))
        .arg(value("-s, --start-offset OFFSET", "Start here"))
        .arg(value("-l, --max-length LENGTH", "Show at most this many bytes"));
    images::arguments(command)
}

fn run(matches: &ArgMatches) -> ExitResult {
    images::check_objects(matches)?;
    let source = Source::read(matches, images::word(matches, "disk").unwrap_or_default())?;
    show(matches, &source, images::word(matches, "context").unwrap_or(ALLOCATION))
}

/// Prints a disk's map in a status context. It takes the arguments that it knows, also of another
/// verb.
pub(crate) fn show(matches: &ArgMatches, source: &Source, context: &str) -> ExitResult {
    images::confine(matches, [source])?;
    let contexts = context != ALLOCATION;
    let output = images::word(matches, "output");
    let lock = output.is_some() && images::reading(matches).lock;
    let options = OpenOptions { lock, contexts, ..OpenOptions::read_only() };
    let opened = source.open(&options, &images::context(matches)?)?.tell();
    let range = range(matches, opened.edge.info().size)?;
    if let Some(form) = output {
        return of_image(source, &options, &opened, (range, form == "json"));
    }
    let map = Map { edge: opened.edge, context, range };
    map.check()?;
    let (json, totals) = (matches.get_flag("json"), matches.get_flag("totals"));
    let name = map.edge.info().name.clone();
    // Another verb may not have them.
    let asked = |flag: &str| matches.try_get_one(flag).ok().flatten() == Some(&true);
    let (picture, svg) = (asked("picture"), asked("svg"));
    if picture || svg {
        return printing(&name, |out| map.draw(svg, out));
    }
    printing(&name, |out| {
        colors::print(colors::are_wanted(matches), out, |out| match totals {
            true => map.print_totals(json, out),
            false => map.print(json, out),
        })
    })
}

/// First byte to be shown, and one after the last.
fn range(matches: &ArgMatches, size: u64) -> Result<(u64, u64), Failure> {
    let start = size_of(matches, "start-offset")?.unwrap_or(0).min(size);
    let len = size_of(matches, "max-length")?.unwrap_or(u64::MAX);
    Ok((start, start + len.min(size - start)))
}

fn of_image(
    source: &Source,
    options: &OpenOptions,
    opened: &OpenImage,
    (range, json): ((u64, u64), bool),
) -> ExitResult {
    let image = source.stack.image();
    let names = if json {
        Vec::new()
    } else {
        // The images below the disk, as far as they may be opened at all.
        let chain = disk::describe_chain(&source.disk, image, options, &Context::default());
        let names = |chain: Vec<disk::Described>| {
            chain.iter().map(|image| image.container.info().name.clone()).collect()
        };
        chain.map_or_else(|_| vec![opened.container.info().name.clone()], |(seen, _)| names(seen))
    };
    let shown = image::Shown {
        disk: &opened.edge,
        is_plain: opened.format.is_none() && source.stack.is_empty(),
        in_sectors: is_qemu_img() && opened.format.is_none() && source.stack.is_empty(),
        is_lone: image.ignore_backing,
        names,
        range,
    };
    let name = &opened.container.info().name;
    printing(name, |out| if json { shown.json(out) } else { shown.table(out) })
}

/// Prints a map. A failure of the disk is returned; one of the reader of the output is not.
fn printing(name: &str, print: impl FnOnce(&mut dyn Write) -> Result<(), Stop>) -> ExitResult {
    let mut failure = None;
    let outcome = output::finish(|out| {
        match print(out) {
            Ok(()) => {}
            Err(Stop::Reader(e)) => return Err(e),
            Err(Stop::Device(e)) => failure = Some(Failure::from(e.on(name))),
            Err(Stop::Scattered(at)) => {
                failure = Some(Failure::new(format!(
                    "{name}: File contains external, encrypted or compressed clusters, as at {at}; \
                     --output=json shows them"
                )));
            }
        }
        Ok(ExitCode::SUCCESS)
    });
    failure.map_or(outcome, Err)
}

/// Why a map ends early.
enum Stop {
    Device(device::Error),
    /// Data that is nowhere in a file as it is.
    Scattered(u64),
    Reader(io::Error),
}

impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Self {
        Self::Reader(e)
    }
}

/// A disk in a status context.
struct Map<'a> {
    edge: Edge,
    context: &'a str,
    /// First byte, and one after the last.
    range: (u64, u64),
}

impl Map<'_> {
    /// Refuses a context that the disk does not have.
    fn check(&self) -> device::Result<()> {
        let info = self.edge.info();
        let known = info.contexts.iter().map(|context| &**context);
        let all: Vec<_> = std::iter::once(ALLOCATION).chain(known).collect();
        if all.contains(&self.context) {
            return Ok(());
        }
        let action =
            format!("map: there is no context `{}`; there is {}", self.context, all.join(", "));
        Err(Error::unsupported(action).on(&info.name))
    }

    /// Some runs from `at` on, at least one.
    fn some(&self, at: u64, out: &mut Vec<StatusRun>) -> device::Result<()> {
        let left = self.range.1 - at;
        if self.context != ALLOCATION {
            return self.edge.status(self.context, at, left, MANY, out);
        }
        let mut extents = Vec::new();
        self.edge.resolve(at, left, MANY, &mut extents)?;
        out.extend(extents.iter().map(|e| StatusRun { len: e.len, value: number(e) }));
        Ok(())
    }

    /// Gives every run of one kind to `tell`, in order, with its offset.
    fn walk(&self, mut tell: impl FnMut(u64, StatusRun) -> Result<(), Stop>) -> Result<(), Stop> {
        let (mut at, size) = self.range;
        let mut start = at;
        let mut now: Option<StatusRun> = None;
        let mut some = Vec::new();
        while at < size {
            self.some(at, &mut some).map_err(|e| Stop::Device(e.at(at)))?;
            for run in some.drain(..) {
                match &mut now {
                    Some(now) if now.value == run.value => now.len += run.len,
                    _ => {
                        if let Some(done) = now.replace(run) {
                            tell(start, done)?;
                        }
                        start = at;
                    }
                }
                at += run.len;
            }
        }
        now.map_or(Ok(()), |run| tell(start, run))
    }

    fn print(&self, json: bool, out: &mut dyn Write) -> Result<(), Stop> {
        if !json {
            return self.walk(|start, StatusRun { len, value }| {
                let words = self.words(value).map(|words| format!("  {words}"));
                Ok(writeln!(out, "{start:10}  {len:10}  {value:3}{}", words.unwrap_or_default())?)
            });
        }
        let mut separator = "[\n";
        self.walk(|start, StatusRun { len, value }| {
            write!(out, "{separator}{{ \"offset\": {start}, \"length\": {len}, ")?;
            self.print_type(value, out)?;
            separator = ",\n";
            Ok(())
        })?;
        out.write_all(if separator == "[\n" { b"[]\n" } else { b"\n]\n" })?;
        Ok(())
    }

    fn print_totals(&self, json: bool, out: &mut dyn Write) -> Result<(), Stop> {
        let mut totals = BTreeMap::new();
        self.walk(|at, run| {
            *totals.entry(run.value).or_insert(0_u64) += run.len;
            if totals.len() <= TYPES {
                return Ok(());
            }
            let action = format!("map: totals of more than {TYPES} types");
            Err(Stop::Device(Error::new(ErrorKind::Limit, Fault::Peer, action).at(at)))
        })?;
        let size = self.range.1 - self.range.0;
        let mut separator = "[\n";
        for (value, bytes) in totals {
            let percent = percent(bytes, size);
            if json {
                write!(out, "{separator}{{ \"size\": {bytes}, \"percent\": {percent}, ")?;
                self.print_type(value, out)?;
                separator = ",\n";
            } else {
                let words = self.words(value).map(|words| format!(" {words}"));
                writeln!(out, "{bytes:10} {percent:5.1}% {value:3}{}", words.unwrap_or_default())?;
            }
        }
        if json {
            out.write_all(if separator == "[\n" { b"[]\n" } else { b"\n]\n" })?;
        }
        Ok(())
    }

    fn draw(&self, svg: bool, out: &mut dyn Write) -> Result<(), Stop> {
        let is_allocation = self.context == ALLOCATION;
        let words = if is_allocation { ("data", "empty") } else { ("marked", "not marked") };
        let mut picture = Picture::new(self.range, words);
        // In base:allocation a bit says that it reads as zeroes.
        let is_marked = |value| if is_allocation { value & 2 == 0 } else { value != 0 };
        self.walk(|at, run| {
            if is_marked(run.value) {
                picture.mark(at, run.len);
            }
            Ok(())
        })?;
        match svg {
            true => picture.svg(&self.edge.info().name, out)?,
            false => picture.print(has_blocks(), out)?,
        }
        Ok(())
    }

    fn print_type(&self, value: u64, out: &mut dyn Write) -> io::Result<()> {
        match self.words(value) {
            Some(words) => write!(out, "\"type\": {value}, \"description\": \"{words}\" }}"),
            None => write!(out, "\"type\": {value} }}"),
        }
    }

    /// nbdinfo's words for a type, if it has any.
    fn words(&self, value: u64) -> Option<String> {
        let words = match (self.context, value) {
            (ALLOCATION, 0) => "data",
            (ALLOCATION, 1) => "hole",
            (ALLOCATION, 2) => "zero",
            (ALLOCATION, 3) => "hole,zero",
            ("qemu:allocation-depth", 0) => "absent",
            ("qemu:allocation-depth", 1) => "local",
            ("qemu:allocation-depth", depth) => return Some(format!("backing depth {depth}")),
            (context, 0) if context.starts_with("qemu:dirty-bitmap:") => "clean",
            (context, 1) if context.starts_with("qemu:dirty-bitmap:") => "dirty",
            _ => return None,
        };
        Some(words.to_owned())
    }
}

/// NBD's number for a kind.
fn number(extent: &Extent) -> u64 {
    match extent.kind {
        ExtentKind::Data if extent.roomless => 1,
        ExtentKind::Data => 0,
        ExtentKind::Zero => 2,
        ExtentKind::Hole => 3,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a percentage needs no more than 52 bits")]
fn percent(part: u64, whole: u64) -> f64 {
    let percent = 100.0 * part as f64 / whole.max(1) as f64;
    // Six digits, as nbdinfo has them.
    format!("{percent:.5e}").parse().unwrap_or(percent)
}

#[cfg(test)]
mod tests {
    use device::{Info, Operation, Outcome};
    use trial::{Fate, TestDevice};

    use super::*;

    #[test]
    fn totals_are_kept_of_a_bounded_number_of_types() {
        for (size, fits) in [(TYPES as u64, true), (1 << 40, false)] {
            let info = Info { contexts: ["x:y".into()].into(), ..Info::new("motley", size) };
            // Each of its bytes is of a type of its own.
            let motley = TestDevice::blank(info).hooked(|operation| match operation {
                Operation::Status { offset, len, max, .. } => {
                    let runs = (offset..offset + len).map(|value| StatusRun { len: 1, value });
                    Fate::Answer(Ok(Outcome::Status(runs.take(max).collect())))
                }
                other => Fate::Pass(other),
            });
            let edge = motley.shared().edge(&Context::default().pool);
            let told =
                Map { edge, context: "x:y", range: (0, size) }.print_totals(false, &mut io::sink());
            assert_eq!(told.is_ok(), fits);
        }
    }
}
