//! Windows: a device's own memory, into which a peer's bytes can be received without a copy.
//!
//! All `unsafe` of the mapping is here: making it, receiving into it, and giving it back. No
//! reference to its bytes ever exists and the program itself never reads or writes them, because
//! the kernel, other threads and other windows may change them at any time: bytes are written only
//! by the kernel. So there are no data races, and beyond the end of the file there is an error and
//! no signal.
#![expect(unsafe_code, reason = "see above")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use runtime::to_usize;

/// A file in memory, mapped from its beginning, shared with every program that has it open.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    file: OwnedFd,
}

// SAFETY: the mapping is memory that only the kernel writes; it belongs to no thread and is
// unmapped once, by the last owner.
unsafe impl Send for Mapping {}
// SAFETY: as above; concurrent writes by the kernel leave the bytes of either, which is what a disk
// promises.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` (> 0) bytes of `file`, which must not become shorter while this lives (a memfd
    /// that is never truncated, say). Takes address space, not memory.
    pub fn new(file: impl AsFd, len: usize) -> io::Result<Arc<Self>> {
        let file = file.as_fd().try_clone_to_owned()?;
        let (protection, flags) = (libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
        let fd = file.as_raw_fd();
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Arc::new(Self { start, len, file }))
    }

    /// The window on `len` bytes from `offset`; `None` if they do not all lie in the mapping.
    #[must_use]
    pub fn window(self: &Arc<Self>, offset: u64, len: usize) -> Option<Window> {
        let offset = to_usize(offset);
        let inside = offset <= self.len && len <= self.len - offset;
        inside.then(|| Window { mapping: self.clone(), offset, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made; no window is left that could point into it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Part of a mapping, to be filled.
#[derive(Debug)]
pub struct Window {
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
}

impl Window {
    /// Its length in bytes; never changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to fill.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of byte `at` of the window, and how many follow in it.
    fn rest(&self, at: usize) -> (*mut u8, usize) {
        let at = at.min(self.len);
        // SAFETY: offset + len lies inside the mapping (checked when the window was made), and
        // `at` is at most len.
        let start = unsafe { self.mapping.start.as_ptr().add(self.offset + at) };
        (start, self.len - at)
    }

    /// Writes as much of `bytes` as fits to byte `at`; tells how much that was.
    ///
    /// # Errors
    /// The error of pwrite(2): the system has no memory for the bytes.
    pub fn put(&self, at: usize, bytes: &[u8]) -> io::Result<usize> {
        let at = at.min(self.len);
        let n = bytes.len().min(self.len - at);
        let mut done = 0;
        while done < n {
            let place = (self.offset + at + done) as u64;
            match rustix::io::pwrite(&self.mapping.file, &bytes[done..n], place) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(n)
    }

    /// Receives from `socket`, without waiting, to byte `at` and on; tells how many bytes (0: the
    /// peer sends no more).
    ///
    /// # Errors
    /// The error of recv(2); `EFAULT` if the system has no memory for the bytes.
    pub fn receive(&self, at: usize, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let (start, room) = self.rest(at);
        // SAFETY: the kernel writes at most `room` bytes from `start`, all inside the mapping.
        let got = unsafe { libc::recv(socket.as_raw_fd(), start.cast(), room, libc::MSG_DONTWAIT) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_is_put_or_received_into_a_window_is_in_the_file_and_nowhere_else() {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 10_000).unwrap();
        let mapping = Mapping::new(&file, 10_000).unwrap();
        assert!(mapping.window(9_999, 2).is_none());
        assert!(mapping.window(10_001, 0).is_none());
        assert!(mapping.window(u64::MAX, 1).is_none());
        let window = mapping.window(100, 6).unwrap();
        drop(mapping);
        let (mut a, b) = UnixStream::pair().unwrap();
        assert_eq!(window.put(0, b"ab").unwrap(), 2);
        a.write_all(b"cdefgh").unwrap();
        assert_eq!(window.receive(2, b.as_fd()).unwrap(), 4);
        assert_eq!(window.put(6, b"xyz").unwrap(), 0);
        let mut bytes = [1; 10];
        rustix::io::pread(&file, &mut bytes, 98).unwrap();
        assert_eq!(&bytes, b"\0\0abcdef\0\0");
        assert_eq!(window.receive(0, b.as_fd()).unwrap(), 2);
        assert_eq!(window.receive(0, b.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
    #[test]
    fn where_the_file_has_ended_receiving_is_an_error_and_no_signal() {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 1 << 20).unwrap();
        let window = Mapping::new(&file, 1 << 20).unwrap().window(512 << 10, 4096).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let (mut a, b) = UnixStream::pair().unwrap();
        a.write_all(b"bytes").unwrap();
        let error = window.receive(0, b.as_fd()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }
}
