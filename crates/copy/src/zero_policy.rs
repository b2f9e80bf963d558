//! What to do where the target shall read as zeroes.
//!
//! Nothing is assumed of the target. A range is skipped only if the caller knows that all of the
//! target reads as zeroes, or the target's own map says it of the range. Otherwise it is zeroed
//! by a request, and where the target has none, by writing zeroes. A target that shall be
//! allocated throughout is never skipped.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use device::{Edge, ZeroFlags};

use crate::Options;

/// A range shorter than this is zeroed without asking what it holds: the question costs as much
/// as the request.
const WORTH_ASKING: u64 = 64 << 10;

/// One way to make a range read as zeroes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ZeroBy {
    /// Ask the target what it holds; skip what reads as zeroes.
    Asking,
    /// A zero request.
    Request(ZeroFlags),
    /// Nothing: it reads as zeroes already.
    Skipping,
    /// Zeroes written as data.
    Writing,
}

#[derive(Debug)]
pub(crate) struct ZeroPolicy {
    allocated: bool,
    known_zero: bool,
    has_map: bool,
    /// False once the target has refused a request before any succeeded.
    can_zero: AtomicBool,
    /// A zero request has succeeded.
    has_zeroed: AtomicBool,
}

impl ZeroPolicy {
    pub(crate) fn new(target: &Edge, options: &Options) -> Self {
        let abilities = target.info().abilities;
        Self {
            allocated: options.allocated,
            known_zero: options.target_is_zero || abilities.discards,
            has_map: abilities.extents,
            can_zero: AtomicBool::new(abilities.zero),
            has_zeroed: AtomicBool::new(false),
        }
    }

    /// What to do with `len` bytes of which nothing was asked yet.
    pub(crate) fn decide(&self, len: u64) -> ZeroBy {
        if self.skips() {
            ZeroBy::Skipping
        } else if self.has_map && !self.allocated && len >= WORTH_ASKING {
            ZeroBy::Asking
        } else {
            self.do_it()
        }
    }

    /// Whether every zero range is skipped.
    pub(crate) fn skips(&self) -> bool {
        self.known_zero && !self.allocated
    }

    /// What to do with a range that must be zeroed.
    pub(crate) fn do_it(&self) -> ZeroBy {
        if !self.can_zero.load(Relaxed) {
            return ZeroBy::Writing;
        }
        ZeroBy::Request(ZeroFlags { may_unmap: !self.allocated, ..ZeroFlags::default() })
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
