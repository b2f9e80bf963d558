//! Taking bytes from another file without moving them through this program: both files refer to
//! them from then on (a reflink), or the kernel copies.
//!
//! Both are attempts. If they fail, reading and writing follow, which report errors, and a useless
//! attempt is not repeated.
//!
//! Uses `unsafe` for one ioctl, FICLONERANGE, which rustix does not have. It is worth it: it
//! copies any length in the time of one call.
#![expect(unsafe_code, reason = "see above")]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use device::Place;
use runtime::to_usize;
use rustix::fs::fstat;
use rustix::io::Errno;

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
        Some(Self { device: stat.st_dev, inode: stat.st_ino, block })
    }

    /// Whether the two files may share blocks.
    fn may_share(self, from: &Place) -> bool {
        fstat(from.fd()).is_ok_and(|a| a.st_dev == self.device && a.st_ino != self.inode)
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
        let (mut at, mut into) = (from.offset(), offset);
        let most = to_usize(len.min(KERNEL_COPY));
        let copied =
            rustix::fs::copy_file_range(from.fd(), Some(&mut at), fd, Some(&mut into), most);
        match copied {
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

fn clone_range(from: &Place, to: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    let from_fd: BorrowedFd<'_> = from.fd();
    let range = libc::file_clone_range {
        src_fd: i64::from(from_fd.as_raw_fd()),
        src_offset: from.offset(),
        src_length: len,
        dest_offset: offset,
    };
    // SAFETY: FICLONERANGE reads one `file_clone_range` through the pointer, which is valid for
    // the call, and both descriptors are borrowed for longer than it takes.
    let answer = unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONERANGE, &range) };
    if answer == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
