//! Lanes: one thread's private path to a device, for bulk work.
//!
//! Operations are started with a ticket and harvested, in any order, by the same thread. A lane
//! that waits for something has a descriptor to poll; one that does not completes inline. A
//! dropped lane forgets what was in flight.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::contract::run;
use crate::{Device, Edge, Error, Operation, Outcome, Result};

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

/// A lane over the submitting face of a device that waits for something outside: many operations
/// under way, completed from wherever the answers arrive.
pub struct SubmitLane {
    edge: Edge,
    inbox: Arc<Inbox>,
    in_flight: usize,
}

/// What has ended and was not yet harvested.
struct Inbox {
    ended: Mutex<Vec<Completed>>,
    /// Readable while there is something.
    bell: OwnedFd,
}

impl SubmitLane {
    /// A lane to the device of `edge`.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn new(edge: Edge) -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = eventfd(0, flags).map_err(|e| Error::os("make a lane", e))?;
        let inbox = Arc::new(Inbox { ended: Mutex::default(), bell });
        Ok(Self { edge, inbox, in_flight: 0 })
    }
}

impl std::fmt::Debug for SubmitLane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SubmitLane({})", self.edge.info().name)
    }
}

impl Inbox {
    fn put(&self, completed: Completed) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.push(completed);
        if ended.len() == 1 {
            // It fails only when the counter is full, and then the bell rings anyway.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }
}

impl Lane for SubmitLane {
    fn start(&mut self, ticket: u64, operation: Operation) {
        self.in_flight += 1;
        let inbox = self.inbox.clone();
        let done = move |outcome| inbox.put(Completed { ticket, outcome });
        self.edge.submit(operation, Box::new(done));
    }

    fn turn(&mut self, out: &mut Vec<Completed>) -> LaneStep {
        let mut ended = self.inbox.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.is_empty() {
            return LaneStep::Idle;
        }
        // Under the lock: a bell that rings later is about something else.
        let _ = rustix::io::read(&self.inbox.bell, &mut [0u8; 8]);
        self.in_flight = self.in_flight.saturating_sub(ended.len());
        out.append(&mut ended);
        LaneStep::Progress
    }

    fn waits_on(&self) -> Option<(BorrowedFd<'_>, Interest)> {
        let interest = Interest { read: true, write: false };
        (self.in_flight > 0).then(|| (self.inbox.bell.as_fd(), interest))
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}
