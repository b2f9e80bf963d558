//! What to do where the target shall read as zeroes.
//!
//! Nothing is assumed of the target. A range is skipped only if the caller knows that all of the
//! target reads as zeroes, the target's own map says it of the range, or the copy has zeroed it
//! in advance (see `sweep`). Otherwise it is zeroed by a request, and where the target has none,
//! by writing zeroes. A target that shall be allocated throughout is not left with its own
//! zeroes, which may be holes.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};

use device::{Info, Order, ZeroFlags};

use super::known::{Known, Part, What};
use crate::Options;
use crate::progress::Moved;

/// A range shorter than this is zeroed without asking what it holds: the question costs as much
/// as the request.
const WORTH_ASKING: u64 = 64 << 10;
/// Zeroes of the target that are shorter than this do not make one request into two.
const WORTH_A_REQUEST: u64 = 1 << 20;

/// One way to make a range read as zeroes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ZeroBy {
    /// Ask the target what it holds; skip what reads as zeroes.
    Asking,
    /// A zero request.
    Request(ZeroFlags),
    /// Nothing: it reads as zeroes already.
    Skipping(Moved),
    /// Zeroes written as data.
    Writing,
}

#[derive(Debug)]
pub(crate) struct Policy {
    /// Where zeroing is said to be fast, it is seen whether it is.
    pub(crate) tests: bool,
    allocated: bool,
    written: bool,
    /// The target wants to be told of all its bytes, in their order: nothing is skipped, swept, or held
    /// back for its neighbours.
    pub(crate) told: bool,
    known_zero: bool,
    /// The target has a map, and it counts.
    has_map: bool,
    /// False once the target has refused a request before any succeeded.
    can_zero: AtomicBool,
    /// A zero request has succeeded.
    has_zeroed: AtomicBool,
    /// Zeroing is said to be fast, and nothing has shown otherwise.
    fast: AtomicBool,
    known: RwLock<Known>,
}

impl Policy {
    pub(crate) fn new(target: &Info, options: &Options) -> Self {
        let abilities = target.abilities;
        Self {
            tests: options.test_fast_zero,
            allocated: options.allocated,
            written: options.written,
            told: target.order != Order::Any,
            known_zero: options.target_is_zero || abilities.discards,
            has_map: abilities.extents && options.skip_zeroes,
            can_zero: AtomicBool::new(abilities.zero),
            has_zeroed: AtomicBool::new(false),
            fast: AtomicBool::new(
                abilities.zero
                    && abilities.fast_zero
                    && !options.written
                    && target.order == Order::Any,
            ),
            known: RwLock::default(),
        }
    }

    /// How to zero a range: parts of it, in order, that cover it.
    pub(crate) fn decide(&self, range: Range<u64>) -> Vec<(Range<u64>, ZeroBy)> {
        if self.skips() {
            return vec![(range, ZeroBy::Skipping(Moved::Skipped))];
        }
        self.by_parts(&self.parts(range))
    }

    /// The same for parts of which something else is known.
    pub(crate) fn by_parts(&self, parts: &[Part]) -> Vec<(Range<u64>, ZeroBy)> {
        let mut out: Vec<(Range<u64>, ZeroBy)> = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let how = match part.what {
                What::Zero(_) if self.joins(parts, i) => self.do_it(),
                What::Zero(how) => ZeroBy::Skipping(how),
                What::Unknown if self.asks() && part.end - part.start >= WORTH_ASKING => {
                    ZeroBy::Asking
                }
                What::Data | What::Unknown => self.do_it(),
            };
            match out.last_mut() {
                Some((range, last)) if *last == how => range.end = part.end,
                _ => out.push((part.start..part.end, how)),
            }
        }
        out
    }

    /// Whether zeroes of the target between two parts to be zeroed are zeroed along with them,
    /// which makes one request of two and one more: where zeroing is fast, or there are few.
    fn joins(&self, parts: &[Part], i: usize) -> bool {
        let zeroed = |i: Option<usize>| {
            let part = i.and_then(|i| parts.get(i));
            part.is_some_and(|p| !matches!(p.what, What::Zero(_)))
        };
        let few = parts.get(i).is_some_and(|p| p.end - p.start < WORTH_A_REQUEST);
        zeroed(i.checked_sub(1))
            && zeroed(i.checked_add(1))
            && self.can_zero.load(Relaxed)
            && (few || self.fast.load(Relaxed))
    }

    /// What is known of a range of the target.
    pub(crate) fn parts(&self, range: Range<u64>) -> Vec<Part> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).parts(range)
    }

    /// How a range came to read as zeroes, if all of it is known to, in one way.
    pub(crate) fn reads_zero(&self, range: Range<u64>) -> Option<Moved> {
        if self.skips() {
            return Some(Moved::Skipped);
        }
        match self.parts(range).as_slice() {
            [Part { what: What::Zero(how), .. }] => Some(*how),
            _ => None,
        }
    }

    /// Whether every zero range is skipped.
    pub(crate) fn skips(&self) -> bool {
        self.known_zero && !self.allocated && !self.told
    }

    /// Whether the target's map is worth reading.
    pub(crate) fn asks(&self) -> bool {
        self.has_map && !self.allocated && !self.known_zero && !self.told
    }

    /// Whether zeroing is said to be fast, and nothing has shown otherwise.
    pub(crate) fn is_fast(&self) -> bool {
        self.fast.load(Relaxed)
    }

    /// The target's map says what a range holds; it begins where the map was read up to.
    pub(crate) fn mapped(&self, range: Range<u64>, zero: bool, block: u64) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.mapped(range, zero, block);
    }

    /// A range was zeroed before anything is written to it.
    pub(crate) fn made(&self, range: Range<u64>) {
        self.zeroed();
        self.known.write().unwrap_or_else(PoisonError::into_inner).made(range);
    }

    /// Zeroing is not fast, whatever was said.
    pub(crate) fn not_fast(&self) {
        self.fast.store(false, Relaxed);
    }

    /// What to do with a range that must be zeroed.
    pub(crate) fn do_it(&self) -> ZeroBy {
        if !self.can_zero.load(Relaxed) {
            return ZeroBy::Writing;
        }
        ZeroBy::Request(self.flags())
    }

    /// How zero requests are made.
    pub(crate) fn flags(&self) -> ZeroFlags {
        let (may_unmap, written) = (!self.allocated, self.written);
        ZeroFlags { may_unmap, written, ..ZeroFlags::default() }
    }

    /// The target did what a zero request asked.
    pub(crate) fn zeroed(&self) {
        if !self.has_zeroed.load(Relaxed) {
            self.has_zeroed.store(true, Relaxed);
        }
    }

    /// The target said `Unsupported` to a zero request. If it never took one, nobody needs to
    /// ask again; otherwise it was about that range.
    pub(crate) fn refused(&self) {
        if !self.has_zeroed.load(Relaxed) {
            self.can_zero.store(false, Relaxed);
        }
    }

    /// Whether zero ranges will, as far as is known, be written as data, and so take as long.
    pub(crate) fn writes(&self) -> bool {
        !self.skips() && !self.can_zero.load(Relaxed)
    }
}
