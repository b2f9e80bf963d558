//! Which ranges of a file are not allocated, or were never written: only these are ever zeroed.
//!
//! By the file system's own map (FIEMAP, after data in the page cache got its blocks), and where there is none, by
//! SEEK_HOLE, which cannot distinguish all kinds. A range that was never written may have bytes in the page cache that
//! were written a moment ago: cached pages are read, and bytes that are not zero are left out.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use device::is_zero;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::fiemap;
use crate::checked::to_usize;
use crate::file::transfer;

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

/// Ranges, upwards.
pub(crate) type Ranges = Vec<Range<u64>>;

/// The ranges that `window` of a file lacks; it ends before the end of the file. Also returns whether
/// that is from the file system's own map.
pub(crate) fn lacking(
    fd: BorrowedFd<'_>,
    window: Range<u64>,
    what: LackKind,
) -> io::Result<(Ranges, bool)> {
    let (gaps, is_exact) = match fiemap::extents(fd, window.clone()) {
        Ok(extents) => {
            let there = extents.into_iter().filter(|e| what == LackKind::Holes || !e.unwritten);
            (gaps(window, there.map(|e| e.range)), true)
        }
        Err(e) if is_without(&e) => (holes(fd, window)?, false),
        Err(e) => return Err(e),
    };
    let mut lacking = Vec::new();
    for gap in gaps {
        leave_out_data(fd, gap, &mut lacking)?;
    }
    Ok((lacking, is_exact))
}

fn is_without(e: &io::Error) -> bool {
    let codes = [libc::EOPNOTSUPP, libc::ENOTTY, libc::ENOSYS, libc::EINVAL, libc::EBADR];
    e.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// The parts of `window` in none of `there`, which goes upwards.
fn gaps(window: Range<u64>, there: impl Iterator<Item = Range<u64>>) -> Ranges {
    let (mut at, mut gaps) = (window.start, Vec::new());
    for extent in there {
        if extent.start.min(window.end) > at {
            gaps.push(at..extent.start.min(window.end));
        }
        at = at.max(extent.end);
    }
    if at < window.end {
        gaps.push(at..window.end);
    }
    gaps
}

fn holes(fd: BorrowedFd<'_>, window: Range<u64>) -> io::Result<Ranges> {
    let (mut at, mut there) = (window.start, Vec::new());
    while at < window.end
        && let Some(data) = data(fd, at..window.end)?
    {
        at = data.end;
        there.push(data);
    }
    Ok(gaps(window, there.into_iter()))
}

/// The first range of `range` that SEEK_DATA calls data.
fn data(fd: BorrowedFd<'_>, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
    let start = match seek(fd, SeekFrom::Data(range.start)) {
        Ok(start) if start < range.end => start.max(range.start),
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL) => return Ok(Some(range)),
        Err(e) => return Err(e.into()),
    };
    match seek(fd, SeekFrom::Hole(start)) {
        Ok(end) if end > start => Ok(Some(start..end.min(range.end))),
        Ok(_) | Err(Errno::NXIO) => Ok(Some(start..range.end)),
        Err(e) => Err(e.into()),
    }
}

/// `gap`, but for bytes in it that are not zero, because they were just written.
fn leave_out_data(fd: BorrowedFd<'_>, gap: Range<u64>, out: &mut Ranges) -> io::Result<()> {
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
                push(out, begun..at);
                begun = at + len;
            }
            at += len;
        }
    }
    push(out, begun..gap.end);
    Ok(())
}

fn push(out: &mut Ranges, range: Range<u64>) {
    match out.last_mut() {
        Some(last) if last.end == range.start && !range.is_empty() => last.end = range.end,
        _ if range.is_empty() => {}
        _ => out.push(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_no_extent_covers() {
        let all = |there: &[(u64, u64)]| -> Vec<(u64, u64)> {
            let found = gaps(10..100, there.iter().map(|(start, end)| *start..*end));
            found.into_iter().map(|gap| (gap.start, gap.end)).collect()
        };
        assert_eq!(all(&[]), [(10, 100)]);
        assert_eq!(all(&[(0, 10), (100, 200)]), [(10, 100)]);
        assert_eq!(all(&[(0, 20), (20, 30), (40, 50), (90, 200)]), [(30, 40), (50, 90)]);
        assert_eq!(all(&[(0, 200)]), []);
        assert_eq!(all(&[(150, 200)]), [(10, 100)]);
        assert_eq!(all(&[(20, 60), (30, 40)]), [(10, 20), (60, 100)], "one inside another");
    }
}
