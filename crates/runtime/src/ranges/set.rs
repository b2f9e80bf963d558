//! A set of bytes, or of other numbers, as ranges that do not touch.

use std::collections::BTreeMap;
use std::iter::once;
use std::ops::Range;

/// The ranges by their start, joined where they touch. None is empty.
///
/// Each method costs what the logarithm of the number of ranges does, and as much again for each
/// range that it meets. An empty range is in every set, and adding or removing it changes nothing.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    /// Adds a range. Returns the one that it is part of now.
    pub fn add(&mut self, range: Range<u64>) -> Range<u64> {
        if range.is_empty() {
            return range;
        }
        let Range { mut start, mut end } = range;
        while let Some((s, e)) = self.0.range(..=end).next_back().map(|(s, e)| (*s, *e)) {
            if e < start {
                break;
            }
            self.0.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.put(start, end);
        start..end
    }

    /// Adds all of another set.
    pub fn add_all(&mut self, other: &Self) {
        for range in other.iter() {
            self.add(range);
        }
    }

    /// Removes a range, or what there is of it.
    pub fn remove(&mut self, range: Range<u64>) {
        let met: Vec<_> = self.met(&range).collect();
        for Range { start, end } in met {
            self.0.remove(&start);
            if start < range.start {
                self.put(start, range.start);
            }
            if end > range.end {
                self.put(range.end, end);
            }
        }
    }

    /// A range that touches no other.
    fn put(&mut self, start: u64, end: u64) {
        debug_assert!(start < end, "{start}..{end} is empty");
        debug_assert!(self.0.range(..=end).next_back().is_none_or(|(_, e)| *e < start));
        self.0.insert(start, end);
    }

    /// Removes the first range.
    pub fn pop_first(&mut self) -> Option<Range<u64>> {
        self.0.pop_first().map(|(start, end)| start..end)
    }

    /// What is not in the other set.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        self.iter().flat_map(|range| other.gaps(range)).collect()
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }

    /// How many ranges there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    /// The ranges that have bytes in `range`, in order, and as long as they are.
    fn met(&self, range: &Range<u64>) -> impl DoubleEndedIterator<Item = Range<u64>> + use<'_> {
        let first = self.covering(range.start).filter(|_| !range.is_empty());
        let first = first.map_or(range.start, |first| first.start);
        self.0.range(first..range.end.max(first)).map(|(start, end)| *start..*end)
    }

    /// The range that has a byte in it.
    #[must_use]
    pub fn covering(&self, byte: u64) -> Option<Range<u64>> {
        let (start, end) = self.0.range(..=byte).next_back()?;
        (byte < *end).then_some(*start..*end)
    }

    /// Whether some bytes of `range` are in it.
    #[must_use]
    pub fn has_some_of(&self, range: &Range<u64>) -> bool {
        self.met(range).next().is_some()
    }

    /// The parts of `range` that are in it, in order.
    pub fn within(
        &self,
        range: Range<u64>,
    ) -> impl DoubleEndedIterator<Item = Range<u64>> + use<'_> {
        self.met(&range).map(move |met| met.start.max(range.start)..met.end.min(range.end))
    }

    /// The parts of `range` that are not in it, in order.
    pub fn gaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<'_> {
        let (mut at, end) = (range.start, range.end);
        let parts = self.within(range).chain(once(end..end));
        let gaps = parts.map(move |part| std::mem::replace(&mut at, part.end)..part.start);
        gaps.filter(|gap| !gap.is_empty())
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = Self::default();
        for range in ranges {
            set.add(range);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 64;

    /// The slow reference: each byte for itself.
    #[derive(Clone, Default)]
    struct Plain(Vec<u64>);

    impl Plain {
        fn change(&mut self, range: &Range<u64>, add: bool) {
            self.0.retain(|byte| !range.contains(byte));
            self.0.extend(range.clone().filter(|_| add));
            self.0.sort_unstable();
        }

        /// The ranges of the bytes that are `there`, and in `range`.
        fn ranges(&self, range: &Range<u64>, there: bool) -> Vec<Range<u64>> {
            let mut ranges: Vec<Range<u64>> = Vec::new();
            for byte in range.clone().filter(|byte| self.0.contains(byte) == there) {
                match ranges.last_mut() {
                    Some(last) if last.end == byte => last.end += 1,
                    _ => ranges.push(byte..byte + 1),
                }
            }
            ranges
        }
    }

    /// Some are empty, and some end before they begin.
    fn any_range() -> impl Strategy<Value = Range<u64>> {
        (0..SIZE, 0..14u64)
            .prop_map(|(start, len)| start..(start + len).saturating_sub(2).min(SIZE))
    }

    fn changed(steps: &[(Range<u64>, bool)]) -> (RangeSet, Plain) {
        let (mut set, mut plain) = (RangeSet::default(), Plain::default());
        for (range, add) in steps {
            plain.change(range, *add);
            if *add {
                let joined = set.add(range.clone());
                assert!(range.is_empty() || set.covering(range.start) == Some(joined));
            } else {
                set.remove(range.clone());
            }
        }
        (set, plain)
    }

    proptest! {
        #[test]
        fn a_set_of_ranges_is_one_of_bytes(
            steps in prop::collection::vec((any_range(), prop::bool::weighted(0.7)), 0..24),
            others in prop::collection::vec((any_range(), Just(true)), 0..6),
            range in any_range(),
        ) {
            let ((set, plain), (other, out)) = (changed(&steps), changed(&others));
            // Each range there is one of the longest: none touches another.
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), plain.ranges(&(0..SIZE), true));
            prop_assert_eq!(set.within(range.clone()).collect::<Vec<_>>(), plain.ranges(&range, true));
            prop_assert_eq!(set.gaps(range.clone()).collect::<Vec<_>>(), plain.ranges(&range, false));
            prop_assert_eq!(set.has_some_of(&range), !plain.ranges(&range, true).is_empty());
            prop_assert_eq!(set.covering(range.start).is_some(), plain.0.contains(&range.start));
            prop_assert_eq!((set.len(), set.is_empty()), (plain.0.len() as u64, plain.0.is_empty()));
            let left: RangeSet =
                plain.0.iter().filter(|byte| !out.0.contains(byte)).map(|byte| *byte..byte + 1).collect();
            prop_assert_eq!(set.without(&other), left);
            let mut both = set.clone();
            both.add_all(&other);
            prop_assert_eq!(both.without(&other), set.without(&other));
            let (mut rest, count) = (set.clone(), set.count());
            prop_assert_eq!(rest.pop_first(), set.iter().next());
            prop_assert_eq!(rest.count(), count.saturating_sub(1));
        }
    }

    #[test]
    fn the_last_bytes_of_all_are_bytes_like_others() {
        let mut set: RangeSet = [0..3, u64::MAX - 2..u64::MAX].into_iter().collect();
        assert_eq!(
            set.gaps(0..u64::MAX).collect::<Vec<_>>(),
            vec![Range { start: 3, end: u64::MAX - 2 }]
        );
        assert_eq!(set.within(2..u64::MAX).count(), 2);
        set.remove(1..u64::MAX);
        assert_eq!((set.covering(u64::MAX), set.len()), (None, 1));
    }
}
