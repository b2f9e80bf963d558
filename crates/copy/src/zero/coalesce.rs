//! Ranges that are to be zeroed in the target, before they are sent.
//!
//! Zeroes found in pieces that lie side by side become one request, in whatever order the
//! pieces arrive and whichever worker finds them. Bounded: when too many ranges wait, the first
//! leaves; one that has grown as long as any request leaves too.

use std::ops::Range;

use runtime::{Mutex, RangeSet};

/// Most ranges that may wait for their neighbours.
const MOST: usize = 16;
/// The same where a caller notes what has become durable: a stretch of which some zeroes wait is
/// not, and is copied once more after a kill.
const FEW: usize = 2;
/// A range this long gains nothing from growing: it is as much as most servers take at once.
const LONG: u64 = 4 << 30;

/// Shared by the workers.
#[derive(Debug)]
pub(crate) struct Coalescer {
    state: Mutex<State>,
    most: usize,
}

impl Default for Coalescer {
    fn default() -> Self {
        Self { state: Mutex::default(), most: MOST }
    }
}

#[derive(Debug, Default)]
struct State {
    waiting: RangeSet,
    /// How many have left.
    left: usize,
    /// Workers that may still find zeroes.
    finders: usize,
}

impl Coalescer {
    /// One in which few ranges wait.
    pub(crate) fn of_few() -> Self {
        Self { most: FEW, ..Self::default() }
    }

    /// One more worker looks for zeroes.
    pub(crate) fn enter(&self) {
        self.state.lock().finders += 1;
    }

    /// A worker will add no more. The last one gets all ranges that wait.
    pub(crate) fn leave(&self) -> Vec<Range<u64>> {
        let mut state = self.state.lock();
        state.finders = state.finders.saturating_sub(1);
        if state.finders > 0 {
            return Vec::new();
        }
        let all = std::mem::take(&mut state.waiting);
        state.left += all.count();
        all.iter().collect()
    }

    /// Adds a range that touches none that waits; it is joined to those that it adjoins. Returns
    /// one that is to wait no longer.
    pub(crate) fn add(&self, range: Range<u64>) -> Option<Range<u64>> {
        let mut state = self.state.lock();
        let joined = state.waiting.add(range);
        if joined.end - joined.start >= LONG {
            state.left += 1;
            state.waiting.remove(joined.clone());
            return Some(joined);
        }
        if state.waiting.count() <= self.most {
            return None;
        }
        state.left += 1;
        state.waiting.pop_first()
    }

    /// How many ranges there were so far that did not touch.
    pub(crate) fn found(&self) -> usize {
        let state = self.state.lock();
        state.left + state.waiting.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_in_any_order() {
        let ranges = Coalescer::default();
        ranges.enter();
        for at in [4u64, 0, 2, 3, 1] {
            assert_eq!(ranges.add(at * 10..at * 10 + 10), None);
        }
        assert_eq!(ranges.found(), 1);
        assert_eq!(ranges.leave().first(), Some(&(0..50)));
    }

    #[test]
    fn long_ranges_and_too_many_leave() {
        let ranges = Coalescer::default();
        ranges.enter();
        assert_eq!(ranges.add(100..1 << 40), Some(100..1 << 40));
        let left = (0..20).filter_map(|i| ranges.add(i * 100..i * 100 + 10)).count();
        assert_eq!(left, 20 - MOST);
        assert_eq!(ranges.leave().len(), MOST);
        assert_eq!(ranges.found(), 21);
    }

    #[test]
    fn what_waits_goes_to_the_worker_that_is_last() {
        let ranges = Coalescer::default();
        ranges.enter();
        ranges.enter();
        ranges.add(0..10);
        assert!(ranges.leave().is_empty());
        ranges.add(10..20);
        assert_eq!(ranges.leave().first(), Some(&(0..20)));
    }
}
