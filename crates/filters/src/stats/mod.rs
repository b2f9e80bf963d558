//! `stats`: counts the requests to a disk and their times.
//!
//! Writes a report at the end, and whenever the user asks for one (SIGUSR1). Failed operations are
//! counted apart and left out of the rest. It changes nothing.

mod counters;
mod report;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use device::{Done, Error, Filter, Filtered, Operation, Over, Params, Result, param, values};

use crate::kit::kind::{ByKind, Kind};
use crate::kit::outlet::Outlet;
use counters::Counters;
use runtime::{Context, OperatorLog};

pub(crate) const KIND: crate::FilterKind = crate::FilterKind {
    word: "stats",
    summary: "records the number, sizes and latencies of operations, and reports at the end",
    keeps_disk: false,
    params: &[
        param("statsfile", "FILE", "where to write the report: a file, /dev/stderr, a pipe"),
        param("statsappend", "true|false", "keep what is in the file (default false)"),
        param(
            "statsthreshold",
            "PERCENT",
            "show sizes until they cover this share of the requests (default 95; 0: none)",
        ),
        param("statsformat", "text|json", "how to write it (default text, as nbdkit does)"),
    ],
    reaches: |params| device::Reach::named(params, &["statsfile"], device::Use::Make),
    example: "serve --filter=stats memory 1M statsfile=/dev/stderr --run 'nbdcopy \"$uri\" null:'",
    open: |params, below, context| {
        let reporter = context.common(params, || {
            let reporter = Reporter::open(params, context)?;
            let (asked, last) = (reporter.clone(), reporter.clone());
            context.control.on_report(move || asked.write());
            context.control.on_end(move || last.write());
            Ok::<_, Error>(reporter)
        })?;
        Ok(Filtered::device(Stats(reporter.all.clone()), below))
    },
    ..crate::FilterKind::PLAIN
};

/// The counters of all kinds.
type All = ByKind<Counters>;

/// Writes reports.
#[derive(Clone)]
struct Reporter {
    all: Arc<All>,
    outlet: Arc<Outlet>,
    begun: Instant,
    threshold: u64,
    json: bool,
    log: OperatorLog,
}

impl Reporter {
    fn open(params: &Params, context: &Context) -> Result<Self> {
        let append = values::flag(params, "statsappend")?.unwrap_or(false);
        let threshold = values::number(params, "statsthreshold")?.unwrap_or(95);
        if threshold > 100 {
            return Err(values::wrong("statsthreshold", "a percentage is at most 100"));
        }
        let json = values::choice(params, "statsformat", &["text", "json"])? == Some(1);
        let Some(name) = params.get("statsfile") else {
            return Err(Error::invalid("`statsfile` is missing; for example /dev/stderr"));
        };
        let outlet = Arc::new(Outlet::open(name, append)?);
        let (all, begun, log) = (Arc::default(), Instant::now(), context.log.clone());
        Ok(Self { all, outlet, begun, threshold, json, log })
    }

    fn write(&self) {
        let elapsed = self.begun.elapsed();
        let report = if self.json {
            report::json(&self.all, elapsed)
        } else {
            report::text(&self.all, elapsed, self.threshold)
        };
        if let Err(e) = self.outlet.replace(report.as_bytes()) {
            self.log.say(format_args!("stats: {e}"));
        }
    }
}

struct Stats(Arc<All>);

impl Filter for Stats {
    fn describe(&self, over: &mut Over) {
        over.info.observe();
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        let kind = Kind::of(&operation);
        let (offset, len) = operation.range().unwrap_or_default();
        let all = self.0.clone();
        let begun = Instant::now();
        let ended: Done = Box::new(move |result| {
            match &result {
                Ok(_) => all[kind].count(begun.elapsed(), offset, len),
                Err(_) => drop(all[kind].errors.fetch_add(1, Relaxed)),
            }
            done(result);
        });
        over.below.submit(operation, ended);
    }
}

#[cfg(test)]
mod tests {
    use device::model::Model;

    use super::*;
    use crate::kit::tested::{blank, put_in, simple};
    use device::Edge;
    use runtime::WorkPool;

    struct Disk {
        edge: Edge,
        context: Context,
        path: String,
        _scratch: trial::Scratch,
    }

    impl Disk {
        fn new(words: &[&str]) -> Self {
            let scratch = trial::Scratch::new("/tmp");
            let path = scratch.path("stats").display().to_string();
            let context = Context::new(WorkPool::new(2));
            let file = format!("statsfile={path}");
            let words: Vec<_> = words.iter().copied().chain([file.as_str()]).collect();
            let edge = put_in(&context, "stats", blank(4 << 20), &words).unwrap();
            Self { edge, context, path, _scratch: scratch }
        }

        fn report(&self) -> String {
            std::fs::read_to_string(&self.path).unwrap()
        }
    }

    /// nbdkit's lines, with times and rates made equal.
    fn shape(report: &str) -> Vec<String> {
        let (mine, _) = report.split_once("\nlatency:\n").unwrap();
        let line = |line: &str| {
            let mut words: Vec<&str> = line.split(", ").collect();
            if line.contains(" ops, ") {
                words[1] = "T s";
                words.truncate(3);
            }
            words.join(", ")
        };
        mine.lines().map(line).collect()
    }

    #[test]
    fn the_report_is_nbdkits() {
        let disk = Disk::new(&["statsthreshold=80"]);
        let read = |len: usize, offset: usize| {
            disk.edge.read(&mut vec![0; len], offset as u64).unwrap();
        };
        (0..100).for_each(|i| read(4096, i * 4096));
        (0..40).for_each(|i| read(8192, (i * 3 + 1) * 8192));
        (0..7).for_each(|i| read(16384 * (i + 1), i * 16384));
        (0..4).for_each(|i| read(512, i * 512));
        disk.edge.write(&[1; 4096], 4096, true).unwrap();
        disk.edge.flush().unwrap();
        disk.edge.prefetch(0, 4096).unwrap();
        disk.context.control.end();
        // nbdkit 1.48's output for the same, except for the bytes of other sizes, where it prints
        // the bytes of all.
        let expected = [
            "total: 153 ops, T s, 1.15 MiB",
            "read: 151 ops, T s, 1.14 MiB",
            "  Request size and alignment breakdown:",
            "    12 bits: 66.2% (100 reqs, 400.00 KiB total)",
            "         12 bit aligned: 100.0% (100)",
            "         13 bit aligned:  50.0% (50)",
            "         14 bit aligned:  25.0% (25)",
            "         15+ bit-aligned: 13.0% (13)",
            "    13 bits: 26.5% (40 reqs, 320.00 KiB total)",
            "         13 bit aligned: 100.0% (40)",
            "         14 bit aligned:  50.0% (20)",
            "         15 bit aligned:  25.0% (10)",
            "         16+ bit-aligned: 12.5% (5)",
            "    other sizes:  7.3% (11 reqs, 450.00 KiB total)",
            "",
            "write: 1 ops, T s, 4.00 KiB",
            "  Request size and alignment breakdown:",
            "    other sizes: 100.0% (1 reqs, 4.00 KiB total)",
            "",
            "cache: 1 ops, T s, 4.00 KiB",
            "  Request size and alignment breakdown:",
            "    other sizes: 100.0% (1 reqs, 4.00 KiB total)",
            "",
            "flush: 1 ops, T s, 0 bytes",
        ];
        assert_eq!(shape(&disk.report()), expected);
        assert!(disk.report().contains("\n  read    p50 "), "{}", disk.report());
    }

    #[test]
    fn a_report_can_be_had_while_running_and_the_last_one_replaces_it() {
        let disk = Disk::new(&["statsformat=json"]);
        let read = || {
            let report: serde_json::Value = serde_json::from_str(&disk.report()).unwrap();
            let read = &report["operations"]["read"];
            assert_eq!(read["sizes"][0]["bits"], 9);
            assert!(read["latency_ns"]["p50"].as_u64() <= read["latency_ns"]["max"].as_u64());
            read["ops"].as_u64().unwrap()
        };
        disk.edge.read(&mut [0; 512], 0).unwrap();
        disk.context.control.report();
        assert_eq!(read(), 1);
        disk.edge.read(&mut [0; 512], 0).unwrap();
        assert!(disk.edge.read(&mut [0; 512], 4 << 20).is_err());
        disk.context.control.report();
        assert_eq!(read(), 2);
        disk.edge.read(&mut [0; 512], 0).unwrap();
        disk.context.control.end();
        assert_eq!(read(), 3);
    }

    #[test]
    fn exports_of_one_server_have_one_report() {
        let disk = Disk::new(&["statsformat=json"]);
        let file = format!("statsfile={}", disk.path);
        let words = ["statsformat=json", file.as_str()];
        let model = Arc::new(Model::new(512));
        let other = put_in(&disk.context, "stats", simple(model), &words).unwrap();
        disk.edge.read(&mut [0; 512], 0).unwrap();
        other.read(&mut [0; 512], 0).unwrap();
        disk.context.control.end();
        let report: serde_json::Value = serde_json::from_str(&disk.report()).unwrap();
        assert_eq!(report["total"]["ops"], 2);
    }

    #[test]
    fn without_a_threshold_there_are_no_sizes_and_what_was_there_can_be_kept() {
        let disk = Disk::new(&["statsthreshold=0", "statsappend=true"]);
        disk.edge.read(&mut [0; 512], 0).unwrap();
        disk.context.control.report();
        disk.context.control.end();
        let report = disk.report();
        assert_eq!(report.lines().filter(|l| l.starts_with("total: 1 ops, ")).count(), 2);
        assert!(!report.contains("breakdown"));
    }
}
