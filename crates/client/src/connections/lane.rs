//! A lane: one thread drives a connection itself.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use device::{Completed, Interest, LaneStep, Operation, Result};

use super::connection::Connection;

/// A thread's path to the server. Others may use the same connection for an operation now and
/// then.
#[derive(Debug)]
pub struct Lane {
    connection: Arc<Connection>,
    id: u64,
    /// Readable when there is something to do.
    ready: Arc<OwnedFd>,
    in_flight: usize,
}

impl Lane {
    /// Attaches to `connection`; `None` if it has a lane already.
    pub(crate) fn attach(connection: &Arc<Connection>) -> Result<Option<Self>> {
        Ok(connection.attach()?.map(|(id, ready)| Self {
            connection: connection.clone(),
            id,
            ready,
            in_flight: 0,
        }))
    }
}

impl device::Lane for Lane {
    fn start(&mut self, ticket: u64, operation: Operation) {
        self.in_flight += 1;
        self.connection.start(self.id, ticket, operation);
    }

    fn turn(&mut self, out: &mut Vec<Completed>) -> LaneStep {
        let before = out.len();
        let moved = self.connection.turn(self.id, out);
        self.in_flight -= out.len() - before;
        if moved { LaneStep::Progress } else { LaneStep::Idle }
    }

    fn waits_on(&self) -> Option<(BorrowedFd<'_>, Interest)> {
        if self.in_flight == 0 {
            return None;
        }
        self.connection.before_wait();
        Some((self.ready.as_fd(), Interest { read: true, write: false }))
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.connection.detach(self.id);
    }
}
