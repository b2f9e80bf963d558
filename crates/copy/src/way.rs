//! A worker's way to one end: a lane, and another when the path breaks.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use device::{Completed, Edge, EdgeLane, Error, Interest, Operation, Result};

use crate::path::Path;
use crate::progress::Cancel;

pub(crate) struct Way {
    path: Arc<Path>,
    lane: EdgeLane,
    /// How often the path had been reopened when the lane was opened.
    seen: u64,
    under_way: usize,
    /// What broke it. Nothing may be started until it is reopened.
    broken: Option<Error>,
}

impl Way {
    pub(crate) fn open(path: &Arc<Path>, cancel: &Cancel) -> Result<Self> {
        let mut seen = path.times();
        let lane = path.through(&mut seen, cancel, Edge::lane)?;
        Ok(Self { path: path.clone(), lane, seen, under_way: 0, broken: None })
    }

    /// Whether something has ended already.
    pub(crate) fn has_ended(&self) -> bool {
        self.lane.has_ended()
    }

    pub(crate) fn start(&mut self, ticket: u64, operation: Operation) {
        self.under_way += 1;
        self.lane.start(ticket, operation);
    }

    /// Appends what has ended to `out`. Returns whether anything moved.
    pub(crate) fn turn(&mut self, out: &mut Vec<Completed>) -> bool {
        let before = out.len();
        let moved = self.lane.turn(out);
        self.under_way = self.under_way.saturating_sub(out.len() - before);
        moved
    }

    pub(crate) fn waits_on(&self) -> impl Iterator<Item = (BorrowedFd<'_>, Interest)> {
        self.lane.waits_on()
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// An operation failed. Returns no error if that was the path, and it may be reopened: then the
    /// operation may be started again after that.
    pub(crate) fn failed(&mut self, e: Error) -> Option<Error> {
        if !self.path.is_broken_by(&e) {
            return Some(e);
        }
        self.broken.get_or_insert(e);
        None
    }

    /// Replaces a broken lane, once nothing is in flight on it any more. Returns whether it did.
    ///
    /// # Errors
    /// What broke it, or why it cannot be replaced.
    pub(crate) fn mend(&mut self, cancel: &Cancel) -> Result<bool> {
        if self.under_way > 0 {
            return Ok(false);
        }
        let Some(why) = self.broken.take() else { return Ok(false) };
        self.lane.close();
        self.path.renew(&mut self.seen, why, cancel)?;
        self.lane = self.path.through(&mut self.seen, cancel, Edge::lane)?;
        Ok(true)
    }
}
