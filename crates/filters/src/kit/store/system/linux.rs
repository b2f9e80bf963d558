//! Linux.

use std::io::IoSliceMut;
use std::os::fd::AsFd;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{ReadWriteFlags, Result, preadv2};

/// Gives back the room of a range.
#[inline]
pub(in crate::kit::store) fn punch(file: impl AsFd, offset: u64, len: u64) -> Result<()> {
    fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)
}

/// Reads what needs no waiting.
#[inline]
pub(in crate::kit::store) fn read_now(
    file: impl AsFd,
    buf: &mut [u8],
    offset: u64,
) -> Result<usize> {
    preadv2(file, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT)
}
