//! Walking two maps together.

use device::{Edge, Extent, ExtentKind, Result};

use crate::event::{Doing, FailedComparison, Side};

/// Extents asked for at a time.
const MANY: usize = 1024;

/// A stretch over which neither map changes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// The kind of each there; a hole beyond its end.
    pub(crate) kinds: (ExtentKind, ExtentKind),
}

/// The pieces of two disks, up to the end of the longer one.
pub(crate) struct Walk<'a> {
    first: Map<'a>,
    second: Map<'a>,
    at: u64,
    end: u64,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(first: &'a Edge, second: &'a Edge) -> Self {
        let end = first.info().size.max(second.info().size);
        Self { first: Map::new(first), second: Map::new(second), at: 0, end }
    }

    /// The next one; `None` at the end.
    pub(crate) fn next(&mut self) -> std::result::Result<Option<Piece>, FailedComparison> {
        let start = self.at;
        if start >= self.end {
            return Ok(None);
        }
        let fail =
            |end| move |error| FailedComparison { doing: Doing::Map, end, offset: start, error };
        let a = self.first.at(start, self.end).map_err(fail(Side::First))?;
        let b = self.second.at(start, self.end).map_err(fail(Side::Second))?;
        self.at = a.1.min(b.1);
        Ok(Some(Piece { start, len: self.at - start, kinds: (a.0, b.0) }))
    }
}

/// The map of one of them, asked for as it is needed.
struct Map<'a> {
    disk: &'a Edge,
    /// The known extents, in order, and the next one to use.
    known: Vec<Extent>,
    next: usize,
}

impl<'a> Map<'a> {
    fn new(disk: &'a Edge) -> Self {
        Self { disk, known: Vec::new(), next: 0 }
    }

    /// The kind at `offset`, and where it ends; `end` is the end of the longer disk.
    fn at(&mut self, offset: u64, end: u64) -> Result<(ExtentKind, u64)> {
        let size = self.disk.info().size;
        if offset >= size {
            return Ok((ExtentKind::Hole, end));
        }
        if !self.disk.info().abilities.extents {
            return Ok((ExtentKind::Data, size));
        }
        loop {
            match self.known.get(self.next) {
                Some(extent) if offset < extent.end() => return Ok((extent.kind, extent.end())),
                Some(_) => self.next += 1,
                None => {
                    self.known.clear();
                    self.next = 0;
                    self.disk.resolve(offset, size - offset, MANY, &mut self.known)?;
                }
            }
        }
    }
}
