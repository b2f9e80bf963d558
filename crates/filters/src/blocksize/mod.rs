//! `blocksize`: keeps what reaches the device below to block and length limits.
//!
//! The disk that is shown has the block size and the longest read or write as its limits, so the
//! edge above rewrites parts of blocks and splits long requests, with several pieces in flight at a
//! time. This filter splits requests without data. It finishes a fast zero that it has begun,
//! slowly if need be: the error "not fast" would mean that nothing has changed.

use std::sync::Arc;

use device::{
    Done, Edge, Extent, ExtentKind, Filter, Filtered, Info, Operation, Outcome, Over, Params,
    Passes, Result, StatusRun, ZeroFlags, param, values,
};

use crate::FilterKind;

/// The largest `minblock`, in bytes.
const LARGEST_BLOCK: u64 = 64 << 10;
/// Default of `maxdata`, in bytes.
const MAX_DATA: u64 = 64 << 20;
/// Default of `maxlen`, in bytes, before it is rounded down to whole blocks.
const MAX_LEN: u64 = 0xffff_ffff;
/// Pieces of one request without data that are in flight at a time.
const WIDTH: usize = 4;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "blocksize",
    summary: "aligns requests to whole blocks, and splits long ones",
    keeps_disk: false,
    params: &[
        param("minblock", "SIZE", "block, a power of two up to 64K (default the device's)"),
        param("maxdata", "SIZE", "longest read or write (default 64M or the device's, if less)"),
        param("maxlen", "SIZE", "longest zero, trim, prefetch or block status (default 4G-block)"),
    ],
    example: "serve --filter=blocksize memory 1000 minblock=512 --run 'nbdinfo --size \"$uri\"'",
    open: |params, below, _| {
        Ok(Filtered::device(BlockSize(Settings::read(params, below.info())?), below))
    },
    ..FilterKind::PLAIN
};

#[derive(Clone, Copy, Debug)]
struct Settings {
    min_block: u32,
    max_data: u32,
    max_len: u64,
}

impl Settings {
    fn read(params: &Params, below: &Info) -> Result<Self> {
        let block = match values::size(params, "minblock")? {
            Some(n) if n.is_power_of_two() && n <= LARGEST_BLOCK => n,
            Some(n) => {
                let why = format!("{n} is not a power of two from 1 to 64K");
                return Err(values::wrong("minblock", why));
            }
            None => u64::from(below.blocks.minimum.max(1)),
        };
        let whole_blocks = |key: &str| match values::size(params, key)? {
            Some(n) if n == 0 || !n.is_multiple_of(block) => {
                Err(values::wrong(key, format!("{n} is not a multiple of the block of {block}")))
            }
            other => Ok(other),
        };
        let whole = |n: u64| n.max(block) / block * block;
        let max_data = whole_blocks("maxdata")?
            .unwrap_or_else(|| MAX_DATA.min(u64::from(below.blocks.maximum)))
            .min(MAX_LEN);
        let narrow = |n: u64| u32::try_from(n).unwrap_or(1);
        Ok(Self {
            min_block: narrow(block),
            max_data: narrow(whole(max_data)),
            max_len: whole_blocks("maxlen")?.unwrap_or_else(|| whole(MAX_LEN)),
        })
    }

    /// The pieces of `len` bytes from `offset` that are no longer than allowed.
    fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> + Send + use<> {
        let longest = self.max_len;
        (0..len.div_ceil(longest)).map(move |i| {
            let at = i * longest;
            (offset + at, longest.min(len - at))
        })
    }

    /// The whole blocks around a range. They end inside the disk, which has whole blocks only.
    fn around(&self, offset: u64, len: u64) -> (u64, u64) {
        let block = u64::from(self.min_block);
        let start = offset - offset % block;
        (start, (offset + len).next_multiple_of(block) - start)
    }
}

struct BlockSize(Settings);

/// The disk below, which is to see requests of these sizes.
struct SizedRequests<'a> {
    below: &'a Edge,
    settings: Settings,
}

impl SizedRequests<'_> {
    fn prefetch(&self, offset: u64, len: u64, done: Done) {
        let (start, len) = self.settings.around(offset, len);
        let pieces = self.settings.pieces(start, len);
        let pieces = pieces.map(|(offset, len)| (Operation::Prefetch { offset, len }, None));
        self.below.submit_all(pieces, WIDTH, |result| done(result.map(|()| Outcome::Done)));
    }

    /// Asks for whole blocks of the first piece only; a caller that wants more asks again.
    fn resolve(&self, offset: u64, len: u64, max: usize, done: Done) {
        let (start, whole) = self.settings.around(offset, len);
        let block = u64::from(self.settings.min_block);
        let longest = whole.min(self.settings.max_len);
        let question =
            Question { below: self.below.clone(), block, offset, end: offset + len, max };
        question.ask((start, longest), max, done);
    }

    /// The same for a status context. If the device describes only the beginning of a block, this
    /// asks it for the original range.
    fn status(&self, context: Arc<str>, (offset, len): (u64, u64), max: usize, done: Done) {
        let (start, whole) = self.settings.around(offset, len);
        let (skip, longest) = (offset - start, self.settings.max_len);
        let below = self.below.clone();
        let (same, shorter) = (context.clone(), len.min(longest));
        let then: Done = Box::new(move |result| match result {
            Ok(Outcome::Status(runs)) => match clip_runs(runs, skip, len, max) {
                runs if runs.is_empty() => {
                    let exactly = Operation::Status { context: same, offset, len: shorter, max };
                    below.submit(exactly, done);
                }
                runs => done(Ok(Outcome::Status(runs))),
            },
            other => done(other),
        });
        let max = max.saturating_add(usize::try_from(skip).unwrap_or(usize::MAX));
        let len = whole.min(longest);
        self.below.submit(Operation::Status { context, offset: start, len, max }, then);
    }

    /// Whether each piece needs FUA: the device below has no flush.
    fn needs_fua_each(&self) -> bool {
        !self.below.info().abilities.flush
    }

    fn trim(&self, offset: u64, len: u64, fua: bool, done: Done) {
        if len <= self.settings.max_len {
            return self.below.submit(Operation::Trim { offset, len, fua }, done);
        }
        let each = fua && self.needs_fua_each();
        let pieces = self.settings.pieces(offset, len);
        let pieces =
            pieces.map(move |(offset, len)| (Operation::Trim { offset, len, fua: each }, None));
        self.below.submit_all(pieces, WIDTH, then_flush(self.below, fua && !each, done));
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags, done: Done) {
        if len <= self.settings.max_len {
            return self.below.submit(Operation::Zero { offset, len, flags }, done);
        }
        // One flush at the end costs less than FUA on every piece.
        let fua = flags.fua && self.needs_fua_each();
        let each = ZeroFlags { fua, ..flags };
        let done = then_flush(self.below, flags.fua && !fua, done);
        if !flags.fast_only {
            return zero_pieces(self.below, self.settings, (offset, len), each, done);
        }
        // Only the first piece decides whether zeroing is fast; after it, something has changed.
        let (below, settings, first) = (self.below.clone(), self.settings, self.settings.max_len);
        let then: Done = Box::new(move |result| match result {
            Err(e) => done(Err(e)),
            Ok(_) => {
                let each = ZeroFlags { fast_only: false, ..each };
                zero_pieces(&below, settings, (offset + first, len - first), each, done);
            }
        });
        self.below.submit(Operation::Zero { offset, len: first, flags: each }, then);
    }
}

/// A question about the map, and what answers it.
struct Question {
    below: Edge,
    /// Bytes of a block.
    block: u64,
    /// The start and end of the range asked for, and the most extents to return.
    offset: u64,
    end: u64,
    max: usize,
}

impl Question {
    /// Asks for whole blocks (offset and length). If the answer ends before the wanted range
    /// begins, asks for all extents of that block.
    fn ask(self, (start, len): (u64, u64), max: usize, done: Done) {
        let below = self.below.clone();
        let then: Done = Box::new(move |result| match result {
            Ok(Outcome::Extents(list)) => {
                let mut wanted = clip(&list, self.offset, self.end);
                wanted.truncate(self.max);
                let most = self.most();
                if !wanted.is_empty() {
                    done(Ok(Outcome::Extents(wanted)));
                } else if max < most {
                    let block = (start, self.block);
                    self.ask(block, most, done);
                } else {
                    done(Ok(Outcome::Extents(vec![self.unknown()])));
                }
            }
            other => done(other),
        });
        below.submit(Operation::Resolve { offset: start, len, max }, then);
    }

    /// The extents of a block, at most.
    fn most(&self) -> usize {
        usize::try_from(self.block).unwrap_or(usize::MAX)
    }

    /// The block of which the device below describes only the beginning.
    fn unknown(&self) -> Extent {
        let end = (self.offset - self.offset % self.block).saturating_add(self.block);
        Extent::new(self.offset, end.min(self.end) - self.offset, ExtentKind::Data)
    }
}

/// Zeroes a range, offset and length, in pieces.
fn zero_pieces(
    below: &Edge,
    settings: Settings,
    range: (u64, u64),
    flags: ZeroFlags,
    done: impl FnOnce(Result<()>) + Send + 'static,
) {
    let pieces = settings.pieces(range.0, range.1);
    let pieces = pieces.map(move |(offset, len)| (Operation::Zero { offset, len, flags }, None));
    below.submit_all(pieces, WIDTH, done);
}

/// Calls `done`, after a flush if all went well and one is `wanted`.
fn then_flush(below: &Edge, wanted: bool, done: Done) -> impl FnOnce(Result<()>) + Send + 'static {
    let below = below.clone();
    move |result| match result {
        Ok(()) if wanted => below.submit(Operation::Flush, done),
        other => done(other.map(|()| Outcome::Done)),
    }
}

/// The part of `list` (which begins at or before `start`) from `start` to `end`.
fn clip(list: &[Extent], start: u64, end: u64) -> Vec<Extent> {
    list.iter().filter_map(|extent| extent.part(start, end)).collect()
}

/// The runs without their first `skip` bytes: at most `max`, and `len` bytes.
fn clip_runs(runs: Vec<StatusRun>, mut skip: u64, mut len: u64, max: usize) -> Vec<StatusRun> {
    let clipped = runs.into_iter().filter_map(|run| {
        let before = skip.min(run.len);
        skip -= before;
        let n = (run.len - before).min(len);
        len -= n;
        (n > 0).then_some(StatusRun { len: n, value: run.value })
    });
    clipped.take(max).collect()
}

impl Filter for BlockSize {
    fn describe(&self, over: &mut Over) {
        let (info, block) = (&mut over.info, self.0.min_block);
        info.size -= info.size % u64::from(block);
        info.blocks.minimum = block;
        info.blocks.preferred = info.blocks.preferred.max(block);
        info.blocks.maximum = self.0.max_data;
        // The filter takes any request, whatever block sizes the device below has.
        info.advertised = None;
        over.passes = Passes::ALL;
    }

    fn run(&self, over: &Over, operation: Operation, done: Done) {
        let sized = SizedRequests { below: &over.below, settings: self.0 };
        match operation {
            Operation::Prefetch { offset, len } => sized.prefetch(offset, len, done),
            Operation::Resolve { offset, len, max } => sized.resolve(offset, len, max, done),
            Operation::Status { context, offset, len, max } => {
                sized.status(context, (offset, len), max, done);
            }
            Operation::Take { offset, len, from, share_only } => {
                let len = len.min(self.0.max_len);
                over.below.submit(Operation::Take { offset, len, from, share_only }, done);
            }
            Operation::Trim { offset, len, fua } => sized.trim(offset, len, fua, done),
            Operation::Zero { offset, len, flags } => sized.zero(offset, len, flags, done),
            // The edge above has rounded them to whole blocks and split them.
            other @ (Operation::Flush | Operation::Read { .. } | Operation::Write { .. }) => {
                over.below.submit(other, done);
            }
        }
    }

    /// Maps are asked for in whole blocks, and not for more than is allowed.
    fn resolve_now(&self, _: &Over, _: (u64, u64), _: usize, _: &mut Vec<Extent>) -> Result<bool> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
