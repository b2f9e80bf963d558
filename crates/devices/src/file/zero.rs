//! Zeroing and trimming a file or block device by the best means it has: a ladder, of which a
//! rung is taken out when the system says once that it does not have it.
//!
//! A regular file: make a hole; else turn the range into zeroes that stay allocated; else make a
//! hole and allocate it anew. If the caller wants it allocated, the first rung is left out. All
//! of them change only the file's map, so all are fast.
//!
//! A block device: `FALLOC_FL_PUNCH_HOLE`, of which the kernel promises that it never writes;
//! and, unless the caller wants it fast, `FALLOC_FL_ZERO_RANGE` and `BLKZEROOUT`, which write
//! where the hardware has nothing better. Only whole sectors go there; the ends are written.
//!
//! Where no rung is left the answer is `Unsupported`, or `NotFast`, with nothing changed. A
//! failure is never taken for success, nor for a reason to try something slower.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use device::{Error, ErrorKind, Fault, Result, ZeroFlags};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::checked::to_usize;
use crate::file::{block, transfer};

/// What a file can still be asked for.
#[derive(Debug)]
pub(crate) struct Ladder {
    /// Bytes in a sector, if this is a block device.
    sector: Option<u64>,
    punch: Rung,
    zero_range: Rung,
    allocate: Rung,
    zero_out: Rung,
    discard: Rung,
}

/// One means, until the system says that it does not have it.
#[derive(Debug)]
struct Rung(AtomicBool);

impl Rung {
    fn new() -> Self {
        Self(AtomicBool::new(true))
    }

    /// Tries. `Ok(false)`: it is not there, or not for this range; nothing was changed.
    fn climb(&self, mut call: impl FnMut() -> rustix::io::Result<()>) -> io::Result<bool> {
        if !self.0.load(Ordering::Relaxed) {
            return Ok(false);
        }
        match transfer::retry(&mut call) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => {
                self.0.store(false, Ordering::Relaxed);
                Ok(false)
            }
            Err(Errno::INVAL) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

impl Ladder {
    /// For a regular file, or a block device with sectors of so many bytes.
    pub(crate) fn new(sector: Option<u64>) -> Self {
        Self {
            sector,
            punch: Rung::new(),
            zero_range: Rung::new(),
            allocate: Rung::new(),
            zero_out: Rung::new(),
            discard: Rung::new(),
        }
    }

    /// Makes a range read as zeroes. Durability is the caller's.
    pub(crate) fn zero(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
    ) -> Result<()> {
        let done = match self.sector {
            None => self.zero_file(fd, offset, len, flags.may_unmap),
            Some(sector) => self.zero_sectors(fd, offset, len, flags, sector),
        };
        match done {
            Ok(true) => Ok(()),
            Ok(false) if flags.fast_only => {
                let action = format!("zero {len} bytes fast: not known to be fast here");
                Err(Error::new(ErrorKind::NotFast, Fault::User, action))
            }
            Ok(false) => Err(Error::unsupported(format!("zero {len} bytes"))),
            Err(e) => Err(Error::os(format!("zero {len} bytes"), e)),
        }
    }

    fn zero_file(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        may_unmap: bool,
    ) -> io::Result<bool> {
        if may_unmap && self.punch(fd, offset, len)? {
            return Ok(true);
        }
        let zero_range = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        if self.zero_range.climb(|| fallocate(fd, zero_range, offset, len))? {
            return Ok(true);
        }
        // Allocating one byte first, which changes no content, tells whether it can be done at
        // all before anything is zeroed.
        if !self.allocate(fd, offset, 1)? || !self.punch(fd, offset, len)? {
            return Ok(false);
        }
        // No room is an error: the range reads as zeroes, but it was to be allocated.
        self.allocate(fd, offset, len)
    }

    fn punch(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<bool> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.punch.climb(|| fallocate(fd, mode, offset, len))
    }

    fn allocate(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<bool> {
        self.allocate.climb(|| fallocate(fd, FallocateFlags::KEEP_SIZE, offset, len))
    }

    fn zero_sectors(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
        sector: u64,
    ) -> io::Result<bool> {
        let end = offset.saturating_add(len);
        let (start, stop) = whole_sectors(offset, end, sector);
        if start >= stop {
            // Less than a sector is written as fast as anything.
            write_zeroes(fd, offset, end)?;
            return Ok(true);
        }
        let n = stop - start;
        let done = (flags.may_unmap && self.punch(fd, start, n)?)
            || (!flags.fast_only && self.zero_slowly(fd, start, n)?);
        if done {
            write_zeroes(fd, offset, start)?;
            write_zeroes(fd, stop, end)?;
        }
        Ok(done)
    }

    /// By requests that may write zeroes, but at least do not move them through us.
    fn zero_slowly(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<bool> {
        let zero_range = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        Ok(self.zero_range.climb(|| fallocate(fd, zero_range, offset, len))?
            || self.zero_out.climb(|| by_errno(block::zero_out(fd, offset, len)))?)
    }

    /// Lets a range go, if there is a means.
    pub(crate) fn trim(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<()> {
        let end = offset.saturating_add(len);
        let (start, stop) = self.sector.map_or((offset, end), |s| whole_sectors(offset, end, s));
        if start >= stop {
            return Ok(());
        }
        let n = stop - start;
        let gone = self.punch(fd, start, n).and_then(|punched| {
            if punched || self.sector.is_none() {
                return Ok(punched);
            }
            self.discard.climb(|| by_errno(block::discard(fd, start, n)))
        });
        gone.map(|_| ()).map_err(|e| Error::os(format!("trim {len} bytes"), e))
    }
}

/// The whole sectors in `offset..end`: the first byte, the byte after the last.
fn whole_sectors(offset: u64, end: u64, sector: u64) -> (u64, u64) {
    (offset.next_multiple_of(sector), end - end % sector)
}

/// Writes zeroes from `start` to `end`, less than two sectors apart.
fn write_zeroes(fd: BorrowedFd<'_>, start: u64, end: u64) -> io::Result<()> {
    let mut at = start;
    while at < end {
        let n = (end - at).min(4096);
        transfer::write_all(fd, &[0; 4096][..to_usize(n)], at)?;
        at += n;
    }
    Ok(())
}

fn by_errno(answer: io::Result<()>) -> rustix::io::Result<()> {
    answer.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}
