//! Linux.

use std::io::{self, IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, OFlags, SeekFrom, StatxFlags, fadvise, fallocate, fdatasync,
    fstat, fstatfs, major, minor, seek, statx,
};
use rustix::io::{ReadWriteFlags, Result, preadv2, pwritev2};

/// How a file will be read.
pub(crate) use rustix::fs::Advice;

/// Linux 6.17. The fallocate(2) of older kernels refuses it.
const FALLOC_FL_WRITE_ZEROES: u32 = 0x80;

const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;

/// Where data begins, from `at` on.
#[inline]
pub(crate) fn seek_data(fd: BorrowedFd<'_>, at: u64) -> Result<u64> {
    seek(fd, SeekFrom::Data(at))
}

/// Where a hole begins, from `at` on.
#[inline]
pub(crate) fn seek_hole(fd: BorrowedFd<'_>, at: u64) -> Result<u64> {
    seek(fd, SeekFrom::Hole(at))
}

/// Makes a hole.
#[inline]
pub(crate) fn punch(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<()> {
    fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)
}

/// Makes zeroes that stay allocated.
#[inline]
pub(crate) fn zero_range(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<()> {
    fallocate(fd, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, offset, len)
}

/// Allocates what is a hole; nothing else changes.
#[inline]
pub(crate) fn allocate(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<()> {
    fallocate(fd, FallocateFlags::KEEP_SIZE, offset, len)
}

/// Has the disk write zeroes (FALLOC_FL_WRITE_ZEROES).
#[inline]
pub(crate) fn write_zeroes(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<()> {
    fallocate(fd, FallocateFlags::from_bits_retain(FALLOC_FL_WRITE_ZEROES), offset, len)
}

/// Makes durable what was written, and what is needed to find it.
#[inline]
pub(crate) fn make_durable(fd: impl AsFd) -> Result<()> {
    fdatasync(fd)
}

/// Reads what needs no waiting.
#[inline]
pub(crate) fn read_now(fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> Result<usize> {
    preadv2(fd, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT)
}

/// Writes, and makes that durable.
#[inline]
pub(crate) fn write_durably(fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> Result<usize> {
    pwritev2(fd, &[IoSlice::new(data)], offset, ReadWriteFlags::DSYNC)
}

/// Tells the system how a file will be read.
#[inline]
pub(crate) fn expect(fd: BorrowedFd<'_>, advice: Advice) -> Result<()> {
    fadvise(fd, 0, None, advice)
}

/// Has a range read into the page cache.
#[inline]
pub(crate) fn will_need(fd: BorrowedFd<'_>, offset: u64, len: NonZeroU64) -> Result<()> {
    fadvise(fd, offset, Some(len), Advice::WillNeed)
}

/// Drops the clean pages of a range.
#[inline]
pub(crate) fn drop_pages(fd: BorrowedFd<'_>, offset: u64, len: Option<NonZeroU64>) -> Result<()> {
    fadvise(fd, offset, len, Advice::DontNeed)
}

/// To be called for a file of which few pages are to stay: they are dropped here, one by one.
#[inline]
pub(crate) fn keep_few_pages(_: BorrowedFd<'_>) {}

/// The same file, opened once more, past the page cache.
///
/// # Errors
/// `EINVAL`: it has no direct I/O.
pub(crate) fn open_direct(fd: BorrowedFd<'_>, mode: OFlags) -> io::Result<OwnedFd> {
    programs::names::reopen(fd, mode | OFlags::DIRECT)
}

/// The alignment of direct I/O; 0 if it is not known.
pub(crate) fn direct_alignment(fd: BorrowedFd<'_>) -> u64 {
    let asked = statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    asked.map_or(0, |stat| u64::from(stat.stx_dio_offset_align))
}

/// How much the system reads ahead of a sequential reader at most, if that is known; twice as much
/// if it was told to expect one.
pub(crate) fn ahead_of(fd: BorrowedFd<'_>) -> Option<u64> {
    let stat = fstat(fd).ok()?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let device = if is_device { stat.st_rdev } else { stat.st_dev };
    let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", major(device), minor(device));
    let kib: u64 = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
    Some(kib.saturating_mul(2 << 10))
}

/// Asks for more room in a pipe. A hint.
#[inline]
pub(crate) fn widen_pipe(fd: impl AsFd, bytes: usize) {
    let _ = rustix::pipe::fcntl_setpipe_size(fd, bytes);
}

/// Whether it is a file in memory.
pub(crate) fn lies_in_memory(fd: BorrowedFd<'_>) -> bool {
    let magic = fstatfs(fd).ok().and_then(|s| u64::try_from(s.f_type).ok());
    magic.is_some_and(|m| m == TMPFS || m == RAMFS)
}
