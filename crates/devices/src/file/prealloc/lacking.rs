//! Which ranges of a file are not allocated, or were never written: only these are ever zeroed.
//!
//! By the file system's own map (FIEMAP, after data in the page cache got its blocks), and where
//! there is none, by SEEK_HOLE, which cannot distinguish all kinds. A range that was never written
//! may have bytes in the page cache that were written a moment ago: cached pages are read, and
//! bytes that are not zero are left out.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use device::is_zero;
use runtime::RangeSet;
use rustix::io::Errno;

use super::fiemap;
use crate::file::system::{seek_data, seek_hole};
use crate::file::transfer;
use runtime::to_usize;

/// Bytes that are read at a time to see whether they are zero.
const LOOK: u64 = 64 << 10;

/// The kind of ranges to look for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LackKind {
    /// Holes.
    Holes,
    /// Holes, and unwritten extents.
    Unwritten,
}

/// The ranges that `window` of a file lacks; it ends before the end of the file. Also returns
/// whether that is from the file system's own map.
pub(crate) fn lacking(
    fd: BorrowedFd<'_>,
    window: Range<u64>,
    what: LackKind,
) -> io::Result<(RangeSet, bool)> {
    let (there, is_exact): (RangeSet, _) = match fiemap::extents(fd, window.clone()) {
        Ok(extents) => {
            let there = extents.into_iter().filter(|e| what == LackKind::Holes || !e.unwritten);
            (there.map(|e| e.range).collect(), true)
        }
        Err(e) if fiemap::is_without(&e) => (all_data(fd, window.clone())?, false),
        Err(e) => return Err(e),
    };
    let mut lacking = RangeSet::default();
    for gap in there.gaps(window) {
        leave_out_data(fd, gap, &mut lacking)?;
    }
    Ok((lacking, is_exact))
}

/// What SEEK_DATA calls data.
fn all_data(fd: BorrowedFd<'_>, window: Range<u64>) -> io::Result<RangeSet> {
    let (mut at, mut there) = (window.start, RangeSet::default());
    while at < window.end
        && let Some(data) = data(fd, at..window.end)?
    {
        at = data.end;
        there.add(data);
    }
    Ok(there)
}

/// The first range of `range` that SEEK_DATA calls data.
fn data(fd: BorrowedFd<'_>, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
    let start = match seek_data(fd, range.start) {
        Ok(start) if start < range.end => start.max(range.start),
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL) => return Ok(Some(range)),
        Err(e) => return Err(e.into()),
    };
    match seek_hole(fd, start) {
        Ok(end) if end > start => Ok(Some(start..end.min(range.end))),
        Ok(_) | Err(Errno::NXIO) => Ok(Some(start..range.end)),
        Err(e) => Err(e.into()),
    }
}

/// `gap`, but for bytes in it that are not zero, because they were just written.
fn leave_out_data(fd: BorrowedFd<'_>, gap: Range<u64>, out: &mut RangeSet) -> io::Result<()> {
    let mut at = gap.start;
    let mut buffer = Vec::new();
    let mut begun = gap.start;
    while at < gap.end
        && let Some(cached) = data(fd, at..gap.end)?
    {
        at = cached.start;
        while at < cached.end {
            let len = (LOOK - at % LOOK).min(cached.end - at);
            buffer.resize(to_usize(len), 0);
            transfer::read_growing(fd, &mut buffer, at)?;
            if !is_zero(&buffer) {
                out.add(begun..at);
                begun = at + len;
            }
            at += len;
        }
    }
    out.add(begun..gap.end);
    Ok(())
}
