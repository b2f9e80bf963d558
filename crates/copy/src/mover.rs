//! Moving data from a place to a place: the kernel copies, or only refers.
//!
//! Both are attempts. What they cannot do is left to reading and writing, and an end of the
//! attempts is remembered for the rest of the copy. Neither is taken where it would change what
//! the target looks like: sharing blocks is not allocating them, and a copy by the kernel does
//! not look for zeroes.
//!
//! Uses `unsafe` for one ioctl, FICLONERANGE, which rustix does not have. It is worth it: it
//! copies any length in the time of one call.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use device::{Edge, Place};
use rustix::io::Errno;

use crate::Options;
use crate::plan::Stretch;

/// The kernel copies at most so much at a time, so that a copy can be stopped.
const KERNEL_COPY: u64 = 16 << 20;

/// What is still worth trying.
#[derive(Debug)]
pub(crate) struct Movers {
    reflink: AtomicBool,
    kernel_copy: AtomicBool,
}

/// How to move the next bytes of a stretch of data.
#[derive(Debug)]
pub(crate) enum Mover {
    /// From file to file by the kernel.
    InKernel { from: Place, to: Place },
    /// Read them, look at them, write them.
    ReadAndWrite,
}

impl Movers {
    pub(crate) fn new(options: &Options, looks_for_zeroes: bool) -> Self {
        Self {
            reflink: AtomicBool::new(!options.allocated),
            kernel_copy: AtomicBool::new(!options.allocated && !looks_for_zeroes),
        }
    }

    pub(crate) fn choose(&self, stretch: &Stretch, target: &Edge) -> Mover {
        if !self.reflink.load(Relaxed) && !self.kernel_copy.load(Relaxed) {
            return Mover::ReadAndWrite;
        }
        match (&stretch.place, target.device().write_place(stretch.start)) {
            (Some(from), Some(to)) => Mover::InKernel { from: from.clone(), to },
            _ => Mover::ReadAndWrite,
        }
    }

    /// Moves up to `len` bytes; says how many were, 0 if none can be in this way.
    pub(crate) fn in_kernel(&self, from: &Place, to: &Place, len: u64) -> u64 {
        let moved = self.try_reflink(from, to, len);
        if moved > 0 { moved } else { self.try_copy(from, to, len) }
    }

    fn try_reflink(&self, from: &Place, to: &Place, len: u64) -> u64 {
        if !self.reflink.load(Relaxed) {
            return 0;
        }
        let Some((len, aligned)) = whole_blocks(from, to, len) else {
            self.reflink.store(false, Relaxed);
            return 0;
        };
        if len == 0 {
            return 0;
        }
        match clone_range(from, to, len) {
            Ok(()) => len,
            // Of this range only: it may be at the end of the file, or lie on no block.
            Err(Errno::INVAL) if !aligned => 0,
            Err(_) => {
                self.reflink.store(false, Relaxed);
                0
            }
        }
    }

    fn try_copy(&self, from: &Place, to: &Place, len: u64) -> u64 {
        if !self.kernel_copy.load(Relaxed) {
            return 0;
        }
        let (mut at, mut into) = (from.offset(), to.offset());
        let len = usize::try_from(len.min(KERNEL_COPY)).unwrap_or(usize::MAX);
        let copied =
            rustix::fs::copy_file_range(from.fd(), Some(&mut at), to.fd(), Some(&mut into), len);
        match copied {
            Ok(n) if n > 0 => n as u64,
            // 0 is the end of the source or a kernel that cannot; reading says which. An error
            // here is not the last word either: reading or writing says what is wrong.
            _ => {
                self.kernel_copy.store(false, Relaxed);
                0
            }
        }
    }
}

/// The part of `len` that can be cloned, and whether all of it lies on blocks. `None` if the
/// two files never share blocks.
fn whole_blocks(from: &Place, to: &Place, len: u64) -> Option<(u64, bool)> {
    let (a, b) = (rustix::fs::fstat(from.fd()).ok()?, rustix::fs::fstat(to.fd()).ok()?);
    if a.st_dev != b.st_dev || a.st_ino == b.st_ino {
        return None;
    }
    let block = u64::try_from(b.st_blksize).ok().filter(|b| b.is_power_of_two())?;
    if !from.offset().is_multiple_of(block) || !to.offset().is_multiple_of(block) {
        return Some((0, false));
    }
    let whole = len - len % block;
    Some((whole, whole == len))
}

fn clone_range(from: &Place, to: &Place, len: u64) -> Result<(), Errno> {
    let from_fd: BorrowedFd<'_> = from.fd();
    let range = libc::file_clone_range {
        src_fd: i64::from(from_fd.as_raw_fd()),
        src_offset: from.offset(),
        src_length: len,
        dest_offset: to.offset(),
    };
    // SAFETY: FICLONERANGE reads one `file_clone_range` through the pointer, which is valid for
    // the call, and both descriptors are borrowed for longer than it takes.
    let answer = unsafe { libc::ioctl(to.fd().as_raw_fd(), libc::FICLONERANGE, &range) };
    if answer == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
