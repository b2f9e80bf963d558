//! Looking at the source before the target is changed: whether it can be read at all, and whether
//! the target may be the same storage under another name.
//!
//! Two servers of one file, or a server of the file that is written, cannot be recognised by their
//! names. But where one place holds different bytes at the two ends, and the source does not
//! change, they are not one. Where no such place is found, nothing is taken for granted.

use std::ops::Range;

use device::{Buffer, Edge, Result};

use crate::Ends;
use crate::job::Job;
use crate::plan::Stretch;

/// Places that are compared, at most.
const PLACES: usize = 4;
/// Bytes that are compared at each.
const LONG: u64 = 64 << 10;
/// Bytes that are read to see that the source can be.
const FIRST: u64 = 4 << 10;

/// Reads the beginning of the first data among `stretches`, if there is any.
pub(crate) fn read_first(job: &Job, stretches: &[Stretch]) -> Result<()> {
    let Some(data) = stretches.iter().find(|s| !s.zero) else { return Ok(()) };
    read(&job.source, &(data.start..data.start + data.len.min(FIRST.max(job.sizes.grid))))?;
    Ok(())
}

/// Places to compare: the beginnings of some data, which are not written yet.
pub(crate) fn places(stretches: &[Stretch]) -> Vec<Range<u64>> {
    let data: Vec<&Stretch> = stretches.iter().filter(|s| !s.zero).collect();
    let every = data.len().div_ceil(PLACES).max(1);
    data.iter().step_by(every).map(|s| s.start..s.start + s.len.min(LONG)).collect()
}

/// Places to compare in a part of the source that may hold anything, and is not written yet.
pub(crate) fn spread(job: &Job, range: &Range<u64>) -> Vec<Range<u64>> {
    let apart = (range.end - range.start) / PLACES as u64;
    let apart = (apart - apart % job.sizes.grid).max(job.sizes.grid);
    let starts = (0..PLACES as u64).filter_map(|i| range.start.checked_add(apart.checked_mul(i)?));
    starts.filter(|s| *s < range.end).map(|s| s..range.end.min(s.saturating_add(LONG))).collect()
}

/// Whether the two ends are known to be different storage, by the bytes at one of `places`.
pub(crate) fn are_apart(job: &Job, places: &[Range<u64>]) -> Result<bool> {
    match job.ends {
        Ends::Apart => return Ok(true),
        Ends::Same => return Ok(false),
        Ends::Unknown => {}
    }
    for place in places {
        let before = read(&job.source, place)?;
        // A target that cannot be read says nothing.
        let Ok(there) = read(&job.target, place) else { return Ok(false) };
        // A source that changes meanwhile would look like something else.
        if before[..] != there[..] && before[..] == read(&job.source, place)?[..] {
            return Ok(true);
        }
    }
    Ok(false)
}

fn read(edge: &Edge, place: &Range<u64>) -> Result<Buffer> {
    let len = usize::try_from(place.end - place.start).unwrap_or(0);
    let mut bytes = Buffer::zeroed(len);
    let read = edge.read(&mut bytes, place.start);
    read.map(|()| bytes).map_err(|e| e.on(&edge.info().name).at(place.start))
}
