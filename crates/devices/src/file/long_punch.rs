//! Long zeroes and trims of a file in memory (tmpfs, or a memfd).
//!
//! Such a file never waits for a disk, so what is short is done by whichever thread is asked, also
//! by one that serves clients. But the kernel holds the lock of the inode for all of one
//! `fallocate` (0.3 s for a GiB), and writes and questions for the map wait for that lock. So:
//!
//! - while one is in flight, no device of this process does anything at once on that inode
//!   ([`LongPunches::any`]): other work of it goes to the pool;
//! - holes are punched in pieces ([`in_pieces`]), between which the lock is free: for what began
//!   just before, for pages that bytes are being received into, and for other programs.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use programs::names::numbers_of;
use runtime::Mutex;
use rustix::fs::fstat;

use super::system::seek_data;

/// Shorter ones are done at once, wherever they are asked for (as in `device::Simple`); a piece of
/// a longer one holds no more bytes of data than this.
const PIECE: u64 = 16 << 20;

/// The counts of all inodes that are open here, by device and inode number.
static INODES: Mutex<BTreeMap<(u64, u64), Weak<AtomicUsize>>> = Mutex::new(BTreeMap::new());

/// How many long zeroes and trims of one inode are in flight, through all devices of this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct LongPunches(Arc<AtomicUsize>);

impl LongPunches {
    /// That of the inode of `file`. One of its own where the system does not tell which it is.
    pub(crate) fn of(file: BorrowedFd<'_>) -> Self {
        let Ok(stat) = fstat(file) else { return Self::default() };
        let mut inodes = INODES.lock();
        inodes.retain(|_, count| count.strong_count() > 0);
        let inode = inodes.entry(numbers_of(&stat)).or_default();
        if let Some(count) = inode.upgrade() {
            return Self(count);
        }
        let new = Self::default();
        *inode = Arc::downgrade(&new.0);
        new
    }

    /// Whether any is.
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Counts one of `len` bytes, if that is long, until the answer is dropped.
    pub(crate) fn begin(&self, len: u64) -> Option<LongPunch<'_>> {
        (len > PIECE).then(|| {
            self.0.fetch_add(1, Ordering::Relaxed);
            LongPunch(&self.0)
        })
    }
}

/// One that is in flight.
#[derive(Debug)]
pub(crate) struct LongPunch<'a>(&'a AtomicUsize);

impl Drop for LongPunch<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Punches `offset..offset + len` of a file in memory by calls of `punch`, which gets an offset and
/// a length and returns whether it did it; they are as many as the data needs, however long the
/// range is. Stops at the first that did not.
///
/// # Errors
/// That of `punch`.
pub(crate) fn in_pieces(
    file: BorrowedFd<'_>,
    offset: u64,
    len: u64,
    mut punch: impl FnMut(u64, u64) -> io::Result<bool>,
) -> io::Result<bool> {
    let (mut at, end) = (offset, offset.saturating_add(len));
    loop {
        let stop = piece_end(file, at, end);
        if !punch(at, stop - at)? {
            return Ok(false);
        }
        if stop >= end {
            return Ok(true);
        }
        at = stop;
    }
}

/// Where the piece that begins at `at` ends: after the hole that it begins with, if it does, and
/// some data.
fn piece_end(file: BorrowedFd<'_>, at: u64, end: u64) -> u64 {
    if end - at <= PIECE {
        return end;
    }
    // No data: all that is left is one piece.
    seek_data(file, at).map_or(end, |data| data.max(at).saturating_add(PIECE).min(end))
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
    use rustix::io::pwrite;

    use super::*;

    fn memory(size: u64) -> OwnedFd {
        let made = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&made, size).unwrap();
        made
    }

    /// Punches a range; the pieces.
    fn punched(file: &OwnedFd, offset: u64, len: u64) -> Vec<(u64, u64)> {
        let mut pieces = Vec::new();
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let done = in_pieces(file.as_fd(), offset, len, |at, n| {
            fallocate(file, mode, at, n)?;
            pieces.push((at, n));
            Ok(true)
        });
        assert!(done.unwrap());
        pieces
    }

    #[test]
    fn a_long_hole_is_punched_in_pieces_as_its_data_needs_and_none_is_left_out() {
        let file = memory(i64::MAX.unsigned_abs());
        for at in (0..40 << 20).step_by(1 << 20) {
            pwrite(&file, &vec![1; 1 << 20], (1 << 40) + at).unwrap();
        }
        // Room without data is given back, too.
        fallocate(&file, FallocateFlags::KEEP_SIZE, 1 << 41, 1 << 20).unwrap();
        let pieces = punched(&file, 5, i64::MAX.unsigned_abs() - 5);
        assert!(pieces.len() == 3 || pieces.len() == 4, "{pieces:?}");
        let mut at = 5;
        for (start, len) in &pieces {
            assert_eq!(*start, at);
            at += len;
        }
        assert_eq!(at, i64::MAX.unsigned_abs());
        assert_eq!(fstat(&file).unwrap().st_blocks, 0);
        // Of a hole it is one call.
        assert_eq!(punched(&file, 0, 1 << 50), [(0, 1 << 50)]);
    }

    #[test]
    fn what_is_refused_ends_it() {
        let file = memory(1 << 30);
        for at in [0, 100 << 20, 200 << 20] {
            pwrite(&file, b"data", at).unwrap();
        }
        let mut calls = 0;
        let mut refusing = |_, _| {
            calls += 1;
            Ok(calls < 2)
        };
        assert!(!in_pieces(file.as_fd(), 0, 1 << 30, &mut refusing).unwrap());
        assert_eq!(calls, 2);
    }

    #[test]
    fn long_ones_count_for_every_opening_of_the_inode_while_they_last() {
        let (file, other) = (memory(1 << 30), memory(1 << 30));
        let again = rustix::io::dup(&file).unwrap();
        let [file, again, other] = [&file, &again, &other].map(|fd| LongPunches::of(fd.as_fd()));
        assert!(file.begin(PIECE).is_none() && !again.any());
        let punch = file.begin(PIECE + 1);
        let second = again.begin(1 << 30);
        assert!(file.any() && again.any() && !other.any());
        drop(punch);
        assert!(file.any());
        drop(second);
        assert!(!file.any() && !again.any());
    }
}
