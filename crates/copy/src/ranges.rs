//! Ranges that are to be zero in the target and are not yet asked for.
//!
//! Zeroes found in pieces that lie side by side become one request, in whatever order the
//! pieces arrive. Bounded: when too many ranges wait, or one has grown long, it leaves.

use std::collections::BTreeMap;

/// So many ranges may wait for their neighbours.
const WAITING: usize = 16;
/// A range this long gains nothing from growing.
const LONG: u64 = 64 << 20;

#[derive(Debug, Default)]
pub(crate) struct ZeroRanges(BTreeMap<u64, u64>);

impl ZeroRanges {
    /// Adds a range that touches none that waits; it is joined to those that it adjoins.
    /// Returns one that shall wait no longer.
    pub(crate) fn add(&mut self, offset: u64, len: u64) -> Option<(u64, u64)> {
        let (mut start, mut len) = (offset, len);
        if let Some(next) = self.0.remove(&(start + len)) {
            len += next;
        }
        if let Some((&before, &length)) = self.0.range(..start).next_back()
            && before + length == start
        {
            self.0.remove(&before);
            (start, len) = (before, length + len);
        }
        if len >= LONG {
            return Some((start, len));
        }
        self.0.insert(start, len);
        if self.0.len() > WAITING { self.0.pop_first() } else { None }
    }

    pub(crate) fn take(&mut self) -> Option<(u64, u64)> {
        self.0.pop_first()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_in_any_order() {
        let mut ranges = ZeroRanges::default();
        for at in [4u64, 0, 2, 3, 1] {
            assert_eq!(ranges.add(at * 10, 10), None);
        }
        assert_eq!(ranges.take(), Some((0, 50)));
        assert_eq!(ranges.take(), None);
    }

    #[test]
    fn long_ranges_and_too_many_leave() {
        let mut ranges = ZeroRanges::default();
        assert_eq!(ranges.add(100, 1 << 40), Some((100, 1 << 40)));
        let left = (0..20).filter_map(|i| ranges.add(i * 100, 10)).count();
        assert_eq!(left, 20 - WAITING);
    }
}
