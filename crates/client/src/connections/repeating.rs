//! What happens to a request whose connection is lost: it goes to another one at once; if there is
//! none, and the device reconnects by itself, it waits, and fails when that takes too long.
//!
//! The table of what is repeated, and when, is in docs/architecture/client.md ("Reconnecting").
//! Operations that must not be repeated do not come here: a fast zero ends with its connection, and
//! a change that we gave up waits there until the peer has closed it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Fault, Operation};

use super::Shared;
use super::order::{Lost, Submission, tell};

/// How often a request may be lost: one that crashes the server is not repeated for ever.
const MOST: u32 = 16;

/// The requests that wait.
#[derive(Debug, Default)]
pub(crate) struct WaitingRequests {
    list: Vec<Lost>,
    /// Since when there is no connection.
    pub(super) since: Option<Instant>,
    /// How often all were lost.
    times: u64,
    /// It took too long: nothing waits any more.
    pub(super) in_vain: bool,
}

impl Shared {
    /// Runs an operation over the connection with the least to do, or when there is one again.
    pub(crate) fn order(self: &Arc<Self>, order: Submission, operation: Operation) {
        if let Err(e) = self.watch() {
            return tell(order.whose, order.care.ended(Err(e.on(self.name()))));
        }
        if let Some(connection) = self.choose_for(&operation) {
            return connection.submit(order, operation);
        }
        let action = "talk to the server: the connection was lost";
        let why = Error::new(ErrorKind::Disconnected, Fault::Peer, action).on(self.name());
        self.wait(Lost { order, operation, why });
    }

    /// Repeats an operation that was lost.
    pub(crate) fn again(self: &Arc<Self>, mut lost: Lost) {
        if lost.order.losses >= MOST {
            return lost.fail(None);
        }
        lost.order.losses += 1;
        if let Err(e) = self.watch() {
            return lost.fail(Some(e.on(self.name())));
        }
        match self.choose_for(&lost.operation) {
            Some(connection) if !connection.is_over() => {
                lost.order.care.again();
                connection.submit(lost.order, lost.operation);
            }
            _ => self.wait(lost),
        }
    }

    /// Waits for a connection, if one will be made.
    fn wait(self: &Arc<Self>, mut lost: Lost) {
        let Some(patience) = self.keep.patience else { return lost.fail(None) };
        let mut state = self.state.lock();
        // A connection may have come meanwhile.
        if let Some(connection) = self.choose_for(&lost.operation) {
            drop(state);
            lost.order.care.again();
            return connection.submit(lost.order, lost.operation);
        }
        let refusal = match &state.another {
            Some(other) => Some(other.duplicate()),
            None if state.closed => Some(lost.why.duplicate()),
            None if state.waiting.in_vain => Some(self.in_vain(patience, state.last.as_ref())),
            None => None,
        };
        if let Some(why) = refusal {
            drop(state);
            return lost.fail(Some(why));
        }
        let waiting = &mut state.waiting;
        waiting.list.push(lost);
        if waiting.since.is_none() {
            waiting.since = Some(Instant::now());
            waiting.times += 1;
            let (times, weak) = (waiting.times, Arc::downgrade(self));
            drop(state);
            self.upstream.timers.after(patience, move || {
                if let Some(shared) = weak.upgrade() {
                    shared.give_up_waiting(times, patience);
                }
            });
        }
    }

    /// The time is over, unless it belonged to an earlier loss.
    fn give_up_waiting(&self, times: u64, patience: Duration) {
        let mut state = self.state.lock();
        let waiting = &mut state.waiting;
        if waiting.since.is_none() || waiting.times != times {
            return;
        }
        waiting.in_vain = true;
        let list = std::mem::take(&mut waiting.list);
        let why = self.in_vain(patience, state.last.as_ref());
        drop(state);
        list.into_iter().for_each(|lost| lost.fail(Some(why.duplicate())));
    }

    fn in_vain(&self, patience: Duration, last: Option<&Error>) -> Error {
        let seconds = patience.as_secs_f64();
        let action = format!(
            "talk to the server: the connection was lost, and the server did not return within \
             {seconds} seconds"
        );
        let error = Error::new(ErrorKind::Disconnected, Fault::Peer, action).on(self.name());
        match last {
            Some(last) => error.with_source(last.to_string()),
            None => error,
        }
    }

    /// There is a connection: waiting operations go there.
    pub(crate) fn serve_waiting(self: &Arc<Self>) {
        let mut state = self.state.lock();
        (state.waiting.since, state.waiting.in_vain) = (None, false);
        let list = std::mem::take(&mut state.waiting.list);
        drop(state);
        runtime::batch(|| {
            for mut lost in list {
                match self.choose_for(&lost.operation) {
                    Some(connection) => {
                        lost.order.care.again();
                        connection.submit(lost.order, lost.operation);
                    }
                    None => self.wait(lost),
                }
            }
        });
    }

    /// Fails all waiting operations, for this reason.
    pub(crate) fn fail_waiting(&self, why: &Error) {
        let list = std::mem::take(&mut self.state.lock().waiting.list);
        list.into_iter().for_each(|lost| lost.fail(Some(why.duplicate())));
    }
}
