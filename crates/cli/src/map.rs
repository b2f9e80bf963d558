//! `diskferry map`: where a disk has data and where it is empty.
//!
//! Extents are printed as they come, so that a disk of any size needs no more memory than a small
//! one; neighbours of one kind are one line. The columns and the JSON are those of `nbdinfo --map`.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{ArgMatches, Command};
use device::{Edge, Extent, ExtentKind};
use disk::{OpenOptions, Stack};
use runtime::Context;

use crate::arguments::{disk, flag, json_flag, named};
use crate::failure::Outcome;
use crate::formats;
use crate::output;
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "map",
    summary: "Show where a disk has data and where it is empty",
    about: "A line for each run: first byte, bytes, type (bit 0: hole, bit 1: reads as zeroes), \
            and the type in words. What is not known to be empty counts as data.",
    example: "  diskferry map 'sparse-random:1G?seed=7'",
    status: "",
    arguments,
    run,
};

/// Extents asked for at a time.
const MANY: usize = 16 << 10;

fn arguments(command: Command) -> Command {
    let totals = flag("totals", "Print one line for each type: bytes, percentage, type");
    command.arg(disk()).arg(json_flag()).arg(totals)
}

fn run(matches: &ArgMatches) -> Outcome {
    let disk = named(matches)?;
    let options = OpenOptions { lock: false, ..OpenOptions::read_only() };
    let edge = disk::open(&disk, &Stack::default(), &options, &Context::default())?.edge;
    formats::warn(&disk, &edge);
    let (json, totals) = (matches.get_flag("json"), matches.get_flag("totals"));
    let mut failure = None;
    let outcome = output::finish(|out| {
        let result = if totals { print_totals(&edge, json, out) } else { print(&edge, json, out) };
        match result {
            Ok(()) => {}
            Err(Stop::Reader(e)) => return Err(e),
            Err(Stop::Device(e)) => failure = Some(e),
        }
        Ok(ExitCode::SUCCESS)
    });
    match failure {
        Some(e) => Err(e.on(&edge.info().name).into()),
        None => outcome,
    }
}

/// Why a map ends early.
enum Stop {
    Device(device::Error),
    Reader(io::Error),
}

impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Self {
        Self::Reader(e)
    }
}

/// Gives every run of one kind to `tell`, in order.
fn walk(edge: &Edge, mut tell: impl FnMut(&Extent) -> Result<(), Stop>) -> Result<(), Stop> {
    let size = edge.info().size;
    let mut at = 0;
    let mut run: Option<Extent> = None;
    let mut some = Vec::new();
    while at < size {
        some.clear();
        edge.resolve(at, size - at, MANY, &mut some).map_err(|e| Stop::Device(e.at(at)))?;
        for extent in some.drain(..) {
            at = extent.end();
            match &mut run {
                Some(run) if run.kind == extent.kind => run.len += extent.len,
                _ => {
                    if let Some(done) = run.replace(extent) {
                        tell(&done)?;
                    }
                }
            }
        }
    }
    run.as_ref().map_or(Ok(()), tell)
}

/// nbdinfo's number and words for a kind.
fn kind(kind: ExtentKind) -> (u32, &'static str) {
    match kind {
        ExtentKind::Data => (0, "data"),
        ExtentKind::Zero => (2, "zero"),
        ExtentKind::Hole => (3, "hole,zero"),
    }
}

fn print(edge: &Edge, json: bool, out: &mut dyn Write) -> Result<(), Stop> {
    if !json {
        return walk(edge, |run| {
            let (number, words) = kind(run.kind);
            Ok(writeln!(out, "{:10}  {:10}  {number:3}  {words}", run.start, run.len)?)
        });
    }
    let mut separator = "[\n";
    let walked = walk(edge, |run| {
        let (number, words) = kind(run.kind);
        write!(out, "{separator}{{ \"offset\": {}, \"length\": {}, ", run.start, run.len)?;
        write!(out, "\"type\": {number}, \"description\": \"{words}\" }}")?;
        separator = ",\n";
        Ok(())
    });
    walked?;
    out.write_all(if separator == "[\n" { b"[]\n" } else { b"\n]\n" })?;
    Ok(())
}

fn print_totals(edge: &Edge, json: bool, out: &mut dyn Write) -> Result<(), Stop> {
    let kinds = [ExtentKind::Data, ExtentKind::Zero, ExtentKind::Hole];
    let mut bytes = [0_u64; 3];
    walk(edge, |run| {
        for (sum, kind) in bytes.iter_mut().zip(kinds) {
            *sum += if kind == run.kind { run.len } else { 0 };
        }
        Ok(())
    })?;
    let size = edge.info().size;
    let mut separator = "[\n";
    for (bytes, extent_kind) in bytes.into_iter().zip(kinds).filter(|(bytes, _)| *bytes > 0) {
        let (number, words) = kind(extent_kind);
        let percent = percent(bytes, size);
        if json {
            write!(out, "{separator}{{ \"size\": {bytes}, \"percent\": {percent}, ")?;
            write!(out, "\"type\": {number}, \"description\": \"{words}\" }}")?;
            separator = ",\n";
        } else {
            writeln!(out, "{bytes:10} {percent:5.1}% {number:3} {words}")?;
        }
    }
    if json {
        out.write_all(if separator == "[\n" { b"[]\n" } else { b"\n]\n" })?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a percentage needs no more than 52 bits")]
fn percent(part: u64, whole: u64) -> f64 {
    let percent = 100.0 * part as f64 / whole.max(1) as f64;
    // Six digits, as nbdinfo has them.
    format!("{percent:.5e}").parse().unwrap_or(percent)
}
