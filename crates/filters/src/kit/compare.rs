//! Comparing a disk with what it is to hold.

use std::collections::VecDeque;
use std::ops::Range;

use device::{Buffer, Edge, Operation, Outcome, Result, is_zero};
use runtime::{StepBudget, to_usize};

use crate::kit::below;

/// Bytes of one read.
const PIECE: u64 = 256 << 10;
/// Reads in flight at a time.
const WIDTH: usize = 16;
/// Extents asked for at a time.
const EXTENTS: usize = 1024;

/// The first byte of these ranges that is another than in `data`, which begins at `offset`.
pub(crate) async fn first_difference(
    below: &Edge,
    ranges: &[Range<u64>],
    offset: u64,
    data: &[u8],
) -> Result<Option<u64>> {
    let look = |at: u64, there: &[u8]| {
        let wanted = data.get(to_usize(at - offset)..).unwrap_or_default();
        let same = || there.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        (!wanted.starts_with(there)).then(same)
    };
    first_found(below, ranges, look).await
}

/// The first byte of these ranges that is not zero. Looks in the map first, and, if `in_map_only`,
/// no further: then it is the first that is not known to be zero.
pub(crate) async fn first_nonzero(
    below: &Edge,
    ranges: &[Range<u64>],
    in_map_only: bool,
) -> Result<Option<u64>> {
    let look =
        |_, there: &[u8]| (!is_zero(there)).then(|| there.iter().take_while(|b| **b == 0).count());
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            let map = below::resolve(below, at, range.end - at, EXTENTS).await?;
            at = map.last().map_or(range.end, |extent| extent.end());
            let unknown = map.iter().filter(|extent| !extent.kind.reads_zero());
            let unknown: Vec<_> = unknown.map(|extent| extent.start..extent.end()).collect();
            let found = match unknown.first() {
                Some(first) if in_map_only => Some(first.start),
                _ => first_found(below, &unknown, look).await?,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
    }
    Ok(None)
}

/// Reads ranges, and shows the bytes to `look` in this order, each piece with its offset. Returns
/// the first byte that it finds.
async fn first_found(
    below: &Edge,
    ranges: &[Range<u64>],
    mut look: impl FnMut(u64, &[u8]) -> Option<usize>,
) -> Result<Option<u64>> {
    let mut pieces = ranges.iter().flat_map(|range| {
        let starts =
            (0..(range.end - range.start).div_ceil(PIECE)).map(|i| range.start + i * PIECE);
        starts.map(|at| (at, to_usize(PIECE.min(range.end - at))))
    });
    let (mut coming, mut found) = (VecDeque::new(), Ok(None));
    let mut budget = StepBudget::default();
    loop {
        while coming.len() < WIDTH
            && matches!(found, Ok(None))
            && let Some((offset, len)) = pieces.next()
        {
            budget.spend(below.pool()).await;
            let read = Operation::Read { offset, buffer: Buffer::zeroed(len) };
            coming.push_back((offset, len, below::submit(below, read)));
        }
        // After a find or a failure what is in flight is waited for.
        let Some((at, len, read)) = coming.pop_front() else { return found };
        let read = below::ended(read).await;
        if let Ok(None) = found {
            found = match read {
                Ok(Outcome::Read(there)) if there.len() == len => {
                    Ok(look(at, &there).map(|i| at + i as u64))
                }
                Ok(_) => Err(below::confused()),
                Err(e) => Err(e),
            };
        }
    }
}
