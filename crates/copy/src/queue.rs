//! The queue between the planner and the workers: bounded, and the account of what is not done.
//!
//! It always knows which ranges are not known to be copied: what is not planned yet, what waits,
//! and what a worker has taken and not finished. A worker that dies loses nothing of that.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use device::Error;

use crate::job::LOOK;
use crate::plan::Unit;
use crate::report::merge_range;

/// Units that may wait.
pub(crate) const WAITING: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// As in the state, to be looked at without the lock.
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    units: VecDeque<Unit>,
    /// Taken and not finished, or held back: start to end.
    taken: BTreeMap<u64, u64>,
    /// All before this was pushed.
    planned: u64,
    closed: bool,
    /// How many units may wait, the planner said last.
    room: usize,
    stopped: bool,
    error: Option<Error>,
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
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a unit, which begins where the last ended; waits until fewer than `waiting` (at
    /// most [`WAITING`]) wait.
    pub(crate) fn push(&self, unit: Unit, waiting: usize) -> Push {
        let mut state = self.lock();
        state.room = waiting.clamp(1, WAITING);
        while state.units.len() >= state.room && !state.stopped {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stopped {
            return Push::Stopped;
        }
        state.planned = unit.end;
        state.units.push_back(unit);
        drop(state);
        self.changed.notify_all();
        Push::Taken
    }

    /// A unit, which begins where the last ended, is held back for now.
    pub(crate) fn hold(&self, unit: &Unit) {
        let mut state = self.lock();
        state.planned = unit.end;
        state.taken.insert(unit.start, unit.end);
    }

    /// Units that were held back come next.
    pub(crate) fn release(&self, units: Vec<Unit>) {
        let mut state = self.lock();
        for unit in units.into_iter().rev() {
            state.taken.remove(&unit.start);
            state.units.push_front(unit);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Everything has been pushed.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// The next unit; waits a moment for one if `wait`.
    pub(crate) fn next(&self, mut wait: bool) -> Next {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return Next::End;
            }
            if let Some(unit) = state.units.pop_front() {
                state.taken.insert(unit.start, unit.end);
                // Only a planner that waits for room cares.
                let was_full = state.units.len() + 1 >= state.room;
                drop(state);
                if was_full {
                    self.changed.notify_all();
                }
                return Next::Unit(unit);
            }
            if state.closed {
                return Next::End;
            }
            if !wait {
                return Next::Empty;
            }
            let waited = self.changed.wait_timeout(state, LOOK);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            wait = !timeout.timed_out();
        }
    }

    /// All of the unit that begins at `start` is in the target.
    pub(crate) fn finish(&self, start: u64) {
        self.lock().taken.remove(&start);
    }

    /// Stops everybody; the first error given is kept.
    pub(crate) fn stop(&self, error: Error) {
        let mut state = self.lock();
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
        self.lock().error.take()
    }

    /// The ranges up to `size` that are not known to be copied.
    pub(crate) fn left(&self, size: u64) -> Vec<Range<u64>> {
        let state = self.lock();
        let mut all: Vec<Range<u64>> = state.taken.iter().map(|(s, e)| *s..*e).collect();
        all.extend(state.units.iter().map(|u| u.start..u.end));
        all.push(state.planned..size);
        all.sort_by_key(|r| r.start);
        let mut left = Vec::new();
        for range in all {
            merge_range(&mut left, range);
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(start: u64, end: u64) -> Unit {
        Unit { start, end, stretches: Vec::new() }
    }

    #[test]
    fn what_is_not_finished_is_left() {
        let queue = Queue::default();
        assert_eq!(queue.left(100).first(), Some(&(0..100)));
        for i in 0..5 {
            queue.push(unit(i * 10, i * 10 + 10), WAITING);
        }
        for _ in 0..3 {
            assert!(matches!(queue.next(false), Next::Unit(_)));
        }
        queue.finish(0);
        queue.finish(20);
        assert_eq!(queue.left(100), [10..20, 30..100]);
        queue.stop(Error::invalid("no"));
        assert!(matches!(queue.next(true), Next::End));
        assert!(matches!(queue.push(unit(50, 60), WAITING), Push::Stopped));
        assert_eq!(queue.left(100), [10..20, 30..100]);
    }
}
