//! The result of a copy.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use device::Error;

/// The account of a copy, complete or not.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Report {
    /// Bytes to do: the size of the source, or those of a list.
    pub total: u64,
    /// Bytes written as data.
    pub copied: u64,
    /// Bytes zeroed.
    pub zeroed: u64,
    /// Bytes left alone because the target reads as zeroes there.
    pub skipped: u64,
    /// Of the source, bytes that were read before its server was lost and came back, and that it
    /// was then seen to hold still, holes included. 0 where it was never lost.
    pub confirmed: u64,
    /// From the first look at the map to the last flush.
    pub elapsed: Duration,
    /// Whether the target was sent anything that may have changed it.
    pub touched: bool,
    /// Ranges that are not known to be copied, in order, not touching each other. Empty exactly
    /// when everything is in the target. All outside of them is, except what was left alone.
    pub left: Vec<Range<u64>>,
}

impl Report {
    /// Bytes that are known to be right in the target, one way or another: the same that
    /// [`crate::CopyCounts::done`] counts. They may be more than the bytes outside of `left`, some
    /// of which were done before the copy stopped.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.copied.saturating_add(self.zeroed).saturating_add(self.skipped)
    }
}

/// A copy that did not succeed: why, and how far it came.
#[derive(Debug)]
pub struct FailedCopy {
    /// The first thing that went wrong.
    pub error: Error,
    /// How far the copy came.
    pub report: Report,
}

impl fmt::Display for FailedCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for FailedCopy {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}
