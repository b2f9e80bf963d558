//! What is known of the target: where it read as zeroes before the copy, and where it was zeroed
//! in advance.
//!
//! It stays true while the copy runs, because a copy writes data only where the source has data,
//! and asks here only about other ranges. Unknown ranges are never called zero.

use std::ops::Range;

use runtime::RangeSet;

use crate::progress::Moved;

/// What is known of a part of the target.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum TargetState {
    /// The map was read, and calls it data.
    Data,
    /// Nothing was asked.
    Unknown,
    /// It reads as zeroes, and how it came to.
    Zero(Moved),
}

/// A part of the target with one kind of knowledge. Never empty.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct KnownRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) what: TargetState,
}

/// Everything known. All ranges in bytes.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The map of the target was read up to here.
    mapped: u64,
    /// What the map calls zero, below `mapped`.
    was: RangeSet,
    /// What was zeroed in advance.
    made: RangeSet,
}

impl Known {
    /// The map of `range`, which begins where it was read up to.
    pub(crate) fn mapped(&mut self, range: Range<u64>, zero: bool, block: u64) {
        self.mapped = range.end;
        // Only whole blocks can be left alone.
        let inner = range.start.next_multiple_of(block)..range.end - range.end % block;
        if zero {
            self.was.add(inner);
        }
    }

    pub(crate) fn made(&mut self, range: Range<u64>) {
        self.made.add(range);
    }

    /// Cuts a range into parts, in order.
    pub(crate) fn parts(&self, range: Range<u64>) -> Vec<KnownRange> {
        let zero = self.was.within(range.clone()).chain(self.made.within(range.clone()));
        let mut cuts: Vec<u64> = zero.flat_map(|r| [r.start, r.end]).collect();
        cuts.extend([self.mapped, range.end]);
        cuts.retain(|c| *c > range.start && *c <= range.end);
        cuts.sort_unstable();
        cuts.dedup();
        let mut parts: Vec<KnownRange> = Vec::new();
        let mut start = range.start;
        for end in cuts {
            let what = self.at(start);
            match parts.last_mut() {
                Some(last) if last.what == what => last.end = end,
                _ => parts.push(KnownRange { start, end, what }),
            }
            start = end;
        }
        parts
    }

    fn at(&self, offset: u64) -> TargetState {
        if self.made.covering(offset).is_some() {
            TargetState::Zero(Moved::Zeroed)
        } else if self.was.covering(offset).is_some() {
            TargetState::Zero(Moved::Skipped)
        } else if offset < self.mapped {
            TargetState::Data
        } else {
            TargetState::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_known_or_done_is_zero() {
        let mut known = Known::default();
        known.mapped(0..100, true, 10);
        known.mapped(100..200, false, 10);
        known.mapped(200..305, true, 10);
        known.made(150..170);
        let parts: Vec<_> = known.parts(50..400).iter().map(|p| (p.start, p.end, p.what)).collect();
        let (was, made) = (TargetState::Zero(Moved::Skipped), TargetState::Zero(Moved::Zeroed));
        assert_eq!(
            parts,
            [
                (50, 100, was),
                (100, 150, TargetState::Data),
                (150, 170, made),
                (170, 200, TargetState::Data),
                (200, 300, was),
                (300, 305, TargetState::Data),
                (305, 400, TargetState::Unknown)
            ]
        );
        assert_eq!(Known::default().parts(7..8)[0].what, TargetState::Unknown);
    }

    #[test]
    fn every_byte_is_in_one_part() {
        let mut known = Known::default();
        for i in 0..50 {
            known.mapped(i * 7..i * 7 + 7, i % 3 == 0, 4);
        }
        known.made(11..90);
        known.made(340..500);
        for range in [0..1, 3..600, 88..92, 349..351, 1000..1001] {
            let mut at = range.start;
            for part in known.parts(range.clone()) {
                assert!(part.start == at && part.end > at);
                for offset in part.start..part.end {
                    assert_eq!(known.at(offset), part.what, "{offset}");
                }
                at = part.end;
            }
            assert_eq!(at, range.end);
        }
    }
}
