//! Which parts of a read have been answered, so that content can neither overlap nor be missing.
//!
//! Memory is proportional to the number of *gaps*, not of chunks: content that arrives in order
//! costs one range. The number of ranges is capped.

use crate::error::PeerMisbehaved;

/// Most disjoint ranges that are tracked; no honest server comes near.
const MAX_RANGES: usize = 16_384;

/// The answered parts of a range of `length` bytes.
#[derive(Clone, Debug, Default)]
pub struct ReadCoverage {
    length: u64,
    /// Disjoint, not adjacent, ascending: start and end, relative to the request's offset.
    ranges: Vec<(u64, u64)>,
}

impl ReadCoverage {
    /// Nothing is answered yet of `length` bytes.
    pub const fn new(length: u64) -> Self {
        Self { length, ranges: Vec::new() }
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
        let after = self.ranges.partition_point(|&(begin, _)| begin < end);
        let before = after.checked_sub(1);
        let previous = before.and_then(|at| self.ranges.get(at)).copied();
        if previous.is_some_and(|(_, previous_end)| previous_end > start) {
            return Err(PeerMisbehaved::ContentOverlap);
        }
        let next = self.ranges.get(after).copied();
        let joins_previous = previous.filter(|&(_, previous_end)| previous_end == start);
        let joins_next = next.filter(|&(begin, _)| begin == end);
        match (joins_previous, joins_next) {
            (Some((begin, _)), Some((_, next_end))) => {
                self.ranges.remove(after);
                self.put(after - 1, (begin, next_end));
            }
            (Some((begin, _)), None) => self.put(after - 1, (begin, end)),
            (None, Some((_, next_end))) => self.put(after, (start, next_end)),
            (None, None) if self.ranges.len() >= MAX_RANGES => {
                return Err(PeerMisbehaved::ContentTooFragmented);
            }
            (None, None) => self.ranges.insert(after, (start, end)),
        }
        Ok(())
    }

    /// Whether every byte has been answered.
    pub fn is_complete(&self) -> bool {
        self.length == 0 || self.ranges == [(0, self.length)]
    }

    fn put(&mut self, at: usize, range: (u64, u64)) {
        if let Some(slot) = self.ranges.get_mut(at) {
            *slot = range;
        }
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
        assert_eq!(coverage.ranges.len(), 1);
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
    fn the_number_of_ranges_is_capped() {
        let mut coverage = ReadCoverage::new(u64::MAX);
        let mut refused = None;
        for index in 0..40_000_u64 {
            if let Err(reason) = coverage.add(index * 2, 1) {
                refused = Some(reason);
                break;
            }
        }
        assert_eq!(refused, Some(PeerMisbehaved::ContentTooFragmented));
        assert_eq!(coverage.ranges.len(), MAX_RANGES);
    }
}
