//! Bytes to be written: a whole buffer, or a part of one that several writes share.
//!
//! Whoever reads a large piece and writes it in several smaller ones needs no copy: each write
//! holds a share of the buffer, which is free again when the last of them is done. The bytes of
//! a slice never change.

use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::Buffer;

/// Bytes that nobody changes any more. `Buffer` becomes one by `into()`.
#[derive(Debug)]
pub struct Slice(Bytes);

#[derive(Debug)]
enum Bytes {
    Part(Arc<Buffer>, Range<usize>),
    Whole(Buffer),
}

impl Slice {
    /// `len` bytes from `start` of a shared buffer; `None` if they do not all lie in it.
    #[must_use]
    pub fn part(buffer: &Arc<Buffer>, start: usize, len: usize) -> Option<Self> {
        let range = start..start.checked_add(len)?;
        buffer.get(range.clone())?;
        Some(Self(Bytes::Part(buffer.clone(), range)))
    }
}

impl From<Buffer> for Slice {
    fn from(buffer: Buffer) -> Self {
        Self(Bytes::Whole(buffer))
    }
}

impl Deref for Slice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Part(buffer, range) => &buffer[range.clone()],
            Bytes::Whole(buffer) => buffer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_outside_its_buffer_is_refused() {
        let buffer = Arc::new(Buffer::copy_of(b"0123456789"));
        assert_eq!(&*Slice::part(&buffer, 2, 3).unwrap(), b"234");
        assert_eq!(&*Slice::part(&buffer, 10, 0).unwrap(), b"");
        assert!(Slice::part(&buffer, 8, 3).is_none());
        assert!(Slice::part(&buffer, usize::MAX, 2).is_none());
        assert_eq!(&*Slice::from(Buffer::copy_of(b"abc")), b"abc");
    }
}
