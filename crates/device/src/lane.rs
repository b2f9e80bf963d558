//! Lanes: one thread's private path to a device, for bulk work.
//!
//! Operations are started with a ticket and harvested, in any order, by the same thread. A lane
//! that waits for something has a descriptor to poll. Dropping a lane forgets what was in flight.
//!
//! [`EdgeLane`] is one to any device: the device's own where it has one, otherwise over `submit`,
//! where reads that need not wait are done at once and others run side by side.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use runtime::{Bell, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Done, Edge, Error, ErrorKind, Fault, Operation, Outcome, Result};

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
    /// Something moved; call it again.
    Progress,
}

/// A private path to a device. Not shared between threads, but may be moved to one.
pub trait Lane: Send {
    /// Starts an operation that the device takes as it is. Never blocks. Bytes may wait in the lane
    /// until the next `turn`.
    fn start(&mut self, ticket: u64, operation: Operation);

    /// Moves what can be moved without waiting and appends what has ended to `out`. A lane whose
    /// path is broken ends everything in flight with an error.
    fn turn(&mut self, out: &mut Vec<Completed>) -> LaneStep;

    /// What to poll for before the next `turn`; `None` when nothing is waited for.
    fn waits_on(&self) -> Option<(BorrowedFd<'_>, Interest)>;

    /// How many operations are in flight.
    fn in_flight(&self) -> usize;
}

/// A lane to any device, with the edge in front: it takes any operation.
pub struct EdgeLane {
    edge: Edge,
    /// The device's own, if it has one.
    own: Option<Box<dyn Lane>>,
    inbox: Arc<Inbox>,
    /// Operations that complete by way of the inbox.
    in_flight: usize,
    /// What ended before `start` returned.
    ended: Vec<Completed>,
}

/// What has ended and was not yet harvested.
struct Inbox {
    state: Mutex<Ended>,
    /// Readable when something has ended while the lane's thread waits for it.
    bell: Bell,
}

#[derive(Default)]
struct Ended {
    list: Vec<Completed>,
    /// A thread waits for the bell.
    awaited: bool,
    /// The bell has rung, and was not cleared yet.
    rung: bool,
}

/// An operation that has not completed. If this is dropped instead, it has failed.
struct Owed {
    inbox: Arc<Inbox>,
    ticket: Option<u64>,
}

impl Owed {
    fn end(&mut self, outcome: Result<Outcome>) {
        if let Some(ticket) = self.ticket.take() {
            self.inbox.put(Completed { ticket, outcome });
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.end(Err(Error::unanswered()));
    }
}

impl Inbox {
    fn put(&self, completed: Completed) {
        let mut state = self.state.lock();
        state.list.push(completed);
        if std::mem::take(&mut state.awaited) {
            self.ring(&mut state);
        }
    }

    fn ring(&self, state: &mut Ended) {
        state.rung = true;
        self.bell.ring();
    }
}

impl EdgeLane {
    pub(crate) fn open(edge: &Edge) -> Result<Self> {
        let own = edge.device().lane().map_err(|e| e.on(&edge.info().name))?;
        let bell = Bell::new().map_err(|e| Error::os("make a lane", e))?;
        let inbox = Arc::new(Inbox { state: Mutex::default(), bell });
        Ok(Self { edge: edge.clone(), own, inbox, in_flight: 0, ended: Vec::new() })
    }

    /// Whether something has ended that was not harvested, as far as is known without asking.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Starts an operation. Never blocks. What the device takes as it is goes there as it is, so
    /// that a refused zero comes back as `Unsupported`; what does not goes through the edge.
    pub fn start(&mut self, ticket: u64, operation: Operation) {
        let takes = self.edge.takes(&operation);
        if let Some(lane) = self.own.as_mut().filter(|_| takes) {
            return lane.start(ticket, operation);
        }
        let Some(operation) = self.read_now(ticket, operation) else { return };
        self.in_flight += 1;
        let mut owed = Owed { inbox: self.inbox.clone(), ticket: Some(ticket) };
        let done: Done = Box::new(move |outcome| owed.end(outcome));
        if takes {
            self.edge.device().submit(operation, done);
        } else {
            self.edge.submit(operation, done);
        }
    }

    /// Does a read that need not wait; gives back everything else.
    fn read_now(&mut self, ticket: u64, operation: Operation) -> Option<Operation> {
        let Operation::Read { offset, mut buffer } = operation else { return Some(operation) };
        let outcome = match self.edge.read_now(&mut buffer, offset) {
            Ok(false) => return Some(Operation::Read { offset, buffer }),
            Ok(true) => Ok(Outcome::Read(buffer)),
            Err(e) => Err(e),
        };
        self.ended.push(Completed { ticket, outcome });
        None
    }

    /// Moves what can be moved without waiting and appends what has ended to `out`; whether
    /// anything moved.
    pub fn turn(&mut self, out: &mut Vec<Completed>) -> bool {
        let before = out.len();
        out.append(&mut self.ended);
        let mut moved = false;
        if let Some(lane) = &mut self.own {
            moved = lane.turn(out) == LaneStep::Progress;
        }
        if self.in_flight > 0 {
            let mut state = self.inbox.state.lock();
            state.awaited = false;
            self.in_flight -= state.list.len();
            out.append(&mut state.list);
        }
        moved || out.len() > before
    }

    /// What to poll for before the next `turn`: at most two descriptors.
    pub fn waits_on(&self) -> impl Iterator<Item = (BorrowedFd<'_>, Interest)> {
        let own = self.own.as_ref().and_then(|lane| lane.waits_on());
        own.into_iter().chain(self.bell())
    }

    /// Sleeps until one of these lanes can go on, or `at_most` this long.
    ///
    /// # Errors
    /// The system's, and that none of them waits for anything: it would sleep for nothing.
    pub fn wait<'a>(lanes: impl IntoIterator<Item = &'a Self>, at_most: Duration) -> Result<()> {
        let ends = lanes.into_iter().flat_map(Self::waits_on);
        let mut fds: Vec<_> = ends
            .map(|(fd, interest)| {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, interest.read);
                flags.set(PollFlags::OUT, interest.write);
                PollFd::from_borrowed_fd(fd, flags)
            })
            .collect();
        if fds.is_empty() {
            return Err(Error::new(
                ErrorKind::Io,
                Fault::Us,
                "wait for lanes that wait for nothing",
            ));
        }
        let at_most = Timespec::try_from(at_most).map_err(|_| Error::invalid("a wait too long"))?;
        match poll(&mut fds, Some(&at_most)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(Error::os("wait for the devices", e)),
        }
    }

    fn bell(&self) -> Option<(BorrowedFd<'_>, Interest)> {
        if self.in_flight == 0 {
            return None;
        }
        let mut state = self.inbox.state.lock();
        if std::mem::take(&mut state.rung) {
            self.inbox.bell.silence();
        }
        if state.list.is_empty() {
            state.awaited = true;
        } else {
            self.inbox.ring(&mut state);
        }
        Some((self.inbox.bell.as_fd(), Interest { read: true, write: false }))
    }
}

runtime::debug_as!(EdgeLane, |lane| "EdgeLane({})", lane.edge.info().name);
