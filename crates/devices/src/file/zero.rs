//! Zeroing and trimming a file or block device by the best means it has: a ladder, of which a rung
//! is removed when the system turns out to lack it.
//!
//! A regular file: make a hole; else turn the range into zeroes that stay allocated; else make a
//! hole and allocate it again. If the caller wants it allocated, the first rung is left out. All of
//! them change only the file's map, so all are fast. Only whole blocks go there (see
//! [`Grain::of_file`] for why): the ends of a range, less than two blocks, are written as zeroes
//! where they are not a hole anyway. A trim of a file makes a hole, too, so all of its range reads
//! as zeroes, as after `FALLOC_FL_PUNCH_HOLE` of just that range; where no hole can be made it does
//! nothing.
//!
//! A block device: `FALLOC_FL_PUNCH_HOLE`, of which the kernel promises that it never writes; and,
//! unless the caller wants it fast, `FALLOC_FL_ZERO_RANGE` and `BLKZEROOUT`, which write where the
//! hardware has nothing better. Only whole sectors go there; the ends are written, or left alone by
//! a trim. The effect of such a request depends on the hardware, so samples are read back
//! (`proof`): a request that does not zero is not used again, and the range is written.
//!
//! *Written* zeroes ([`ZeroFlags::written`]) use none of these rungs: `prealloc` has other means
//! for them.
//!
//! If no rung is left, the error is `Unsupported`, or `NotFast`, with nothing changed. A failure is
//! never taken for success, nor for a reason to try something slower.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use device::{Error, ErrorKind, Fault, Result, ZeroFlags};
use rustix::fs::{fstat, fstatfs};
use rustix::io::Errno;
use rustix::param::page_size;

use crate::file::long_punch::in_pieces;
use crate::file::map::is_hole;
use crate::file::prealloc::{PacedRun, Written};
use crate::file::proof::{Proof, Verdict};
use crate::file::{block, system, transfer};
use crate::preallocation::PreallocationWatch;
use runtime::to_usize;

const XFS: u64 = 0x5846_5342;
/// Larger "blocks" of filesystems other than xfs are preferred request sizes.
const LARGEST_BLOCK: u64 = 64 << 10;

static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// The unit that can be zeroed or discarded by a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Grain {
    /// Blocks of a regular file, in bytes.
    Blocks(u64),
    /// Sectors of a block device, in bytes.
    Sectors(u64),
}

impl Grain {
    /// The blocks of a regular file: the filesystem's, or pages, whichever are larger.
    ///
    /// When only part of a block is punched, xfs drops all of it from the page cache, once it is
    /// written back, and zeroes the pages that it drops. A later read gets the right bytes, but
    /// pages that were given to a socket are the same pages: a reply on its way would show zeroes
    /// for bytes that were not to be zeroed. So parts of blocks are written.
    pub(crate) fn of_file(fd: BorrowedFd<'_>, preferred: u64) -> Self {
        let page = page_size() as u64;
        let Ok(fs) = fstatfs(fd) else { return Self::Blocks(page) };
        let block = u64::try_from(fs.f_bsize).unwrap_or(0);
        // The extent size of a realtime file on xfs may be larger, and is the unit that it drops;
        // it is reported as the preferred size. On other filesystems large preferred sizes are
        // those of requests (NFS).
        let is_xfs = u64::try_from(fs.f_type).is_ok_and(|magic| magic == XFS);
        let drops = if is_xfs { block.max(preferred) } else { block };
        let sound = is_xfs || (drops <= LARGEST_BLOCK && drops.is_power_of_two());
        Self::Blocks(if sound { drops.max(page) } else { page })
    }

    /// Bytes of one, and whether it is a block device's.
    pub(crate) fn size(self) -> (u64, bool) {
        match self {
            Self::Blocks(size) => (size, false),
            Self::Sectors(size) => (size, true),
        }
    }

    /// The whole blocks or sectors in `offset..end`: the first byte, the byte after the last; the
    /// second is not after the first where there is none.
    fn whole(self, offset: u64, end: u64) -> (u64, u64) {
        let (Self::Blocks(size) | Self::Sectors(size)) = self;
        (offset.checked_next_multiple_of(size).unwrap_or(u64::MAX), end - end % size)
    }
}

/// The requests that a file still supports.
#[derive(Debug)]
pub(crate) struct Ladder {
    grain: Grain,
    /// A file in memory, of which long holes are punched in pieces.
    in_memory: bool,
    punch: Rung,
    zero_range: Rung,
    allocate: Rung,
    zero_out: Rung,
    discard: Rung,
    written: Written,
}

/// One request, until the system turns out to lack it.
#[derive(Debug)]
pub(crate) struct Rung(AtomicBool, Proof);

impl Rung {
    pub(crate) fn new(is_there: bool) -> Self {
        Self(AtomicBool::new(is_there), Proof::default())
    }

    pub(crate) fn is_there(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn take_out(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Tries it. `None`: it is not supported, or not for this range; nothing was changed.
    pub(crate) fn try_it<T>(
        &self,
        call: impl FnMut() -> rustix::io::Result<T>,
    ) -> io::Result<Option<T>> {
        if !self.is_there() {
            return Ok(None);
        }
        match transfer::retry(call) {
            Ok(done) => Ok(Some(done)),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => {
                self.take_out();
                Ok(None)
            }
            Err(Errno::INVAL) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// The same; only whether it was done.
    fn climb(&self, call: impl FnMut() -> rustix::io::Result<()>) -> io::Result<bool> {
        Ok(self.try_it(call)?.is_some())
    }

    /// Tries to zero sectors, and reads samples of them. `Ok(None)`: it is not supported, and
    /// nothing was changed. `Ok(Some(false))`: they may hold anything now.
    fn zero_sectors(
        &self,
        fd: BorrowedFd<'_>,
        (offset, len): (u64, u64),
        mut call: impl FnMut() -> rustix::io::Result<()>,
    ) -> io::Result<Option<bool>> {
        if !self.climb(&mut call)? {
            return Ok(None);
        }
        match self.1.look(fd, offset, len, || self.climb(&mut call).map(drop))? {
            Verdict::Zero => Ok(Some(true)),
            Verdict::Untrue => {
                self.take_out();
                Ok(Some(false))
            }
        }
    }
}

impl Ladder {
    /// A ladder for `fd` with all rungs; without the first one where a block device reports that it
    /// has no request that zeroes.
    pub(crate) fn new(fd: BorrowedFd<'_>, grain: Grain, in_memory: bool) -> Self {
        let (size, is_device) = grain.size();
        let is_slow = is_device && block::has_no_zeroes(fd);
        Self {
            grain,
            in_memory,
            punch: Rung::new(!is_slow),
            zero_range: Rung::new(true),
            allocate: Rung::new(true),
            zero_out: Rung::new(true),
            discard: Rung::new(true),
            written: Written::of(fd, size, is_device),
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
        let done = match flags.written {
            true => self.write(fd, offset, len, flags),
            false => self.zero_range(fd, offset, len, flags),
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

    /// Writes zeroes; false where that was to be fast.
    fn write(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
    ) -> io::Result<bool> {
        if flags.fast_only {
            return Ok(false);
        }
        let job = PacedRun { watch: &PreallocationWatch::default(), pace: None };
        self.written.zero(fd, offset..offset.saturating_add(len), &job).map(|()| true)
    }

    /// False: it is not possible like this, and nothing was changed.
    fn zero_range(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
    ) -> io::Result<bool> {
        let end = offset.saturating_add(len);
        let (start, stop) = self.grain.whole(offset, end);
        if start >= stop {
            // Less than two blocks are written as fast as anything.
            self.zero_end(fd, offset, end, flags)?;
            return Ok(true);
        }
        let done = match self.grain {
            Grain::Blocks(_) => self.zero_blocks(fd, start, stop - start, flags)?,
            Grain::Sectors(_) => self.zero_sectors(fd, start, stop - start, flags)?,
        };
        if done {
            self.zero_end(fd, offset, start, flags)?;
            self.zero_end(fd, stop, end, flags)?;
        }
        Ok(done)
    }

    /// Writes zeroes from `start` to `end`, less than two blocks apart, unless it is a hole that
    /// may stay one.
    fn zero_end(
        &self,
        fd: BorrowedFd<'_>,
        start: u64,
        end: u64,
        flags: ZeroFlags,
    ) -> io::Result<()> {
        let is_file = matches!(self.grain, Grain::Blocks(_));
        if start < end && !(is_file && flags.may_unmap && is_hole(fd, start, end)) {
            write_zeroes(fd, start, end)?;
        }
        Ok(())
    }

    fn zero_blocks(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
    ) -> io::Result<bool> {
        if flags.may_unmap && self.punch(fd, offset, len)? {
            return Ok(true);
        }
        if self.zero_range.climb(|| system::zero_range(fd, offset, len))? {
            return Ok(true);
        }
        // The remaining rungs may write pages.
        if flags.fast_only {
            return Ok(false);
        }
        // Allocating one byte first, which changes no content, shows whether it is possible at all
        // before anything is zeroed.
        if !self.allocate(fd, offset, 1)? || !self.punch(fd, offset, len)? {
            return Ok(false);
        }
        // The range reads as zeroes now: a failure to allocate it is an error, and never "nothing
        // was changed".
        match self.allocate(fd, offset, len)? {
            true => Ok(true),
            false => Err(io::Error::from(rustix::io::Errno::IO)),
        }
    }

    fn punch(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<bool> {
        let punch = |at, n| self.punch.climb(|| system::punch(fd, at, n));
        if !self.in_memory {
            return punch(offset, len);
        }
        let mut changed = false;
        in_pieces(fd, offset, len, |at, n| match punch(at, n)? {
            false if changed => write_zeroes(fd, at, at + n).map(|()| true),
            done => {
                changed |= done;
                Ok(done)
            }
        })
    }

    fn allocate(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<bool> {
        self.allocate.climb(|| system::allocate(fd, offset, len))
    }

    fn zero_sectors(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
    ) -> io::Result<bool> {
        if flags.may_unmap {
            let was_there = self.punch.is_there();
            let punch = || system::punch(fd, offset, len);
            let punched = self.punch.zero_sectors(fd, (offset, len), punch)?;
            if punched == Some(true) {
                return Ok(true);
            }
            if flags.fast_only && was_there && !self.punch.is_there() {
                // The kernel drops what it keeps of the range, written or not, before it asks the
                // device. So a refusal has changed something, as an untrue answer has, and is
                // finished.
                write_zeroes(fd, offset, offset.saturating_add(len))?;
                return Ok(true);
            }
        }
        Ok(!flags.fast_only && self.zero_slowly(fd, offset, len)?)
    }

    /// By requests that may write zeroes, but without moving them through this program.
    fn zero_slowly(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<bool> {
        let range = (offset, len);
        let zero_range = || system::zero_range(fd, offset, len);
        let (by_range, by_request) = (&self.zero_range, &self.zero_out);
        if by_range.zero_sectors(fd, range, zero_range)? == Some(true) {
            return Ok(true);
        }
        let zero_out = || by_errno(block::zero_out(fd, offset, len));
        Ok(by_request.zero_sectors(fd, range, zero_out)? == Some(true))
    }

    /// Discards a range, if there is a request for that.
    pub(crate) fn trim(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<()> {
        let end = offset.saturating_add(len);
        let trimmed = match self.grain {
            Grain::Blocks(_) => self.trim_file(fd, offset, end),
            Grain::Sectors(_) => self.trim_device(fd, offset, end),
        };
        trimmed.map_err(|e| Error::os(format!("trim {len} bytes"), e))
    }

    fn trim_file(&self, fd: BorrowedFd<'_>, offset: u64, end: u64) -> io::Result<()> {
        let (start, stop) = self.grain.whole(offset, end);
        if start >= stop {
            return if self.punch.is_there() { trim_end(fd, offset, end) } else { Ok(()) };
        }
        if self.punch(fd, start, stop - start)? {
            trim_end(fd, offset, start)?;
            trim_end(fd, stop, end)?;
        }
        Ok(())
    }

    fn trim_device(&self, fd: BorrowedFd<'_>, offset: u64, end: u64) -> io::Result<()> {
        let (start, stop) = self.grain.whole(offset, end);
        if start >= stop {
            return Ok(());
        }
        let n = stop - start;
        let rungs = || (self.punch.is_there(), self.discard.is_there());
        let before = rungs();
        if self.punch(fd, start, n)?
            || self.discard.climb(|| by_errno(block::discard(fd, start, n)))?
        {
            return Ok(());
        }
        // As in `zero_sectors`: older bytes must not come back.
        if before == rungs() { Ok(()) } else { write_zeroes(fd, start, stop) }
    }
}

/// Zeroes the data from `start` to `end`, less than two blocks apart. Where that needs room that is
/// not there (because the bytes are shared, say), it is left alone: a trim is a hint.
fn trim_end(fd: BorrowedFd<'_>, start: u64, end: u64) -> io::Result<()> {
    if start >= end {
        return Ok(());
    }
    // A file that was cut short is not made longer again.
    let end = end.min(u64::try_from(fstat(fd)?.st_size).unwrap_or(0));
    let start = match system::seek_data(fd, start) {
        Ok(data) => data.max(start),
        // Nothing but a hole.
        Err(Errno::NXIO) => return Ok(()),
        // No map, so no holes.
        Err(_) => start,
    };
    let is_full = |e: &io::Error| matches!(e.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT));
    match write_zeroes(fd, start, end) {
        Err(e) if is_full(&e) => Ok(()),
        done => done,
    }
}

/// Writes zeroes from `start` to `end`.
fn write_zeroes(fd: BorrowedFd<'_>, start: u64, end: u64) -> io::Result<()> {
    let mut at = start;
    while at < end {
        let zeroes = ZEROES.get(..to_usize(end - at)).unwrap_or(&ZEROES);
        transfer::write_all(fd, zeroes, at)?;
        at += zeroes.len() as u64;
    }
    Ok(())
}

pub(crate) fn by_errno(answer: io::Result<()>) -> rustix::io::Result<()> {
    answer.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}
