//! Which parts of a read have been answered, so that content can neither overlap nor be missing.
//!
//! Memory is proportional to the number of *gaps*, not of chunks: content that arrives in order
//! costs none. The number of ranges is capped, and each costs little, in whatever order they come.

use std::collections::BTreeMap;

use crate::error::PeerMisbehaved;

/// Most disjoint ranges that are tracked; no honest server comes near.
const MAX_RANGES: usize = 16_384;

/// The answered parts of a range of `length` bytes.
#[derive(Clone, Debug, Default)]
pub struct ReadCoverage {
    length: u64,
    /// Everything before it is answered.
    front: u64,
    /// Beyond that, disjoint and not adjacent: start and end, relative to the request's offset.
    ranges: BTreeMap<u64, u64>,
}

impl ReadCoverage {
    /// Nothing is answered yet of `length` bytes.
    pub const fn new(length: u64) -> Self {
        Self { length, front: 0, ranges: BTreeMap::new() }
    }

    /// Notes content of `length` bytes (not 0) at `start`, relative to the request's offset.
    ///
    /// # Errors
    ///
    /// It leaves the range, overlaps earlier content, or there are too many pieces. Nothing was
    /// noted.
    pub fn add(&mut self, start: u64, length: u64) -> Result<(), PeerMisbehaved> {
        if length == 0 || start > self.length || length > self.length - start {
            return Err(PeerMisbehaved::ContentOutOfRange);
        }
        let end = start + length;
        // The last one that begins before this ends; what lies before it ends before it begins.
        let previous = self.ranges.range(..end).next_back().map(|(begin, end)| (*begin, *end));
        if start < self.front || previous.is_some_and(|(_, previous_end)| previous_end > start) {
            return Err(PeerMisbehaved::ContentOverlap);
        }
        if start == self.front {
            self.front = self.ranges.remove(&end).unwrap_or(end);
            return Ok(());
        }
        let begin = previous.filter(|(_, previous_end)| *previous_end == start);
        let joins_next = self.ranges.contains_key(&end);
        if begin.is_none() && !joins_next && self.ranges.len() >= MAX_RANGES {
            return Err(PeerMisbehaved::ContentTooFragmented);
        }
        let end = self.ranges.remove(&end).unwrap_or(end);
        self.ranges.insert(begin.map_or(start, |(begin, _)| begin), end);
        Ok(())
    }

    /// Whether every byte has been answered.
    pub fn is_complete(&self) -> bool {
        self.front == self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_in_any_order_completes() {
        let mut coverage = ReadCoverage::new(10);
        for (start, length) in [(8, 2), (0, 3), (5, 3), (3, 2)] {
            assert!(!coverage.is_complete());
            coverage.add(start, length).unwrap();
        }
        assert!(coverage.is_complete());
        assert!(coverage.ranges.is_empty());
    }

    #[test]
    fn overlap_is_found_at_either_edge_and_inside() {
        let mut coverage = ReadCoverage::new(100);
        coverage.add(10, 10).unwrap();
        for (start, length) in [(9, 2), (19, 1), (12, 3), (0, 100), (10, 10)] {
            assert_eq!(coverage.add(start, length), Err(PeerMisbehaved::ContentOverlap));
        }
        coverage.add(20, 80).unwrap();
        coverage.add(0, 10).unwrap();
        assert!(coverage.is_complete());
    }

    #[test]
    fn ranges_outside_or_overflowing_are_refused() {
        let mut coverage = ReadCoverage::new(10);
        for (start, length) in [(10, 1), (0, 11), (u64::MAX, 1), (1, u64::MAX), (5, 0)] {
            assert_eq!(coverage.add(start, length), Err(PeerMisbehaved::ContentOutOfRange));
        }
    }

    #[test]
    fn the_number_of_ranges_is_limited() {
        let mut coverage = ReadCoverage::new(u64::MAX);
        let mut refused = None;
        for index in 0..40_000_u64 {
            if let Err(reason) = coverage.add(index * 2 + 1, 1) {
                refused = Some(reason);
                break;
            }
        }
        assert_eq!(refused, Some(PeerMisbehaved::ContentTooFragmented));
        assert_eq!(coverage.ranges.len(), MAX_RANGES);
    }

    #[test]
    fn content_in_the_worst_order_is_noted_as_in_any_other() {
        let count = 16_000_u64;
        let mut coverage = ReadCoverage::new(count * 2);
        // Every second byte, from the end; then the others from both ends.
        for index in (0..count).rev() {
            coverage.add(index * 2 + 1, 1).unwrap();
        }
        for index in 0..count / 2 {
            assert!(!coverage.is_complete());
            coverage.add(index * 2, 1).unwrap();
            assert_eq!(coverage.add(index * 2 + 1, 1), Err(PeerMisbehaved::ContentOverlap));
            coverage.add((count - 1 - index) * 2, 1).unwrap();
            assert_eq!(coverage.add(index * 2, 3), Err(PeerMisbehaved::ContentOverlap));
        }
        assert!(coverage.is_complete() && coverage.ranges.is_empty());
    }
}
