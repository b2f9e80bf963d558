//! Systems without files in memory: macOS. It is a file in the directory of temporary files that
//! was removed, so what is written may reach a disk.

use std::os::fd::{BorrowedFd, OwnedFd};

use device::{Error, Result};
use rustix::fs::ftruncate;
use rustix::io::Errno;
use rustix::param::page_size;

use crate::file::map::Map;
use crate::file::{system, transfer};

/// Whether bytes may be received into it through a mapping: a full disk would end the process.
pub(in crate::memory) const CAN_BE_MAPPED: bool = false;

/// Bytes that are zeroed at once where that is by writing.
const PIECE: usize = 64 << 10;

/// Makes one of `size` bytes.
pub(in crate::memory) fn make(size: u64) -> Result<OwnedFd> {
    let made = programs::names::nameless_in(&std::env::temp_dir())
        .map_err(|e| Error::os("make a file for a disk in memory", e))?;
    ftruncate(&made, size).map_err(|e| Error::os(format!("make it {size} bytes long"), e))?;
    Ok(made)
}

/// Its map.
pub(in crate::memory) fn map() -> Map {
    Map::new()
}

/// Zeroes a range, whose whole pages (blocks are no longer) become a hole where that is possible.
pub(in crate::memory) fn free(
    file: BorrowedFd<'_>,
    offset: u64,
    len: u64,
) -> rustix::io::Result<()> {
    let (end, page) = (offset.saturating_add(len), page_size() as u64);
    let start = offset.checked_next_multiple_of(page).unwrap_or(u64::MAX);
    let stop = end - end % page;
    if start >= stop || system::punch(file, start, stop - start).is_err() {
        return write_zeroes(file, offset, end);
    }
    write_zeroes(file, offset, start)?;
    write_zeroes(file, stop, end)
}

fn write_zeroes(file: BorrowedFd<'_>, start: u64, end: u64) -> rustix::io::Result<()> {
    let mut at = start;
    while at < end {
        let zeroes = [0; PIECE];
        let piece = zeroes.get(..runtime::to_usize(end - at)).unwrap_or(&zeroes);
        transfer::write_all(file, piece, at)
            .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        at += piece.len() as u64;
    }
    Ok(())
}
