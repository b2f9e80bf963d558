//! A long table of numbers in a container, with a bounded cache.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use device::{Buffer, Edge, Result};

use super::fields::{corrupt, lies_inside, load};
use super::layer::at_once;
use super::{confused, read};

/// Bytes that are read at a time.
const SLICE: u64 = 64 << 10;
/// Slices that are cached: 8 MiB.
const SLICES: usize = 128;

/// The table. Its entries do not change while it is open.
pub(crate) struct Table {
    below: Edge,
    offset: u64,
    entries: u64,
    width: u64,
    number: fn(&[u8], usize) -> u64,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// By the start of the table, and the slice's offset in it.
    slices: HashMap<(u64, u64), (u64, Arc<Buffer>)>,
    /// Counts look-ups.
    now: u64,
}

impl Table {
    /// A table of `entries` numbers of `width` bytes (a power of two up to 8) at `offset`, which
    /// `number` reads.
    ///
    /// # Errors
    /// They do not all lie in the container.
    pub(crate) fn new(
        below: &Edge,
        what: &str,
        offset: u64,
        (entries, width): (u64, u64),
        number: fn(&[u8], usize) -> u64,
    ) -> Result<Self> {
        let len =
            entries.checked_mul(width).ok_or_else(|| corrupt(format!("its {what} is endless")))?;
        lies_inside(below, what, offset, len)?;
        let known = Mutex::default();
        Ok(Self { below: below.clone(), offset, entries, width, number, known })
    }

    /// Its place: offset and length.
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.offset, self.entries * self.width)
    }

    /// An entry; `None` if that would have to wait and `may_wait` is false.
    ///
    /// # Errors
    /// There is none; it cannot be read.
    pub(crate) async fn entry(&self, index: u64, may_wait: bool) -> Result<Option<u64>> {
        if index >= self.entries {
            return Err(corrupt(format!(
                "its table has {} entries, and not {index}",
                self.entries
            )));
        }
        self.number_in(self.range(), index * self.width, may_wait).await
    }

    /// An entry of another table of numbers of the same width (offset and length), which the caller has checked to lie
    /// in the container.
    ///
    /// # Errors
    /// There is none; it cannot be read.
    pub(crate) async fn elsewhere(
        &self,
        range: (u64, u64),
        index: u64,
        may_wait: bool,
    ) -> Result<Option<u64>> {
        if index >= range.1 / self.width {
            return Err(corrupt(format!("a table of it has no entry {index}")));
        }
        self.number_in(range, index * self.width, may_wait).await
    }

    async fn number_in(
        &self,
        (base, len): (u64, u64),
        at: u64,
        may_wait: bool,
    ) -> Result<Option<u64>> {
        let (start, within) = (at - at % SLICE, usize::try_from(at % SLICE).unwrap_or(0));
        if let Some(slice) = self.remembered((base, start)) {
            return Ok(Some((self.number)(&slice, within)));
        }
        let len = usize::try_from(SLICE.min(len - start)).unwrap_or(0);
        let Some(slice) = read(&self.below, base + start, len, may_wait).await? else {
            return Ok(None);
        };
        let slice = Arc::new(slice);
        self.remember((base, start), slice.clone());
        Ok(Some((self.number)(&slice, within)))
    }

    /// An entry, for callers that may block.
    ///
    /// # Errors
    /// As [`entry`](Self::entry).
    pub(crate) fn entry_now(&self, index: u64) -> Result<u64> {
        if let Some(Ok(Some(entry))) = at_once(self.entry(index, false)) {
            return Ok(entry);
        }
        // This reads it into the cache.
        let at = index.min(self.entries.saturating_sub(1)) * self.width;
        let start = at - at % SLICE;
        let len = SLICE.min(self.entries * self.width - start);
        let slice =
            load(&self.below, "table", self.offset + start, usize::try_from(len).unwrap_or(0))?;
        self.remember((self.offset, start), Arc::new(slice));
        at_once(self.entry(index, false)).unwrap_or(Ok(None))?.ok_or_else(confused)
    }

    fn remembered(&self, start: (u64, u64)) -> Option<Arc<Buffer>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.now += 1;
        let now = known.now;
        let (used, slice) = known.slices.get_mut(&start)?;
        *used = now;
        Some(slice.clone())
    }

    fn remember(&self, start: (u64, u64), slice: Arc<Buffer>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.slices.len() >= SLICES {
            let oldest = known.slices.iter().min_by_key(|(_, (used, _))| *used).map(|(s, _)| *s);
            oldest.and_then(|oldest| known.slices.remove(&oldest));
        }
        let now = known.now;
        known.slices.insert(start, (now, slice));
    }
}
