//! The room in a container: what is free, and what will be.
//!
//! What an image no longer refers to is not free at once. First its metadata have to say so
//! durably, or else after a power failure the old ones would lead to what was written there since.
//! Then nothing may see it any more: readers and writers that found it before hold a [`Lease`], and
//! so do the places that were given away. Until both is so it is in quarantine.
//!
//! All numbers are of units, in which the format gives out room. Which of them are used, the format
//! knows; here is only what was looked at.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak};

use runtime::RangeSet;

/// The right to look at, or to write to, what was in use when it was given.
pub(crate) type Lease = Arc<()>;

/// Ranges that are free are looked at for one that is long enough.
const LOOKED_AT: usize = 32;

/// The room.
pub(crate) struct Room {
    /// Nothing refers to these.
    free: RangeSet,
    /// Nor to these, but they are not free yet: their room is given back to the file.
    leaving: RangeSet,
    /// Those below were looked at.
    scanned: u64,
    /// From there on nothing is used.
    end: u64,
    /// There are no more.
    limit: u64,
    /// What is not referred to any more; perhaps more than once.
    dropped: Vec<Range<u64>>,
    /// What is durably not referred to any more, and the number of the first lease that was not
    /// given before.
    quarantine: VecDeque<(Range<u64>, u64)>,
    /// Units in it.
    held: u64,
    /// Leases by number, of which the first has the number `first`. The last one is `lease`.
    leases: VecDeque<Weak<()>>,
    first: u64,
    lease: Lease,
}

impl Room {
    /// Room that is used up to `end`, as far as is known, in a container of `limit`.
    pub(crate) fn new(end: u64, limit: u64) -> Self {
        let lease = Lease::default();
        Self {
            free: RangeSet::default(),
            leaving: RangeSet::default(),
            scanned: 0,
            end,
            limit,
            dropped: Vec::new(),
            quarantine: VecDeque::new(),
            held: 0,
            leases: [Arc::downgrade(&lease)].into(),
            first: 0,
            lease,
        }
    }

    /// The right to see what is in use now.
    pub(crate) fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// What has not been looked at: to be looked at from its beginning.
    pub(crate) fn unknown(&self) -> Range<u64> {
        self.scanned..self.end
    }

    /// All up to `to` was looked at, and nothing refers to these.
    pub(crate) fn looked_at(&mut self, to: u64, free: impl IntoIterator<Item = Range<u64>>) {
        debug_assert!(to >= self.scanned && to <= self.end);
        self.scanned = to;
        for range in free {
            self.free.add(range);
        }
        self.leaving.iter().for_each(|range| self.free.remove(range));
    }

    /// Up to `most` (≥ 1) units in a row that are free; they stay so. `None`: none is known.
    pub(crate) fn find_free(&self, most: u64) -> Option<Range<u64>> {
        let mut ranges = self.free.iter().take(LOOKED_AT);
        let first = self.free.iter().next()?;
        let found = ranges.find(|range| range.end - range.start >= most).unwrap_or(first);
        Some(found.start..found.end.min(found.start + most))
    }

    /// What is free, in order.
    pub(crate) fn free(&self) -> impl Iterator<Item = Range<u64>> {
        self.free.iter()
    }

    /// Up to `most` units after all that is used; `None`: there are none.
    pub(crate) fn find_end(&self, most: u64) -> Option<Range<u64>> {
        let range = self.end..self.end.saturating_add(most).min(self.limit);
        (!range.is_empty()).then_some(range)
    }

    /// They are used from now on.
    pub(crate) fn take(&mut self, range: &Range<u64>) {
        if range.end > self.end {
            // What lies between was not used, and is not known to be free.
            self.free.add(self.end..range.start);
            self.end = range.end;
        }
        if self.scanned >= range.start {
            self.scanned = self.scanned.max(range.end);
        }
        self.free.remove(range.clone());
    }

    /// Nothing refers to them any more, and they will be [given](Self::give).
    pub(crate) fn leave(&mut self, range: &Range<u64>) {
        self.leaving.add(range.clone());
    }

    /// They are free: nothing refers to them, and nothing sees them.
    pub(crate) fn give(&mut self, range: Range<u64>) {
        self.leaving.remove(range.clone());
        self.free.add(range);
    }

    /// The image no longer refers to these, once.
    pub(crate) fn drop_units(&mut self, range: Range<u64>) {
        match self.dropped.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.dropped.push(range),
        }
    }

    /// What was dropped since, for a caller that makes that durable now.
    pub(crate) fn dropped(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.dropped)
    }

    /// Takes back what could not be made durable.
    pub(crate) fn is_not_durable(&mut self, dropped: Vec<Range<u64>>) {
        self.dropped.extend(dropped);
    }

    /// It was made durable that these were dropped.
    pub(crate) fn is_durable(&mut self, dropped: Vec<Range<u64>>) {
        if dropped.is_empty() {
            return;
        }
        if Arc::strong_count(&self.lease) > 1 {
            self.lease = Lease::default();
            self.leases.push_back(Arc::downgrade(&self.lease));
        }
        let until = self.first + self.leases.len() as u64 - 1;
        for range in dropped {
            self.held += range.end - range.start;
            self.quarantine.push_back((range, until));
        }
    }

    /// What nothing sees any more, and was dropped durably. The caller looks whether it is free.
    pub(crate) fn unseen(&mut self) -> Vec<Range<u64>> {
        while self.leases.len() > 1 && self.leases.front().is_some_and(|l| l.strong_count() == 0) {
            self.leases.pop_front();
            self.first += 1;
        }
        let mut unseen = Vec::new();
        while let Some((range, _)) = self.quarantine.pop_front_if(|(_, until)| *until <= self.first)
        {
            self.held -= range.end - range.start;
            unseen.push(range);
        }
        unseen
    }

    /// What was dropped durably and may still be seen, for a caller that counts it and does not use
    /// it: the image is closed.
    pub(crate) fn still_seen(&mut self) -> Vec<Range<u64>> {
        self.held = 0;
        self.quarantine.drain(..).map(|(range, _)| range).collect()
    }

    /// Units in quarantine.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Whether something was dropped and is not free yet.
    pub(crate) fn owes(&self) -> bool {
        !self.dropped.is_empty() || !self.quarantine.is_empty()
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "ranges are what is counted")]
mod tests {
    use super::*;

    #[test]
    fn what_was_dropped_is_free_when_that_is_durable_and_nothing_sees_it() {
        let mut room = Room::new(10, 20);
        let (old, unseen) = (room.lease(), Vec::<Range<u64>>::new());
        room.drop_units(3..4);
        room.drop_units(4..5);
        assert_eq!(room.unseen(), unseen);
        let dropped = room.dropped();
        assert_eq!(dropped, [3..5]);
        room.is_durable(dropped);
        assert_eq!((room.unseen(), room.held()), (unseen, 2));
        let new = room.lease();
        drop(old);
        assert_eq!((room.unseen(), room.held()), (vec![3..5], 0));
        drop(new);
        assert!(!room.owes());
    }

    #[test]
    fn what_leaves_is_not_free_though_nothing_refers_to_it() {
        let mut room = Room::new(10, 10);
        room.leave(&(3..5));
        room.looked_at(10, [2..6]);
        assert_eq!(room.find_free(2), Some(2..3));
        room.give(3..5);
        assert_eq!(room.find_free(4), Some(2..6));
    }

    #[test]
    fn room_is_found_where_it_is_long_enough_and_ends_where_the_container_does() {
        let mut room = Room::new(10, 12);
        room.looked_at(10, [2..3, 5..8]);
        assert_eq!((room.find_free(2), room.find_free(9)), (Some(5..7), Some(2..3)));
        room.take(&(5..7));
        room.take(&(2..3));
        assert_eq!((room.find_free(2), room.find_end(9)), (Some(7..8), Some(10..12)));
        room.take(&(10..12));
        assert_eq!((room.find_end(1), room.unknown()), (None, 12..12));
    }
}
