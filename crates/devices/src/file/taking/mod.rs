//! Taking bytes from another file without moving them through this program: both files refer to
//! them from then on (a reflink), or the kernel copies.
//!
//! Both are attempts. If they fail, reading and writing follow, which report errors, and a useless
//! attempt is not repeated.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use device::Place;
use programs::names::numbers_of;
use runtime::to_usize;
use rustix::fs::fstat;
use rustix::io::Errno;

#[cfg(target_os = "linux")]
use linux::{clone_range, copy_range};
#[cfg(not(target_os = "linux"))]
use other::{clone_range, copy_range};

/// The kernel copies at most so much at a time, so that a copy can be stopped.
const KERNEL_COPY: u64 = 16 << 20;

/// Which attempts still make sense.
#[derive(Debug, Default)]
pub(crate) struct Taking {
    cannot_share: AtomicBool,
    cannot_copy: AtomicBool,
    own: OnceLock<Option<Own>>,
}

/// The file that takes.
#[derive(Clone, Copy, Debug)]
struct Own {
    device: u64,
    inode: u64,
    /// Bytes of a block, a power of two: only whole ones are shared.
    block: u64,
}

impl Own {
    fn of(fd: BorrowedFd<'_>) -> Option<Self> {
        let stat = fstat(fd).ok()?;
        let block = u64::try_from(stat.st_blksize).ok().filter(|b| b.is_power_of_two())?;
        let (device, inode) = numbers_of(&stat);
        Some(Self { device, inode, block })
    }

    /// Whether the two files may share blocks.
    fn may_share(self, from: &Place) -> bool {
        fstat(from.fd()).is_ok_and(|stat| {
            let (device, inode) = numbers_of(&stat);
            device == self.device && inode != self.inode
        })
    }
}

impl Taking {
    /// How many of `len` bytes (≥ 1) at `offset` are those at `from` now, by sharing them.
    pub(crate) fn share(&self, fd: BorrowedFd<'_>, offset: u64, len: u64, from: &Place) -> u64 {
        if self.cannot_share.load(Relaxed) {
            return 0;
        }
        let Some(own) = *self.own.get_or_init(|| Own::of(fd)) else { return 0 };
        let whole = len - len % own.block;
        let on_blocks = offset.is_multiple_of(own.block) && from.offset().is_multiple_of(own.block);
        if !on_blocks || !own.may_share(from) {
            return 0;
        }
        // What ends both files may end inside a block.
        if whole < len && reaches_end(from, len) && clone_range(from, fd, offset, len).is_ok() {
            return len;
        }
        if whole == 0 {
            return 0;
        }
        match clone_range(from, fd, offset, whole) {
            Ok(()) => whole,
            // For this range only: it may be at the end of the file.
            Err(Errno::INVAL) if whole < len => 0,
            Err(_) => {
                self.cannot_share.store(true, Relaxed);
                0
            }
        }
    }

    /// How many of `len` bytes (≥ 1) at `offset` are those at `from` now, copied by the kernel.
    pub(crate) fn copy(&self, fd: BorrowedFd<'_>, offset: u64, len: u64, from: &Place) -> u64 {
        if self.cannot_copy.load(Relaxed) {
            return 0;
        }
        match copy_range(from, fd, offset, to_usize(len.min(KERNEL_COPY))) {
            Ok(n) if n > 0 => n as u64,
            // 0 means the end of the source, or no support in the kernel; reading shows which.
            _ => {
                self.cannot_copy.store(true, Relaxed);
                0
            }
        }
    }
}

/// Whether the file ends where these bytes do.
fn reaches_end(from: &Place, len: u64) -> bool {
    let size = fstat(from.fd()).ok().and_then(|stat| u64::try_from(stat.st_size).ok());
    size.is_some_and(|size| size.checked_sub(from.offset()) == Some(len))
}
