//! Failures: never a success, never a byte reported as done that is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use copy::{Cancel, FailedCopy, Options, Progress};
use device::ErrorKind;
use device::model::Model;
use trial::{Fate, TestDevice};

use crate::support::*;

const SIZE: usize = 1_500_000;

struct Case {
    source: Arc<Model>,
    target: Arc<Model>,
    options: Options,
    lanes: usize,
}

impl Case {
    fn new(seed: u64, lanes: usize) -> Self {
        let source = Arc::new(Model::new(SIZE));
        random_disk(&source, &mut Random(seed), 1);
        let target = Arc::new(Model::new(SIZE));
        fill(&target, 0xee);
        // The target is not read: a failure of that would not matter.
        let options =
            Options { threads: Some(2), request_size: 65536, apart: true, ..Options::default() };
        Self { source, target, options, lanes }
    }

    /// Both ends.
    fn ends(&self) -> [Arc<TestDevice>; 2] {
        [&self.source, &self.target].map(|model| watched(model.clone(), self.lanes))
    }

    /// Runs; checks the account against the bytes.
    fn run(&self, [from, to]: &[Arc<TestDevice>; 2]) -> Result<(), Box<FailedCopy>> {
        let result = run(&edge(from.clone()), &edge(to.clone()), &self.options);
        let left = match &result {
            Ok(report) => &report.left,
            Err(failure) => &failure.report.left,
        };
        let (a, b) = (self.source.bytes(), self.target.bytes());
        let mut at = 0;
        for range in left {
            let (start, end) = (range.start as usize, range.end as usize);
            assert!(at == 0 || start > at, "ranges touch or have no order: {left:?}");
            assert_eq!(a[at..start], b[at..start], "said to be done: {at}..{start}");
            at = end;
        }
        assert_eq!(a[at..], b[at..], "said to be done: from {at}");
        result.map(drop)
    }
}

#[test]
fn the_first_error_at_any_operation_on_either_end_is_the_end() {
    for lanes in [0, 2] {
        for on_target in [false, true] {
            let mut failed = 0;
            for n in 1.. {
                let case = Case::new(7, lanes);
                let ends = case.ends();
                let bad = &ends[usize::from(on_target)];
                bad.fail_nth(n);
                match case.run(&ends) {
                    Ok(()) => {
                        // The failure was never reached: all of it worked, and the bytes are right.
                        assert!(bad.undecided() > 0, "operation {n} failed unnoticed");
                        break;
                    }
                    Err(failure) => {
                        assert_eq!(failure.error.kind(), ErrorKind::Io, "{failure}");
                        assert!(failure.to_string().starts_with("model: "), "{failure}");
                        failed += 1;
                    }
                }
            }
            assert!(failed > 20, "only {failed} operations");
        }
    }
}

#[test]
fn a_panic_in_a_worker_is_an_error() {
    for n in [1, 5, 20] {
        let case = Case::new(7, 0);
        let (ends, asked) = (case.ends(), AtomicU64::new(0));
        ends[0].on(move |operation| {
            let number = asked.fetch_add(1, SeqCst) + 1;
            assert!(number != n, "a panic in a device, as this test wants it");
            Fate::Pass(few_extents(operation, 1, SIZE as u64))
        });
        let failure = case.run(&ends).unwrap_err();
        assert!(failure.to_string().contains("defect"), "{failure}");
    }
}

#[test]
fn a_copy_that_is_cancelled_stops_and_says_what_is_left() {
    let source = Arc::new(Model::new(64 << 20));
    fill(&source, 1);
    let target = Arc::new(Model::new(64 << 20));
    let (progress, cancel) = (Progress::default(), Cancel::default());
    let watcher = {
        let (progress, cancel) = (progress.clone(), cancel.clone());
        std::thread::spawn(move || {
            while progress.snapshot().done() == 0 {
                std::thread::yield_now();
            }
            cancel.cancel();
        })
    };
    let result = run_until(
        &edge(source.clone()),
        &edge(target.clone()),
        &Options { threads: Some(2), request_size: 4096, ..Options::default() },
        &progress,
        &cancel,
    );
    watcher.join().unwrap();
    let failure = result.unwrap_err();
    assert_eq!(failure.error.kind(), ErrorKind::Cancelled);
    assert!(failure.report.touched);
    assert!(!failure.report.left.is_empty());
    assert!(failure.report.done() < 64 << 20);
}

#[test]
fn a_copy_cancelled_before_it_begins_touches_nothing() {
    let source = Arc::new(Model::new(1 << 20));
    fill(&source, 1);
    let target = Arc::new(Model::new(1 << 20));
    let cancel = Cancel::default();
    cancel.cancel();
    let options = Options::default();
    let failure =
        run_until(&edge(source), &edge(target.clone()), &options, &Progress::default(), &cancel)
            .unwrap_err();
    assert_eq!(failure.error.kind(), ErrorKind::Cancelled);
    assert!(!failure.report.touched && target.log().is_empty());
    assert_eq!(failure.report.left, [0..1 << 20]);
}
