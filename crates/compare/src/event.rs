//! What a comparison may end with, and what it is told.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use device::Error;

/// How to compare.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sizes, and what is data or not, must be the same too.
    pub strict: bool,
    /// Workers, at least 1; `None`: as many as keep two disks busy.
    pub threads: Option<usize>,
}

/// One of the two.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// The one that was named first.
    First,
    /// The other.
    Second,
}

/// What was in flight.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Doing {
    /// Asking where there is data.
    Map,
    /// Reading.
    Read,
}

/// The first difference.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Difference {
    /// In what they hold; the offset of the 512 bytes in which it lies.
    Content(u64),
    /// In what is data there, zeroes or a hole. Only where that matters.
    Allocation(u64),
    /// In size. Only where that matters.
    Size,
}

/// What came of a comparison.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Report {
    /// The first difference; `None`: the same bytes, and zeroes where one of them is longer.
    pub difference: Option<Difference>,
    /// Both have the same size.
    pub same_size: bool,
}

/// Why it is not known whether they are the same.
#[derive(Debug)]
pub struct Failure {
    /// What was in flight,
    pub doing: Doing,
    /// on which of the two,
    pub end: End,
    /// where.
    pub offset: u64,
    /// What went wrong.
    pub error: Error,
}

/// How far a comparison is. All clones share.
#[derive(Debug, Default)]
pub struct Progress {
    total: AtomicU64,
    done: AtomicU64,
}

impl Progress {
    /// Bytes done, of how many. Of no use before it began: then both are 0.
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

/// What ends a comparison.
#[derive(Debug)]
pub(crate) enum Event {
    Differ(Difference),
    Fail(Failure),
}

impl Event {
    /// Where it is.
    pub(crate) fn offset(&self) -> u64 {
        match self {
            Self::Differ(Difference::Content(at) | Difference::Allocation(at)) => *at,
            Self::Differ(Difference::Size) => 0,
            Self::Fail(failure) => failure.offset,
        }
    }
}
