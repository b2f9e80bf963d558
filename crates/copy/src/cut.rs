//! Cutting the map of the source: into stretches on a grid, and those into units.
//!
//! Stretches begin and end on the grid (the coarser of the two ends' minimum block sizes), except
//! at the end of the source; where the map does not, the block counts as data. Data is cut so that
//! small disks keep all workers busy; zeroes cost nothing to plan and are one stretch however long
//! they are, unless the target can only write them. Data that the target shares cost nothing
//! either: a run of them is one stretch, the last one of its unit, so that a worker whose target
//! refuses can give it back in pieces.

use std::ops::Range;

use device::Extent;

use crate::unit::{Stretch, Unit};

/// Stretches in a unit, so that the queue is bounded in bytes.
const STRETCHES: usize = 256;
/// Most bytes to share in one request: that takes the system seconds at worst, and cannot be
/// stopped meanwhile.
const SHARED: u64 = 16 << 30;

/// Moves the edges of extents onto the grid, within a range that lies on it.
pub(crate) struct Grid {
    grid: u64,
    /// The end of the range.
    end: u64,
    /// All before this has been returned.
    emitted: u64,
}

impl Grid {
    pub(crate) fn new(grid: u64, range: &Range<u64>) -> Self {
        Self { grid, end: range.end, emitted: range.start }
    }

    /// The stretches that `extent`, which begins where the last ended, adds.
    pub(crate) fn align(&mut self, extent: Extent) -> [Option<Stretch>; 2] {
        let end = extent.end();
        let floor = if end >= self.end { self.end } else { end - end % self.grid };
        if !extent.kind.reads_zero() {
            return [self.emit(floor, false, Some(&extent)), None];
        }
        // A block that is zero only in part is data, in full.
        let start = extent.start.next_multiple_of(self.grid).min(self.end);
        if start >= floor {
            // The block in progress ends here, or with the disk.
            return [self.emit(floor, false, None), None];
        }
        let before = self.emit(start, false, None);
        [before, self.emit(floor, true, None)]
    }

    fn emit(&mut self, end: u64, zero: bool, data: Option<&Extent>) -> Option<Stretch> {
        let start = self.emitted;
        if end <= start {
            return None;
        }
        self.emitted = end;
        // The place is that of the extent; a block begun in another extent is not there.
        let place = data.filter(|e| e.start <= start).and_then(|e| {
            let by = start - e.start;
            e.place.as_ref().map(|p| p.advanced(by))
        });
        Some(Stretch { start, len: end - start, zero, place })
    }
}

/// Gathers stretches into units.
pub(crate) struct Cutter {
    unit: u64,
    /// Zeroes take as long as data.
    zeroes_cost: bool,
    gathered: Vec<Stretch>,
    cost: u64,
    /// The last of them is longer than a unit.
    may_return: bool,
}

impl Cutter {
    pub(crate) fn new(unit: u64, zeroes_cost: bool) -> Self {
        Self { unit, zeroes_cost, gathered: Vec::new(), cost: 0, may_return: false }
    }

    /// Adds a stretch; returns the units that became full, one at a time. Whether the target
    /// `shares` what lies in a file: then a run of it is not cut.
    pub(crate) fn add(
        &mut self,
        stretch: Stretch,
        shares: bool,
    ) -> impl Iterator<Item = Unit> + '_ {
        let mut rest = Some(stretch);
        std::iter::from_fn(move || {
            while let Some(mut stretch) = rest.take() {
                let costs = !stretch.zero || self.zeroes_cost;
                let unit = if shares && stretch.place.is_some() { SHARED } else { self.unit };
                // Cuts lie at multiples of the unit, so that reads in long data are aligned.
                let room = unit - stretch.start % unit;
                let cut = costs && stretch.len > room;
                if cut {
                    let first = stretch.split(room);
                    rest = Some(stretch);
                    stretch = first;
                }
                if costs {
                    self.cost += stretch.len;
                }
                self.may_return = shares && stretch.place.is_some() && stretch.len > self.unit;
                self.gather(stretch);
                if cut || self.cost >= self.unit || self.gathered.len() >= STRETCHES {
                    return self.finish();
                }
            }
            None
        })
    }

    /// Adjoining data without a place are read together: a map may list each compressed cluster by
    /// itself.
    fn gather(&mut self, stretch: Stretch) {
        let is_read = |s: &Stretch| !s.zero && s.place.is_none();
        match self.gathered.last_mut() {
            Some(last) if is_read(last) && is_read(&stretch) && last.end() == stretch.start => {
                last.len += stretch.len;
            }
            _ => self.gathered.push(stretch),
        }
    }

    /// The unit that has gathered, full or not.
    pub(crate) fn finish(&mut self) -> Option<Unit> {
        self.cost = 0;
        let stretches = std::mem::take(&mut self.gathered);
        let (start, end) = (stretches.first()?.start, stretches.last()?.end());
        Some(Unit { start, end, stretches, may_return: std::mem::take(&mut self.may_return) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::ExtentKind;

    fn aligned(grid: u64, size: u64, ends: &[(u64, bool)]) -> Vec<(u64, u64, bool)> {
        let mut grid = Grid::new(grid, &(0..size));
        let (mut at, mut out) = (0, Vec::new());
        for (end, zero) in ends {
            let kind = if *zero { ExtentKind::Hole } else { ExtentKind::Data };
            for s in grid.align(Extent::new(at, end - at, kind)).into_iter().flatten() {
                out.push((s.start, s.len, s.zero));
            }
            at = *end;
        }
        out
    }

    #[test]
    fn a_block_that_is_zero_only_in_part_is_data() {
        let out = aligned(512, 3000, &[(100, false), (1500, true), (1600, false), (3000, true)]);
        assert_eq!(
            out,
            [
                (0, 512, false),
                (512, 512, true),
                (1024, 512, false),
                (1536, 512, false),
                (2048, 952, true)
            ]
        );
    }

    #[test]
    fn many_small_extents_in_one_block_are_one_block_of_data() {
        let out = aligned(512, 1000, &[(10, true), (20, false), (30, true), (1000, true)]);
        assert_eq!(out, [(0, 512, false), (512, 488, true)]);
        let out = aligned(512, 600, &[(10, true), (20, false), (600, false)]);
        assert_eq!(out, [(0, 600, false)]);
    }

    #[test]
    fn a_hole_in_the_last_block_only_ends_it_as_data() {
        let out = aligned(512, 1024, &[(600, false), (1024, true)]);
        assert_eq!(out, [(0, 512, false), (512, 512, false)]);
        let out = aligned(512, 600, &[(590, false), (600, true)]);
        assert_eq!(out, [(0, 512, false), (512, 88, false)]);
    }

    #[test]
    fn data_of_many_extents_is_read_together_unless_it_lies_somewhere() {
        let mut cutter = Cutter::new(1 << 20, false);
        let at = |i: u64, zero| Stretch { start: i << 16, len: 1 << 16, zero, place: None };
        let mut units: Vec<_> =
            (0..20).flat_map(|i| cutter.add(at(i, i == 18), true).collect::<Vec<_>>()).collect();
        units.extend(cutter.finish());
        let lens: Vec<Vec<_>> =
            units.iter().map(|unit| unit.stretches.iter().map(|s| s.len >> 16).collect()).collect();
        assert_eq!(lens, [vec![16], vec![2, 1, 1]]);
        let file = std::fs::File::open("/dev/null").unwrap();
        let place = device::Place::new(std::sync::Arc::new(file.into()), 0);
        let lying = Stretch { place: Some(place), ..at(1, false) };
        assert_eq!(cutter.add(at(0, false), true).count() + cutter.add(lying, true).count(), 0);
        assert_eq!(cutter.finish().unwrap().stretches.len(), 2);
    }

    #[test]
    fn a_run_that_is_shared_is_whole_and_ends_its_unit() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let place = device::Place::new(std::sync::Arc::new(file.into()), 7 << 30);
        let run = Stretch { start: 4096, len: 40 << 30, zero: false, place: Some(place) };
        let mut cutter = Cutter::new(1 << 20, false);
        let lens = |units: Vec<Unit>| -> Vec<Vec<u64>> {
            units.iter().map(|u| u.stretches.iter().map(|s| s.len).collect()).collect()
        };
        let before = Stretch { start: 0, len: 4096, zero: false, place: None };
        assert_eq!(cutter.add(before, true).count(), 0);
        let cut = lens(cutter.add(run.clone(), true).collect());
        let first = SHARED - 4096;
        assert_eq!(cut, [vec![4096, first], vec![SHARED], vec![(40 << 30) - first - SHARED]]);
        assert_eq!(cutter.add(run, false).count(), 40 << 10);
    }

    #[test]
    fn units_cover_all_and_data_is_cut_but_zeroes_are_not() {
        let mut cutter = Cutter::new(1 << 20, false);
        let data = Stretch { start: 4096, len: 10 << 20, zero: false, place: None };
        let zero = Stretch { start: data.end(), len: 1 << 50, zero: true, place: None };
        let mut units: Vec<_> = cutter.add(data, false).collect();
        units.extend(cutter.add(zero, false));
        units.extend(cutter.finish());
        let mut at = 4096;
        for unit in &units {
            assert_eq!(unit.start, at);
            for s in &unit.stretches {
                assert_eq!(s.start, at);
                at = s.end();
            }
            assert_eq!(unit.end, at);
        }
        assert_eq!(at, 4096 + (10 << 20) + (1 << 50));
        assert_eq!(units.len(), 11);
    }
}
