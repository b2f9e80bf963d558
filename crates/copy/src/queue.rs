//! The queue between the planner and the workers: bounded, and with an account of what is not done.
//!
//! It always knows which ranges are not known to be copied: what is not planned yet, what waits,
//! and what a worker has taken and not finished. A worker that dies loses nothing of that. A unit
//! is finished when every byte of it is right in the target; a range of zeroes may lie in units of
//! several workers, so all of them report to the queue.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use device::Error;

use crate::plan::Span;
use crate::progress::LOOK;
use crate::unit::Unit;
use runtime::{Condvar, Mutex, RangeSet};

/// Units that may wait.
pub(crate) const WAITING: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// As in the state, readable without the lock.
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    units: VecDeque<Unit>,
    /// Taken and not finished, or held back, by their start.
    taken: BTreeMap<u64, Taken>,
    /// All before this was pushed.
    planned: u64,
    closed: bool,
    /// How many units may wait, as the planner set last.
    room: usize,
    stopped: bool,
    error: Option<Error>,
}

/// A unit, and how many bytes of it are still to come.
#[derive(Debug)]
struct Taken {
    end: u64,
    left: u64,
    /// Its end may be given back.
    may_return: bool,
}

impl Taken {
    fn of(unit: &Unit) -> Self {
        Self { end: unit.end, left: unit.end - unit.start, may_return: unit.may_return }
    }
}

impl State {
    /// A worker has it, or it is held back.
    fn take(&mut self, unit: &Unit) {
        let before = self.taken.range(..unit.end).next_back();
        debug_assert!(before.is_none_or(|(_, it)| it.end <= unit.start), "taken twice");
        self.taken.insert(unit.start, Taken::of(unit));
    }
}

pub(crate) enum Push {
    Taken,
    Stopped,
}

pub(crate) enum Next {
    /// Nothing waits, but more may come.
    Empty,
    /// Nothing will come any more.
    End,
    Unit(Unit),
}

impl Queue {
    /// Appends a unit, which lies behind the last; waits until fewer than `waiting` (at
    /// most [`WAITING`]) wait.
    pub(crate) fn push(&self, unit: Unit, waiting: usize) -> Push {
        let mut state = self.state.lock();
        state.room = waiting.clamp(1, WAITING);
        while state.units.len() >= state.room && !state.stopped {
            state = self.changed.wait(state);
        }
        if state.stopped {
            return Push::Stopped;
        }
        debug_assert!(state.planned <= unit.start && unit.start < unit.end, "units out of order");
        state.planned = unit.end;
        state.units.push_back(unit);
        drop(state);
        self.changed.notify_all();
        Push::Taken
    }

    /// A unit, which lies behind the last, is held back for now.
    pub(crate) fn hold(&self, unit: &Unit) {
        let mut state = self.state.lock();
        debug_assert!(state.planned <= unit.start && unit.start < unit.end, "units out of order");
        state.planned = unit.end;
        state.take(unit);
    }

    /// Units that were held back come next.
    pub(crate) fn release(&self, units: Vec<Unit>) {
        let mut state = self.state.lock();
        for unit in units.into_iter().rev() {
            state.taken.remove(&unit.start);
            state.units.push_front(unit);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Returns the untouched tail `range` of a worker's unit to the queue, cut into these units.
    /// False if it may not be returned.
    pub(crate) fn give_back(&self, range: &Range<u64>, units: Vec<Unit>) -> bool {
        let mut state = self.state.lock();
        let last = state.taken.range_mut(..range.start).next_back();
        let Some((&at, taken)) = last.filter(|(_, taken)| taken.end == range.end) else {
            return false;
        };
        debug_assert!(range.end - range.start <= taken.left, "part of it was done");
        (taken.end, taken.may_return) = (range.start, false);
        taken.left = taken.left.saturating_sub(range.end - range.start);
        if taken.left == 0 {
            // What came before is right already, and will not be reported again.
            state.taken.remove(&at);
        }
        for unit in units.into_iter().rev() {
            state.units.push_front(unit);
        }
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Nothing more of the unit with the byte at `start` will be given back.
    pub(crate) fn settled(&self, start: u64) {
        let mut state = self.state.lock();
        let unit = state.taken.range_mut(..=start).next_back();
        // If all of it is done, this finds the unit before.
        let unit = unit.filter(|(_, taken)| start < taken.end);
        let was_awaited = unit.is_some_and(|(_, taken)| std::mem::take(&mut taken.may_return));
        drop(state);
        if was_awaited {
            self.changed.notify_all();
        }
    }

    /// Everything has been pushed.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// The next unit; waits a moment for one if `wait`.
    pub(crate) fn next(&self, mut wait: bool) -> Next {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return Next::End;
            }
            if let Some(unit) = state.units.pop_front() {
                state.take(&unit);
                // Only a planner that waits for room needs this.
                let was_full = state.units.len() + 1 >= state.room;
                drop(state);
                if was_full {
                    self.changed.notify_all();
                }
                return Next::Unit(unit);
            }
            if state.closed && !state.taken.values().any(|taken| taken.may_return) {
                return Next::End;
            }
            if !wait {
                return Next::Empty;
            }
            let waited = self.changed.wait_timeout(state, LOOK);
            let (woken, timeout) = waited;
            state = woken;
            wait = !timeout;
        }
    }

    /// The range is right in the target. It may lie in several units.
    pub(crate) fn retire(&self, range: &Range<u64>) {
        let mut state = self.state.lock();
        let Range { start, end } = *range;
        let first = state.taken.range(..=start).next_back().map_or(start, |(start, _)| *start);
        let mut finished = Vec::new();
        for (at, unit) in state.taken.range_mut(first..end) {
            let common = unit.end.min(end).saturating_sub((*at).max(start));
            debug_assert!(common <= unit.left, "{start}..{end} was retired twice");
            unit.left = unit.left.saturating_sub(common);
            if unit.left == 0 {
                finished.push(*at);
            }
        }
        for at in finished {
            state.taken.remove(&at);
        }
    }

    /// Stops all threads; the first error is kept.
    pub(crate) fn stop(&self, error: Error) {
        let mut state = self.state.lock();
        state.stopped = true;
        self.stopped.store(true, Relaxed);
        state.error.get_or_insert(error);
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    pub(crate) fn take_error(&self) -> Option<Error> {
        self.state.lock().error.take()
    }

    /// The parts of `spans` that are not known to be copied.
    pub(crate) fn left(&self, spans: &[Span]) -> RangeSet {
        let state = self.state.lock();
        let taken = state.taken.iter().map(|(start, unit)| *start..unit.end);
        let waiting = state.units.iter().map(|unit| unit.start..unit.end);
        let planned = |span: &Span| span.range.start.max(state.planned)..span.range.end;
        taken.chain(waiting).chain(spans.iter().map(planned)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(start: u64, end: u64) -> Unit {
        Unit { start, end, stretches: Vec::new(), may_return: false }
    }

    #[test]
    fn what_a_worker_gives_back_is_left_to_all_and_is_not_lost() {
        let queue = Queue::default();
        let spans = [Span { range: 0..100, zero: false }];
        let left = |queue: &Queue| {
            let left: Vec<_> = queue.left(&spans).iter().collect();
            left.into_iter().map(|range| (range.start, range.end)).collect::<Vec<_>>()
        };
        queue.push(Unit { may_return: true, ..unit(0, 90) }, WAITING);
        queue.push(unit(90, 100), WAITING);
        queue.close();
        assert!(matches!(queue.next(false), Next::Unit(Unit { end: 90, .. })));
        assert!(!queue.give_back(&(30..60), vec![unit(30, 60)]), "it does not end there");
        assert!(queue.give_back(&(30..90), vec![unit(30, 60), unit(60, 90)]));
        assert_eq!(left(&queue), [(0, 100)]);
        queue.retire(&(0..30));
        assert_eq!(left(&queue), [(30, 100)]);
        for end in [60, 90, 100] {
            let Next::Unit(unit) = queue.next(false) else { panic!("{end} is lost") };
            assert_eq!(unit.end, end);
            queue.retire(&(unit.start..unit.end));
        }
        assert_eq!(left(&queue), []);
        assert!(matches!(queue.next(true), Next::End));
    }

    #[test]
    fn a_unit_whose_beginning_is_done_when_its_end_is_given_back_is_finished() {
        let queue = Queue::default();
        let spans = [Span { range: 0..90, zero: false }];
        queue.push(Unit { may_return: true, ..unit(0, 90) }, WAITING);
        queue.close();
        assert!(matches!(queue.next(false), Next::Unit(_)));
        queue.retire(&(0..30));
        assert!(queue.give_back(&(30..90), vec![unit(30, 90)]));
        assert!(matches!(queue.next(false), Next::Unit(Unit { start: 30, .. })));
        queue.retire(&(30..90));
        assert!(queue.left(&spans).is_empty());
    }

    #[test]
    fn a_unit_that_is_done_settles_nothing_of_the_one_before() {
        let queue = Queue::default();
        queue.push(Unit { may_return: true, ..unit(0, 90) }, WAITING);
        queue.push(Unit { may_return: true, ..unit(90, 100) }, WAITING);
        queue.close();
        assert!(
            matches!(queue.next(false), Next::Unit(_))
                && matches!(queue.next(false), Next::Unit(_))
        );
        queue.retire(&(90..100));
        queue.settled(90);
        assert!(
            matches!(queue.next(false), Next::Empty),
            "the first may still give something back"
        );
    }

    #[test]
    fn as_long_as_a_unit_may_come_back_no_worker_leaves() {
        let queue = Queue::default();
        queue.push(Unit { may_return: true, ..unit(0, 90) }, WAITING);
        queue.close();
        assert!(matches!(queue.next(false), Next::Unit(_)));
        assert!(matches!(queue.next(false), Next::Empty));
        queue.settled(30);
        assert!(matches!(queue.next(false), Next::End));
    }

    #[test]
    fn what_is_not_finished_is_left() {
        let queue = Queue::default();
        let spans = [0..60, 70..100].map(|range| Span { range, zero: false });
        let left = |queue: &Queue| queue.left(&spans).iter().collect::<Vec<_>>();
        assert_eq!(left(&queue), [0..60, 70..100]);
        for i in 0..5 {
            queue.push(unit(i * 10, i * 10 + 10), WAITING);
        }
        for _ in 0..3 {
            assert!(matches!(queue.next(false), Next::Unit(_)));
        }
        queue.retire(&(0..12));
        queue.retire(&(18..30));
        assert_eq!(left(&queue), [10..20, 30..60, 70..100]);
        queue.stop(Error::invalid("no"));
        assert!(matches!(queue.next(true), Next::End));
        assert!(matches!(queue.push(unit(50, 60), WAITING), Push::Stopped));
        queue.retire(&(12..18));
        assert_eq!(left(&queue), [30..60, 70..100]);
    }
}
