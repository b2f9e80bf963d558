//! Memory that a kernel or a front end shares: a file that is mapped.
//!
//! Nothing refers to its bytes, since the other side may change them at any time: they are copied,
//! by us or by the kernel, or read and written as atomic numbers, each time checked against the
//! mapping. The file must not become shorter: touching what is behind its end ends the process.
//!
//! Uses `unsafe` for mapping, and for touching what is mapped.
#![expect(unsafe_code, reason = "see above")]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU16;

/// A file that is mapped. Offsets are inside it; what does not lie in it whole is not touched.
#[derive(Debug)]
pub(crate) struct SharedMapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to no thread and is unmapped once, by its owner.
unsafe impl Send for SharedMapping {}
// SAFETY: as above; nothing refers to its bytes, which are copied or are atomic numbers.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps `len` (> 0) bytes of `file` from `offset`, which is one of a page; `protection` and
    /// `flags` are mmap(2)'s, beside MAP_SHARED.
    pub(crate) fn new(
        file: BorrowedFd<'_>,
        (offset, len): (usize, usize),
        protection: libc::c_int,
        flags: libc::c_int,
    ) -> io::Result<Self> {
        let (fd, flags) = (file.as_raw_fd(), flags | libc::MAP_SHARED);
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let start = unsafe { libc::mmap(null_mut(), len, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast());
        Ok(Self { start: start.ok_or_else(|| io::Error::other("mapped at 0"))?, len })
    }

    /// A process that is forked from this one has not got it.
    pub(crate) fn not_forked(self) -> io::Result<Self> {
        // SAFETY: this is the mapping that `new` made, of which nothing is changed here.
        let kept =
            unsafe { libc::madvise(self.start.as_ptr().cast(), self.len, libc::MADV_DONTFORK) };
        if kept == 0 { Ok(self) } else { Err(io::Error::last_os_error()) }
    }

    /// The address of `len` bytes from `at`, all of which lie in it.
    fn place(&self, at: usize, len: usize) -> Option<*mut u8> {
        if at > self.len || len > self.len - at {
            return None;
        }
        // SAFETY: `at` lies inside the mapping, or at its end.
        Some(unsafe { self.start.as_ptr().add(at) })
    }

    /// Copies bytes from `at` on out of it.
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) -> Option<()> {
        let from = self.place(at, to.len())?;
        // SAFETY: `place` has checked the range, which is mapped while `self` lives; `to` is memory
        // of ours, so they do not overlap. The other side may write at the same time: then the
        // bytes are a mixture, of which nothing is believed.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        Some(())
    }

    /// Copies bytes to `at` and on in it, where it may be written.
    pub(crate) fn write(&self, at: usize, from: &[u8]) -> Option<()> {
        let to = self.place(at, from.len())?;
        // SAFETY: as in `read`, the other way round.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Some(())
    }

    /// A number of two bytes, where it is aligned.
    pub(crate) fn number(&self, at: usize) -> Option<&AtomicU16> {
        let place = self.place(at, size_of::<u16>())?.cast::<u16>();
        // SAFETY: `place` has checked the range, which is mapped while `self`, and so the
        // reference, lives; that it is aligned is checked here. All accesses of ours are atomic.
        place.is_aligned().then(|| unsafe { AtomicU16::from_ptr(place) })
    }
}

/// Parts of mappings, in their order.
pub(crate) struct SharedParts<'a> {
    parts: Vec<libc::iovec>,
    mappings: PhantomData<&'a SharedMapping>,
}

impl<'a> SharedParts<'a> {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self { parts: Vec::new(), mappings: PhantomData }
    }

    /// Adds `len` bytes from `at`, all of which lie in `mapping`, which may be written.
    pub(crate) fn push(&mut self, mapping: &'a SharedMapping, at: usize, len: usize) -> Option<()> {
        let part = libc::iovec { iov_base: mapping.place(at, len)?.cast(), iov_len: len };
        self.parts.push(part);
        Some(())
    }

    /// Fills them with what a file holds from `offset` on, by one preadv(2): bytes read, which may
    /// be fewer. More than 1024 parts are an error.
    pub(crate) fn fill(&self, file: BorrowedFd<'_>, offset: u64) -> io::Result<usize> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        let count = libc::c_int::try_from(self.parts.len()).map_err(io::Error::other)?;
        // SAFETY: `push` has checked each part, which is mapped while its mapping, and so `self`,
        // lives. Only the kernel writes there, as the other side may.
        let read = unsafe { libc::preadv(file.as_raw_fd(), self.parts.as_ptr(), count, offset) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, and its owner has gone.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
