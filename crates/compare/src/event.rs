//! The results and settings of a comparison.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use device::Error;

/// How to compare.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sizes, and the map of data and holes, must be the same too.
    pub strict: bool,
    /// Workers, at least 1; `None`: as many as keep two disks busy.
    pub threads: Option<usize>,
}

/// One of the two.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    /// The one named first.
    First,
    /// The other.
    Second,
}

/// The operation that failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Doing {
    /// A map request.
    Map,
    /// Reading.
    Read,
}

/// The first difference.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Difference {
    /// In their data; the offset of the 512 bytes with the difference.
    Content(u64),
    /// In their maps (data, zeroes or hole). Only if strict.
    Allocation(u64),
    /// In size. Only if strict.
    Size,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Report {
    /// The first difference; `None`: the same bytes, and zeroes where one of them is longer.
    pub difference: Option<Difference>,
    /// Both have the same size.
    pub same_size: bool,
}

/// Why the comparison failed.
#[derive(Debug)]
pub struct FailedComparison {
    /// The operation that failed,
    pub doing: Doing,
    /// on which of the two,
    pub end: Side,
    /// where.
    pub offset: u64,
    /// The error.
    pub error: Error,
}

/// The progress of a comparison. All clones share it.
#[derive(Debug, Default)]
pub struct Progress {
    total: AtomicU64,
    done: AtomicU64,
}

impl Progress {
    /// Bytes done, and bytes in all. Before the start both are 0.
    #[must_use]
    pub fn now(&self) -> (u64, u64) {
        (self.done.load(Relaxed), self.total.load(Relaxed))
    }

    pub(crate) fn begin(&self, total: u64) {
        self.total.store(total, Relaxed);
    }

    pub(crate) fn add(&self, done: u64) {
        self.done.fetch_add(done, Relaxed);
    }
}

/// The end of a comparison.
#[derive(Debug)]
pub(crate) enum ComparisonEnd {
    Differ(Difference),
    Fail(FailedComparison),
}

impl ComparisonEnd {
    /// Where it is.
    pub(crate) fn offset(&self) -> u64 {
        match self {
            Self::Differ(Difference::Content(at) | Difference::Allocation(at)) => *at,
            Self::Differ(Difference::Size) => 0,
            Self::Fail(failure) => failure.offset,
        }
    }
}
