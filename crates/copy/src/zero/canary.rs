//! Reads of the source before the target is changed: whether it can be read at all, and whether the
//! target may be the same storage under another name.
//!
//! Two servers of one file, or a server of the file that is written, cannot be recognised by their
//! names. But if one place holds different bytes at the two ends, and the source does not change,
//! they are not the same disk. Still, they need not be independent: the source may be an overlay
//! over the target, which shows its bytes wherever it has none of its own. So the same bytes at
//! another place, zeroes apart, leave the question open; and if nothing differs, nothing is known.

use std::ops::Range;
use std::sync::mpsc::{Receiver, channel};

use device::{Buffer, Edge, Operation, Outcome, Result};

use crate::Ends;
use crate::answer::{confused, read_outcome};
use crate::pair::Pair;
use crate::path::Path;
use crate::progress::Cancel;
use crate::unit::Stretch;

/// Places that are compared, at most.
const PLACES: usize = 8;
/// Bytes that are compared at each.
const LONG: u64 = 64 << 10;
/// In pieces of this many bytes: an overlay may have a few blocks of its own.
const PIECE: usize = 4 << 10;
/// Bytes that are read to see that the source is readable.
const FIRST: u64 = 4 << 10;

/// Reads the beginning of a range of data.
pub(crate) fn read_first(pair: &Pair, cancel: &Cancel, data: Range<u64>) -> Result<()> {
    let end = data.end.min(data.start.saturating_add(FIRST.max(pair.sizes.grid)));
    read_all(&pair.source, cancel, std::slice::from_ref(&(data.start..end))).map(drop)
}

/// Places to compare: the beginnings of some data, which are not written yet.
pub(super) fn places(stretches: &[Stretch]) -> Vec<Range<u64>> {
    let data: Vec<&Stretch> = stretches.iter().filter(|s| !s.zero).collect();
    let every = data.len().div_ceil(PLACES).max(1);
    data.iter().step_by(every).map(|s| s.start..s.start + s.len.min(LONG)).collect()
}

/// Places to compare in a part of the source that may be data, and is not written yet.
pub(super) fn spread(pair: &Pair, range: &Range<u64>) -> Vec<Range<u64>> {
    let apart = (range.end - range.start) / PLACES as u64;
    let apart = (apart - apart % pair.sizes.grid).max(pair.sizes.grid);
    let starts = (0..PLACES as u64).filter_map(|i| range.start.checked_add(apart.checked_mul(i)?));
    starts.filter(|s| *s < range.end).map(|s| s..range.end.min(s.saturating_add(LONG))).collect()
}

/// Whether the two ends are known to be different storage, by the bytes at `places`.
pub(super) fn are_apart(pair: &Pair, cancel: &Cancel, places: &[Range<u64>]) -> Result<bool> {
    match pair.ends {
        Ends::Apart => return Ok(true),
        Ends::Same => return Ok(false),
        Ends::Unknown => {}
    }
    let before = read_all(&pair.source, cancel, places)?;
    // A target that cannot be read proves nothing.
    let Ok(there) = read_all(&pair.target, cancel, places) else { return Ok(false) };
    // A source that changes meanwhile would look like another disk.
    let after = read_all(&pair.source, cancel, places)?;
    let mut differ = false;
    for ((before, there), after) in before.iter().zip(&there).zip(&after) {
        let pieces = before.chunks(PIECE).zip(there.chunks(PIECE));
        if pieces.into_iter().any(|(a, b)| a == b && a.iter().any(|byte| *byte != 0)) {
            return Ok(false);
        }
        differ |= before[..] != there[..] && before[..] == after[..];
    }
    Ok(differ)
}

/// Reads all of them at the same time.
pub(super) fn read_all(path: &Path, cancel: &Cancel, places: &[Range<u64>]) -> Result<Vec<Buffer>> {
    path.ask(cancel, |edge| {
        let under_way: Vec<_> = places.iter().map(|place| (place, start(edge, place))).collect();
        let ended = under_way.into_iter().map(|(place, told)| {
            let outcome = told.recv().unwrap_or_else(|_| Err(confused("device")));
            let bytes = outcome.and_then(|o| read_outcome(o, len(place)).ok_or(confused("device")));
            bytes.map_err(|e| e.at(place.start))
        });
        ended.collect()
    })
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
