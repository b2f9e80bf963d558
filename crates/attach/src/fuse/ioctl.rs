//! The ioctls of /dev/fuse.
//!
//! Uses `unsafe` for ioctl(2), whose arguments the compiler cannot check: they are the kernel's
//! (include/uapi/linux/fuse.h), of the sizes that the numbers say.
#![expect(unsafe_code, reason = "see above")]

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::io::Result;
use rustix::ioctl::{Setter, ioctl, opcode};

const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
const BACKING_OPEN: rustix::ioctl::Opcode = opcode::write::<BackingMap>(229, 1);

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: RawFd,
    flags: u32,
    padding: u64,
}

/// Makes `new`, a fresh /dev/fuse, another descriptor of the connection of `of`: threads that read
/// from descriptors of their own do not share a lock.
pub(super) fn clone_onto(new: BorrowedFd<'_>, of: BorrowedFd<'_>) -> Result<()> {
    let Ok(number) = u32::try_from(of.as_raw_fd()) else { return Err(rustix::io::Errno::BADF) };
    // SAFETY: FUSE_DEV_IOC_CLONE reads a u32, a descriptor, and changes no memory of ours.
    unsafe { ioctl(new, Setter::<CLONE, u32>::new(number)) }
}

/// Gives `file` to the connection as what lies behind a file that is opened; the number that an
/// answer to an open names it by. The kernel keeps a reference of its own.
pub(super) fn open_backing(connection: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<i32> {
    /// The ioctl, whose result is the number.
    struct Backing(BackingMap);
    // SAFETY: FUSE_DEV_IOC_BACKING_OPEN reads a `fuse_backing_map`, which outlives the call, and
    // writes nothing to it.
    unsafe impl rustix::ioctl::Ioctl for Backing {
        type Output = i32;
        const IS_MUTATING: bool = false;
        fn opcode(&self) -> rustix::ioctl::Opcode {
            BACKING_OPEN
        }
        fn as_ptr(&mut self) -> *mut core::ffi::c_void {
            (&raw mut self.0).cast()
        }
        unsafe fn output_from_ptr(
            result: rustix::ioctl::IoctlOutput,
            _: *mut core::ffi::c_void,
        ) -> Result<i32> {
            Ok(result)
        }
    }
    let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: see above; the descriptor is open for as long as the call.
    unsafe { ioctl(connection, Backing(map)) }
}
