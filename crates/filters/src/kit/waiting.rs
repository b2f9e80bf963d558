//! Requests of one client that wait for a time or an event, and hold no thread.
//!
//! When the client leaves, waiting requests fail and are not carried out. Later requests are not
//! the client's (a filter above may have data to write back), and do not wait.

use std::collections::HashMap;

use device::{Done, Operation};
use runtime::Mutex;

use super::outlet::left;

/// The requests that wait.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    by_number: HashMap<u64, (Operation, Done)>,
    /// The client has left; nothing waits any more.
    left: bool,
}

impl Waiting {
    /// Keeps a request that is to wait; returns it if nothing waits any more.
    pub(crate) fn put(
        &self,
        operation: Operation,
        done: Done,
    ) -> std::result::Result<u64, (Operation, Done)> {
        let mut state = self.0.lock();
        if state.left {
            return Err((operation, done));
        }
        state.next += 1;
        let number = state.next;
        state.by_number.insert(number, (operation, done));
        Ok(number)
    }

    /// Takes out a request that need not wait any longer, unless it was dropped.
    pub(crate) fn take(&self, number: u64) -> Option<(Operation, Done)> {
        self.0.lock().by_number.remove(&number)
    }

    /// The client has left. Waiting requests are dropped; later ones (filters above may have data
    /// to write back) do not wait.
    pub(crate) fn leave(&self) {
        let mut state = self.0.lock();
        state.left = true;
        let all = std::mem::take(&mut state.by_number);
        drop(state);
        all.into_values().for_each(|(_, done)| done(Err(left())));
    }
}
