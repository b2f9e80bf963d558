//! What was measured, as a table with the distribution of times, as JSON, and as a picture.
#![expect(clippy::cast_precision_loss, reason = "rates and times for people: 53 bits are enough")]

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::ArgMatches;
use device::{Edge, format_size, text};
use serde_json::{Value, json};

use super::load::{Load, LoadResult, TIMES, nanos};
use crate::failure::ExitResult;
use crate::map::escaped;
use crate::output::{self, VERSION};
use crate::{names, progress};

/// The times that a row of the table shows: each column is twice the one before, from 2^12 ns.
const FIRST: u32 = 12;
const COLUMNS: u32 = 18;
/// Shades of a column, from no request to more than half of them.
const BLOCKS: [char; 6] = [' ', '·', '░', '▒', '▓', '█'];
const ASCII: [char; 6] = [' ', '.', ':', '+', '*', '#'];

/// What is shown, as it is found.
pub(super) struct Shown {
    name: String,
    size: u64,
    form: Form,
    rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Form {
    Nothing,
    Json,
    Svg,
    Table,
    OfQemuImg,
}

struct Row {
    load: Load,
    measured: LoadResult,
    /// Bytes that were compared.
    verified: Option<u64>,
}

impl Shown {
    pub(super) fn new(name: &str, edge: &Edge, matches: &ArgMatches) -> Self {
        let form = match (matches.get_flag("quiet"), matches.get_flag("json")) {
            (true, _) => Form::Nothing,
            (_, true) => Form::Json,
            _ if matches.get_flag("svg") => Form::Svg,
            _ if names::is_qemu_img() => Form::OfQemuImg,
            _ => Form::Table,
        };
        Self {
            name: text::shown(name).into_owned(),
            size: edge.info().size,
            form,
            rows: Vec::new(),
        }
    }

    /// A load is about to be measured.
    pub(super) fn begin(&self, load: &Load) -> ExitResult {
        match self.form {
            Form::OfQemuImg => output::text(&line_of_qemu_img(load)),
            Form::Table if self.rows.is_empty() => output::text(&self.head(load)),
            _ => Ok(ExitCode::SUCCESS),
        }
    }

    pub(super) fn end(
        &mut self,
        load: Load,
        measured: LoadResult,
        verified: Option<u64>,
    ) -> ExitResult {
        let row = Row { load, measured, verified };
        let line = match self.form {
            Form::OfQemuImg => {
                format!("Run completed in {:.3} seconds.\n", row.measured.elapsed.as_secs_f64())
            }
            Form::Table => format!("{}\n", row.line()),
            _ => String::new(),
        };
        self.rows.push(row);
        output::text(&line)
    }

    /// Prints what comes behind all rows.
    pub(super) fn finish(&self) -> ExitResult {
        match self.form {
            Form::Json => output::text(&format!("{}\n", self.value())),
            Form::Table => output::text(&self.foot()),
            Form::Svg => output::text(&self.drawn()),
            _ => Ok(ExitCode::SUCCESS),
        }
    }

    fn head(&self, load: &Load) -> String {
        let what = format!("{}, {}: {}", self.name, format_size(self.size), load.what());
        let strip = COLUMNS as usize - 6;
        format!(
            "{what}\n\n   size depth  requests/s      MB/s      p50      p99    p99.9  4 µs{:>strip$}\n",
            "0.5 s"
        )
    }

    fn foot(&self) -> String {
        let mut lines = String::new();
        let flushed: Duration = self.rows.iter().filter_map(|row| row.measured.flush).sum();
        if self.rows.iter().any(|row| row.measured.flush.is_some()) {
            let took = time(nanos(flushed));
            let _ = writeln!(lines, "\nThe flushes afterwards, counted in no row, took {took}.");
        }
        let verified: Vec<u64> = self.rows.iter().filter_map(|row| row.verified).collect();
        if !verified.is_empty() {
            let bytes = format_size(verified.iter().sum());
            let _ = writeln!(lines, "\nRead again: {bytes}, all as written.");
        }
        lines
    }

    fn value(&self) -> Value {
        let rows: Vec<_> = self.rows.iter().map(Row::value).collect();
        json!({ "version": VERSION, "disk": self.name, "size": self.size, "works": rows })
    }

    /// Draws how many requests were answered within which time: a curve for each row.
    fn drawn(&self) -> String {
        const COLORS: [&str; 6] =
            ["#2a78d6", "#d66a2a", "#2a9d5c", "#9a4fc4", "#c43a5a", "#6b7280"];
        let high = 300 + 18 * self.rows.len();
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 {high}\" font-family=\"sans-serif\" font-size=\"11\" fill=\"currentColor\">\n\
             <title>{0}</title>\n<text x=\"60\" y=\"18\" font-size=\"13\">{0}: requests answered within a time</text>\n",
            escaped(&self.name)
        );
        let (x, y) = (
            |nanos: u64| 60.0 + 620.0 * ((nanos.max(1) as f64).log10() - 3.0).clamp(0.0, 7.0) / 7.0,
            |part: f64| 250.0 - 210.0 * part,
        );
        for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
            let y = y(part);
            let _ = writeln!(
                text,
                "<line x1=\"60\" x2=\"680\" y1=\"{y}\" y2=\"{y}\" stroke=\"currentColor\" stroke-opacity=\"0.15\"/>\
                 <text x=\"52\" y=\"{}\" text-anchor=\"end\">{} %</text>",
                y + 4.0,
                part * 100.0
            );
        }
        for (power, label) in
            (3u32..).zip(["1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "0.1 s", "1 s", "10 s"])
        {
            let x = x(10u64.pow(power));
            let _ = writeln!(
                text,
                "<text x=\"{x:.1}\" y=\"268\" text-anchor=\"middle\">{label}</text>"
            );
        }
        for ((row, color), place) in self.rows.iter().zip(COLORS.iter().cycle()).zip(0u32..) {
            let mut seen = 0;
            let mut curve = String::new();
            for (bucket, count) in row.measured.times.iter().enumerate().filter(|(_, n)| **n > 0) {
                let before = part(seen, row.measured.requests);
                seen += count;
                let (x, now) = (x(TIMES.end_of(bucket)), part(seen, row.measured.requests));
                let _ = write!(curve, "{x:.1},{:.1} {x:.1},{:.1} ", y(before), y(now));
            }
            let y = 292 + 18 * place;
            let _ = writeln!(
                text,
                "<polyline points=\"{curve}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.6\"/>\n\
                 <rect x=\"60\" y=\"{}\" width=\"14\" height=\"3\" fill=\"{color}\"/>\
                 <text x=\"82\" y=\"{y}\">{} by {}, {} in flight: {} requests/s</text>",
                y - 5,
                row.load.what(),
                format_size(row.load.size),
                row.in_flight(),
                grouped(row.rate()),
            );
        }
        text.push_str("</svg>\n");
        text
    }
}

impl Load {
    /// In words.
    fn what(&self) -> String {
        let what = match self.reads {
            100 => "reads".to_owned(),
            0 => "writes".to_owned(),
            reads => format!("{reads} % reads, {} % writes", 100 - reads),
        };
        let order = if self.order.is_random() { "at random places" } else { "one after the other" };
        format!("{what} {order}")
    }
}

impl Row {
    /// Requests a second.
    fn rate(&self) -> f64 {
        let seconds = self.measured.elapsed.as_secs_f64();
        if seconds > 0.0 { self.measured.requests as f64 / seconds } else { 0.0 }
    }

    fn in_flight(&self) -> u64 {
        self.load.depth * self.measured.connections as u64
    }

    fn line(&self) -> String {
        let times =
            [(1, 2), (99, 100), (999, 1000)].map(|(part, of)| self.measured.within(part, of));
        let [p50, p99, p999] = times.map(time);
        let depth = match self.measured.connections {
            1 => self.load.depth.to_string(),
            n => format!("{n}×{}", self.load.depth),
        };
        let rate = self.rate();
        let bytes = rate * self.load.size as f64 / 1e6;
        let line = format!(
            "{:>7} {depth:>5} {:>11} {:>9} {p50:>8} {p99:>8} {p999:>8}  {}",
            format_size(self.load.size),
            grouped(rate),
            grouped(bytes),
            self.strip(),
        );
        line.trim_end().to_owned()
    }

    /// How many requests took how long: a column for each doubling.
    fn strip(&self) -> String {
        let mut columns = [0u64; COLUMNS as usize];
        for (bucket, count) in self.measured.times.iter().enumerate() {
            let doublings = (TIMES.end_of(bucket).saturating_sub(1)).max(1).ilog2();
            let column = doublings.clamp(FIRST, FIRST + COLUMNS - 1) - FIRST;
            if let Some(sum) = columns.get_mut(column as usize) {
                *sum += count;
            }
        }
        let shades = if progress::has_blocks() { BLOCKS } else { ASCII };
        let shade = |count: u64| match part(count, self.measured.requests) {
            0.0 => 0,
            some if some < 0.001 => 1,
            some if some < 0.02 => 2,
            some if some < 0.15 => 3,
            some if some < 0.5 => 4,
            _ => 5,
        };
        columns.iter().filter_map(|count| shades.get(shade(*count))).collect()
    }

    fn value(&self) -> Value {
        let Self { load, measured, .. } = self;
        let within = |part, of| measured.within(part, of);
        let times = measured.times.iter().enumerate().filter(|(_, count)| **count > 0);
        let times: Vec<_> = times.map(|(place, n)| json!([TIMES.end_of(place), n])).collect();
        json!({
            "reads-percent": load.reads,
            "random": load.order.is_random(),
            "request-size": load.size,
            "depth": load.depth,
            "connections": measured.connections,
            "requests": measured.requests,
            "bytes": measured.requests * load.size,
            "seconds": measured.elapsed.as_secs_f64(),
            "requests-per-second": self.rate(),
            "nanoseconds-50": within(1, 2),
            "nanoseconds-90": within(9, 10),
            "nanoseconds-99": within(99, 100),
            "nanoseconds-999": within(999, 1000),
            "nanoseconds-longest": nanos(measured.longest),
            "times": times,
            "flush-seconds": measured.flush.map(|flush| flush.as_secs_f64()),
            "verified-bytes": self.verified,
        })
    }
}

fn part(some: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { some as f64 / all as f64 }
}

/// A number with three digits, or with all of its whole ones, in groups.
fn grouped(number: f64) -> String {
    if number < 99.95 {
        return format!("{number:.1}");
    }
    let digits = format!("{number:.0}");
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A time in ns for people.
fn time(nanos: u64) -> String {
    let nanos = nanos as f64;
    let (number, unit) = match nanos {
        n if n < 999.5 => (n, "ns"),
        n if n < 999_500.0 => (n / 1e3, "µs"),
        n if n < 999_500_000.0 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    if number < 9.95 { format!("{number:.1} {unit}") } else { format!("{number:.0} {unit}") }
}

fn line_of_qemu_img(load: &Load) -> String {
    let what = if load.reads == 100 { "read" } else { "write" };
    let count = match load.amount {
        super::Amount::Requests(count) => count.to_string(),
        super::Amount::Time(time) => format!("{} seconds of", time.as_secs_f64()),
    };
    format!(
        "Sending {count} {what} requests, {} bytes each, {} in parallel (starting at offset {}, step size {})\n",
        load.size,
        load.depth,
        load.order.first(),
        load.order.step(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_fit_their_columns() {
        for (number, text) in
            [(0.0, "0.0"), (99.94, "99.9"), (99.96, "100"), (1234567.8, "1,234,568")]
        {
            assert_eq!(grouped(number), text);
        }
        for (nanos, text) in [
            (0, "0.0 ns"),
            (999, "999 ns"),
            (1500, "1.5 µs"),
            (999_400_000, "999 ms"),
            (61_000_000_000, "61 s"),
        ] {
            assert_eq!(time(nanos), text);
        }
    }
}
