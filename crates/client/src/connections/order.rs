//! An operation and its caller, for all connections and repetitions.

use std::sync::Arc;

use device::{Completed, Done, Error, Operation, Outcome, Result};

use super::care::Care;
use super::inbox::Inbox;

/// The caller of an operation.
pub(crate) enum Whose {
    /// The lane of that number that drives the connection.
    Lane { lane: u64, ticket: u64 },
    /// A lane that does not.
    Inbox { inbox: Arc<Inbox>, ticket: u64 },
    /// Any other caller.
    Other(Done),
}

impl std::fmt::Debug for Whose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lane { lane, ticket } => write!(f, "Lane({lane}, {ticket})"),
            Self::Inbox { ticket, .. } => write!(f, "Inbox({ticket})"),
            Self::Other(_) => f.write_str("Other"),
        }
    }
}

/// An operation to be sent.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) whose: Whose,
    pub(crate) care: Care,
    /// How often it was lost with a connection.
    pub(crate) losses: u32,
}

impl Submission {
    pub(crate) fn new(whose: Whose, care: Care) -> Self {
        Self { whose, care, losses: 0 }
    }
}

/// An operation that was lost with its connection, and may be repeated.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) order: Submission,
    pub(crate) operation: Operation,
    pub(crate) why: Error,
}

impl Lost {
    /// It is not repeated, because of `why`, or of the error by which it was lost.
    pub(crate) fn fail(self, why: Option<Error>) {
        let Self { order, why: own, .. } = self;
        let outcome = order.care.ended(Err(why.unwrap_or(own)));
        tell(order.whose, outcome);
    }
}

/// Completes operations of callers that do not drive the connection.
pub(crate) fn tell(whose: Whose, outcome: Result<Outcome>) {
    match whose {
        Whose::Inbox { inbox, ticket } => inbox.put(Completed { ticket, outcome }),
        Whose::Other(done) => done(outcome),
        // Its lane is gone, and has forgotten it.
        Whose::Lane { .. } => {}
    }
}
