//! Systems on which block devices are refused: macOS. Their length, and who uses them, come from
//! other requests there, of which none was tried; a wrong one could cost a disk.

use std::io;
use std::os::fd::BorrowedFd;

use device::{BlockSizes, Error, Granules};

use super::Geometry;

/// Fails.
pub(crate) fn allowed() -> device::Result<()> {
    Err(Error::unsupported("use a block device: on this system only files are disks"))
}

/// What is true of any.
pub(crate) fn geometry(_: BorrowedFd<'_>) -> Geometry {
    Geometry {
        sector: 4096,
        blocks: BlockSizes::ANY,
        granules: Granules::all(0),
        serial: None,
        rotational: false,
        room: 0,
    }
}

/// Not known.
pub(crate) fn is_read_only(_: BorrowedFd<'_>) -> bool {
    false
}

/// None is used.
pub(crate) fn has_no_zeroes(_: BorrowedFd<'_>) -> bool {
    true
}

/// Not known.
pub(crate) fn queue_limit(_: BorrowedFd<'_>, _name: &str) -> Option<u64> {
    None
}

/// Fails.
pub(crate) fn zero_out(_: BorrowedFd<'_>, _offset: u64, _len: u64) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

/// Fails.
pub(crate) fn discard(_: BorrowedFd<'_>, _offset: u64, _len: u64) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

/// There are none.
pub(crate) fn reread_partitions(_: BorrowedFd<'_>) -> io::Result<()> {
    Ok(())
}
