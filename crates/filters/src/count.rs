//! `count`: counts the bytes read, written, zeroed and trimmed, and logs the totals at the end.
//!
//! Failed operations do not count. The line goes to the program's log, also when the user asks for
//! reports (SIGUSR1). Each filter counts for itself, in a stack and in each export; where there are
//! several, a line says which one it is from.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use device::{Done, Filter, Filtered, Operation, Over, text};
use runtime::{Context, Mutex, OperatorLog};

use crate::FilterKind;
use crate::kit::kind::{ByKind, Kind};

pub(crate) const KIND: FilterKind = FilterKind {
    word: "count",
    summary: "counts the bytes read, written, zeroed and trimmed, and reports them at the end",
    keeps_disk: false,
    example: "serve --filter=count memory 1M --run 'nbdcopy \"$uri\" null:'",
    open: |_, below, context| {
        let counts = All::of(context).add(&below.info().name);
        Ok(Filtered::device(Count(counts), below))
    },
    ..FilterKind::PLAIN
};

/// The counts of all such filters of the program, with the names of their disks, in the order in
/// which they were opened.
#[derive(Clone, Default)]
struct All(Arc<Mutex<Vec<(String, Counts)>>>);

impl All {
    /// Those that are logged at the end, and when the user asks.
    fn of(context: &Context) -> Self {
        let made = context.common(&"count", || {
            let (all, now, last) = (Self::default(), context.log.clone(), context.log.clone());
            let (asked, ended) = (all.clone(), all.clone());
            context.control.on_report(move || asked.tell(&now));
            context.control.on_end(move || ended.tell(&last));
            Ok::<_, Infallible>(all)
        });
        let Ok(all) = made;
        (*all).clone()
    }

    fn add(&self, disk: &str) -> Counts {
        let counts = Counts::default();
        let mut all = self.0.lock();
        all.push((disk.to_owned(), counts.clone()));
        counts
    }

    fn tell(&self, log: &OperatorLog) {
        let all = self.0.lock().clone();
        for (number, (disk, counts)) in (1..).zip(&all) {
            let line = counts.line();
            match all.len() {
                1 => log.say(format_args!("{line}")),
                n => log.say(format_args!("{line} ({number} of {n}: {})", text::shown(disk))),
            }
        }
    }
}

/// Bytes of the operations that succeeded.
#[derive(Clone, Default)]
struct Counts(Arc<ByKind<AtomicU64>>);

impl Counts {
    fn line(&self) -> String {
        let [read, written, zeroed, trimmed] = [Kind::Read, Kind::Write, Kind::Zero, Kind::Trim]
            .map(|kind| self.0[kind].load(Relaxed));
        format!("count bytes: read {read}, written {written}, zeroed {zeroed}, trimmed {trimmed}")
    }
}

struct Count(Counts);

impl Filter for Count {
    fn describe(&self, over: &mut Over) {
        over.info.observe();
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        let Some((_, len)) = operation.range() else { return over.below.submit(operation, done) };
        let (counts, kind) = (self.0.clone(), Kind::of(&operation));
        let then: Done = Box::new(move |result| {
            if result.is_ok() {
                counts.0[kind].fetch_add(len, Relaxed);
            }
            done(result);
        });
        over.below.submit(operation, then);
    }
}

#[cfg(test)]
mod tests {

    use device::ZeroFlags;
    use runtime::{Mutex, WorkPool};

    use super::*;
    use crate::kit::tested::{blank, put_in};
    use trial::TestDevice;

    /// What is said in the program's log.
    fn listening() -> (Context, Arc<Mutex<Vec<String>>>) {
        let said = Arc::new(Mutex::new(Vec::new()));
        let lines = said.clone();
        let log = OperatorLog::new(move |line| lines.lock().push(line.to_string()));
        (Context::new(WorkPool::new(2)).with_log(log), said)
    }

    #[test]
    fn successful_operations_are_counted_and_reported_on_request_and_at_the_end() {
        let (context, said) = listening();
        let probe = TestDevice::new(1 << 20);
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
        let said = said.lock();
        let line =
            |trimmed| format!("count bytes: read 1100, written 10, zeroed 4096, trimmed {trimmed}");
        assert_eq!(*said, [line(0), line(512)]);
    }

    #[test]
    fn each_filter_of_a_stack_and_of_an_export_counts_for_itself() {
        let (context, said) = listening();
        let over = |below| put_in(&context, "count", below, &[]).unwrap();
        let (below, other) = (over(blank(1 << 20)), over(blank(1 << 20)));
        let above = over(below.device().clone());
        above.read(&mut [0; 100], 0).unwrap();
        below.read(&mut [0; 10], 0).unwrap();
        other.write(&[1; 7], 0, false).unwrap();
        context.control.end();
        let line = |read, written, which| {
            format!(
                "count bytes: read {read}, written {written}, zeroed 0, trimmed 0 ({which} of 3: model)"
            )
        };
        assert_eq!(*said.lock(), [line(110, 0, 1), line(0, 7, 2), line(100, 0, 3)]);
    }
}
