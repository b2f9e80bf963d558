//! `count`: counts the bytes read, written, zeroed and trimmed, and logs the totals at the end.
//!
//! Failed operations do not count. The line goes to the program's log, also when the user asks for reports (SIGUSR1).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use device::{
    Client, Done, Edge, Error, Filter, Filtered, Info, Operation, OperationKind, Outcome, Seat,
};
use runtime::{Context, Log};

use crate::Kind;

pub(crate) const KIND: Kind = Kind {
    word: "count",
    summary: "counts the bytes read, written, zeroed and trimmed, and reports them at the end",
    reads_only: false,
    params: &[],
    reaches: device::Reach::nothing,
    example: "serve --filter=count memory 1M --run 'nbdcopy \"$uri\" null:'",
    open: |params, below, context| {
        let counts = context.common(params, || Ok::<_, Error>(Counts::of(context)))?;
        Ok(Filtered::device(Count { info: Info::observing(&below), below, counts }))
    },
};

/// Bytes of the operations that succeeded.
#[derive(Clone, Default)]
struct Counts(Arc<[AtomicU64; 4]>);

impl Counts {
    const WORDS: [&str; 4] = ["read", "written", "zeroed", "trimmed"];

    /// Counts that are logged at the end, and when the user asks.
    fn of(context: &Context) -> Self {
        let counts = Self::default();
        let (log, now) = (context.log.clone(), counts.clone());
        context.control.on_report(move || now.tell(&log));
        let (log, last) = (context.log.clone(), counts.clone());
        context.control.on_end(move || last.tell(&log));
        counts
    }

    fn of_kind(&self, kind: OperationKind) -> Option<&AtomicU64> {
        let at = match kind {
            OperationKind::Read => 0,
            OperationKind::Write => 1,
            OperationKind::Zero => 2,
            OperationKind::Trim => 3,
            OperationKind::Flush
            | OperationKind::Prefetch
            | OperationKind::Resolve
            | OperationKind::Status
            | OperationKind::Take => return None,
        };
        self.0.get(at)
    }

    fn line(&self) -> String {
        let words = Self::WORDS.iter().zip(self.0.iter());
        let words: Vec<_> = words.map(|(word, n)| format!("{word} {}", n.load(Relaxed))).collect();
        format!("count bytes: {}", words.join(", "))
    }

    fn tell(&self, log: &Log) {
        log.say(format_args!("{}", self.line()));
    }
}

struct Count {
    info: Info,
    below: Edge,
    counts: Arc<Counts>,
}

impl Filter for Count {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> &Edge {
        &self.below
    }

    fn run(&self, operation: Operation, done: Done) {
        let kind = operation.kind();
        if kind == OperationKind::Take {
            // The write that replaces it is counted.
            return done(Ok(Outcome::Taken(0)));
        }
        let counted = self.counts.of_kind(kind).is_some();
        let Some((_, len)) = operation.range().filter(|_| counted) else {
            return self.below.submit(operation, done);
        };
        let counts = self.counts.clone();
        let then: Done = Box::new(move |result| {
            if let (Ok(_), Some(count)) = (&result, counts.of_kind(kind)) {
                count.fetch_add(len, Relaxed);
            }
            done(result);
        });
        self.below.submit(operation, then);
    }

    fn for_client(&self, below: Edge, _client: &Client, _seat: Seat) -> Self {
        Self { info: Info::observing(&below), below, counts: self.counts.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use device::ZeroFlags;
    use runtime::WorkPool;

    use super::*;
    use crate::kit::probe::Probe;
    use crate::kit::tested::put_in;

    #[test]
    fn what_ended_well_is_counted_and_told_when_asked_and_at_the_end() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let lines = said.clone();
        let log = Log::new(move |line| lines.lock().unwrap().push(line.to_string()));
        let context = Context::new(WorkPool::new(2)).with_log(log);
        let probe = Probe::new(1 << 20);
        let disk = put_in(&context, "count", probe.clone(), &[]).unwrap();
        disk.read(&mut [0; 100], 3).unwrap();
        disk.read(&mut [0; 1000], 0).unwrap();
        disk.write(&[1; 10], 0, true).unwrap();
        disk.zero(0, 4096, ZeroFlags::default()).unwrap();
        context.control.report();
        disk.trim(0, 512, false).unwrap();
        disk.flush().unwrap();
        probe.fail(Some("write"));
        assert!(disk.write(&[1; 77], 0, false).is_err());
        context.control.end();
        let said = said.lock().unwrap();
        let line =
            |trimmed| format!("count bytes: read 1100, written 10, zeroed 4096, trimmed {trimmed}");
        assert_eq!(*said, [line(0), line(512)]);
    }
}
