//! What the user may choose, with nbdcopy's words, defaults and meanings; and the sizes that follow
//! for two given devices.

use std::num::NonZeroUsize;
use std::sync::Arc;

use device::{Edge, Error, Order, Result};
use runtime::RangeSet;

use crate::depth::few;
use crate::witness::Watched;

/// How to copy.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent choices, each an option")]
pub struct Options {
    /// Operations in flight at a time, for each worker, on both ends together. At least 1; `None`
    /// for as many as help and memory allows.
    pub requests: Option<usize>,
    /// Bytes read at once: a power of two from 4 KiB to 32 MiB. Raised to what either end
    /// prefers, lowered to what both can take.
    pub request_size: u64,
    /// Requests may be longer than that, up to what both ends prefer in bulk.
    pub bulk: bool,
    /// Workers; `None` for one a processor. Never more than either end has lanes.
    pub threads: Option<usize>,
    /// Look for zeroes in data, in blocks of this many bytes (a power of two; raised to what
    /// the target prefers). `None` copies data as it is.
    pub sparse: Option<u64>,
    /// Leave no holes in the target: zeroes are written as allocated blocks.
    pub allocated: bool,
    /// Zeroes are written, not only allocated; only with `allocated`.
    pub written: bool,
    /// The target is known to read as zeroes throughout. The caller must know.
    pub target_is_zero: bool,
    /// That is only a claim: before anything is changed, samples of the target are read, and
    /// one that is not zero fails the copy.
    pub check_zero: bool,
    /// Every byte is written as data, zeroes too: nothing is left alone, zeroed by a request, or
    /// shared, whatever is known of the target.
    pub wipe: bool,
    /// Whether the target shares blocks with the source.
    pub reflink: Reflink,
    /// Leave alone what reads as zeroes in the target by its own map. Otherwise it is zeroed like
    /// the rest, which frees what is reserved there.
    pub skip_zeroes: bool,
    /// Where zeroing is advertised as fast, test that before relying on it, with two more requests.
    /// Without this it is believed.
    pub test_fast_zero: bool,
    /// Whether the target is made durable before the copy counts as done.
    pub flush: Flush,
    /// The source and the target share no bytes, and the caller knows it. If they may (they are the
    /// same storage under two names, or one lies over the other), only ranges that were read, or
    /// whose map was read, are changed: zeroing much of the target at once would zero data of the
    /// source that is not read yet. The bytes themselves prove nothing, however many are compared:
    /// an overlay may have its own almost everywhere.
    pub apart: bool,
    /// Do not ask the source for its map: everything is read.
    pub no_extents: bool,
    /// Bytes that each worker may hold in flight; `None` for its share of what all may hold.
    pub queue_size: Option<u64>,
    /// How the source is opened once more, with nothing kept of what was read of it. Without this a
    /// source that keeps bytes on the way (an image's tables, a cache) cannot be lost and come
    /// back.
    pub anew: Option<Anew>,
    /// Is told what has become durable. Then the copy flushes now and then, and fails where the
    /// target cannot.
    pub durably: Option<Durably>,
    /// Sees all that is copied. What the target takes by reference is read for it.
    pub witness: Option<Watched>,
}

/// Opens a disk as it was opened before, and shares nothing with that.
#[derive(Clone)]
pub struct Anew(Arc<dyn Fn() -> Result<Edge> + Send + Sync>);

impl Anew {
    /// `open` is called in the thread of the copy, once it is lost.
    pub fn new(open: impl Fn() -> Result<Edge> + Send + Sync + 'static) -> Self {
        Self(Arc::new(open))
    }

    pub(crate) fn open(&self) -> Result<Edge> {
        (self.0)()
    }
}

runtime::debug_as!(Anew);

/// Is told which ranges of the target have become durable, while it is copied.
#[derive(Clone)]
pub struct Durably {
    pub(crate) every: u64,
    tell: Arc<TellDurable>,
}

type TellDurable = dyn Fn(&RangeSet) -> Result<()> + Send + Sync;

impl Durably {
    /// `tell` is called after each flush, of which there is one after `every` bytes of data at the
    /// latest, with what it made durable. An error of it ends the copy.
    pub fn new(every: u64, tell: impl Fn(&RangeSet) -> Result<()> + Send + Sync + 'static) -> Self {
        Self { every, tell: Arc::new(tell) }
    }

    pub(crate) fn tell(&self, ranges: &RangeSet) -> Result<()> {
        (self.tell)(ranges)
    }
}

runtime::debug_as!(Durably);

/// Whether the target shares blocks with the source, where both lie in files.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reflink {
    /// Where possible: all at once, in a target that is known to be zero, if no other option asks
    /// for more; otherwise stretch by stretch.
    Auto,
    /// All of them, by one request, or the copy is refused.
    Always,
    /// No: every byte is copied.
    Never,
}

/// Whether the target is made durable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Flush {
    /// No: what was written may be lost with the power.
    Never,
    /// If it can be.
    WhereItCan,
    /// Or the copy is refused.
    Must,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            requests: None,
            request_size: 256 << 10,
            bulk: true,
            threads: None,
            sparse: Some(4096),
            allocated: false,
            written: false,
            target_is_zero: false,
            check_zero: false,
            wipe: false,
            reflink: Reflink::Auto,
            skip_zeroes: true,
            test_fast_zero: true,
            flush: Flush::WhereItCan,
            apart: false,
            no_extents: false,
            queue_size: None,
            anew: None,
            durably: None,
            witness: None,
        }
    }
}

impl Options {
    /// Refuses options that make no sense for any devices.
    ///
    /// # Errors
    /// `InvalidInput`, with the option's name and the values it takes.
    pub fn check(&self) -> Result<()> {
        let refuse = |text: &str| Err(Error::invalid(text));
        if !self.request_size.is_power_of_two()
            || !(4 << 10..=32 << 20).contains(&self.request_size)
        {
            return refuse("request-size: must be a power of two from 4K to 32M");
        }
        if self.requests.is_some_and(|n| n == 0 || n > 1 << 16) {
            return refuse("requests: must be from 1 to 65536");
        }
        if self.threads.is_some_and(|t| t == 0 || t > 1024) {
            return refuse("threads: must be from 1 to 1024");
        }
        if self.sparse.is_some_and(|s| !s.is_power_of_two() || s > 1 << 30) {
            return refuse("sparse: must be 0 or a power of two up to 1G");
        }
        if self.wipe && self.target_is_zero && self.check_zero {
            return refuse(
                "wipe: zeroes are written too, so it does not matter what the target holds",
            );
        }
        if self.wipe && self.reflink == Reflink::Always {
            return refuse("wipe: blocks that are shared are not written");
        }
        if self.queue_size.is_some_and(|n| n == 0 || n > 1 << 40) {
            return refuse("queue-size: must be from 1 byte to 1T");
        }
        Ok(())
    }
}

/// The sizes that two given ends and the options come to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Stretches begin and end at multiples of this, except at the end of the source.
    pub(crate) grid: u64,
    /// Bytes read at once; a multiple of `grid`.
    pub(crate) request: u64,
    /// Blocks in which zeroes are looked for; a multiple of the target's minimum.
    pub(crate) granularity: Option<u64>,
    /// Data bytes in a unit; a multiple of `request`.
    pub(crate) unit: u64,
    /// How many workers are useful.
    pub(crate) workers: usize,
    /// Operations that each may have in flight.
    pub(crate) requests: usize,
    /// Reads, or writes, that each has in flight to begin with.
    pub(crate) few: usize,
    /// Bytes that each may hold.
    pub(crate) queue: u64,
}

/// Bytes that all workers may hold together, unless it is set how many each may: half as much
/// again as a way of 10 Gbit/s and 20 ms carries, and few beside what a machine has.
pub(crate) const HELD: u64 = 36 << 20;
/// Operations that a worker may have in flight, unless their number is set: as few, where they
/// are long, and as many, where they are short.
const UNDER_WAY: std::ops::RangeInclusive<usize> = 64..=1024;
/// A worker may have this many of the longer requests that both ends prefer in bulk.
const FEW: u64 = 4;

/// The shortest and the longest unit of data.
const UNIT: std::ops::RangeInclusive<u64> = 1 << 20..=16 << 20;

impl Sizes {
    pub(crate) fn of(source: &Edge, target: &Edge, options: &Options) -> Self {
        let (s, t) = (source.info().blocks, target.info().blocks);
        let grid = power_below(u64::from(s.minimum.max(t.minimum)));
        let longest = power_below(u64::from(s.maximum.min(t.maximum)));
        let preferred = power_below(u64::from(s.preferred.max(t.preferred)));
        // Zeroes are looked for only where it makes a difference.
        let granularity = options
            .sparse
            .filter(|_| !target.info().abilities.discards && !options.wipe)
            .map(|g| g.max(power_below(u64::from(t.preferred))).max(grid));
        let lanes = |edge: &Edge| edge.info().lanes.map_or(usize::MAX, NonZeroUsize::get);
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = options.threads.unwrap_or_else(processors);
        let threads = if target.info().order == Order::OneByOne { 1 } else { threads };
        let workers = threads.min(lanes(source)).min(lanes(target)).max(1);
        let bulk = source.info().bulk.min(target.info().bulk).min(HELD / (FEW * workers as u64));
        let bulk = if options.bulk { power_below(bulk) } else { 1 };
        let request = options.request_size.max(bulk).max(preferred).min(longest).max(grid);
        // Sixteen units a worker even on a small disk, so that they end at about the same time.
        let share = source.info().size / (workers as u64).saturating_mul(16).max(1);
        let unit = power_below(share).clamp(*UNIT.start(), *UNIT.end()).max(request);
        let useful = usize::try_from(source.info().size.div_ceil(unit)).unwrap_or(usize::MAX);
        let workers = workers.min(useful).max(1);
        let queue = options.queue_size.unwrap_or(HELD / workers as u64);
        let fitting = usize::try_from(queue / request).unwrap_or(usize::MAX);
        let requests =
            options.requests.unwrap_or(fitting.clamp(*UNDER_WAY.start(), *UNDER_WAY.end()));
        let requests = if target.info().order == Order::OneByOne { 1 } else { requests };
        // One long request a worker: read and written by turns, while another worker does the same,
        // its bytes stay in the cache, and a disk that answers slowly gets more.
        let is_long = bulk > options.request_size && workers > 1;
        let few = if is_long { 1 } else { few(request) };
        Self { grid, request, granularity, unit, workers, requests, few, queue }
    }
}

/// The largest power of two that is at most `n`; 1 for 0.
fn power_below(n: u64) -> u64 {
    1 << n.max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that prefers long requests, or has no preference.
    fn edge(bulk: u64) -> Edge {
        let info = device::Info { bulk, ..device::Info::new("idle", 1 << 40) };
        trial::TestDevice::blank(info).shared().edge(&runtime::WorkPool::new(1))
    }

    #[test]
    fn requests_are_long_where_both_ends_like_it_and_few_workers_hold_them() {
        let (long, any) = (edge(2 << 20), edge(0));
        let request = |source, target, threads, options: Options| {
            Sizes::of(source, target, &Options { threads: Some(threads), ..options }).request
        };
        let usual = Options::default;
        assert_eq!(request(&long, &long, 2, usual()), 2 << 20);
        assert_eq!(request(&long, &any, 2, usual()), 256 << 10);
        assert_eq!(request(&any, &long, 2, usual()), 256 << 10);
        assert_eq!(request(&long, &long, 16, usual()), 512 << 10);
        assert_eq!(request(&long, &long, 1024, usual()), 256 << 10);
        assert_eq!(request(&long, &long, 2, Options { bulk: false, ..usual() }), 256 << 10);
        let longer = || Options { request_size: 8 << 20, ..usual() };
        assert_eq!(request(&long, &long, 2, longer()), 8 << 20);
        let few = |threads, options: Options| {
            Sizes::of(&long, &long, &Options { threads: Some(threads), ..options }).few
        };
        assert_eq!(few(2, usual()), 1, "each worker takes its turn");
        assert_eq!((few(1, usual()), few(1024, usual()), few(2, longer())), (4, 4, 4));
    }

    #[test]
    fn invalid_options_are_refused_and_the_defaults_are_not() {
        let good = Options::default();
        assert!(good.check().is_ok());
        for bad in [
            Options { request_size: 4095, ..good.clone() },
            Options { request_size: 2048, ..good.clone() },
            Options { request_size: 64 << 20, ..good.clone() },
            Options { requests: Some(0), ..good.clone() },
            Options { threads: Some(0), ..good.clone() },
            Options { sparse: Some(0), ..good.clone() },
            Options { sparse: Some(3000), ..good.clone() },
            Options { queue_size: Some(0), ..good.clone() },
            Options { wipe: true, target_is_zero: true, check_zero: true, ..good.clone() },
            Options { wipe: true, reflink: Reflink::Always, ..good.clone() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
