//! The requests that zero a file or block device. A seam: tests replace the system by one that
//! lacks some of them, and check which were made.

use std::io::IoSlice;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use device::Buffer;
use rustix::fs::OFlags;
use rustix::io::{Errno, Result, pwrite, pwritev};

use crate::file::{block, system, zero};
use runtime::to_usize;

/// Bytes of zeroes in memory; they are written from there over and over.
const ZEROES: usize = 2 << 20;
/// Times that they are written in one call.
const TIMES: usize = 4;

/// The requests to the system. Ranges are of whole blocks, except for writes through the page
/// cache.
pub(crate) trait System: Sync {
    /// FALLOC_FL_WRITE_ZEROES.
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()>;
    /// BLKZEROOUT.
    fn zero_out(&self, offset: u64, len: u64) -> Result<()>;
    /// Writes zeroes past the page cache; how many.
    fn write_direct(&self, offset: u64, len: u64) -> Result<u64>;
    /// Writes zeroes through the page cache; how many.
    fn write_cached(&self, offset: u64, len: u64) -> Result<u64>;
}

/// The same file once more, opened for direct I/O; made when it is first needed.
pub(crate) type DirectDescriptor = OnceLock<Option<OwnedFd>>;

/// The kernel.
pub(crate) struct Kernel<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) direct: &'a DirectDescriptor,
}

impl System for Kernel<'_> {
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        system::write_zeroes(self.fd, offset, len)
    }

    fn zero_out(&self, offset: u64, len: u64) -> Result<()> {
        zero::by_errno(block::zero_out(self.fd, offset, len))
    }

    fn write_direct(&self, offset: u64, len: u64) -> Result<u64> {
        let direct = self.direct.get_or_init(|| open_directly(self.fd));
        let direct = direct.as_ref().ok_or(Errno::OPNOTSUPP)?;
        let memory = zeroes();
        let mut slices = [IoSlice::new(&[]); TIMES];
        let (mut left, mut used) = (to_usize(len), 0);
        for slice in &mut slices {
            if left == 0 {
                break;
            }
            let part = memory.get(..left).unwrap_or(memory);
            *slice = IoSlice::new(part);
            left -= part.len();
            used += 1;
        }
        pwritev(direct, slices.get(..used).unwrap_or_default(), offset).map(|n| n as u64)
    }

    fn write_cached(&self, offset: u64, len: u64) -> Result<u64> {
        let memory = zeroes();
        pwrite(self.fd, memory.get(..to_usize(len)).unwrap_or(memory), offset).map(|n| n as u64)
    }
}

/// An opening of its own: the flag belongs to the opening, and others read and write through the
/// cache.
fn open_directly(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    system::open_direct(fd, OFlags::WRONLY).ok()
}

fn zeroes() -> &'static [u8] {
    static MEMORY: OnceLock<Buffer> = OnceLock::new();
    MEMORY.get_or_init(|| Buffer::of_huge_pages(ZEROES))
}
