//! Tickets: which operations a worker has in flight.
//!
//! A ticket is given once. An answer to a ticket that is not in flight is a defect of a lane and
//! ends the copy; it can never be taken for the answer to something else.

use std::sync::Arc;
use std::time::Instant;

use device::{Error, ErrorKind, Fault, Result};

use crate::held::Load;
use crate::sums::SumPart;

/// What an operation is for. Ranges are in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Task {
    /// Flush the target.
    Flush,
    /// Read from the source; for the witness alone if the target has `taken` the range.
    Read { offset: u64, len: usize, taken: bool },
    /// Ask the target for its map of a range that is to read as zeroes.
    Resolve { offset: u64, len: u64 },
    /// Write a part of what was read; `zeroes` if it is not from a buffer of its own.
    Write { offset: u64, len: usize, zeroes: bool },
    /// Read a range of the target that is to be zero: the first `len` bytes of a piece that ends at
    /// `end`.
    Look { offset: u64, len: usize, end: u64 },
    /// Zero in the target, perhaps only if that is `fast`.
    Zero { offset: u64, len: u64, fast: bool },
}

/// The operations in flight.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

/// When an operation was started, in which epoch of the end that it was sent to, and the memory
/// that it holds.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) at: Instant,
    pub(crate) epoch: u64,
    pub(crate) load: Option<Arc<Load>>,
    /// What its bytes add to the sums of the source.
    pub(crate) share: Option<SumPart>,
}

#[derive(Debug)]
struct Slot {
    /// How often it was used; part of the ticket.
    turn: u32,
    task: Option<(Task, Start)>,
}

impl Tickets {
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// For an operation that is started now, in this epoch, over this memory; `share` is what its
    /// bytes add to the sums of the source.
    pub(crate) fn issue(
        &mut self,
        task: Task,
        epoch: u64,
        load: Option<Arc<Load>>,
        share: Option<SumPart>,
    ) -> u64 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { turn: 0, task: None });
            // A worker has at most 65536 requests and a backlog that they bound.
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let entry = &mut self.slots[slot as usize];
        entry.turn = entry.turn.wrapping_add(1);
        entry.task = Some((task, Start { at: Instant::now(), epoch, load, share }));
        (u64::from(entry.turn) << 32) | u64::from(slot)
    }

    /// The purpose of a ticket, and when it was issued.
    pub(crate) fn redeem(&mut self, ticket: u64) -> Result<(Task, Start)> {
        let slot = u32::try_from(ticket & 0xffff_ffff).unwrap_or(u32::MAX);
        let found = self.slots.get_mut(slot as usize);
        let task = found.filter(|e| u64::from(e.turn) == ticket >> 32).and_then(|e| e.task.take());
        let Some(task) = task else {
            let action =
                format!("copy: an answer to operation {ticket:#x}, which is not in flight");
            return Err(Error::new(ErrorKind::Io, Fault::Us, action));
        };
        self.free.push(slot);
        Ok(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_comes_twice_is_refused_even_when_its_place_was_taken_again() {
        let mut tickets = Tickets::default();
        let a = tickets.issue(Task::Flush, 0, None, None);
        assert_eq!(tickets.redeem(a).unwrap().0, Task::Flush);
        assert!(tickets.redeem(a).is_err());
        let b = tickets.issue(Task::Read { offset: 0, len: 1, taken: false }, 0, None, None);
        assert!(tickets.redeem(a).is_err());
        assert_eq!(tickets.len(), 1);
        assert!(tickets.redeem(b).is_ok());
        assert!(tickets.is_empty());
        assert!(tickets.redeem(u64::MAX).is_err());
    }
}
