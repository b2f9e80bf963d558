//! Data that a connection knows of, on a disk whose map cannot be read without waiting. A read
//! there needs no look at the map.
//!
//! Holes are never remembered: another program may fill one at any time. Stale data only costs a
//! read of zeroes.

use std::collections::VecDeque;

use device::{Extent, ExtentKind};

/// How many runs of data are remembered.
const RUNS: usize = 32;
/// How far beyond what is needed the map is asked for, in bytes: at first, and at most where all of
/// it has been data. The answer may be many extents long, so not more than proves useful.
const AHEAD: (u64, u64) = (1 << 20, 1 << 30);

/// Runs of data, the latest first.
#[derive(Debug)]
pub(crate) struct KnownData {
    runs: VecDeque<(u64, u64)>,
    ahead: u64,
}

impl Default for KnownData {
    fn default() -> Self {
        Self { runs: VecDeque::new(), ahead: AHEAD.0 }
    }
}

impl KnownData {
    /// Whether all of a range is data, as far as is known.
    pub(super) fn has(&self, offset: u64, len: u64) -> bool {
        self.runs.iter().any(|(start, end)| *start <= offset && offset + len <= *end)
    }

    /// How much of the map to ask for, to know that of `len` bytes.
    pub(super) fn to_ask(&self, len: u64) -> u64 {
        len.max(self.ahead)
    }

    /// Remembers the map of `len` bytes. An extent with a place is not remembered: it is worth a
    /// look each time.
    pub(super) fn learn(&mut self, len: u64, extents: &[Extent]) {
        let data = extents.iter().filter(|e| e.kind == ExtentKind::Data);
        let all: u64 = data.clone().map(|e| e.len).sum();
        self.ahead = if all == len { self.ahead.saturating_mul(4).min(AHEAD.1) } else { AHEAD.0 };
        for extent in data.filter(|e| e.place.is_none()) {
            self.add(extent.start, extent.end());
        }
    }

    fn add(&mut self, mut start: u64, mut end: u64) {
        self.runs.retain(|run| {
            let touches = run.0 <= end && start <= run.1;
            if touches {
                (start, end) = (start.min(run.0), end.max(run.1));
            }
            !touches
        });
        self.runs.truncate(RUNS - 1);
        self.runs.push_front((start, end));
    }

    /// A range may have become a hole.
    pub(super) fn forget(&mut self) {
        self.runs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_data_is_remembered_and_runs_that_touch_are_one() {
        let mut known = KnownData::default();
        let extent = |start, len, kind| Extent::new(start, len, kind);
        known.learn(30, &[extent(0, 10, ExtentKind::Data), extent(10, 20, ExtentKind::Hole)]);
        assert!(known.has(3, 7) && !known.has(3, 8) && !known.has(10, 1));
        known.learn(20, &[extent(20, 20, ExtentKind::Data)]);
        known.learn(10, &[extent(10, 10, ExtentKind::Data)]);
        assert!(known.has(0, 40) && known.runs.len() == 1);
        known.forget();
        assert!(!known.has(0, 1));
        let file = rustix::fs::memfd_create("known", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let place = device::Place::new(std::sync::Arc::new(file), 0);
        known.learn(10, &[extent(0, 10, ExtentKind::Data).at(Some(place))]);
        assert!(!known.has(0, 10), "its place would be forgotten");
    }

    #[test]
    fn more_is_asked_for_where_all_is_data_and_little_where_it_is_not() {
        let mut known = KnownData::default();
        for _ in 0..20 {
            let len = known.to_ask(1000);
            known.learn(len, &[Extent::new(0, len, ExtentKind::Data)]);
        }
        assert_eq!((known.to_ask(1), known.to_ask(2 << 30)), (AHEAD.1, 2 << 30));
        known.learn(2, &[Extent::new(0, 1, ExtentKind::Zero), Extent::new(1, 1, ExtentKind::Data)]);
        assert_eq!(known.to_ask(1), AHEAD.0);
    }

    #[test]
    fn however_much_is_told_little_is_remembered() {
        let mut known = KnownData::default();
        for n in 0..1000 {
            known.learn(5, &[Extent::new(n * 10, 5, ExtentKind::Data)]);
        }
        assert!(known.runs.len() == RUNS && known.has(9990, 5) && !known.has(0, 1));
    }
}
