//! What to do where the target is to read as zeroes.
//!
//! Nothing is assumed of the target. A range is skipped only if the caller knows that all of the
//! target reads as zeroes, the target's own map says it of the range, the copy has zeroed it in
//! advance (see `sweep`), or the range was read and is zero. Otherwise it is zeroed by a request,
//! and where the target has none, by writing zeroes. If all of the target is to be allocated, its
//! own zeroes are not left alone: they may be holes.
//!
//! Where zeroing is writing (the target has no request for it, or has refused to do it fast, or was
//! seen to take its time), a range is read first: a clean target costs reads and no writes. Whether
//! a target is as fast as it advertises shows when it is zeroed in advance, or else by the first
//! range that is so long that one more request does not matter, which is sent as a fast zero: a
//! refusal changes nothing.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use device::{Info, Order, ZeroFlags};
use runtime::RwLock;

use super::known::{Known, KnownRange, TargetState};
use crate::Options;
use crate::progress::Moved;

/// A range shorter than this is zeroed without reading its map: that costs as much as the request.
const WORTH_ASKING: u64 = 64 << 10;
/// Zeroes of the target that are shorter than this do not split a request.
const WORTH_A_REQUEST: u64 = 1 << 20;
/// A range shorter than this is zeroed without testing whether that is fast.
const WORTH_A_TRIAL: u64 = 16 << 20;
/// Bytes at the beginning of a piece that are read to see whether the rest is worth reading.
const HEAD: u64 = 4 << 10;
/// A piece is at most a request doubled this often.
const LONGEST_STEP: u32 = 6;

/// One way to make a range read as zeroes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ZeroBy {
    /// Read the target's map; skip what reads as zeroes.
    Asking,
    /// Read it; skip what is zero.
    Reading,
    /// A zero request.
    Request(ZeroFlags),
    /// Nothing: it reads as zeroes already.
    Skipping(Moved),
    /// Zeroes written as data.
    Writing,
}

#[derive(Debug)]
pub(crate) struct Policy {
    /// Where zeroing is advertised as fast, that is tested.
    pub(crate) tests: bool,
    allocated: bool,
    written: bool,
    /// Zeroes are written as data, whatever is known.
    wipes: bool,
    /// Where zeroing is writing, the target is read first.
    reads: bool,
    /// Unwritten bytes read as zeroes only as long as nothing is written to the same unit of this
    /// many bytes; 0: always.
    room: u64,
    /// The target needs all of its bytes, in order: nothing is skipped, swept, or held back for its
    /// neighbours.
    pub(crate) told: bool,
    known_zero: bool,
    /// The target has a map, and it is used.
    has_map: bool,
    /// False once the target has refused a request before any succeeded.
    can_zero: AtomicBool,
    /// A zero request has succeeded.
    has_zeroed: AtomicBool,
    /// Zeroing is advertised as fast, and nothing has shown otherwise.
    fast: AtomicBool,
    /// A fast zero has succeeded.
    proven: AtomicBool,
    /// Zeroing was advertised as fast, and is writing.
    slow: AtomicBool,
    /// How many of the pieces read last in ranges that are to be zero were not zero; at first one
    /// is assumed.
    dirty: AtomicU32,
    known: RwLock<Known>,
}

impl Policy {
    /// `request`: bytes that are read at once.
    pub(crate) fn new(target: &Info, options: &Options, request: u64) -> Self {
        let abilities = target.abilities;
        // Whole units can be read, and zeroed, if a request contains them.
        let tells = target.room == 0 || request.is_multiple_of(target.room);
        let (wipes, told) = (options.wipe, target.order != Order::Any);
        let zeroes = abilities.zero && !wipes;
        Self {
            tests: options.test_fast_zero,
            allocated: options.allocated,
            written: options.written,
            wipes,
            reads: tells
                && !(wipes || told || options.allocated || options.written || abilities.discards),
            room: target.room,
            told,
            known_zero: options.target_is_zero || abilities.discards,
            has_map: abilities.extents && options.skip_zeroes,
            can_zero: AtomicBool::new(zeroes),
            has_zeroed: AtomicBool::new(false),
            fast: AtomicBool::new(zeroes && abilities.fast_zero && !options.written && !told),
            proven: AtomicBool::new(false),
            slow: AtomicBool::new(false),
            dirty: AtomicU32::new(1),
            known: RwLock::default(),
        }
    }

    /// How to zero a range: parts of it, in order, that cover it.
    pub(crate) fn decide(&self, range: Range<u64>) -> Vec<(Range<u64>, ZeroBy)> {
        if self.skips() {
            let (whole, ends) = (self.tellable(&range), self.do_it_unseen());
            let (before, after) = (range.start..whole.start, whole.end..range.end);
            let parts = [(before, ends), (whole, ZeroBy::Skipping(Moved::Skipped)), (after, ends)];
            return parts.into_iter().filter(|(part, _)| !part.is_empty()).collect();
        }
        self.by_parts(&self.parts(range))
    }

    /// The same for parts with different knowledge.
    pub(crate) fn by_parts(&self, parts: &[KnownRange]) -> Vec<(Range<u64>, ZeroBy)> {
        let mut out: Vec<(Range<u64>, ZeroBy)> = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let how = match part.what {
                TargetState::Zero(_) if self.joins(parts, i) => self.do_it(part.end - part.start),
                TargetState::Zero(how) => ZeroBy::Skipping(how),
                TargetState::Unknown if self.asks() && part.end - part.start >= WORTH_ASKING => {
                    ZeroBy::Asking
                }
                TargetState::Data | TargetState::Unknown => self.do_it(part.end - part.start),
            };
            match out.last_mut() {
                Some((range, last)) if *last == how => range.end = part.end,
                _ => out.push((part.start..part.end, how)),
            }
        }
        out
    }

    /// Whether zeroes of the target between two parts to be zeroed are zeroed along with them,
    /// which makes one request of two: where zeroing is fast, or there are few.
    fn joins(&self, parts: &[KnownRange], i: usize) -> bool {
        let zeroed = |i: Option<usize>| {
            let part = i.and_then(|i| parts.get(i));
            part.is_some_and(|p| !matches!(p.what, TargetState::Zero(_)))
        };
        let few = parts.get(i).is_some_and(|p| p.end - p.start < WORTH_A_REQUEST);
        zeroed(i.checked_sub(1))
            && zeroed(i.checked_add(1))
            && self.can_zero.load(Relaxed)
            && !self.slow.load(Relaxed)
            && (few || self.fast.load(Relaxed))
    }

    /// What is known of a range of the target.
    pub(crate) fn parts(&self, range: Range<u64>) -> Vec<KnownRange> {
        self.known.read().parts(range)
    }

    /// How a range came to read as zeroes, if all of it is known to, in one way.
    pub(crate) fn reads_zero(&self, range: Range<u64>) -> Option<Moved> {
        if self.skips() {
            return (self.tellable(&range) == range).then_some(Moved::Skipped);
        }
        match self.parts(range).as_slice() {
            [KnownRange { what: TargetState::Zero(how), .. }] => Some(*how),
            _ => None,
        }
    }

    /// Whether every zero range is skipped.
    pub(crate) fn skips(&self) -> bool {
        self.known_zero && !self.allocated && !self.told && !self.wipes
    }

    /// Whether the target's map is worth reading.
    pub(crate) fn asks(&self) -> bool {
        self.has_map && !self.allocated && !self.known_zero && !self.told && !self.wipes
    }

    /// Whether zeroing is advertised as fast, and nothing has shown otherwise.
    pub(crate) fn is_fast(&self) -> bool {
        self.fast.load(Relaxed)
    }

    /// The target's map of a range, which begins where the map was read up to.
    pub(crate) fn mapped(&self, range: Range<u64>, zero: bool, block: u64) {
        let mut known = self.known.write();
        known.mapped(range, zero, block);
    }

    /// A range was zeroed before anything is written to it.
    pub(crate) fn made(&self, range: Range<u64>) {
        self.zeroed(true);
        self.known.write().made(range);
    }

    /// Zeroing is not fast, as was advertised: it is writing.
    pub(crate) fn not_fast(&self) {
        self.slow.store(true, Relaxed);
        self.fast.store(false, Relaxed);
    }

    /// Nothing more is zeroed in advance, however fast that is.
    pub(crate) fn no_more_in_advance(&self) {
        self.fast.store(false, Relaxed);
    }

    /// What to do with a range of this many bytes that must be zero and may be already.
    pub(crate) fn do_it(&self, len: u64) -> ZeroBy {
        let writes = self.slow.load(Relaxed) || !self.can_zero.load(Relaxed);
        if self.reads && writes && len >= WORTH_ASKING {
            return ZeroBy::Reading;
        }
        match self.do_it_unseen() {
            ZeroBy::Request(flags) if self.reads && len >= WORTH_A_TRIAL => {
                let fast_only = self.fast.load(Relaxed) && !self.proven.load(Relaxed);
                ZeroBy::Request(ZeroFlags { fast_only, ..flags })
            }
            how => how,
        }
    }

    /// What to do with a range that is not zero, or may not be.
    pub(crate) fn do_it_unseen(&self) -> ZeroBy {
        if !self.can_zero.load(Relaxed) {
            return ZeroBy::Writing;
        }
        ZeroBy::Request(self.flags())
    }

    /// The first piece of a range to read, in bytes: how many of it are read, and how many are
    /// zeroed if those are not zero. All of a request, or, if the last pieces were not zero, the
    /// head of one or of several.
    pub(crate) fn piece(&self, range: &Range<u64>, request: u64, block: u64) -> (u64, u64) {
        let len = range.end - range.start;
        let room = request - range.start % request;
        let dirty = self.dirty.load(Relaxed);
        if dirty == 0 {
            return (len.min(room), len.min(room));
        }
        let more = request.saturating_mul((1 << (dirty - 1).min(LONGEST_STEP)) - 1);
        let piece = len.min(room.saturating_add(more));
        let block = block.max(self.room).max(1);
        (piece.min(HEAD.next_multiple_of(block)).min(room), piece)
    }

    /// The part of a range that can be checked, and stays zero if it is: it may be empty. The rest
    /// has to be zeroed.
    pub(crate) fn tellable(&self, range: &Range<u64>) -> Range<u64> {
        if self.room == 0 {
            return range.clone();
        }
        let end = range.end - range.end % self.room;
        let start = range.start.checked_next_multiple_of(self.room).unwrap_or(u64::MAX);
        start.min(range.end)..end.max(start).min(range.end)
    }

    /// A piece that was read in a range that is to be zero was zero, or was not.
    pub(crate) fn saw(&self, zero: bool) {
        if zero {
            self.dirty.store(0, Relaxed);
        } else if self.dirty.load(Relaxed) <= LONGEST_STEP {
            self.dirty.fetch_add(1, Relaxed);
        }
    }

    /// The flags of zero requests.
    pub(crate) fn flags(&self) -> ZeroFlags {
        let (may_unmap, written) = (!self.allocated, self.written);
        ZeroFlags { may_unmap, written, ..ZeroFlags::default() }
    }

    /// A zero request succeeded, which may have been a `fast` one.
    pub(crate) fn zeroed(&self, fast: bool) {
        for (fact, known) in [(&self.has_zeroed, true), (&self.proven, fast)] {
            if known && !fact.load(Relaxed) {
                fact.store(true, Relaxed);
            }
        }
    }

    /// The target said `Unsupported` to a zero request for `len` bytes, and what to do about those.
    /// If it never accepted one, it need not be asked again; otherwise the refusal was about that
    /// range.
    pub(crate) fn refused(&self, len: u64) -> ZeroBy {
        if self.has_zeroed.load(Relaxed) {
            return ZeroBy::Writing;
        }
        self.can_zero.store(false, Relaxed);
        self.do_it(len)
    }

    /// Whether zero ranges will probably be written as data, and so take as long.
    pub(crate) fn writes(&self) -> bool {
        !self.skips() && !self.can_zero.load(Relaxed)
    }
}
