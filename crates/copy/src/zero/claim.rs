//! A claim about the target: the user says that it reads as zeroes, so it is not zeroed. A wrong
//! claim would leave old bytes between the new ones, so it is checked at samples before anything is
//! changed: both ends, places beside the source's data (where an earlier copy would have left
//! something), and places spread over all of it.
//!
//! It is a sample: old bytes between the places are not seen.

use std::ops::Range;

use device::{Error, ErrorKind, Extent, Fault, Order, Result, samples};

use super::canary;
use crate::pair::Pair;
use crate::progress::Cancel;

/// Most places to read.
const PLACES: usize = 64;
/// Of those, the ones beside data.
const BESIDE: usize = 32;
/// Bytes that are read at each.
const LONG: u64 = 4 << 10;
/// Extents of the source's map in which data is looked for.
const EXTENTS: usize = 1024;

/// Reads samples of a target that is said to read as zeroes. Where nothing relies on that, nothing
/// is read.
///
/// # Errors
/// A sample is not zero, with the offset of its first such byte; or it could not be read.
pub(crate) fn check(pair: &Pair, cancel: &Cancel, no_extents: bool) -> Result<()> {
    if pair.size == 0 || pair.target.info().order != Order::Any {
        return Ok(());
    }
    let beside = if no_extents { Vec::new() } else { beside_data(pair)? };
    let places = places(pair.size, &beside);
    let read = canary::read_all(&pair.target, cancel, &places)?;
    for (place, bytes) in places.iter().zip(&read) {
        if let Some(at) = bytes.iter().position(|byte| *byte != 0) {
            let action = "--target-is-zero: the target does not read as zeroes";
            let error = Error::new(ErrorKind::Mismatch, Fault::User, action);
            return Err(error.on(&pair.target.info().name).at(place.start + at as u64));
        }
    }
    Ok(())
}

/// Where holes of the source touch its data.
fn beside_data(pair: &Pair) -> Result<Vec<u64>> {
    if !pair.source.info().abilities.extents {
        return Ok(Vec::new());
    }
    let mut extents = Vec::new();
    match pair.source.resolve(0, pair.size, EXTENTS, &mut extents) {
        Ok(()) => Ok(edges(&extents)),
        // Without a map, the other places must be enough.
        Err(e) if e.is_unsupported() => Ok(Vec::new()),
        Err(e) => Err(e.on(&pair.source.info().name)),
    }
}

fn edges(extents: &[Extent]) -> Vec<u64> {
    let pairs = extents.windows(2).filter_map(|pair| match pair {
        [one, next] if one.kind.reads_zero() != next.kind.reads_zero() => {
            Some(if next.kind.reads_zero() { next.start } else { next.start.saturating_sub(LONG) })
        }
        _ => None,
    });
    pairs.collect()
}

/// Both ends, some of those `beside` data, and others spread over all of `size` bytes (≥ 1).
fn places(size: u64, beside: &[u64]) -> Vec<Range<u64>> {
    let every = beside.len().div_ceil(BESIDE).max(1);
    let mut starts: Vec<u64> = beside.iter().copied().step_by(every).collect();
    // Not at round offsets only, where a disk has its headers.
    starts.extend(samples(size, LONG, (PLACES - starts.len()) as u64 - 1));
    starts.sort_unstable();
    starts.dedup();
    starts.into_iter().map(|at| at..size.min(at.saturating_add(LONG))).collect()
}

#[cfg(test)]
mod tests {
    use device::ExtentKind;

    use super::*;

    #[test]
    fn the_places_are_few_inside_the_disk_and_at_both_ends() {
        for size in [1, 511, 4096, 4097, 1 << 20, (1 << 40) + 3, i64::MAX.cast_unsigned()] {
            for beside in [0, 1, 5, 1000] {
                let step = size / 1001;
                let beside: Vec<u64> = (0..beside).map(|i| i * step).collect();
                let places = places(size, &beside);
                assert!(places.len() <= PLACES && !places.is_empty());
                assert!(places.iter().all(|p| p.start < p.end && p.end <= size), "{size}");
                assert_eq!((places[0].start, places[places.len() - 1].end), (0, size));
                assert!(
                    beside.len() > BESIDE
                        || beside.iter().all(|b| { places.iter().any(|place| place.start == *b) })
                );
            }
        }
        assert_eq!(places(1 << 30, &[]).len(), PLACES);
    }

    #[test]
    fn old_bytes_are_looked_for_where_data_begins_and_ends() {
        let (data, hole, zero) = (ExtentKind::Data, ExtentKind::Hole, ExtentKind::Zero);
        let kinds = [(0, 8192, data), (8192, 8192, hole), (16384, 100, zero), (16484, 10, data)];
        let map: Vec<_> = kinds.iter().map(|(at, n, kind)| Extent::new(*at, *n, *kind)).collect();
        assert_eq!(edges(&map), [8192, 16484 - 4096]);
    }
}
