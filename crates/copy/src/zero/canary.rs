//! Reads of a few places before the target is changed: of the source, to see that it can be read at
//! all, and of a target that is said to be zero.

use std::ops::Range;
use std::sync::mpsc::{Receiver, channel};

use device::{Buffer, Edge, Operation, Outcome, Result};

use crate::answer::{confused, heard, read_outcome};
use crate::pair::Pair;
use crate::progress::Cancel;

/// Bytes that are read to see that the source is readable.
const FIRST: u64 = 4 << 10;

/// Reads the beginning of a range of data.
pub(crate) fn read_first(pair: &Pair, cancel: &Cancel, data: Range<u64>) -> Result<()> {
    let end = data.end.min(data.start.saturating_add(FIRST.max(pair.sizes.grid)));
    read_all(&pair.source, cancel, std::slice::from_ref(&(data.start..end))).map(drop)
}

/// Reads all of them at the same time.
pub(crate) fn read_all(edge: &Edge, cancel: &Cancel, places: &[Range<u64>]) -> Result<Vec<Buffer>> {
    let under_way: Vec<_> = places.iter().map(|place| (place, start(edge, place))).collect();
    let ended = under_way.into_iter().map(|(place, told)| {
        let bytes = heard(&told, cancel)
            .and_then(|o| read_outcome(o, len(place)).ok_or(confused("device")));
        bytes.map_err(|e| e.on(&edge.info().name).at(place.start))
    });
    ended.collect()
}

fn start(edge: &Edge, place: &Range<u64>) -> Receiver<Result<Outcome>> {
    let (tell, told) = channel();
    let buffer = Buffer::zeroed(len(place));
    // The receiver has gone when another has failed.
    let done = move |outcome| drop(tell.send(outcome));
    edge.submit(Operation::Read { offset: place.start, buffer }, Box::new(done));
    told
}

fn len(place: &Range<u64>) -> usize {
    usize::try_from(place.end - place.start).unwrap_or(0)
}
