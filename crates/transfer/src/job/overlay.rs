//! What is copied into an overlay: what the source itself holds. What comes from below it is left
//! alone, and is read from the target's backing image, which, as the user says, holds the same.

use copy::{Cancel, CopyPlan, ListedRange, RangeFate};
use device::{Edge, Result};

use super::range;

/// Extents asked for at a time.
const MANY: usize = 1024;

/// A plan for a target over a disk of `below` bytes. Behind the end of that disk the overlay would
/// read as zeroes, so there all layers are copied, except what is zero anyway.
pub(super) fn plan(source: &Edge, target: &Edge, below: u64, cancel: &Cancel) -> Result<CopyPlan> {
    let size = source.info().size;
    let grid = range::grid(source, target);
    let mut list: Vec<ListedRange> = Vec::new();
    let (mut at, mut extents) = (0, Vec::new());
    while at < size {
        cancel.check()?;
        source.resolve(at, size - at, MANY, &mut extents).map_err(|e| e.at(at))?;
        for extent in extents.drain(..) {
            at = extent.end();
            let start = match (extent.depth, extent.kind.reads_zero()) {
                (0, _) => extent.start,
                (_, false) => extent.start.max(below),
                (_, true) => at,
            };
            if start >= at {
                continue;
            }
            let (start, end) = (start - start % grid, at.next_multiple_of(grid).min(size));
            match list.last_mut() {
                Some(last) if start <= last.range.end => last.range.end = last.range.end.max(end),
                _ => list.push(ListedRange { range: start..end, kind: RangeFate::Data }),
            }
        }
    }
    Ok(CopyPlan::List(list))
}
