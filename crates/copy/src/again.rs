//! Reads once more what was read of the source before its server was lost: the server that came
//! back may have another disk, or the same one with older bytes, and then the target would be a
//! mixture.
//!
//! NBD has nothing by which a disk is recognised. Samples show another disk, but not one of which
//! little has changed. So all that was read before a loss is read again after it, holes by the map,
//! and its sums are compared. This begins when all has been read, so losses that follow cannot mix
//! anything into the target: what was compared before them counts, and the rest goes on. Only a
//! server that goes back and forth between two disks could still pass.
//!
//! Where bytes are kept on the way (an image's tables, a cache) a second read could show them again
//! instead of the disk, and what was read since may have been found by tables of the disk that was
//! there before. There the source is opened anew, and all that was read is compared with what it
//! shows then; a caller that cannot open it again (`Options::anew`) loses the copy.

use std::ops::Range;
use std::sync::mpsc::channel;

use device::{Edge, Error, ErrorKind, Fault, Operation, Outcome, Result};

use crate::Options;
use crate::answer::{confused, heard};
use crate::pair::Pair;
use crate::plan::{Span, within};
use crate::progress::Cancel;
use crate::sums::{SumPart, Sums};
use crate::zero::canary;
use runtime::RangeSet;

/// Bytes whose sums are compared at a time, at least a piece, and that are read at a time.
const STEP: u64 = 16 << 20;
/// Extents asked for at a time.
const EXTENTS: usize = 1024;
/// How often a source that is lost again while it is compared is opened anew.
const TIMES: usize = 16;

/// Compares what was read for `spans` in an earlier epoch of the source with what it holds now.
/// Returns how many bytes that are, with holes.
///
/// # Errors
/// They differ, or cannot be read.
pub(crate) fn check(
    pair: &Pair,
    (sums, spans): (&Sums, &[Span]),
    options: &Options,
    cancel: &Cancel,
) -> Result<u64> {
    if !is_due(pair, sums) {
        return Ok(0);
    }
    let reader = |source| Rereading {
        source,
        request: pair.sizes.request,
        sums,
        spans,
        asks: !options.no_extents && pair.source.info().abilities.extents,
        cancel,
    };
    if !pair.source.device().keeps_bytes() {
        return reader(pair.source.clone()).until_all_is_of_now();
    }
    let Some(anew) = &options.anew else { return Err(untold(&pair.source.info().name)) };
    for _ in 0..TIMES {
        cancel.check()?;
        let source = anew.open()?;
        if source.info().size != pair.size {
            return Err(another(&pair.source.info().name));
        }
        let bytes = reader(source.clone()).pieces_of(&sums.all())?;
        // Nor lost while it was opened.
        if source.device().epoch() == 0 {
            return Ok(bytes);
        }
    }
    let action = "copy: the server was lost repeatedly while the source was compared";
    Err(Error::new(ErrorKind::Disconnected, Fault::Peer, action).on(&pair.source.info().name))
}

/// Whether there is something to compare: something was read before the source was lost. Where
/// bytes are kept on the way, tables may have been, at any time since it was opened in epoch 0.
pub(crate) fn is_due(pair: &Pair, sums: &Sums) -> bool {
    let epoch = pair.source_epoch();
    pair.source.device().keeps_bytes() && epoch > 0 || !sums.before(epoch).is_empty()
}

fn untold(name: &str) -> Error {
    let action = "copy: the server was lost and reconnected, and through an image, or a filter \
                  that keeps bytes, earlier reads cannot be compared with the current contents; \
                  copy it again";
    Error::new(ErrorKind::Changed, Fault::Peer, action).on(name)
}

fn another(name: &str) -> Error {
    let action = "copy: the server was lost and reconnected with another disk: its contents \
                  differ from earlier reads";
    Error::new(ErrorKind::Changed, Fault::Peer, action).on(name)
}

struct Rereading<'a> {
    source: Edge,
    /// Bytes in a request.
    request: u64,
    sums: &'a Sums,
    spans: &'a [Span],
    /// Whether the source is asked for its map.
    asks: bool,
    cancel: &'a Cancel,
}

impl Rereading<'_> {
    /// Compares what was read in earlier epochs, until there is none.
    fn until_all_is_of_now(&self) -> Result<u64> {
        let (mut done, mut bytes) = (RangeSet::default(), 0);
        loop {
            let left = self.sums.before(self.source.device().epoch()).without(&done);
            if left.is_empty() {
                return Ok(bytes);
            }
            bytes += self.pieces_of(&left)?;
            done.add_all(&left);
        }
    }

    fn pieces_of(&self, ranges: &RangeSet) -> Result<u64> {
        ranges.iter().try_fold(0, |bytes, range| Ok(bytes + self.pieces(range)?))
    }

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
                let at = self.sums.start_of(&now, other);
                return Err(another(&self.source.info().name).at(at));
            }
            at = end;
        }
        Ok(bytes)
    }

    /// Reads the data of a span.
    fn span(&self, range: Range<u64>, mut take: impl FnMut(&SumPart)) -> Result<()> {
        let (mut at, source) = (range.start, &self.source);
        while at < range.end {
            let (start, len) = (at, range.end - at);
            if !self.asks {
                return self.data(range, &mut take);
            }
            let (tell, told) = channel();
            let map = Operation::Resolve { offset: start, len, max: EXTENTS };
            source.submit(map, Box::new(move |outcome| drop(tell.send(outcome))));
            let answer = heard(&told, self.cancel);
            let extents = match answer.map_err(|e| e.on(&source.info().name).at(start))? {
                Outcome::Extents(extents) => extents,
                _ => return Err(confused("source's map")),
            };
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
        let request = self.request;
        let (mut at, mut places) = (range.start, Vec::new());
        while at < range.end {
            let end = range.end.min(at - at % request + request);
            places.push(at..end);
            at = end;
        }
        let at_once = usize::try_from(STEP / request).unwrap_or(1).max(1);
        for places in places.chunks(at_once) {
            self.cancel.check()?;
            let read = canary::read_all(&self.source, self.cancel, places)?;
            for (place, bytes) in places.iter().zip(&read) {
                take(&self.sums.share(place.start, bytes));
            }
        }
        Ok(())
    }
}
