//! Which parts of a disk in memory have their pages, and the mapping through which those can be
//! written without a copy.
//!
//! Only a hint: a page that is not there after all is made when bytes arrive for it.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use device::{Mapping, Window};
use runtime::to_usize;

/// Bytes that one bit stands for.
const PART: u64 = 64 << 10;
/// Disks larger than this are not mapped: the bits would take more than half a megabyte.
const LARGEST: u64 = 256 << 30;
/// Shorter writes come with their request and are copied.
const SHORTEST: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Present {
    mapping: Arc<Mapping>,
    parts: Box<[AtomicU64]>,
}

impl Present {
    /// Nothing is present yet. `None` if the disk is too large or cannot be mapped.
    pub(super) fn of(file: impl AsFd, size: u64) -> Option<Self> {
        if size == 0 || size > LARGEST {
            return None;
        }
        let mapping = Mapping::new(file, to_usize(size)).ok()?;
        let words = to_usize(size.div_ceil(PART).div_ceil(64));
        Some(Self { mapping, parts: (0..words).map(|_| AtomicU64::new(0)).collect() })
    }

    fn word(&self, part: u64) -> Option<(&AtomicU64, u64)> {
        let word = self.parts.get(to_usize(part / 64))?;
        Some((word, 1 << (part % 64)))
    }

    /// All of a range has been written.
    pub(super) fn remember(&self, offset: u64, len: u64) {
        // Only parts that are covered whole.
        for part in offset.div_ceil(PART)..offset.saturating_add(len) / PART {
            if let Some((word, bit)) = self.word(part)
                && word.load(Relaxed) & bit == 0
            {
                word.fetch_or(bit, Relaxed);
            }
        }
    }

    /// A range has become a hole.
    pub(super) fn forget(&self, offset: u64, len: u64) {
        let last = offset.saturating_add(len).div_ceil(PART);
        let mut part = offset / PART;
        while part < last {
            let Some((word, bit)) = self.word(part) else { return };
            // A whole word at a time where that is what the range covers.
            if part.is_multiple_of(64) && last - part >= 64 {
                word.store(0, Relaxed);
                part += 64;
            } else {
                word.fetch_and(!bit, Relaxed);
                part += 1;
            }
        }
    }

    /// The window on a range, if all of it is present and it is long enough to be worth it.
    pub(super) fn window(&self, offset: u64, len: usize) -> Option<Window> {
        if len < SHORTEST {
            return None;
        }
        let end = offset.checked_add(len as u64)?;
        let there = |part| self.word(part).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0);
        (offset / PART..end.div_ceil(PART)).all(there).then(|| self.mapping.window(offset, len))?
    }
}
