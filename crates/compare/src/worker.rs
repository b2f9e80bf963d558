//! Reads and compares ranges that one of the maps calls data.

use device::{BufferPool, Edge, Error, Operation, Outcome, is_zero};
use runtime::wait_for;

use crate::event::{ComparisonEnd, Difference, Doing, FailedComparison, Side};

/// Bytes read of each at a time; a cold file on a disk is read directly by as many.
const PIECE: usize = 512 << 10;
/// Bytes of buffers that a thread keeps.
const KEPT: usize = 2 << 20;
/// The granularity of a reported difference, in bytes.
const SECTOR: usize = 512;

/// A stretch to be compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompareUnit {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) which: Which,
}

/// Which disks to read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Which {
    /// Both, which must be equal.
    Both,
    /// One, which must be zero.
    Only(Side),
}

/// One thread's buffers.
pub(crate) struct CompareWorker<'a> {
    first: &'a Edge,
    second: &'a Edge,
    pool: BufferPool,
}

impl<'a> CompareWorker<'a> {
    pub(crate) fn new(first: &'a Edge, second: &'a Edge) -> Self {
        Self { first, second, pool: BufferPool::new(KEPT) }
    }

    /// Compares a unit; returns the first finding, if any.
    pub(crate) fn compare(&self, unit: CompareUnit) -> Option<ComparisonEnd> {
        let (mut at, mut left) = (unit.start, unit.len);
        while left > 0 {
            let len = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            let found = match unit.which {
                Which::Both => self.both(at, len),
                Which::Only(end) => self.only(end, at, len),
            };
            match found {
                Ok(None) => {}
                Ok(Some(into)) => {
                    return Some(ComparisonEnd::Differ(Difference::Content(at + into as u64)));
                }
                Err((end, error)) => {
                    return Some(ComparisonEnd::Fail(FailedComparison {
                        doing: Doing::Read,
                        end,
                        offset: at,
                        error,
                    }));
                }
            }
            at += len as u64;
            left -= len as u64;
        }
        None
    }

    /// Where they first differ, in sectors from `offset` on.
    fn both(&self, offset: u64, len: usize) -> std::result::Result<Option<usize>, (Side, Error)> {
        let (mut a, b) = (self.pool.take_whole(len), self.pool.take_whole(len));
        let second = |b| self.second.read_buffer(b, offset);
        if self.first.read_now(&mut a, offset).map_err(|e| (Side::First, e))? {
            let b = second(b).map_err(|e| (Side::Second, e))?;
            return Ok(first_difference(&a, &b));
        }
        // The first read is in flight while the second is read.
        let mut other = Err(Error::unanswered());
        let answer = wait_for(|promise| {
            let operation = Operation::Read { offset, buffer: a };
            self.first.submit(operation, Box::new(move |outcome| promise.keep(outcome)));
            other = second(b);
        });
        let read = match answer {
            Some(Ok(Outcome::Read(read))) if read.len() == len => read,
            Some(Err(e)) => return Err((Side::First, e)),
            _ => return Err((Side::First, Error::unanswered())),
        };
        Ok(first_difference(&read, &other.map_err(|e| (Side::Second, e))?))
    }

    /// Where it first is not zero.
    fn only(
        &self,
        end: Side,
        offset: u64,
        len: usize,
    ) -> std::result::Result<Option<usize>, (Side, Error)> {
        let disk = match end {
            Side::First => self.first,
            Side::Second => self.second,
        };
        let buffer = self.pool.take_whole(len);
        let buffer = disk.read_buffer(buffer, offset).map_err(|e| (end, e))?;
        if is_zero(&buffer) {
            return Ok(None);
        }
        let sector = buffer.chunks(SECTOR).position(|sector| !is_zero(sector));
        Ok(sector.map(|n| n * SECTOR))
    }
}

/// Which sector differs first.
fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    if a == b {
        return None;
    }
    let sector = a.chunks(SECTOR).zip(b.chunks(SECTOR)).position(|(a, b)| a != b);
    sector.map(|n| n * SECTOR)
}

/// Which disks to read for a piece, if any.
pub(crate) fn which(zero: (bool, bool)) -> Option<Which> {
    match zero {
        (true, true) => None,
        (false, false) => Some(Which::Both),
        (false, true) => Some(Which::Only(Side::First)),
        (true, false) => Some(Which::Only(Side::Second)),
    }
}
