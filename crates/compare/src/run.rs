//! One comparison from its beginning to its end: a walker, and workers behind it.

use std::collections::VecDeque;

use device::Edge;
use runtime::{Condvar, Mutex, MutexGuard, having_time};

use crate::event::{ComparisonEnd, Difference, FailedComparison, Options, Progress, Report};
use crate::walk::Walk;
use crate::worker::{CompareUnit, CompareWorker, which};

/// Bytes that one worker takes at a time.
const UNIT: u64 = 2 << 20;
/// Units that wait, per worker.
const WAITING: usize = 4;

/// Compares two disks. Where one is longer, the rest of it must read as zeroes.
///
/// # Errors
/// A failure comes before every known difference.
pub fn run(
    first: &Edge,
    second: &Edge,
    options: &Options,
    progress: &Progress,
) -> Result<Report, FailedComparison> {
    let sizes = (first.info().size, second.info().size);
    let same_size = sizes.0 == sizes.1;
    let report = |difference| Ok(Report { difference, same_size });
    if options.strict && !same_size {
        return report(Some(Difference::Size));
    }
    progress.begin(sizes.0.max(sizes.1));
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    // Some workers wait for a disk while others compare.
    let threads = options.threads.unwrap_or_else(|| 2 * processors() + 2).clamp(1, 64);
    let shared = Shared { progress, state: Mutex::default(), changed: Condvar::new(), threads };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| having_time(|| shared.work(CompareWorker::new(first, second))));
        }
        // Workers learn of the end even if the walk panics.
        let _end = NoMoreUnits(&shared);
        shared.walk(Walk::new(first, second), options.strict);
    });
    let state = shared.state.into_inner();
    match state.event {
        None if state.lost => broken(first),
        None => report(None),
        Some(ComparisonEnd::Differ(difference)) => report(Some(difference)),
        Some(ComparisonEnd::Fail(failure)) => Err(failure),
    }
}

/// A worker ended without a word: nothing is known.
fn broken(first: &Edge) -> Result<Report, FailedComparison> {
    let error = device::Error::unanswered().on(&first.info().name);
    let (doing, end) = (crate::Doing::Read, crate::Side::First);
    Err(FailedComparison { doing, end, offset: 0, error })
}

struct Shared<'a> {
    progress: &'a Progress,
    state: Mutex<State>,
    changed: Condvar,
    threads: usize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<CompareUnit>,
    /// There will be no more units.
    closed: bool,
    /// The finding with the lowest offset.
    event: Option<ComparisonEnd>,
    /// A worker has panicked.
    lost: bool,
}

impl State {
    /// Whether `offset` still matters: no finding comes before it.
    fn matters(&self, offset: u64) -> bool {
        self.event.as_ref().is_none_or(|event| offset < event.offset())
    }
}

impl Shared<'_> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn tell(&self, event: ComparisonEnd) {
        let mut state = self.lock();
        if state.matters(event.offset()) {
            state.event = Some(event);
        }
        self.changed.notify_all();
    }

    /// Hands out units to compare, up to the first finding.
    fn walk(&self, mut walk: Walk<'_>, strict: bool) {
        loop {
            let piece = match walk.next() {
                Ok(Some(piece)) => piece,
                Ok(None) => return,
                Err(failure) => return self.tell(ComparisonEnd::Fail(failure)),
            };
            if strict && piece.kinds.0 != piece.kinds.1 {
                return self.tell(ComparisonEnd::Differ(Difference::Allocation(piece.start)));
            }
            let zero = (piece.kinds.0.reads_zero(), piece.kinds.1.reads_zero());
            let Some(which) = which(zero) else {
                self.progress.add(piece.len);
                continue;
            };
            let (mut start, mut left) = (piece.start, piece.len);
            while left > 0 {
                // Units end at multiples of their length, so that reads do too.
                let len = left.min(UNIT - start % UNIT);
                if !self.put(CompareUnit { start, len, which }) {
                    return;
                }
                start += len;
                left -= len;
            }
        }
    }

    /// Hands out a unit when there is room; false if it does not matter any more.
    fn put(&self, unit: CompareUnit) -> bool {
        let mut state = self.lock();
        while state.waiting.len() >= self.threads * WAITING && state.matters(unit.start) {
            state = self.changed.wait(state);
        }
        if !state.matters(unit.start) || state.lost {
            return false;
        }
        state.waiting.push_back(unit);
        self.changed.notify_all();
        true
    }

    fn take(&self) -> Option<CompareUnit> {
        let mut state = self.lock();
        loop {
            if let Some(unit) = state.waiting.pop_front() {
                self.changed.notify_all();
                if state.matters(unit.start) {
                    return Some(unit);
                }
                continue;
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state);
        }
    }

    fn work(&self, worker: CompareWorker<'_>) {
        let _lost = Lost(self);
        while let Some(unit) = self.take() {
            match worker.compare(unit) {
                None => self.progress.add(unit.len),
                Some(event) => self.tell(event),
            }
        }
    }
}

/// Tells the workers that no more units will come.
struct NoMoreUnits<'a>(&'a Shared<'a>);

impl Drop for NoMoreUnits<'_> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}

/// Tells the others that a worker panicked.
struct Lost<'a>(&'a Shared<'a>);

impl Drop for Lost<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.lock();
            state.lost = true;
            state.waiting.clear();
            self.0.changed.notify_all();
        }
    }
}
