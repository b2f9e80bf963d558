//! All of the source, read for a witness and for nothing else: the target shares its blocks
//! already.

use std::ops::Range;

use device::{Extent, Result};

use crate::pair::Pair;
use crate::progress::Cancel;
use crate::witness::Witness;
use crate::zero::canary;
use crate::{Options, answer};

/// Extents asked for at a time.
const EXTENTS: usize = 1024;
/// Requests in flight at a time.
const MANY: usize = 16;

/// Shows the witness all of the source.
///
/// # Errors
/// It cannot be read, or the copy is to stop.
pub(crate) fn all(
    pair: &Pair,
    witness: &dyn Witness,
    options: &Options,
    cancel: &Cancel,
) -> Result<()> {
    let (source, size) = (&pair.source, pair.size);
    if options.no_extents || !source.info().abilities.extents {
        return data(pair, witness, cancel, 0..size);
    }
    let mut at = 0;
    while at < size {
        cancel.check()?;
        let (start, mut extents) = (at, Vec::<Extent>::new());
        let asked = source.resolve(start, size - start, EXTENTS, &mut extents);
        asked.map_err(|e| e.on(&source.info().name).at(start))?;
        for extent in &extents {
            at = extent.end().min(size);
            match extent.kind.reads_zero() {
                true => witness.zeroes(extent.start..at),
                false => data(pair, witness, cancel, extent.start..at)?,
            }
        }
        if at == start {
            return Err(answer::confused("source's map"));
        }
    }
    Ok(())
}

fn data(pair: &Pair, witness: &dyn Witness, cancel: &Cancel, range: Range<u64>) -> Result<()> {
    let request = pair.sizes.request;
    let mut at = range.start;
    while at < range.end {
        cancel.check()?;
        let mut places = Vec::new();
        while at < range.end && places.len() < MANY {
            let end = range.end.min(at - at % request + request);
            places.push(at..end);
            at = end;
        }
        let read = canary::read_all(&pair.source, cancel, &places)?;
        for (place, bytes) in places.iter().zip(&read) {
            witness.data(place.start, bytes);
        }
    }
    Ok(())
}
