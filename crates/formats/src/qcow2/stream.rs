//! Reads tables of entries of different lengths in order, with their claimed lengths checked.

use device::{Edge, Result};

use super::corrupt;

/// Bytes read at once.
const AT_ONCE: u64 = 64 << 10;

/// A reader of the container, up to an end inside it.
pub(super) struct ContainerReader<'a> {
    container: &'a Edge,
    what: &'static str,
    /// The offset of the next bytes to read.
    next: u64,
    end: u64,
    /// Bytes read but not taken: from `taken` on.
    read: Vec<u8>,
    taken: usize,
}

impl<'a> ContainerReader<'a> {
    /// At most `most` bytes from `offset` on, as far as the container goes.
    pub(super) fn new(container: &'a Edge, what: &'static str, offset: u64, most: u64) -> Self {
        let end = container.info().size.min(offset.saturating_add(most)).max(offset);
        Self { container, what, next: offset, end, read: Vec::new(), taken: 0 }
    }

    /// Where it goes on.
    pub(super) fn position(&self) -> u64 {
        self.next - (self.read.len() - self.taken) as u64
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// They do not exist, or cannot be read.
    pub(super) fn take(&mut self, len: usize) -> Result<&[u8]> {
        if self.read.len() - self.taken < len {
            self.read.drain(..self.taken);
            self.taken = 0;
            self.fill(len)?;
        }
        let start = self.taken;
        self.taken += len;
        self.read.get(start..self.taken).ok_or_else(|| self.cut_off())
    }

    /// Goes on at the next multiple of 8 bytes from the beginning of the container.
    pub(super) fn align(&mut self) -> Result<()> {
        let position = self.position();
        let by = position.next_multiple_of(8) - position;
        // The last entry need not be padded.
        let by = by.min(self.end - position);
        self.take(usize::try_from(by).unwrap_or(0)).map(drop)
    }

    fn fill(&mut self, len: usize) -> Result<()> {
        let wanted = (len as u64).max(AT_ONCE) - self.read.len() as u64;
        let more = wanted.min(self.end - self.next);
        let had = self.read.len();
        if had as u64 + more < len as u64 {
            return Err(self.cut_off());
        }
        self.read.resize(had + usize::try_from(more).unwrap_or(0), 0);
        let new = self.read.get_mut(had..).unwrap_or_default();
        self.container.read(new, self.next)?;
        self.next += more;
        Ok(())
    }

    fn cut_off(&self) -> device::Error {
        corrupt(format!("the {} is cut off", self.what)).at(self.end)
    }
}
