//! Where a file system has room for a file, and whether it was ever written.

use std::ops::Range;

/// A range of a file with blocks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Mapped {
    pub(crate) range: Range<u64>,
    /// It was never written, and reads as zeroes.
    pub(crate) unwritten: bool,
}

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

#[cfg(target_os = "linux")]
pub(crate) use linux::*;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::*;
