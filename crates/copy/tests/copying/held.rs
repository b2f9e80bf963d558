//! What a copy holds in memory, whatever is asked for.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use copy::Options;
use device::{Completed, Info, Interest, Lane, LaneStep, Operation, Outcome};
use runtime::Bell;
use trial::{Fate, TestDevice};

use crate::support::*;

const SIZE: u64 = 192 << 20;
const REQUEST: u64 = 256 << 10;
/// See `HELD` in `options.rs`.
const MOST: u64 = 36 << 20;

/// A disk of zeroes, but for the first bytes of each request.
fn sparse(data: usize) -> Arc<TestDevice> {
    let device = TestDevice::blank(Info::new("sparse", SIZE)).hooked(move |operation| {
        let Operation::Read { offset, mut buffer } = operation else {
            return Fate::Pass(operation);
        };
        assert_eq!(offset % REQUEST, 0);
        buffer.fill(0);
        buffer[..data].fill(1);
        Fate::done(Operation::Read { offset, buffer })
    });
    device.shared()
}

/// A disk with lanes that take writes, and answer 10 ms after nothing more comes, as if it were far
/// away.
fn holding(most: &Arc<AtomicUsize>) -> Arc<TestDevice> {
    let info = Info { abilities: all_abilities(), ..Info::new("holding", SIZE) };
    let (now, most) = (Arc::<AtomicUsize>::default(), most.clone());
    let device = TestDevice::blank(info).hooked(|operation| {
        assert!(!matches!(operation, Operation::Write { .. }), "it has lanes");
        Fate::Pass(operation)
    });
    let device = device.lanes(move |_| {
        let bell = Arc::new(Bell::new().unwrap());
        let rings = Arc::downgrade(&bell);
        std::thread::spawn(move || {
            while let Some(bell) = rings.upgrade() {
                bell.ring();
                drop(bell);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let (now, most) = (now.clone(), most.clone());
        Ok(Box::new(Held { waiting: Vec::new(), seen: 0, now, most, bell }))
    });
    device.shared()
}

struct Held {
    waiting: Vec<(u64, Operation)>,
    seen: usize,
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    bell: Arc<Bell>,
}

impl Lane for Held {
    fn start(&mut self, ticket: u64, operation: Operation) {
        if let Operation::Write { .. } = operation {
            self.most.fetch_max(self.now.fetch_add(1, SeqCst) + 1, SeqCst);
        }
        self.waiting.push((ticket, operation));
    }

    fn turn(&mut self, out: &mut Vec<Completed>) -> LaneStep {
        let rang = rustix::io::read(&*self.bell, &mut [0; 8]).is_ok();
        let seen = std::mem::replace(&mut self.seen, self.waiting.len());
        if !rang || seen < self.waiting.len() || self.waiting.is_empty() {
            return LaneStep::Idle;
        }
        for (ticket, operation) in self.waiting.drain(..) {
            if let Operation::Write { .. } = operation {
                self.now.fetch_sub(1, SeqCst);
            }
            out.push(Completed { ticket, outcome: Ok(Outcome::Done) });
        }
        LaneStep::Progress
    }

    fn waits_on(&self) -> Option<(BorrowedFd<'_>, Interest)> {
        let interest = Interest { read: true, write: false };
        (!self.waiting.is_empty()).then(|| (self.bell.as_fd(), interest))
    }

    fn in_flight(&self) -> usize {
        self.waiting.len()
    }
}

#[test]
fn more_requests_hold_no_more_memory_than_all_may_also_where_each_writes_little_of_what_it_read() {
    for (data, workers) in [(4096, 1), (100 << 10, 2)] {
        // The depth depends on how long replies take; that it is never too deep does not.
        let tried = (0..20).any(|_| held(data, workers) >= MOST / 4);
        assert!(tried, "{data}, {workers}: the limit was never tried");
    }
}

/// The most bytes that a copy held; never more than it may.
fn held(data: usize, workers: usize) -> u64 {
    let most = Arc::<AtomicUsize>::default();
    let (source, target) = (sparse(data), holding(&most));
    let options = Options {
        requests: Some(10_000),
        threads: Some(workers),
        target_is_zero: true,
        no_extents: true,
        ..Options::default()
    };
    let report = run(&edge(source), &edge(target), &options).unwrap();
    assert_eq!(report.copied, SIZE / REQUEST * data as u64);
    // Each write keeps the buffer of its read.
    let held = most.load(SeqCst) as u64 * REQUEST;
    assert!(held <= MOST, "{data}, {workers}: {held}");
    held
}
