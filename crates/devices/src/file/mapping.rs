//! A file in memory, mapped, so that a socket can be received straight into it.
//!
//! Uses `unsafe` to map and to give the kernel addresses in the mapping. Only the kernel ever
//! touches the bytes: a file that became shorter, or memory that ran out, is then an error of the
//! system call (EFAULT) and not a signal, and threads that write the same bytes at the same time
//! race in the kernel, as with pwrite. It is worth it: one copy less for every long write.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use device::Receive;

/// Larger files are not mapped: addresses are for everybody.
const MOST: u64 = 1 << 44;

/// A whole file, mapped for reading and writing.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<libc::c_void>,
    len: usize,
}

// SAFETY: the mapping is only an address that is handed to the kernel, from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing here dereferences it.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes of `file`, if that can be done. No memory is reserved or touched.
    pub(crate) fn new(file: &OwnedFd, size: u64) -> Option<Self> {
        let len = usize::try_from(size).ok().filter(|_| (1..=MOST).contains(&size))?;
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        NonNull::new(start).map(|start| Self { start, len })
    }
}

impl Receive for Mapping {
    fn receive(&self, socket: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<usize> {
        let outside = || io::Error::from(io::ErrorKind::InvalidInput);
        let offset = usize::try_from(offset).map_err(|_| outside())?;
        if offset > self.len || len > self.len - offset {
            return Err(outside());
        }
        // SAFETY: `offset` was just found to lie inside the mapping.
        let to = unsafe { self.start.as_ptr().byte_add(offset) };
        // SAFETY: `to` and `len` describe part of the mapping, which lives as long as `self`. The
        // kernel checks the pages behind it and answers EFAULT for what is not there.
        let n = unsafe { libc::recv(socket.as_raw_fd(), to, len, libc::MSG_DONTWAIT) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and nobody has an address into it.
        unsafe { libc::munmap(self.start.as_ptr(), self.len) };
    }
}
