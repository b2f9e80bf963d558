//! Lanes: one thread's private path to a device, for bulk work.
//!
//! Operations are started with a ticket and harvested, in any order, by the same thread. A lane
//! that waits for something has a descriptor to poll; one that does not completes inline. A
//! dropped lane forgets what was in flight.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::contract::run;
use crate::{Device, Operation, Outcome, Result};

/// What a lane waits for on its descriptor.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Interest {
    /// It wants to read.
    pub read: bool,
    /// It wants to write.
    pub write: bool,
}

/// An operation that has ended.
#[derive(Debug)]
pub struct Completed {
    /// The ticket it was started with.
    pub ticket: u64,
    /// What came of it.
    pub outcome: Result<Outcome>,
}

/// Whether a lane did anything.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LaneStep {
    /// Nothing more can be done before the descriptor is ready.
    Idle,
    /// Something moved; ask again.
    Progress,
}

/// A private path to a device. Not shared between threads, but may be moved to one.
pub trait Lane: Send {
    /// Starts an operation. It is bounds-checked by the caller and at most the device's maximum
    /// long. Never blocks on a peer; may block on a disk. Bytes may wait in the lane until the
    /// next `turn`.
    fn start(&mut self, ticket: u64, operation: Operation);

    /// Moves what can be moved without waiting and appends what has ended to `out`. A lane whose
    /// path is broken ends everything in flight with an error.
    fn turn(&mut self, out: &mut Vec<Completed>) -> LaneStep;

    /// What to poll for before the next `turn`; `None` when nothing is waited for.
    fn waits_on(&self) -> Option<(BorrowedFd<'_>, Interest)>;

    /// How many operations are under way.
    fn in_flight(&self) -> usize;
}

/// A lane over the blocking face of a device: operations complete inline.
pub struct SyncLane {
    device: Arc<dyn Device>,
    ended: Vec<Completed>,
}

impl SyncLane {
    /// A lane to `device`.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self { device, ended: Vec::new() }
    }
}

impl std::fmt::Debug for SyncLane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SyncLane({})", self.device.info().name)
    }
}

impl Lane for SyncLane {
    fn start(&mut self, ticket: u64, operation: Operation) {
        let outcome: Result<Outcome> = run(&*self.device, operation);
        self.ended.push(Completed { ticket, outcome });
    }

    fn turn(&mut self, out: &mut Vec<Completed>) -> LaneStep {
        if self.ended.is_empty() {
            return LaneStep::Idle;
        }
        out.append(&mut self.ended);
        LaneStep::Progress
    }

    fn waits_on(&self) -> Option<(BorrowedFd<'_>, Interest)> {
        None
    }

    fn in_flight(&self) -> usize {
        self.ended.len()
    }
}
