//! A long table of numbers in a container, of which slices are in the cache of all images.

use std::sync::Arc;

use device::{Edge, Error, ErrorKind, Fault, Result};
use runtime::Context;

use super::cache::{Cache, Shelf};
use super::fields::{corrupt, lies_inside, load};
use super::file::WrittenFile;
use super::layer::at_once;
use super::read;

/// Bytes that are read at a time.
const SLICE: u64 = 64 << 10;

/// The table. Its entries do not change while it is open, unless the image is written.
pub(crate) struct Table {
    below: Edge,
    offset: u64,
    entries: u64,
    width: u64,
    number: fn(&[u8], usize) -> u64,
    /// By their offsets in the container.
    slices: Shelf,
    /// The file in which the entries change.
    written: Option<Arc<WrittenFile>>,
}

impl Table {
    /// A table of `entries` numbers of `width` bytes (a power of two up to 8) at `offset`, which
    /// `number` reads.
    ///
    /// # Errors
    /// They do not all lie in the container.
    pub(crate) fn new(
        (below, context): (&Edge, &Context),
        what: &str,
        offset: u64,
        (entries, width): (u64, u64),
        number: fn(&[u8], usize) -> u64,
    ) -> Result<Self> {
        let len =
            entries.checked_mul(width).ok_or_else(|| corrupt(format!("its {what} is endless")))?;
        lies_inside(below, what, offset, len)?;
        let slices = Cache::of(context).shelf();
        Ok(Self { below: below.clone(), offset, entries, width, number, slices, written: None })
    }

    /// The same as it is now in a file that is written.
    ///
    /// # Errors
    /// Its entries would not all lie in one block of the metadata each.
    pub(crate) fn written(self, file: &Arc<WrittenFile>) -> Result<Self> {
        if !self.offset.is_multiple_of(self.width) {
            let action = "cannot be written: its tables do not begin where tables should";
            return Err(Error::new(ErrorKind::ReadOnly, Fault::File, action));
        }
        Ok(Self { written: Some(file.clone()), ..self })
    }

    /// Where an entry lies.
    pub(crate) fn place(&self, index: u64) -> u64 {
        self.offset + index * self.width
    }

    /// Its place: offset and length.
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.offset, self.entries * self.width)
    }

    fn check(&self, index: u64) -> Result<()> {
        let entries = self.entries;
        if index < entries {
            return Ok(());
        }
        Err(corrupt(format!("its table has {entries} entries, and not {index}")))
    }

    /// An entry; `None` if that would have to wait and `may_wait` is false.
    ///
    /// # Errors
    /// There is none; it cannot be read.
    pub(crate) async fn entry(&self, index: u64, may_wait: bool) -> Result<Option<u64>> {
        self.check(index)?;
        self.number_in(self.range(), index * self.width, may_wait).await
    }

    /// An entry of another table of numbers of the same width (offset and length), which the caller
    /// has checked to lie in the container.
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
        if let Some(file) = &self.written {
            let start = file.blocks.start(base + at);
            let within = usize::try_from(base + at - start).unwrap_or(0);
            let block = match file.blocks.get(start) {
                Some(block) => block,
                None if !may_wait => return Ok(None),
                None => file.blocks.load(start).await?,
            };
            return Ok(Some((self.number)(&block, within)));
        }
        let (start, within) = (at - at % SLICE, usize::try_from(at % SLICE).unwrap_or(0));
        let (offset, len) = (base + start, usize::try_from(SLICE.min(len - start)).unwrap_or(0));
        // Of a table that overlaps this one, a slice may be shorter.
        if let Some(slice) = self.slices.get(offset).filter(|slice| slice.len() == len) {
            return Ok(Some((self.number)(&slice, within)));
        }
        let Some(slice) = read(&self.below, offset, len, may_wait).await? else { return Ok(None) };
        let slice: Arc<[u8]> = Arc::from(&*slice);
        self.slices.put(offset, slice.clone());
        Ok(Some((self.number)(&slice, within)))
    }

    /// An entry, for callers that may block.
    ///
    /// # Errors
    /// As [`entry`](Self::entry).
    pub(crate) fn entry_now(&self, index: u64) -> Result<u64> {
        self.check(index)?;
        if let Some(Ok(Some(entry))) = at_once(self.entry(index, false)) {
            return Ok(entry);
        }
        let at = index * self.width;
        let start = at - at % SLICE;
        let len = usize::try_from(SLICE.min(self.entries * self.width - start)).unwrap_or(0);
        let slice = load(&self.below, "table", self.offset + start, len)?;
        self.slices.put(self.offset + start, Arc::from(&*slice));
        Ok((self.number)(&slice, usize::try_from(at - start).unwrap_or(0)))
    }
}
