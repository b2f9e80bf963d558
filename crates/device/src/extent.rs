//! Extents: what a range of a device holds and, where it can be said, where that lies.

use std::any::Any;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// What an extent holds.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ExtentKind {
    /// Anything; it must be read to be known.
    Data,
    /// Reads as zeroes and occupies no room (NBD: HOLE and ZERO).
    Hole,
    /// Reads as zeroes but occupies room (NBD: ZERO).
    Zero,
}

impl ExtentKind {
    /// Whether the extent is known to read as zeroes.
    pub fn reads_zero(self) -> bool {
        matches!(self, Self::Hole | Self::Zero)
    }
}

/// A run of bytes of one kind.
#[derive(Clone, Debug)]
pub struct Extent {
    /// First byte, as an offset into the device.
    pub start: u64,
    /// Length in bytes; never 0.
    pub len: u64,
    /// What is there.
    pub kind: ExtentKind,
    /// Where the bytes lie, if they lie as they are in a file that this process has open.
    pub place: Option<Place>,
}

impl Extent {
    /// An extent without a place.
    pub fn new(start: u64, len: u64, kind: ExtentKind) -> Self {
        Self { start, len, kind, place: None }
    }

    /// The first byte after the extent.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// Appends `next` to `list`, joined to the last extent when both are of one kind and touch, in
/// the device and in their places.
pub fn merge_extent(list: &mut Vec<Extent>, next: Extent) {
    if let Some(last) = list.last_mut() {
        let touches = last.kind == next.kind && last.end() == next.start;
        let places = match (&last.place, &next.place) {
            (None, None) => true,
            (Some(a), Some(b)) => {
                Arc::ptr_eq(&a.file, &b.file) && a.offset.checked_add(last.len) == Some(b.offset)
            }
            _ => false,
        };
        if touches && places {
            last.len += next.len;
            return;
        }
    }
    list.push(next);
}

/// Where bytes lie: an open file and an offset into it. A place is a lease: the bytes stay at
/// that offset until it is dropped, and whoever would move, free or reuse them waits or copies.
#[derive(Clone)]
pub struct Place {
    file: Arc<OwnedFd>,
    offset: u64,
    guard: Option<Arc<dyn Any + Send + Sync>>,
}

impl Place {
    /// A place in a file whose bytes never move while it is open.
    pub fn new(file: Arc<OwnedFd>, offset: u64) -> Self {
        Self { file, offset, guard: None }
    }

    /// A place whose owner must not move the bytes while `guard` lives.
    #[must_use]
    pub fn guarded(mut self, guard: Arc<dyn Any + Send + Sync>) -> Self {
        self.guard = Some(guard);
        self
    }

    /// The file's descriptor. Whoever uses it passes offsets; the file position is nobody's.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The offset of the first byte in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The place `by` bytes further on.
    #[must_use]
    pub fn advanced(&self, by: u64) -> Self {
        Self { offset: self.offset.saturating_add(by), ..self.clone() }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("fd", &self.file).field("offset", &self.offset).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_extents_of_one_kind_become_one() {
        let mut list = Vec::new();
        merge_extent(&mut list, Extent::new(0, 10, ExtentKind::Hole));
        merge_extent(&mut list, Extent::new(10, 5, ExtentKind::Hole));
        merge_extent(&mut list, Extent::new(15, 5, ExtentKind::Data));
        assert_eq!(list.len(), 2);
        assert_eq!(list[0].len, 15);
    }
}
