//! The range that all clients change at once: what each byte of it may hold. A byte holds
//! what one of the writes left that no later write is known to have covered.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

#[derive(Debug, Clone)]
struct Cell {
    /// A bit for each value that it may have.
    possible: [u64; 4],
    /// Changes in flight.
    changing: u16,
    /// Reads in flight: as long as there are any, no value becomes impossible.
    reading: u16,
    /// Changes begun so far.
    begun: u32,
}

impl Cell {
    fn allow(&mut self, value: u8) {
        self.possible[usize::from(value >> 6)] |= 1 << (value & 63);
    }

    fn allows(&self, value: u8) -> bool {
        self.possible[usize::from(value >> 6)] & (1 << (value & 63)) != 0
    }
}

/// The range, shared by all clients.
#[derive(Debug)]
pub(crate) struct Common {
    start: usize,
    cells: Mutex<Vec<Cell>>,
}

/// A change in flight: for each byte, its place in the order of changes if it is alone.
#[derive(Debug)]
pub(crate) struct Change {
    range: Range<usize>,
    alone: Vec<Option<u32>>,
}

impl Common {
    /// Begins with these bytes.
    pub(crate) fn new(start: usize, bytes: &[u8]) -> Self {
        let cell = |byte: &u8| {
            let mut cell = Cell { possible: [0; 4], changing: 0, reading: 0, begun: 0 };
            cell.allow(*byte);
            cell
        };
        Self { start, cells: Mutex::new(bytes.iter().map(cell).collect()) }
    }

    fn cells(&self) -> MutexGuard<'_, Vec<Cell>> {
        // A client that failed has reported it; what the others report then does not count.
        self.cells.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The part of a range that lies here.
    fn part(&self, range: &Range<usize>, count: usize) -> Range<usize> {
        let start = range.start.clamp(self.start, self.start + count);
        let end = range.end.clamp(start, self.start + count);
        start..end
    }

    /// A write of `bytes` (zeroes when `None`) is about to be sent.
    pub(crate) fn begin_change(&self, range: Range<usize>, bytes: Option<&[u8]>) -> Change {
        let mut cells = self.cells();
        let mut alone = Vec::with_capacity(range.len());
        for (i, at) in range.clone().enumerate() {
            let cell = &mut cells[at - self.start];
            cell.allow(bytes.map_or(0, |bytes| bytes[i]));
            cell.begun += 1;
            alone.push((cell.changing == 0).then_some(cell.begun));
            cell.changing += 1;
        }
        Change { range, alone }
    }

    /// It was answered. `bytes`: what is certainly there now, if it was alone.
    pub(crate) fn end_change(&self, change: &Change, bytes: Option<&[u8]>) {
        let mut cells = self.cells();
        for (i, at) in change.range.clone().enumerate() {
            let cell = &mut cells[at - self.start];
            cell.changing -= 1;
            let certain = change.alone[i] == Some(cell.begun) && cell.reading == 0;
            if let (true, Some(bytes)) = (certain, bytes) {
                cell.possible = [0; 4];
                cell.allow(bytes[i]);
            }
        }
    }

    /// A read, or a question for the map, is about to be sent.
    pub(crate) fn begin_read(&self, range: &Range<usize>) {
        let mut cells = self.cells();
        for at in self.part(range, cells.len()) {
            cells[at - self.start].reading += 1;
        }
    }

    /// It was answered with `bytes`, which begin at the range's start. Returns the first byte that
    /// cannot be so. (Fewer bytes: only these are judged.)
    pub(crate) fn end_read(&self, range: &Range<usize>, bytes: &[Option<u8>]) -> Option<usize> {
        let mut cells = self.cells();
        let mut wrong = None;
        for at in self.part(range, cells.len()) {
            let cell = &mut cells[at - self.start];
            cell.reading -= 1;
            let Some(byte) = bytes.get(at - range.start).copied().flatten() else { continue };
            if wrong.is_none() && !cell.allows(byte) {
                wrong = Some(at);
            }
        }
        wrong
    }
}
