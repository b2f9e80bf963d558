//! A set of bytes: ranges that do not touch.

use std::collections::BTreeMap;
use std::ops::Range;

/// The ranges by their start, joined where they touch. None is empty.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    pub(crate) fn add(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        if start >= end {
            return;
        }
        while let Some((s, e)) = self.0.range(..=end).next_back().map(|(s, e)| (*s, *e)) {
            if e < start {
                break;
            }
            self.0.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.0.insert(start, end);
    }

    pub(crate) fn add_all(&mut self, other: Self) {
        other.into_ranges().for_each(|range| self.add(range));
    }

    /// What is not in the other set.
    pub(crate) fn without(self, other: &Self) -> Self {
        let mut left = Self::default();
        for Range { mut start, end } in self.into_ranges() {
            let before = other.0.range(..=start).next_back().map(|(s, _)| *s);
            for (s, e) in other.0.range(before.unwrap_or(start)..end) {
                left.add(start..(*s).max(start));
                start = start.max(*e);
            }
            left.add(start..end);
        }
        left
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// In order.
    pub(crate) fn into_ranges(self) -> impl Iterator<Item = Range<u64>> {
        self.0.into_iter().map(|(start, end)| start..end)
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = Self::default();
        ranges.into_iter().for_each(|range| set.add(range));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_was_added_is_there_once() {
        let mut seed = 7u64;
        let mut below = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % n
        };
        for _ in 0..200 {
            let (mut set, mut bytes) = (RangeSet::default(), [false; 64]);
            for _ in 0..below(12) {
                let start = below(60);
                let end = 64.min(start + below(6));
                set.add(start..end);
                (start..end).for_each(|i| bytes[usize::try_from(i).unwrap()] = true);
            }
            let (mut other, mut rest) = (RangeSet::default(), bytes);
            for _ in 0..below(6) {
                let (start, end) = (below(64), below(64));
                other.add(start..end);
                (start..end).for_each(|i| rest[usize::try_from(i).unwrap()] = false);
            }
            let left: Vec<_> = set.clone().without(&other).into_ranges().collect();
            assert!((0..).zip(rest).all(|(i, r)| left.iter().any(|l| l.contains(&i)) == r));
            assert_eq!(set.len(), bytes.iter().map(|b| u64::from(*b)).sum::<u64>());
            let ranges: Vec<_> = set.clone().into_ranges().collect();
            assert!(ranges.windows(2).all(|w| w[0].end < w[1].start), "{ranges:?}");
            for (i, there) in (0..).zip(bytes) {
                assert_eq!(ranges.iter().any(|r| r.contains(&i)), there, "{i} in {ranges:?}");
            }
        }
    }
}
