//! Linux.

use std::io::IoSliceMut;
use std::os::fd::AsFd;

use rustix::fs::{FallocateFlags, fallocate, fstatfs};
use rustix::io::{ReadWriteFlags, Result, preadv2};

/// ext2 to ext4, of which only ext4 caches by large folios (`f_type`).
const EXT4: u64 = 0xef53;

/// Whether a short write costs more where the bytes around it were written in one piece: ext4
/// looks at all blocks of a folio (`ext4_block_write_begin`, Linux 6.18), and what is written at
/// once lies in one folio. xfs and btrfs do not.
pub(in crate::kit::store) fn prefers_pages(file: impl AsFd) -> bool {
    let magic = fstatfs(file).ok().and_then(|fs| u64::try_from(fs.f_type).ok());
    magic == Some(EXT4)
}

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
