//! Bytes to be written: a whole buffer, or a part of one that several writes share.
//!
//! Reading a large piece and writing it in several smaller ones needs no copy: each write
//! holds a share of the buffer, which is free again when the last of them is done. The bytes of
//! a slice never change.

use std::ops::{Deref, Range};
use std::sync::Arc;

use runtime::to_usize;

use crate::Buffer;

/// Bytes that do not change any more. `Buffer` becomes one by `into()`.
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

    /// `len` bytes from `start` of these, which stay as they are; `None` if they do not all lie
    /// here. Nothing is copied.
    #[must_use]
    pub fn share(&mut self, start: usize, len: usize) -> Option<Self> {
        self.get(start..start.checked_add(len)?)?;
        let (buffer, range) = self.as_part();
        Self::part(&buffer, range.start + start, len)
    }

    /// The same bytes, for a writer that may have to write them again. Nothing is copied.
    #[must_use]
    pub fn same(&mut self) -> Self {
        let (buffer, range) = self.as_part();
        Self(Bytes::Part(buffer, range))
    }

    fn as_part(&mut self) -> (Arc<Buffer>, Range<usize>) {
        if let Bytes::Whole(buffer) = &mut self.0 {
            let buffer = std::mem::replace(buffer, Buffer::zeroed(0));
            let range = 0..buffer.len();
            self.0 = Bytes::Part(Arc::new(buffer), range);
        }
        match &self.0 {
            Bytes::Part(buffer, range) => (buffer.clone(), range.clone()),
            // Unreachable; it would be an empty slice.
            Bytes::Whole(_) => (Arc::new(Buffer::zeroed(0)), 0..0),
        }
    }

    fn into_part(self) -> (Arc<Buffer>, Range<usize>) {
        match self.0 {
            Bytes::Part(buffer, range) => (buffer, range),
            Bytes::Whole(buffer) => {
                let range = 0..buffer.len();
                (Arc::new(buffer), range)
            }
        }
    }

    /// The same bytes in pieces of `longest` bytes (≥ 1), the last one maybe shorter. Nothing is
    /// copied.
    #[must_use]
    pub fn into_pieces(self, longest: usize) -> Vec<Self> {
        let (buffer, range) = self.into_part();
        let longest = longest.max(1);
        let piece = |start: usize| {
            let end = range.end.min(start.saturating_add(longest));
            Self(Bytes::Part(buffer.clone(), start..end))
        };
        range.clone().step_by(longest).map(piece).collect()
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

/// Copies into `to`, which begins at byte `to_at` of a disk, what lies in it of `from`, which
/// begins at byte `from_at`.
pub fn copy_overlap(to: &mut [u8], to_at: u64, from: &[u8], from_at: u64) {
    let start = to_at.max(from_at);
    let into = to.get_mut(to_usize(start - to_at)..).unwrap_or_default();
    let from = from.get(to_usize(start - from_at)..).unwrap_or_default();
    let len = into.len().min(from.len());
    into[..len].copy_from_slice(&from[..len]);
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
        let mut one = Slice::from(Buffer::copy_of(b"abc"));
        let other = one.same();
        assert_eq!((&*one, &*other, one.as_ptr()), (&b"abc"[..], &b"abc"[..], other.as_ptr()));
        let mut whole = Slice::from(Buffer::copy_of(b"abcdef"));
        let mut share = whole.share(1, 4).unwrap();
        let last = share.share(3, 1).unwrap();
        assert_eq!((&*share, &*last), (&b"bcde"[..], &b"e"[..]));
        assert!(share.share(3, 2).is_none());
        assert_eq!(&*whole, b"abcdef");
        let pieces = Slice::part(&buffer, 1, 7).unwrap().into_pieces(3);
        assert_eq!(pieces.iter().map(|p| &**p).collect::<Vec<_>>(), [&b"123"[..], b"456", b"7"]);
    }

    #[test]
    fn what_overlaps_is_copied_wherever_the_two_begin_and_end() {
        let from: Vec<u8> = (0..10).collect();
        for (to_at, len, from_at, wanted) in [
            (0, 4, 0, &[0, 1, 2, 3][..]),
            (5, 3, 0, &[5, 6, 7]),
            (0, 4, 2, &[99, 99, 0, 1]),
            (8, 4, 0, &[8, 9, 99, 99]),
            (0, 4, 4, &[99; 4]),
            (10, 4, 0, &[99; 4]),
        ] {
            let mut to = vec![99; len];
            copy_overlap(&mut to, to_at, &from, from_at);
            assert_eq!(to, wanted, "{to_at} {len} {from_at}");
        }
    }
}
