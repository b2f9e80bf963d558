//! Comparing a disk with what it is to hold.

use std::ops::Range;

use device::{Buffer, Edge, Result, is_zero};

use crate::kit::below;

/// Bytes compared at a time.
const PIECE: usize = 4 << 20;

/// Extents asked for at a time.
const EXTENTS: usize = 1024;

/// The first byte that is another than in `data`, which begins at `offset`.
pub(crate) async fn first_difference(
    below: &Edge,
    offset: u64,
    data: &[u8],
) -> Result<Option<u64>> {
    let mut at = offset;
    for piece in data.chunks(PIECE) {
        let there = below::read(below, at, Buffer::zeroed(piece.len())).await?;
        if there[..] != *piece {
            let same = there.iter().zip(piece).take_while(|(a, b)| a == b);
            return Ok(Some(at + same.count() as u64));
        }
        at += piece.len() as u64;
    }
    Ok(None)
}

/// The first byte of a range that is not zero. Looks in the map first, and, if `in_map_only`, no
/// further: then it is the first that is not known to be zero.
pub(crate) async fn first_nonzero(
    below: &Edge,
    range: Range<u64>,
    in_map_only: bool,
) -> Result<Option<u64>> {
    let mut at = range.start;
    while at < range.end {
        for extent in below::resolve(below, at, range.end - at, EXTENTS).await? {
            if extent.kind.reads_zero() {
                at = extent.end();
            } else if in_map_only {
                return Ok(Some(at));
            }
            while at < extent.end() {
                let left = usize::try_from(extent.end() - at).unwrap_or(usize::MAX);
                let there = below::read(below, at, Buffer::zeroed(left.min(PIECE))).await?;
                if !is_zero(&there) {
                    let zeroes = there.iter().take_while(|b| **b == 0).count();
                    return Ok(Some(at + zeroes as u64));
                }
                at += there.len() as u64;
            }
        }
    }
    Ok(None)
}
