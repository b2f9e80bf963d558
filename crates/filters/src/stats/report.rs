//! The report: as text in nbdkit's format, with our own lines at the end, and as JSON.

use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::All;
use super::counters::{Counters, SizeRow};
use crate::kit::kind::Kind;

/// Parts of a thousand, and their names.
const PERCENTILES: [(u64, &str); 4] = [(500, "p50"), (900, "p90"), (990, "p99"), (999, "p99.9")];

/// The report as text, after `elapsed`. `threshold`: the percentage of requests whose sizes are
/// shown.
pub(super) fn text(all: &All, elapsed: Duration, threshold: u64) -> String {
    let mut out = String::new();
    let (ops, bytes) = totals(all);
    let (size, per_second) = (human(float(bytes)), rate(bytes, elapsed));
    let seconds = elapsed.as_secs_f64();
    let _ = writeln!(out, "total: {ops} ops, {seconds:.6} s, {size}, {per_second}/s");
    for (kind, counters) in used(all) {
        let (ops, bytes) = (counters.ops.load(Relaxed), counters.bytes.load(Relaxed));
        if ops == 0 {
            continue;
        }
        let time = counters.time();
        let _ = writeln!(
            out,
            "{}: {ops} ops, {:.6} s, {}, {}/s op, {}/s total",
            kind.name(),
            time.as_secs_f64(),
            human(float(bytes)),
            rate(bytes, time),
            rate(bytes, elapsed)
        );
        if threshold > 0 {
            breakdown(&mut out, &counters.sizes(), threshold);
        }
    }
    latencies(&mut out, all);
    out
}

/// All operations but prefetches (as in nbdkit), and the bytes they moved or changed.
fn totals(all: &All) -> (u64, u64) {
    let sum = |without: &[Kind], get: fn(&Counters) -> u64| {
        let counted = all.iter().filter(|(kind, _)| !without.contains(kind));
        counted.map(|(_, counters)| get(counters)).sum()
    };
    let ops = sum(&[Kind::Cache], |c| c.ops.load(Relaxed));
    (ops, sum(&[Kind::Cache, Kind::Extents], |c| c.bytes.load(Relaxed)))
}

fn used(all: &All) -> impl Iterator<Item = (Kind, &Counters)> {
    let is_used = |c: &Counters| c.ops.load(Relaxed) > 0 || c.errors.load(Relaxed) > 0;
    all.iter().filter(move |(_, counters)| is_used(counters))
}

fn breakdown(out: &mut String, rows: &[SizeRow], threshold: u64) {
    let total: u64 = rows.iter().map(|row| row.requests).sum();
    if total == 0 {
        return;
    }
    let _ = writeln!(out, "  Request size and alignment breakdown:");
    let wanted = u128::from(total) * u128::from(threshold) / 100;
    let mut seen = 0u64;
    let mut rest = (0u64, 0u64);
    for row in rows {
        if u128::from(seen) >= wanted {
            rest = (rest.0 + row.requests, rest.1 + row.bytes);
            continue;
        }
        seen += row.requests;
        let (share, size) = (percent(row.requests, total), human(float(row.bytes)));
        let SizeRow { bits, requests, .. } = row;
        let _ = writeln!(out, "    {bits:2} bits: {share:4.1}% ({requests} reqs, {size} total)");
        alignments(out, row, threshold);
    }
    if rest.0 > 0 {
        let (share, size) = (percent(rest.0, total), human(float(rest.1)));
        let _ = writeln!(out, "    other sizes: {share:4.1}% ({} reqs, {size} total)", rest.0);
    }
    out.push('\n');
}

fn alignments(out: &mut String, row: &SizeRow, threshold: u64) {
    for (bits, count) in &row.aligned {
        let share = percent(*count, row.requests);
        let few = u128::from(*count) * 100 < u128::from(row.requests) * u128::from(100 - threshold);
        if few {
            let _ = writeln!(out, "         {bits:2}+ bit-aligned: {share:4.1}% ({count})");
            return;
        }
        let _ = writeln!(out, "         {bits:2} bit aligned: {share:5.1}% ({count})");
    }
}

/// Our own lines, which cannot be mistaken for nbdkit's.
fn latencies(out: &mut String, all: &All) {
    for (i, (kind, counters)) in used(all).enumerate() {
        if i == 0 {
            out.push_str("\nlatency:\n");
        }
        let _ = write!(out, "  {:<8}", kind.name());
        for (of_a_thousand, name) in PERCENTILES {
            let _ = write!(out, "{name} {}, ", time(counters.percentile(of_a_thousand)));
        }
        let _ = writeln!(
            out,
            "max {}, {} failed",
            time(counters.slowest()),
            counters.errors.load(Relaxed)
        );
    }
}

/// The report as one line of JSON. Times are in seconds, or in nanoseconds if the name says so.
pub(super) fn json(all: &All, elapsed: Duration) -> String {
    let (ops, bytes) = totals(all);
    let mut kinds = Map::new();
    for (kind, counters) in used(all) {
        kinds.insert(kind.name().to_owned(), operations(counters));
    }
    let report = json!({
        "version": 1,
        "seconds": elapsed.as_secs_f64(),
        "total": { "ops": ops, "bytes": bytes },
        "operations": kinds,
    });
    format!("{report}\n")
}

fn operations(counters: &Counters) -> Value {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let mut latency = Map::new();
    for (of_a_thousand, name) in PERCENTILES {
        latency.insert(name.to_owned(), nanos(counters.percentile(of_a_thousand)).into());
    }
    latency.insert("max".to_owned(), nanos(counters.slowest()).into());
    let row = |row: &SizeRow| {
        let pair = |(bits, count): &(usize, u64)| json!({ "bits": bits, "requests": count });
        let aligned: Vec<Value> = row.aligned.iter().map(pair).collect();
        json!({ "bits": row.bits, "requests": row.requests, "bytes": row.bytes, "aligned": aligned })
    };
    let sizes: Vec<Value> = counters.sizes().iter().map(row).collect();
    json!({
        "ops": counters.ops.load(Relaxed),
        "failed": counters.errors.load(Relaxed),
        "bytes": counters.bytes.load(Relaxed),
        "seconds": counters.time().as_secs_f64(),
        "latency_ns": latency,
        "sizes": sizes,
    })
}

#[expect(clippy::cast_precision_loss, reason = "for people, to three digits")]
fn float(n: u64) -> f64 {
    n as f64
}

fn percent(part: u64, total: u64) -> f64 {
    100.0 * float(part) / float(total.max(1))
}

/// Bytes for people, in nbdkit's words.
fn human(bytes: f64) -> String {
    const UNITS: [(&str, f64); 3] =
        [("GiB", 1_073_741_824.0), ("MiB", 1_048_576.0), ("KiB", 1024.0)];
    let unit = UNITS.iter().find(|(_, unit)| bytes >= *unit);
    unit.map_or_else(
        || format!("{} bytes", bytes.floor()),
        |(name, unit)| format!("{:.2} {name}", bytes / unit),
    )
}

/// Bytes a second.
fn rate(bytes: u64, time: Duration) -> String {
    // nbdkit counts microseconds.
    if time.as_micros() == 0 { "(n/a)".into() } else { human(float(bytes) / time.as_secs_f64()) }
}

/// A time for people, with three digits and more.
fn time(time: Duration) -> String {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} us", float(nanos) / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", float(nanos) / 1e6),
        _ => format!("{:.2} s", float(nanos) / 1e9),
    }
}
