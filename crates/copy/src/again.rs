//! Reads once more what was read of the source before its server was lost: the server that came back may have another disk, or
//! the same one with older bytes, and then the target would be a mixture.
//!
//! NBD has nothing by which a disk is recognised. Samples show another disk, but not one of which little has changed. So all that was
//! read before a loss is read again after it, holes by the map, and its sums are compared. This begins when all has been read, so
//! losses that follow cannot mix anything into the target: what was compared before them counts, and the rest goes on. Only a server
//! that goes back and forth between two disks could still pass. Where bytes are kept on the way (an image's tables, a cache) a second
//! read may show them again instead of the disk: then a loss ends the copy.

use std::ops::Range;
use std::sync::mpsc::channel;

use device::{Error, ErrorKind, Extent, Fault, Operation, Outcome, Result};

use crate::answer::confused;
use crate::pair::Pair;
use crate::path::heard;
use crate::plan::{Span, within};
use crate::progress::Cancel;
use crate::range_set::RangeSet;
use crate::sums::{SumPart, Sums};
use crate::zero::canary;

/// Bytes whose sums are compared at a time, at least a piece, and that are read at a time.
const STEP: u64 = 16 << 20;
/// Extents asked for at a time.
const EXTENTS: usize = 1024;

/// Compares what was read for `spans` in an earlier epoch of the source with what it holds now. Returns how many bytes that are, with
/// holes.
///
/// # Errors
/// They differ, or cannot be read.
pub(crate) fn check(
    pair: &Pair,
    (sums, spans): (&Sums, &[Span]),
    no_map: bool,
    cancel: &Cancel,
) -> Result<u64> {
    let asks = !no_map && pair.source.info().abilities.extents;
    let again = Rereading { pair, sums, spans, asks, cancel };
    let (mut done, mut bytes) = (RangeSet::default(), 0);
    loop {
        let left = sums.before(pair.source.epoch()).without(&done);
        if left.is_empty() {
            return Ok(bytes);
        }
        if pair.source.keeps_bytes() {
            return Err(again.untold());
        }
        for range in left.into_ranges() {
            bytes += again.pieces(range.clone())?;
            done.add(range);
        }
    }
}

struct Rereading<'a> {
    pair: &'a Pair,
    sums: &'a Sums,
    spans: &'a [Span],
    /// Whether the source is asked for its map.
    asks: bool,
    cancel: &'a Cancel,
}

impl Rereading<'_> {
    /// Compares whole pieces.
    fn pieces(&self, range: Range<u64>) -> Result<u64> {
        let (mut at, mut bytes) = (range.start, 0);
        while at < range.end {
            let end = range.end.min(self.sums.end_of(at, STEP));
            let now = at..end;
            let mut left = self.sums.of(&now);
            for span in within(self.spans, std::iter::once(now.clone())) {
                if !span.zero {
                    bytes += span.range.end - span.range.start;
                    self.span(span.range, |share| self.sums.subtract(&now, &mut left, share))?;
                }
            }
            if let Some(other) = left.iter().position(|sum| *sum != 0) {
                return Err(self.another(self.sums.start_of(&now, other)));
            }
            at = end;
        }
        Ok(bytes)
    }

    /// Reads the data of a span.
    fn span(&self, range: Range<u64>, mut take: impl FnMut(&SumPart)) -> Result<()> {
        let (mut at, source) = (range.start, &self.pair.source);
        while at < range.end {
            let (start, len) = (at, range.end - at);
            if !self.asks {
                return self.data(range, &mut take);
            }
            let extents: Vec<Extent> = source
                .ask(self.cancel, |edge| {
                    let (tell, told) = channel();
                    let map = Operation::Resolve { offset: start, len, max: EXTENTS };
                    edge.submit(map, Box::new(move |outcome| drop(tell.send(outcome))));
                    match heard(&told, self.cancel)? {
                        Outcome::Extents(extents) => Ok(extents),
                        _ => Err(confused("source's map")),
                    }
                })
                .map_err(|e| e.at(start))?;
            for extent in &extents {
                if !extent.kind.reads_zero() {
                    self.data(extent.start..extent.end().min(range.end), &mut take)?;
                }
                at = extent.end();
            }
            if at == start {
                return Err(confused("source's map"));
            }
        }
        Ok(())
    }

    fn data(&self, range: Range<u64>, take: &mut impl FnMut(&SumPart)) -> Result<()> {
        let request = self.pair.sizes.request;
        let (mut at, mut places) = (range.start, Vec::new());
        while at < range.end {
            let end = range.end.min(at - at % request + request);
            places.push(at..end);
            at = end;
        }
        let at_once = usize::try_from(STEP / request).unwrap_or(1).max(1);
        for places in places.chunks(at_once) {
            self.cancel.check()?;
            let read = canary::read_all(&self.pair.source, self.cancel, places)?;
            for (place, bytes) in places.iter().zip(&read) {
                take(&self.sums.share(place.start, bytes));
            }
        }
        Ok(())
    }

    fn untold(&self) -> Error {
        let action = "copy: the server was lost and came back, and through an image, or a filter that keeps bytes, what was \
                      read before cannot be compared with what is there now; copy it again";
        Error::new(ErrorKind::Changed, Fault::Peer, action).on(&self.pair.source.info().name)
    }

    fn another(&self, at: u64) -> Error {
        let action = "copy: the server was lost and came back with another disk: it holds other bytes than were read \
                      before";
        Error::new(ErrorKind::Changed, Fault::Peer, action).on(&self.pair.source.info().name).at(at)
    }
}
