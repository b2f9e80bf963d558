//! Python's memory that a command reads into or writes from, without a copy.
//!
//! Uses `unsafe` to make a slice of a pointer and a length: that is the only way to receive into a
//! buffer that belongs to a Python object while other Python threads run.
#![expect(unsafe_code, reason = "see above")]

use std::ops::Deref;
use std::ptr::NonNull;

/// A range of memory that Python keeps.
///
/// As with every buffer that is given to Python's `recv_into`, other threads may look at it and
/// write into it meanwhile; what they see and what is sent then is up to them. Nothing here trusts
/// what it reads back from it.
#[derive(Debug)]
pub(crate) struct PythonMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is a pointer and a length; `new` makes the caller promise that both stay true wherever
// this is.
unsafe impl Send for PythonMemory {}

impl PythonMemory {
    /// No memory.
    pub(crate) const fn none() -> Self {
        Self { start: NonNull::dangling(), len: 0 }
    }

    /// The `len` bytes at `start`.
    ///
    /// # Safety
    /// They can be read until this is dropped, and written if a command reads into them.
    pub(crate) const unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len }
    }

    /// The same memory once more, to be dropped before this.
    pub(crate) const fn same(&self) -> Self {
        Self { start: self.start, len: self.len }
    }

    /// A part of it, to be received into; `None` if it is not within.
    pub(crate) fn part(&mut self, start: usize, len: usize) -> Option<&mut [u8]> {
        if start > self.len || len > self.len - start {
            return None;
        }
        // SAFETY: as `new` was promised; the part is within, and this is borrowed for as long as it
        // is used.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(start), len) })
    }
}

/// All of it, to be sent.
impl Deref for PythonMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as `new` was promised.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}
