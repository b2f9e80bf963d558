//! Ranges written to a target that may forget them, until they are durable.
//!
//! A range is written in an *epoch* of the target, and durable when a flush that began later has
//! succeeded in the same epoch. When the epoch grows, the server may have forgotten all that was
//! written and is not durable; that counts as lost, and is copied once more: the source is still
//! there. A flush every few GiB bounds how much that is, and a path that breaks sooner is flushed
//! sooner. A caller may be told what has become durable, and wish for more flushes
//! ([`Durably`]). Then what was written and is not noted is bounded, too: while a flush takes its
//! time, no more is begun than the next flush covers.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use device::{Edge, Result};

use crate::options::Durably;
use crate::progress::{LOOK, Moved};
use runtime::{Condvar, Mutex, RangeSet};

/// Bytes of data after which the target is made durable.
const EVERY: u64 = 4 << 30;
/// Bytes that a request without data counts as.
const REQUEST: u64 = 4 << 10;

/// The account of one target.
pub(crate) struct Ledger {
    target: Edge,
    state: Mutex<State>,
    /// It is time for a flush.
    due: AtomicBool,
    /// No more is to be begun for now. Set and cleared with the state locked.
    full: AtomicBool,
    noted: Condvar,
    durably: Option<Durably>,
}

#[derive(Debug)]
struct State {
    epoch: u64,
    /// Written in this epoch, and not durable.
    written: RangeSet,
    /// Written before the flush that is in flight began, and in which epoch.
    flushing: Option<(RangeSet, u64)>,
    /// The caller notes what the last flush made durable.
    noting: bool,
    /// Written in an earlier epoch.
    lost: RangeSet,
    /// The epoch has grown since the result of the last flush.
    grown: bool,
    /// Bytes of data since the last flush began.
    unflushed: u64,
    /// Bytes of data in this epoch.
    carried: u64,
    /// Bytes of data after which a flush is due, and the fewest that this may be.
    every: u64,
    least: u64,
    /// Bytes that became durable.
    durable: u64,
}

impl Ledger {
    /// `least`: bytes of data that are always worth a flush.
    pub(crate) fn new(target: &Edge, least: u64, durably: Option<&Durably>) -> Self {
        let mut state = State::new(target.device().epoch(), least);
        if let Some(durably) = durably {
            state.every = state.every.min(durably.every.max(least));
        }
        let (state, durably) = (Mutex::new(state), durably.cloned());
        let (due, full) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { target: target.clone(), state, due, full, noted: Condvar::new(), durably }
    }

    /// A range is right in the target, by a request that began in the epoch `began`.
    pub(crate) fn written(&self, range: Range<u64>, how: Moved, began: u64) {
        let cost = match how {
            Moved::Copied => range.end - range.start,
            Moved::Zeroed => REQUEST,
            Moved::Skipped => 0,
        };
        let mut state = self.state.lock();
        if state.written(range, cost, began, self.target.device().epoch()) {
            self.due.store(true, Relaxed);
        }
        if self.durably.is_some() && state.is_full() {
            self.full.store(true, Relaxed);
        }
    }

    /// Whether no more should be begun until what a flush covers is noted.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Relaxed)
    }

    /// Waits a moment until more may be begun.
    pub(crate) fn wait(&self) {
        let state = self.state.lock();
        if self.is_full() {
            drop(self.noted.wait_timeout(state, LOOK));
        }
    }

    /// A range may be changed at any time by a request whose fate is not known.
    pub(crate) fn doubt(&self, range: Range<u64>) {
        self.state.lock().lost.add(range);
    }

    /// Whether the target should be flushed now: true once, for the first caller.
    pub(crate) fn is_due(&self) -> bool {
        self.due.load(Relaxed) && self.due.swap(false, Relaxed) && self.begin()
    }

    /// A flush begins; false if one is in flight.
    pub(crate) fn begin(&self) -> bool {
        self.state.lock().begin(self.target.device().epoch())
    }

    /// The flush has ended.
    ///
    /// # Errors
    /// The flush failed, unless writes were lost since the last one, which explains the failure; or
    /// the caller could not note what became durable.
    pub(crate) fn ended(&self, outcome: Result<()>) -> Result<()> {
        let vouched = outcome.is_ok();
        let (lost, durable) = self.state.lock().ended(vouched, self.target.device().epoch());
        if let Some(durably) = self.durably.as_ref().filter(|_| !durable.is_empty()) {
            durably.tell(&durable)?;
        }
        let mut state = self.state.lock();
        state.noting = false;
        self.full.store(false, Relaxed);
        drop(state);
        self.noted.notify_all();
        if lost { Ok(()) } else { outcome }
    }

    /// The ranges to copy once more, in order and apart.
    pub(crate) fn take_lost(&self) -> RangeSet {
        let mut state = self.state.lock();
        state.advance(self.target.device().epoch());
        let now = state.epoch;
        // From a flush whose result was never received.
        if let Some((flushing, _)) = state.flushing.take_if(|(_, epoch)| *epoch != now) {
            state.lost.add_all(&flushing);
        }
        std::mem::take(&mut state.lost)
    }

    /// How many bytes have become durable so far.
    pub(crate) fn durable(&self) -> u64 {
        self.state.lock().durable
    }
}

impl State {
    fn new(epoch: u64, least: u64) -> Self {
        let none = RangeSet::default;
        let (every, least) = (EVERY.max(least), least.max(1));
        let (written, lost, flushing) = (none(), none(), None);
        let (unflushed, carried, durable, grown, noting) = (0, 0, 0, false, false);
        Self {
            epoch,
            written,
            flushing,
            noting,
            lost,
            grown,
            unflushed,
            carried,
            every,
            least,
            durable,
        }
    }

    /// The target is in the epoch `now`.
    fn advance(&mut self, now: u64) {
        if now > self.epoch {
            self.lost.add_all(&std::mem::take(&mut self.written));
            self.every = self.every.min((self.carried / 2).max(self.least));
            (self.epoch, self.carried, self.unflushed) = (now, 0, 0);
            self.grown = true;
        }
    }

    /// Whether a flush is due.
    fn written(&mut self, range: Range<u64>, cost: u64, began: u64, now: u64) -> bool {
        self.advance(now);
        debug_assert!(range.start <= range.end && began <= self.epoch, "written in the future");
        if began == self.epoch {
            self.written.add(range);
        } else {
            self.lost.add(range);
        }
        self.carried = self.carried.saturating_add(cost);
        self.unflushed = self.unflushed.saturating_add(cost);
        // After a loss at once: few writes should depend on a flush that fails because of it.
        !self.is_busy() && (self.grown || self.unflushed >= self.every)
    }

    /// A flush is in flight, or what it made durable is being noted.
    fn is_busy(&self) -> bool {
        self.flushing.is_some() || self.noting
    }

    /// The next flush, which has to wait, has enough to cover.
    fn is_full(&self) -> bool {
        self.is_busy() && self.unflushed >= self.every
    }

    fn begin(&mut self, now: u64) -> bool {
        self.advance(now);
        if self.is_busy() {
            return false;
        }
        self.flushing = Some((std::mem::take(&mut self.written), self.epoch));
        self.unflushed = 0;
        true
    }

    /// Whether the flushed ranges are lost, and those that became durable.
    fn ended(&mut self, vouched: bool, now: u64) -> (bool, RangeSet) {
        self.advance(now);
        let mut durable = RangeSet::default();
        let Some((flushed, epoch)) = self.flushing.take() else { return (false, durable) };
        let same = epoch == self.epoch;
        debug_assert!(epoch <= self.epoch, "a flush of a later epoch");
        // One that fails after a loss may fail because of that, or for another reason.
        let lost = !same || !vouched && self.grown;
        if lost {
            self.lost.add_all(&flushed);
        } else if vouched {
            self.durable = self.durable.saturating_add(flushed.len());
            durable = flushed;
            self.noting = true;
        } else {
            self.written.add_all(&flushed);
        }
        if lost && !vouched {
            self.lost.add_all(&std::mem::take(&mut self.written));
        }
        self.grown &= !same;
        (lost, durable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(state: &mut State) -> Vec<(u64, u64)> {
        std::mem::take(&mut state.lost).iter().map(|r| (r.start, r.end)).collect()
    }

    /// A flush ended, and what it made durable is noted.
    fn ended(state: &mut State, vouched: bool, now: u64) -> (bool, RangeSet) {
        let ended = state.ended(vouched, now);
        state.noting = false;
        ended
    }

    #[test]
    fn what_was_not_durable_when_the_epoch_grew_is_lost() {
        let mut state = State::new(3, 1);
        state.written(0..10, 10, 3, 3);
        assert!(state.begin(3) && !state.begin(3));
        state.written(10..20, 10, 3, 3);
        assert!(!ended(&mut state, true, 3).0);
        state.written(20..30, 10, 3, 4);
        assert_eq!(lost(&mut state), [(10, 30)]);
        state.written(30..40, 10, 4, 4);
        state.advance(5);
        assert_eq!((lost(&mut state), state.durable), (vec![(30, 40)], 10));
    }

    #[test]
    fn a_flush_covers_only_its_own_epoch() {
        let mut state = State::new(0, 1);
        state.written(0..10, 10, 0, 0);
        state.begin(0);
        assert!(ended(&mut state, true, 1).0);
        assert_eq!(lost(&mut state), [(0, 10)]);
        state.begin(1);
        assert!(!ended(&mut state, true, 1).0);
        // A failed flush proves nothing, and one in another epoch proves nothing about any write.
        state.written(0..10, 10, 1, 1);
        state.begin(1);
        assert!(!ended(&mut state, false, 1).0);
        state.begin(1);
        state.written(10..20, 10, 2, 2);
        assert!(ended(&mut state, false, 2).0);
        assert_eq!(lost(&mut state), [(0, 20)]);
    }

    #[test]
    fn one_flush_may_fail_for_each_loss() {
        let mut state = State::new(0, 1);
        state.written(0..10, 10, 0, 0);
        state.advance(1);
        state.written(10..20, 10, 1, 1);
        state.begin(1);
        assert!(ended(&mut state, false, 1).0);
        assert_eq!(lost(&mut state), [(0, 20)]);
        state.begin(1);
        assert!(!ended(&mut state, false, 1).0);
    }

    #[test]
    fn what_a_flush_made_durable_is_told_once() {
        let mut state = State::new(0, 1);
        state.written(0..10, 10, 0, 0);
        assert!(state.begin(0));
        state.written(10..20, 10, 0, 0);
        let told = |(_, durable): (bool, RangeSet)| {
            durable.iter().map(|range| (range.start, range.end)).collect::<Vec<_>>()
        };
        assert_eq!(told(ended(&mut state, true, 0)), [(0, 10)]);
        assert!(state.begin(0));
        assert_eq!(told(ended(&mut state, false, 0)), []);
        assert!(state.begin(0));
        assert_eq!(told(ended(&mut state, true, 1)), [], "in an epoch that has ended");
        state.written(20..30, 10, 1, 1);
        assert!(state.begin(1));
        assert_eq!(told(ended(&mut state, true, 1)), [(20, 30)]);
    }

    #[test]
    fn what_is_written_while_a_flush_is_noted_is_what_the_next_one_covers_at_most() {
        let mut state = State::new(0, 1);
        state.every = 10;
        assert!(!state.written(0..5, 5, 0, 0) && state.written(5..10, 5, 0, 0));
        assert!(!state.is_full(), "the flush can begin");
        assert!(state.begin(0));
        assert!(!state.written(10..15, 5, 0, 0) && !state.is_full());
        assert!(!state.written(15..20, 5, 0, 0), "one flush at a time");
        assert!(state.is_full());
        assert!(!state.ended(true, 0).1.is_empty());
        assert!(state.is_full() && !state.begin(0), "it is not noted yet");
        state.noting = false;
        assert!(!state.is_full() && state.begin(0));
    }

    #[test]
    fn a_path_that_breaks_often_is_flushed_often() {
        let mut state = State::new(0, 100);
        assert!(!state.written(0..1 << 30, 1 << 30, 0, 0));
        assert!(state.written(0..1000, 1000, 1, 1), "at once after a loss");
        assert!(state.begin(1));
        assert!(!ended(&mut state, true, 1).0);
        assert!(!state.written(0..1000, 1000, 1, 1));
        assert!(state.written(0..1 << 29, 1 << 29, 1, 1));
        state.advance(2);
        state.advance(3);
        assert_eq!(state.every, 100);
    }
}
