//! Cuts a disk by its map into shards of about equal work: bytes of data, since holes cost nothing.

use std::ops::Range;

use device::{Edge, Result};

/// Extents asked for at a time.
const MANY: usize = 1024;

/// A range of a disk, and the bytes of data in it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct CutRange {
    pub(super) range: Range<u64>,
    pub(super) data: u64,
}

/// The bytes of data in each cell of so many bytes, by the map of a disk.
pub(super) fn data_in_cells(disk: &Edge, cell: u64) -> Result<Vec<u64>> {
    let size = disk.info().size;
    let mut cells = vec![0; usize::try_from(size.div_ceil(cell)).unwrap_or(0)];
    let (mut at, mut extents) = (0, Vec::new());
    while at < size {
        disk.resolve(at, size - at, MANY, &mut extents).map_err(|e| e.at(at))?;
        for extent in extents.drain(..) {
            let range = at..extent.end().min(size);
            at = range.end;
            if !extent.kind.reads_zero() {
                add(&mut cells, cell, range);
            }
        }
    }
    Ok(cells)
}

fn add(cells: &mut [u64], cell: u64, Range { mut start, end }: Range<u64>) {
    while start < end {
        let number = start / cell;
        let next = (number + 1).saturating_mul(cell).min(end);
        let found = usize::try_from(number).ok().and_then(|number| cells.get_mut(number));
        if let Some(found) = found {
            *found += next - start;
        }
        start = next;
    }
}

/// Cuts a disk of `size` bytes, between cells, into as many ranges as hold about `wanted` bytes of
/// data each. They cover all of it.
pub(super) fn cut(cells: &[u64], (cell, size): (u64, u64), wanted: u64) -> Vec<CutRange> {
    let total: u64 = cells.iter().sum();
    let count = total.div_ceil(wanted.max(1)).max(1);
    let (mut found, mut start, mut before, mut data) = (Vec::new(), 0, 0, 0);
    for (number, here) in cells.iter().enumerate() {
        data += here;
        let end = u64::try_from(number + 1).unwrap_or(u64::MAX).saturating_mul(cell).min(size);
        // The n-th of them ends where n parts of all data lie below.
        let next = found.len() as u64 + 1;
        let is_full = u128::from(data) * u128::from(count) >= u128::from(total) * u128::from(next);
        if (is_full && next < count && data > before) || end == size {
            found.push(CutRange { range: start..end, data: data - before });
            (start, before) = (end, data);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cover_the_disk_and_hold_about_the_same_data() {
        let cell = 4 << 20;
        for (cells, wanted, count) in [
            (vec![cell; 64], 16 * cell, 4),
            (vec![cell; 64], 15 * cell, 5),
            (vec![cell; 64], u64::MAX, 1),
            (vec![0; 64], 1, 1),
            ([vec![0; 100], vec![cell; 10], vec![0; 100]].concat(), 5 * cell, 2),
            ([vec![cell], vec![0; 9], vec![cell]].concat(), cell, 2),
            (vec![1], 1, 1),
        ] {
            let size = cells.len() as u64 * cell - 17;
            let shards = cut(&cells, (cell, size), wanted);
            assert_eq!(shards.len(), count, "{cells:?}");
            let total: u64 = cells.iter().sum();
            let mut at = 0;
            for shard in &shards {
                assert_eq!(shard.range.start, at);
                assert!(shard.range.end > at && shard.data <= wanted.saturating_add(cell));
                assert!(shard.data + cell >= total / count as u64, "{shards:?}");
                at = shard.range.end;
            }
            assert_eq!(at, size);
            assert_eq!(shards.iter().map(|shard| shard.data).sum::<u64>(), total);
        }
        assert!(cut(&[], (cell, 0), 1).is_empty());
    }

    #[test]
    fn data_is_counted_in_the_cells_that_it_lies_in() {
        let mut cells = vec![0; 3];
        add(&mut cells, 10, 5..25);
        add(&mut cells, 10, 29..99);
        assert_eq!(cells, [5, 10, 6]);
    }
}
