//! `diskferry top`: what a server does, export by export, every second.
//!
//! It asks the control socket for the metrics, and shows what was done between two looks. On a
//! terminal the picture is drawn anew each time; elsewhere one follows the other.

mod samples;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Arg, ArgMatches, Command, ValueHint, value_parser};
use device::{format_size, text};
use serde_json::{Value, json};

use self::samples::{ExportSample, ServerSample};
use crate::arguments::{json_flag, value};
use crate::ctl::socket;
use crate::failure::{ExitResult, Failure, USAGE};
use crate::output::{self, VERSION};
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "top",
    summary: "Watch the exports of a running server",
    about: "Shows, every second, what clients read and write of each export, how many requests are answered in a second, within which \
            time half of them and 99 of 100 are, how many are in flight, and how many failed. The busiest export comes first. Ctrl-C \
            ends it. The server needs --control. Times are upper bounds, of steps that double.",
    example: "  diskferry serve --control vm.ctl memory:1G \\\n    \
              --run 'diskferry copy -q pattern:64M \"$uri\" & diskferry top -n 1 -d 0.2 vm.ctl; wait'",
    status: "",
    usage: USAGE,
    arguments,
    run,
};

/// Columns where their number is not known.
const COLUMNS: usize = 80;
/// Columns of all but the name.
const FIGURES: usize = 58;
/// Rows that the rest of the picture takes.
const FRAME: usize = 4;
/// Clears what is behind the cursor, to the end of the line and of the screen; goes to the top.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_REST: &str = "\x1b[J";

fn arguments(command: Command) -> Command {
    command
        .arg(
            Arg::new("socket")
                .value_name("SOCKET")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .value_hint(ValueHint::FilePath)
                .help("The control socket of a server (serve --control)"),
        )
        .arg(value("-d, --delay SECONDS", "Seconds between updates").default_value("1"))
        .arg(
            value("-n, --number N", "Exit after N updates [default: never]")
                .value_parser(value_parser!(u64).range(1..)),
        )
        .arg(json_flag())
}

fn run(matches: &ArgMatches) -> ExitResult {
    let path = matches.get_one::<PathBuf>("socket").cloned().unwrap_or_default();
    let delay = matches.get_one::<String>("delay").map_or("1", String::as_str);
    let delay = delay.parse::<f64>().ok().filter(|delay| (0.05..=3600.0).contains(delay));
    let delay = delay.map(Duration::from_secs_f64).ok_or_else(|| {
        Failure::usage("--delay: a number of seconds from 0.05 to 3600, for example 0.5")
    })?;
    let (number, is_json) = (matches.get_one::<u64>("number").copied(), matches.get_flag("json"));
    let (mut before, mut looked) = (look(&path)?, Instant::now());
    let mut shown = 0;
    while number.is_none_or(|number| shown < number) {
        std::thread::sleep(delay);
        let now = look(&path)?;
        let seconds = looked.elapsed().as_secs_f64();
        looked = Instant::now();
        let done = Interval::between(&before, &now, seconds);
        let mut is_read = false;
        output::finish(|out| {
            match is_json {
                true => writeln!(out, "{}", done.value())?,
                false => show(&done, &path, shown == 0, out)?,
            }
            out.flush()?;
            is_read = true;
            Ok(ExitCode::SUCCESS)
        })?;
        if !is_read {
            // The reader has had enough.
            break;
        }
        before = now;
        shown += 1;
    }
    Ok(ExitCode::SUCCESS)
}

fn look(path: &Path) -> Result<ServerSample, Failure> {
    let reply = socket::ask(path, &json!({ "command": "metrics" }), None)?;
    let text = reply.get("metrics").and_then(Value::as_str);
    let text = text.ok_or_else(|| Failure::new(format!("{}: no metrics", path.display())))?;
    Ok(ServerSample::parse(text))
}

/// What was done between two looks.
#[derive(Debug)]
struct Interval {
    exports: Vec<(String, ExportSample)>,
    seconds: f64,
    clients: u64,
    memory: (u64, u64),
}

impl Interval {
    /// The busiest first.
    fn between(before: &ServerSample, now: &ServerSample, seconds: f64) -> Self {
        let none = ExportSample::default();
        let then = |name: &str| before.exports.get(name).unwrap_or(&none);
        let done: BTreeMap<_, _> =
            now.exports.iter().map(|(name, export)| (name, export.since(then(name)))).collect();
        let mut exports: Vec<_> =
            done.into_iter().map(|(name, done)| (name.clone(), done)).collect();
        exports
            .sort_by_key(|(_, done)| std::cmp::Reverse((done.read + done.written, done.requests)));
        Self { exports, seconds, clients: now.clients, memory: now.memory }
    }

    /// So many of something in a second.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate that is shown; as is saturates"
    )]
    fn rate(&self, count: u64) -> u64 {
        (count as f64 / self.seconds.max(1e-3)).round() as u64
    }

    fn value(&self) -> Value {
        let one = |(name, done): &(String, ExportSample)| {
            json!({
                "name": name,
                "bytes-read": done.read,
                "bytes-written": done.written,
                "requests": done.requests,
                "errors": done.errors,
                "in-flight": done.in_flight,
                "nanoseconds-50": done.percentile(50),
                "nanoseconds-99": done.percentile(99),
            })
        };
        json!({
            "version": VERSION,
            "seconds": self.seconds,
            "clients": self.clients,
            "memory": self.memory.0,
            "memory-limit": self.memory.1,
            "exports": self.exports.iter().map(one).collect::<Vec<_>>(),
        })
    }
}

/// Draws the picture.
fn show(done: &Interval, path: &Path, is_first: bool, out: &mut dyn Write) -> std::io::Result<()> {
    let is_terminal = std::io::stdout().is_terminal();
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok().filter(|_| is_terminal);
    let columns = size.map_or(COLUMNS, |size| usize::from(size.ws_col)).max(FIGURES + 8);
    let rows = size.map_or(usize::MAX, |size| usize::from(size.ws_row).max(FRAME + 1));
    let lines = picture(done, &path.display().to_string(), columns, rows);
    let (home, clear, rest) = match is_terminal {
        true => (HOME, CLEAR_LINE, CLEAR_REST),
        false => ("", "", ""),
    };
    if is_terminal && is_first {
        // All that is on the screen goes once.
        write!(out, "{HOME}{CLEAR_REST}")?;
    }
    write!(out, "{home}")?;
    for line in &lines {
        writeln!(out, "{line}{clear}")?;
    }
    write!(out, "{rest}")
}

fn picture(done: &Interval, place: &str, columns: usize, rows: usize) -> Vec<String> {
    let name = columns - FIGURES;
    let (used, most) = done.memory;
    let clients = match done.clients {
        1 => "one client".to_owned(),
        n => format!("{n} clients"),
    };
    let head = format!(
        "{}: {clients}, {} of {} in flight",
        text::shown(place),
        format_size(used),
        format_size(most)
    );
    let title = format!(
        "{:name$} {:>9} {:>9} {:>8} {:>7} {:>7} {:>5} {:>5}",
        "EXPORT", "READ/s", "WRITE/s", "REQ/s", "P50", "P99", "BUSY", "ERR"
    );
    let mut lines = vec![cut(&head, columns), title];
    let room = rows.saturating_sub(FRAME);
    for (export, sum) in done.exports.iter().take(room) {
        let shown = match export.as_str() {
            "" => "(default)".to_owned(),
            export => text::shown(export).into_owned(),
        };
        lines.push(format!(
            "{:name$} {:>9} {:>9} {:>8} {:>7} {:>7} {:>5} {:>5}",
            cut(&shown, name),
            size(done.rate(sum.read)),
            size(done.rate(sum.written)),
            done.rate(sum.requests),
            time(sum.percentile(50)),
            time(sum.percentile(99)),
            sum.in_flight,
            sum.errors,
        ));
    }
    if done.exports.is_empty() {
        lines.push("no requests yet".to_owned());
    }
    if done.exports.len() > room {
        lines.push(format!("and {} more", done.exports.len() - room));
    }
    lines
}

/// At most so many characters of a text.
fn cut(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// Bytes in nine columns.
fn size(bytes: u64) -> String {
    let units = [("G", 30), ("M", 20), ("K", 10)];
    let unit = units.iter().find(|(_, bits)| bytes >> bits > 0);
    match unit {
        Some((unit, bits)) => {
            let tenths = (u128::from(bytes) * 10) >> bits;
            format!("{}.{} {unit}iB", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
    }
}

/// A time in seven columns.
fn time(nanoseconds: Option<u64>) -> String {
    match nanoseconds {
        None => "-".to_owned(),
        Some(n @ 0..10_000_000) => format!("{} µs", n / 1000),
        Some(n @ 10_000_000..10_000_000_000) => format!("{} ms", n / 1_000_000),
        Some(n) => format!("{} s", n / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_fits_the_terminal_whatever_is_served() {
        let busy = ExportSample {
            requests: u64::MAX / 2,
            read: 1 << 42,
            written: 123_456,
            in_flight: 99,
            errors: 12,
            ..ExportSample::default()
        };
        let names = ["", "a", "an export with a name that is longer than the column", "\u{1b}[31m"];
        let exports: Vec<_> = names.iter().map(|name| ((*name).to_owned(), busy.clone())).collect();
        let done = Interval { exports, seconds: 1.0, clients: 3, memory: (1 << 20, 1 << 30) };
        let lines = picture(&done, "/run/vm.ctl", 80, 24);
        assert_eq!(lines.len(), 6);
        assert!(lines[0].starts_with("/run/vm.ctl: 3 clients, 1 MiB of 1 GiB"), "{lines:?}");
        for line in &lines {
            assert!(!line.contains('\u{1b}'), "{line:?}");
        }
        let small = picture(&done, "x", 80, 6);
        assert_eq!((small.len(), small.last().unwrap().as_str()), (5, "and 2 more"));
        let idle = Interval { exports: Vec::new(), seconds: 1.0, clients: 0, memory: (0, 1) };
        assert_eq!(picture(&idle, "x", 80, 24).last().unwrap(), "no requests yet");
    }
}
