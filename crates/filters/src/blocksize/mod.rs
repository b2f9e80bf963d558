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
use runtime::to_usize;

use crate::FilterKind;
use crate::kit::below;

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
struct SizedRequests {
    below: Edge,
    settings: Settings,
}

impl SizedRequests {
    async fn run(self, operation: Operation) -> Result<Outcome> {
        let Self { below, settings } = &self;
        // One flush at the end costs less than FUA on every piece, where there is a flush.
        let fua = operation.fua() && !below.info().abilities.flush;
        let flushes = operation.fua() && !fua;
        match operation {
            Operation::Prefetch { offset, len } => {
                let (start, len) = settings.around(offset, len);
                let piece = |offset, len| Operation::Prefetch { offset, len };
                self.run_pieces((start, len), piece).await?;
            }
            Operation::Resolve { offset, len, max } => {
                return self.resolve(offset, len, max).await.map(Outcome::Extents);
            }
            Operation::Status { context, offset, len, max } => {
                return self.status(context, (offset, len), max).await;
            }
            Operation::Trim { offset, len, .. } => {
                let piece = move |offset, len| Operation::Trim { offset, len, fua };
                self.run_pieces((offset, len), piece).await?;
            }
            Operation::Zero { offset, len, flags } => {
                let (mut flags, mut begun) = (ZeroFlags { fua, ..flags }, 0);
                if flags.fast_only {
                    // Only the first piece decides whether zeroing is fast; after it, something
                    // has changed.
                    begun = len.min(settings.max_len);
                    below::zero(below, offset, begun, flags).await?;
                    flags.fast_only = false;
                }
                let piece = move |offset, len| Operation::Zero { offset, len, flags };
                self.run_pieces((offset + begun, len - begun), piece).await?;
            }
            other => return below::ask(below, other).await,
        }
        if flushes {
            below::flush(below).await?;
        }
        Ok(Outcome::Done)
    }

    /// Runs what `make` makes of each piece of a range, a few at a time.
    async fn run_pieces(
        &self,
        (offset, len): (u64, u64),
        make: impl Fn(u64, u64) -> Operation,
    ) -> Result<()> {
        let pieces = self.settings.pieces(offset, len);
        below::ask_all(&self.below, pieces.map(|(offset, len)| make(offset, len)), WIDTH).await
    }

    /// Asks for whole blocks of the first piece only; a caller that wants more asks again. If the
    /// answer ends before the wanted range begins, asks for all extents of that block.
    async fn resolve(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>> {
        let (block, end) = (u64::from(self.settings.min_block), offset + len);
        let (start, whole) = self.settings.around(offset, len);
        let all = to_usize(block);
        for (len, most) in [(whole.min(self.settings.max_len), max), (block, all)] {
            let found = below::resolve(&self.below, start, len, most).await?;
            let wanted = found.iter().filter_map(|extent| extent.part(offset, end));
            let wanted: Vec<_> = wanted.take(max).collect();
            if !wanted.is_empty() {
                return Ok(wanted);
            }
        }
        // The device below describes only the beginning of the block.
        let end = start.saturating_add(block).min(end);
        Ok(vec![Extent::new(offset, end - offset, ExtentKind::Data)])
    }

    /// The same for a status context. If the device describes only the beginning of a block, this
    /// asks it for the original range.
    async fn status(
        &self,
        context: Arc<str>,
        (offset, len): (u64, u64),
        max: usize,
    ) -> Result<Outcome> {
        let (start, whole) = self.settings.around(offset, len);
        let (skip, longest) = (offset - start, self.settings.max_len);
        let status = |offset, len: u64, max| {
            let (context, len) = (context.clone(), len.min(longest));
            below::ask(&self.below, Operation::Status { context, offset, len, max })
        };
        let most = max.saturating_add(to_usize(skip));
        match status(start, whole, most).await? {
            Outcome::Status(runs) => match clip_runs(runs, skip, len, max) {
                runs if runs.is_empty() => status(offset, len, max).await,
                runs => Ok(Outcome::Status(runs)),
            },
            other => Ok(other),
        }
    }
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
        let longest = self.0.max_len;
        match operation {
            Operation::Take { offset, len, from, share_only } => {
                let len = len.min(longest);
                over.below.submit(Operation::Take { offset, len, from, share_only }, done);
            }
            // The edge above has rounded them to whole blocks, and split reads and writes.
            other @ (Operation::Flush | Operation::Read { .. } | Operation::Write { .. }) => {
                over.below.submit(other, done);
            }
            Operation::Trim { len, .. } | Operation::Zero { len, .. } if len <= longest => {
                over.below.submit(operation, done);
            }
            Operation::Prefetch { .. }
            | Operation::Resolve { .. }
            | Operation::Status { .. }
            | Operation::Trim { .. }
            | Operation::Zero { .. } => {
                let sized = SizedRequests { below: over.below.clone(), settings: self.0 };
                below::complete(done, async move { sized.run(operation).await });
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
