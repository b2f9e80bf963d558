//! `rate`: limits the bits a second, for all clients together and for each.
//!
//! Reads and writes have separate limits; everything else is free. A request starts when it is paid
//! for. Waiting requests hold no thread, and clients take turns.

mod clock;
mod limit;
mod meter;
mod timetable;

use runtime::{Context, Timers, WorkPool};
use std::sync::Arc;
use std::time::Duration;

use device::{
    Arrival, Done, Edge, Error, Filter, Filtered, Operation, Outcome, Over, Params, Result, param,
    values,
};

use crate::FilterKind;
use limit::{Direction, Limit, Source};

const BITS: &str = "BITSPERSEC";

/// A metric's name and meaning: how many of these filters hold requests back at the moment.
pub const HOLDS_BACK: (&str, &str) =
    ("diskferry_rate_holds_back", "Filters `rate` that hold requests back until they are paid for");

pub(crate) const KIND: FilterKind = FilterKind {
    word: "rate",
    summary: "limits bandwidth, in bits per second",
    keeps_disk: false,
    params: &[
        param("rate", BITS, "for all clients together: 1M (1024·1024 bits a second)"),
        param("connection-rate", BITS, "for each client"),
        param("rate-file", "FILE", "the file says the rate; it is looked at while serving"),
        param("connection-rate-file", "FILE", "the same for each client"),
        param("rate-bytes-file", "FILE", "as rate-file, with bytes a second, or off"),
        param(
            "rate-timetable",
            "TIMETABLE",
            "bytes a second by the local time: 08:00,1M 18:00,off",
        ),
        param("burstiness", "SECONDS", "burst allowance, saved up while idle (default 2.0)"),
    ],
    reaches: |params| {
        if params.get("rate-timetable").is_some() {
            // The system reads the time zone once: before a sandbox shuts.
            clock::LocalTime::now();
        }
        // The file may be created or replaced later, so only its directory is known.
        let files = ["rate-file", "rate-bytes-file", "connection-rate-file"]
            .into_iter()
            .filter_map(|key| params.get(key));
        let folders = files.map(|file| {
            let folder =
                std::path::Path::new(file).parent().filter(|folder| !folder.as_os_str().is_empty());
            folder.unwrap_or(std::path::Path::new(".")).to_owned()
        });
        device::Reach { reads: folders.collect(), ..device::Reach::default() }
    },
    example: "serve --filter=rate memory 1M rate=100M --run 'nbdcopy \"$uri\" null:'",
    open: |params, below, context| {
        let settings = context.common(params, || Settings::read(params, context))?;
        Ok(Filtered::device(Rate::new(settings, 0), below))
    },
    ..FilterKind::PLAIN
};

struct Settings {
    all: Option<Arc<Limit>>,
    each: Source,
    burst: Duration,
    timers: Timers,
    pool: WorkPool,
}

impl Settings {
    fn read(params: &Params, context: &Context) -> Result<Self> {
        let Context { timers, pool, log, .. } = context.clone();
        let source = |rate: &str, file: &str| -> Result<Source> {
            Source::new(values::size(params, rate)?, params.get(file), log.clone())
        };
        let mut all = source("rate", "rate-file")?;
        let given = |key| params.get(key).is_some();
        let several = ["rate-file", "rate-bytes-file", "rate-timetable"].into_iter();
        if several.filter(|key| given(*key)).count() > 1 || given("rate") && given("rate-timetable")
        {
            return Err(Error::invalid(
                "rate: rate-file, rate-bytes-file and rate-timetable exclude each other, and a timetable excludes a rate",
            ));
        }
        if let Some(file) = params.get("rate-bytes-file") {
            all = Source::of_bytes(values::size(params, "rate")?, file, log.clone())?;
        }
        if let Some(table) = params.get("rate-timetable") {
            all = Source::by_time(table, log.clone())?;
        }
        let each = source("connection-rate", "connection-rate-file")?;
        let burst = values::duration(params, "burstiness")?.unwrap_or(Duration::from_secs(2));
        let limit = |source| Limit::new(source, burst, timers.clone(), pool.clone());
        let all = all.may_limit().then(|| limit(all));
        if let Some(all) = &all {
            let held = Arc::downgrade(all);
            let value = move || u64::from(held.upgrade().is_some_and(|all| all.holds_back()));
            context.control.on_measured(HOLDS_BACK.0, HOLDS_BACK.1, value);
        }
        Ok(Self { all, each, burst, timers, pool })
    }

    fn own(&self) -> Option<Arc<Limit>> {
        let limit = |source| Limit::new(source, self.burst, self.timers.clone(), self.pool.clone());
        self.each.may_limit().then(|| limit(self.each.clone()))
    }
}

struct Rate {
    settings: Arc<Settings>,
    client: u64,
    own: Option<Arc<Limit>>,
}

impl Rate {
    fn new(settings: Arc<Settings>, client: u64) -> Self {
        Self { own: settings.own(), settings, client }
    }

    /// Runs `operation` when it is paid for, first within the client's own rate and then within
    /// that of all clients.
    fn pay(
        &self,
        below: &Edge,
        (direction, bytes): (Direction, u64),
        operation: Operation,
        done: Done,
    ) {
        let (all, below, client) = (self.settings.all.clone(), below.clone(), self.client);
        let go = move |paid: Result<()>| match paid {
            Ok(()) => below.submit(operation, done),
            Err(e) => done(Err(e)),
        };
        let with_all = move |paid: Result<()>| match (paid, all) {
            (Ok(()), Some(all)) => all.enter(direction, client, bytes, go),
            (paid, _) => go(paid),
        };
        match &self.own {
            Some(own) => own.enter(direction, client, bytes, with_all),
            None => with_all(Ok(())),
        }
    }
}

impl Filter for Rate {
    fn describe(&self, over: &mut Over) {
        over.info.observe();
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        match &operation {
            Operation::Read { buffer, .. } => {
                let bytes = buffer.len() as u64;
                self.pay(&over.below, (Direction::Read, bytes), operation, done);
            }
            Operation::Write { data, .. } => {
                let bytes = data.len() as u64;
                self.pay(&over.below, (Direction::Write, bytes), operation, done);
            }
            // The writes that replace it are paid for.
            Operation::Take { .. } => done(Ok(Outcome::Taken(0))),
            // These send next to no data.
            Operation::Flush
            | Operation::Prefetch { .. }
            | Operation::Resolve { .. }
            | Operation::Status { .. }
            | Operation::Trim { .. }
            | Operation::Zero { .. } => {
                over.below.submit(operation, done);
            }
        }
    }

    fn for_client(&self, _: &Over, arrival: &mut Arrival<'_>) -> Option<Arc<dyn Filter>> {
        // Clients take turns, so each has its own.
        let number = arrival.client.number;
        let own = Self::new(self.settings.clone(), number);
        let limits = [own.own.clone(), own.settings.all.clone()];
        arrival.client.presence.on_leaving(move || {
            limits.into_iter().flatten().for_each(|limit| limit.leave(number));
        });
        Some(Arc::new(own))
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::kit::tested::{blank, put};

    fn rated(words: &[&str]) -> Edge {
        put("rate", blank(1 << 20), words).unwrap()
    }

    #[test]
    fn a_file_changes_the_rate_for_waiting_requests() {
        let scratch = trial::Scratch::new("/tmp");
        let path = scratch.file("rate", b"1\n");
        let disk = rated(&[&format!("rate-file={}", path.display())]);
        let (tx, rx) = std::sync::mpsc::channel();
        let operation = Operation::Read { offset: 0, buffer: device::Buffer::zeroed(4096) };
        disk.submit(operation, Box::new(move |r| tx.send(r.is_ok()).unwrap()));
        // At one bit a second this takes nine hours.
        assert!(rx.recv_timeout(Duration::from_millis(300)).is_err());
        std::fs::write(&path, "1G\n").unwrap();
        assert!(rx.recv().unwrap());
        // A malformed file changes nothing.
        std::fs::write(&path, "fast\n").unwrap();
        disk.read(&mut [0; 4096], 0).unwrap();
    }

    #[test]
    fn a_file_that_has_no_end_or_no_writer_is_refused_and_not_waited_for() {
        let scratch = trial::Scratch::new("/tmp");
        let pipe = scratch.path("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        for file in ["/dev/zero", pipe.to_str().unwrap()] {
            let word = format!("rate-file={file}");
            assert!(put("rate", blank(512), &[&word]).is_err(), "{file}");
        }
    }

    #[test]
    fn a_thousand_requests_that_wait_need_no_thread_each() {
        let disk = rated(&["rate=8M"]);
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = threads();
        let (tx, rx) = std::sync::mpsc::channel();
        for _ in 0..1000 {
            let tx = tx.clone();
            let operation = Operation::Read { offset: 0, buffer: device::Buffer::zeroed(256) };
            disk.submit(operation, Box::new(move |r| tx.send(r.is_ok()).unwrap()));
        }
        // Other tests add and remove files there.
        assert!(threads() < before + 100);
        drop(tx);
        assert_eq!(rx.into_iter().filter(|ok| *ok).count(), 1000);
    }
}
