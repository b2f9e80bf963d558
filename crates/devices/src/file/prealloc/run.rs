//! The steps of a preallocation.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use device::{Error, ErrorKind, Fault, Params, Result, is_zero};
use runtime::RangeSet;
use rustix::fs::{FileType, fstat, ftruncate};
use rustix::io::Errno;

use super::lacking::{LackKind, lacking};
use super::pace::Pace;
use super::{PacedRun, Written};
use crate::file::descriptor;
use crate::file::open::{self, WritableFile};
use crate::file::zero::Grain;
use crate::file::{block, filling, system, transfer};
use crate::preallocation::{Allocation, Preallocated, Preallocation, PreallocationWatch};
use crate::{Made, OpenOptions};
use runtime::to_usize;

/// Bytes whose map is asked for at a time.
const WINDOW: u64 = 256 << 20;
/// Bytes that one request allocates at most: it cannot be stopped.
const ALLOCATED: u64 = 64 << 30;
/// Bytes of a block device that are read at a time, and blocks in which zeroes are looked for.
const LOOK: u64 = 4 << 20;
const RUN: u64 = 64 << 10;
/// How often it checks again for unwritten ranges: another program may change the file meanwhile.
const PASSES: usize = 3;

/// Preallocates the file or device that the parameters of `file` name. A missing file is created.
pub(crate) fn preallocate(
    params: &Params,
    wish: &Preallocation,
    options: &OpenOptions,
    watch: &PreallocationWatch,
) -> Result<Preallocated> {
    let path = descriptor::path_of(params)?;
    let lock = descriptor::file_options(params, options)?.lock;
    let (fd, made) = match open::open_or_make(&path, options, lock)? {
        WritableFile::Found(fd) => (fd, None),
        WritableFile::Made(fd, made) => (fd, Some(made)),
    };
    let work = Work { fd, wish, watch };
    let done = work.all(made.is_some());
    if let Some(made) = made {
        // A file that has some of its blocks is worth a second run; one that has none is not.
        match &done {
            Err((_, Left::Nothing)) => drop(made.remove()),
            _ => made.keep(),
        }
        let synced = made.sync_name().map_err(|e| Error::os("sync its directory", e));
        if done.is_ok() {
            synced.map_err(|e| e.on(path.display()))?;
        }
    }
    done.map_err(|(e, _)| e.on(path.display()))
}

/// The state after a failure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Left {
    /// The file is as it was.
    Nothing,
    /// It has its length, and some of its room or zeroes.
    Part,
}

type Attempted<T> = std::result::Result<T, (Error, Left)>;

struct Work<'a> {
    fd: OwnedFd,
    wish: &'a Preallocation,
    watch: &'a PreallocationWatch,
}

impl Work<'_> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn all(&self, is_new: bool) -> Attempted<Preallocated> {
        let untouched = |e| (e, Left::Nothing);
        let kind = descriptor::kind_of(&self.fd).map_err(untouched)?;
        if kind == FileType::BlockDevice {
            return self.device().map_err(|e| (e, Left::Part));
        }
        let old = self.size().map_err(untouched)?;
        let (range, size) = self.plan(old, is_new).map_err(untouched)?;
        self.watch.expect(range.end - range.start);
        if self.wish.mode != Allocation::Sparse {
            self.allocate(&range, old).map_err(untouched)?;
        }
        let in_part = |e| (e, Left::Part);
        if size > old {
            let grown = transfer::retry(|| ftruncate(&self.fd, size));
            let what = format!("set the length of the file to {size} bytes");
            grown.map_err(|e| self.undo(old, Error::os(what, e))).map_err(untouched)?;
        }
        let inside = range.start.min(size)..range.end.min(size);
        let (why, checked) = match self.wish.mode {
            Allocation::Sparse => (None, false),
            Allocation::Unwritten => (None, self.check(&inside, LackKind::Holes).map_err(in_part)?),
            Allocation::Written => self.write(&inside).map_err(in_part)?,
        };
        self.make_durable().map_err(in_part)?;
        Ok(self.report(size, &range, why, checked))
    }

    fn report(
        &self,
        size: u64,
        range: &Range<u64>,
        why: Option<String>,
        checked: bool,
    ) -> Preallocated {
        Preallocated {
            size,
            offset: range.start,
            length: range.end - range.start,
            kept: self.watch.all_kept(),
            ways: self.watch.ways(),
            why,
            checked,
        }
    }

    fn size(&self) -> Result<u64> {
        let stat = fstat(&self.fd).map_err(|e| Error::os("get the status of the file", e))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// The range, and the length that the file has in the end.
    fn plan(&self, old: u64, is_new: bool) -> Result<(Range<u64>, u64)> {
        let Preallocation { size, offset, length, keep_size, mode, .. } = *self.wish;
        if is_new && size.is_none() && length.is_none() {
            return Err(Error::invalid("missing size: give --size, or --length"));
        }
        let end = match length {
            Some(length) => offset.checked_add(length).filter(|end| *end <= descriptor::LONGEST),
            None => Some(size.unwrap_or(old).max(offset)),
        };
        let beyond = || Error::invalid("no file can be that long");
        let end = end.ok_or_else(beyond)?;
        if size.is_some_and(|size| end > size) {
            let action = format!("the range ends at {end}, beyond the requested size");
            return Err(Error::invalid(action));
        }
        if keep_size && mode == Allocation::Written && end > old {
            return Err(Error::invalid(
                "a file that keeps its length is not written beyond its end",
            ));
        }
        let new = if keep_size { old } else { size.unwrap_or(0).max(end).max(old) };
        Ok((offset..end, new))
    }

    /// Allocates all of a range; data stays. If the disk is full, everything after the file's end
    /// is given back.
    fn allocate(&self, range: &Range<u64>, old: u64) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(ALLOCATED);
            let allocated = self.watch.check().and_then(|()| {
                let asked = transfer::retry(|| system::allocate(self.fd(), at, len));
                match asked {
                    Ok(()) => Ok(()),
                    // Writing will allocate it.
                    Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)
                        if self.wish.mode == Allocation::Written =>
                    {
                        Ok(())
                    }
                    Err(e) => Err(Error::os(format!("allocate {len} bytes"), e).at(at)),
                }
            });
            allocated.map_err(|e| self.undo(old, e))?;
            at += len;
        }
        Ok(())
    }

    /// Gives back what was allocated after the end. Former holes before it stay allocated: they
    /// read as before.
    fn undo(&self, old: u64, e: Error) -> Error {
        if self.size().is_ok_and(|size| size == old) {
            // If this fails too, the first error matters.
            let _ = transfer::retry(|| ftruncate(&self.fd, old));
        }
        e
    }

    /// Zeroes the unwritten parts of a range, until none are left. Returns why the disk was not
    /// asked to, and whether the file system's own map says that all is written.
    fn write(&self, range: &Range<u64>) -> Result<(Option<String>, bool)> {
        let stat = fstat(&self.fd).map_err(|e| Error::os("get the status of the file", e))?;
        let preferred = u64::try_from(stat.st_blksize).unwrap_or(0);
        let (grain, _) = Grain::of_file(self.fd(), preferred).size();
        let written = Written::of(self.fd(), grain, false);
        let pace = self.wish.rate.map(Pace::new);
        let job = PacedRun { watch: self.watch, pace: pace.as_ref() };
        let size = self.size()?;
        // The rest of the same blocks is not allocated either, and reads as zeroes.
        let start = range.start - range.start % grain;
        let end = range.end.checked_next_multiple_of(grain).unwrap_or(u64::MAX).min(size);
        let mut left = (0, true);
        for pass in 0..PASSES {
            for window in windows(start..end, self.window()) {
                self.watch.check()?;
                let (ranges, _) = self.lacking(window.clone(), LackKind::Unwritten)?;
                let bytes = ranges.len();
                if pass == 0 {
                    self.watch.kept(window.end - window.start - bytes);
                }
                for part in ranges.iter() {
                    let zeroed = written.zero(self.fd(), part.clone(), &job);
                    zeroed.map_err(|e| self.cannot_write(e, part.start))?;
                    self.watch.check()?;
                }
            }
            left = self.left(&(start..end), LackKind::Unwritten)?;
            if left.0 == 0 {
                break;
            }
        }
        match left {
            (0, exact) => Ok((written.why(), exact)),
            (n, _) => {
                let action = format!(
                    "{n} bytes are still not written: the file system does not store zeroes, or \
                     another program changes the file"
                );
                Err(Error::new(ErrorKind::Io, Fault::File, action))
            }
        }
    }

    /// How much to examine at a time: at a limited rate no more than passes in about a second.
    fn window(&self) -> u64 {
        self.wish.rate.map_or(WINDOW, |rate| rate.get().clamp(LOOK, WINDOW).next_multiple_of(LOOK))
    }

    fn cannot_write(&self, e: io::Error, at: u64) -> Error {
        Error::os("write zeroes", e).at(at)
    }

    fn lacking(&self, window: Range<u64>, what: LackKind) -> Result<(RangeSet, bool)> {
        let at = window.start;
        lacking(self.fd(), window, what).map_err(|e| Error::os("query the map", e).at(at))
    }

    /// Bytes of a range that are lacking by the map, and whether that is the file system's own.
    fn left(&self, range: &Range<u64>, what: LackKind) -> Result<(u64, bool)> {
        let (mut bytes, mut exact) = (0, true);
        for window in windows(range.clone(), WINDOW) {
            let (ranges, is_exact) = self.lacking(window, what)?;
            bytes += ranges.len();
            exact &= is_exact;
        }
        Ok((bytes, exact))
    }

    fn check(&self, range: &Range<u64>, what: LackKind) -> Result<bool> {
        let (left, exact) = self.left(range, what)?;
        if left > 0 && exact {
            let action = format!(
                "{left} bytes are not allocated, although the system reports that they are"
            );
            return Err(Error::new(ErrorKind::Io, Fault::File, action));
        }
        Ok(exact)
    }

    fn make_durable(&self) -> Result<()> {
        let synced =
            transfer::retry(|| system::make_durable(&self.fd)).map_err(|e| Error::os("flush", e));
        synced?;
        filling::ask_by_closing(self.fd()).map_err(|e| Error::os("close", e))
    }

    /// A block device has no map. Blocks that read as zeroes are zeroed, so that a thin disk
    /// allocates them; blocks with data are allocated already.
    fn device(&self) -> Result<Preallocated> {
        let Preallocation { size, offset, length, keep_size: _, mode, .. } = *self.wish;
        let has = rustix::fs::seek(&self.fd, rustix::fs::SeekFrom::End(0));
        let has = has.map_err(|e| Error::os("query the size", e))?;
        let end = length.map_or(Some(size.unwrap_or(has)), |length| offset.checked_add(length));
        let most = end.unwrap_or(u64::MAX).max(size.unwrap_or(0)).max(offset);
        if most > has {
            let action = format!("the block device has {has} bytes, {most} are needed");
            return Err(Error::new(ErrorKind::NoSpace, Fault::User, action));
        }
        let range = offset..end.unwrap_or(has).max(offset);
        self.watch.expect(range.end - range.start);
        let why = match mode {
            Allocation::Sparse => None,
            Allocation::Unwritten => {
                return Err(Error::unsupported(
                    "allocate: a block device has no unwritten space; --mode written fills it",
                ));
            }
            Allocation::Written => self.fill_device(&range)?,
        };
        self.make_durable()?;
        Ok(self.report(has, &range, why, false))
    }

    fn fill_device(&self, range: &Range<u64>) -> Result<Option<String>> {
        let grain = block::geometry(self.fd()).sector;
        let written = Written::of(self.fd(), grain, true);
        let pace = self.wish.rate.map(Pace::new);
        let job = PacedRun { watch: self.watch, pace: pace.as_ref() };
        let mut buffer = device::Buffer::zeroed(to_usize(LOOK));
        for window in windows(range.clone(), LOOK) {
            self.watch.check()?;
            let bytes = buffer.get_mut(..to_usize(window.end - window.start)).unwrap_or_default();
            let n = bytes.len();
            transfer::read_exact(self.fd(), bytes, window.start)
                .map_err(|e| Error::os(format!("read {n} bytes"), e).at(window.start))?;
            // Blocks that were read are not read again.
            let read = std::num::NonZeroU64::new(n as u64);
            let _ = system::drop_pages(self.fd(), window.start, read);
            let runs = zero_runs(bytes, window.start);
            self.watch.kept(n as u64 - runs.len());
            for run in runs.iter() {
                let zeroed = written.zero(self.fd(), run.clone(), &job);
                zeroed.map_err(|e| self.cannot_write(e, run.start))?;
                self.watch.check()?;
            }
        }
        Ok(written.why())
    }
}

/// The ranges of `bytes`, which lie at `offset`, that are zero, in whole blocks of [`RUN`].
fn zero_runs(bytes: &[u8], offset: u64) -> RangeSet {
    let blocks = (offset..).step_by(to_usize(RUN)).zip(bytes.chunks(to_usize(RUN)));
    let zero = blocks.filter(|(_, block)| is_zero(block));
    zero.map(|(at, block)| at..at + block.len() as u64).collect()
}

fn windows(range: Range<u64>, len: u64) -> impl Iterator<Item = Range<u64>> {
    let (mut at, end) = (range.start, range.end);
    std::iter::from_fn(move || {
        let window = at..end.min((at - at % len).saturating_add(len));
        at = window.end;
        (!window.is_empty()).then_some(window)
    })
}
