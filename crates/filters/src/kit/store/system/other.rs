//! Systems that have none of these requests, or others: what is here is only for room and time.

use std::os::fd::AsFd;

use rustix::io::{Errno, Result};

/// Not known to matter.
pub(in crate::kit::store) fn prefers_pages(_: impl AsFd) -> bool {
    false
}

/// Keeps it.
pub(in crate::kit::store) fn punch(_: impl AsFd, _offset: u64, _len: u64) -> Result<()> {
    Err(Errno::OPNOTSUPP)
}

/// Any read may wait.
pub(in crate::kit::store) fn read_now(_: impl AsFd, _: &mut [u8], _offset: u64) -> Result<usize> {
    Err(Errno::OPNOTSUPP)
}
