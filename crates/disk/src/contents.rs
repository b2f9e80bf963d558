//! What a new image will hold, where that, or its amount, must be known before the first byte is
//! written.
//!
//! The map of the source says it. A source without a map is read as a whole, to find its zeroes.

use device::{Edge, Extent, ExtentKind, Result, ZeroRuns};
use runtime::to_usize;

/// What a disk will hold.
#[derive(Clone, Copy, Debug)]
pub enum Contents<'a> {
    /// Nothing: it stays empty.
    Nothing,
    /// It is not known.
    Anything,
    /// The same as this one.
    Disk {
        /// The disk.
        disk: &'a Edge,
        /// Its map is not to be asked for, so it is read.
        is_read: bool,
    },
}

impl<'a> Contents<'a> {
    /// Its extents, in order, of `size` bytes.
    pub(crate) fn map(&self, size: u64) -> impl Iterator<Item = Result<Extent>> + use<'a> {
        let whole = |kind| (size > 0).then(|| Extent::new(0, size, kind)).into_iter().collect();
        let (disk, is_read, known) = match self {
            Self::Nothing => (None, false, whole(ExtentKind::Hole)),
            Self::Anything => (None, false, whole(ExtentKind::Data)),
            Self::Disk { disk, is_read } => {
                (Some(*disk), *is_read || !disk.info().abilities.extents, Vec::new())
            }
        };
        Map { disk, is_read, at: 0, known: known.into_iter(), buffer: Vec::new() }
    }
}

/// The map of a disk, queried piece by piece.
struct Map<'a> {
    disk: Option<&'a Edge>,
    is_read: bool,
    at: u64,
    known: std::vec::IntoIter<Extent>,
    buffer: Vec<u8>,
}

impl Map<'_> {
    /// Extents asked for at a time.
    const MANY: usize = 4096;
    /// Bytes read at a time.
    const PIECE: u64 = 1 << 20;
    /// Bytes that are zero or not as a whole.
    const BLOCK: u64 = 4096;

    fn look(&mut self, disk: &Edge, size: u64) -> Result<Vec<Extent>> {
        let mut known = Vec::new();
        if !self.is_read {
            disk.resolve(self.at, size - self.at, Self::MANY, &mut known)?;
            return Ok(known);
        }
        let len = to_usize((size - self.at).min(Self::PIECE));
        self.buffer.resize(len, 0);
        disk.read(&mut self.buffer, self.at)?;
        for (start, len, zero) in ZeroRuns::new(&self.buffer, self.at, Self::BLOCK) {
            let kind = if zero { ExtentKind::Zero } else { ExtentKind::Data };
            known.push(Extent::new(self.at + start as u64, len as u64, kind));
        }
        Ok(known)
    }
}

impl Iterator for Map<'_> {
    type Item = Result<Extent>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(disk) = self.disk.filter(|_| self.known.len() == 0) {
            let size = disk.info().size;
            if self.at < size {
                match self.look(disk, size) {
                    Ok(known) => self.known = known.into_iter(),
                    Err(e) => {
                        let at = std::mem::replace(&mut self.at, size);
                        return Some(Err(e.at(at)));
                    }
                }
            }
        }
        let extent = self.known.next()?;
        self.at = extent.end();
        Some(Ok(extent))
    }
}
