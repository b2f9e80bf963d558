//! Requests of one client that wait for a time or an event, and hold no thread.
//!
//! When the client leaves, waiting requests fail and are not carried out. Later requests are not
//! the client's (a filter above may have data to write back), and do not wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use device::{Done, Edge, Operation};
use runtime::{Mutex, Timers};

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
    /// Submits a request below after that time, unless it was dropped by then; at once if nothing
    /// waits any more.
    pub(crate) fn submit_after(
        self: &Arc<Self>,
        timers: &Timers,
        wait: Duration,
        below: &Edge,
        operation: Operation,
        done: Done,
    ) {
        let mut state = self.0.lock();
        if state.left {
            drop(state);
            return below.submit(operation, done);
        }
        state.next += 1;
        let number = state.next;
        state.by_number.insert(number, (operation, done));
        drop(state);
        let (me, below) = (self.clone(), below.clone());
        timers.after(wait, move || {
            let due = me.0.lock().by_number.remove(&number);
            if let Some((operation, done)) = due {
                below.submit(operation, done);
            }
        });
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

#[cfg(test)]
mod tests {
    use device::{ErrorKind, ZeroFlags};
    use trial::TestDevice;

    use crate::kit::tested::{client, personal, put, start, write};

    #[test]
    fn what_waits_when_its_client_leaves_is_not_done_and_what_comes_later_does_not_wait() {
        let seek = ["min-seek-time=3600", "half-seek-time=3600", "max-seek-time=3600"];
        let cases: [(&str, &[&str]); 4] = [
            ("delay", &["delay-write=3600"]),
            ("spinning", &seek),
            // At this rate it takes more than an hour.
            ("rate", &["rate=1K"]),
            ("rate", &["connection-rate=1K"]),
        ];
        for (word, words) in cases {
            let below = TestDevice::new(2 << 20);
            let disk = put(word, below.clone(), words).unwrap();
            let (one, other) = (client(1), client(2));
            let (a, b) = (personal(&disk, &one), personal(&disk, &other));
            let (gone, stays) = [&a, &b].map(|own| start(own, write(1 << 20, 1 << 20, 7))).into();
            a.flush().unwrap();
            one.presence.leave();
            let left = gone.try_recv().unwrap().unwrap_err();
            assert_eq!(left.kind(), ErrorKind::Cancelled, "{word}");
            assert!(stays.try_recv().is_err(), "{word}");
            assert_eq!(below.asked(), ["flush"], "{word}");
            if word == "rate" {
                // What sends no data is free.
                b.zero(0, 4096, ZeroFlags::default()).unwrap();
                assert_eq!(below.asked(), ["zero 0+4096"], "{words:?}");
            } else {
                // For example, data that a filter above must write back.
                a.write(&[1; 10], 0, false).unwrap();
                assert_eq!(below.asked(), ["write 0+10"], "{word}");
            }
        }
    }
}
