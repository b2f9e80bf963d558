//! The leases of bytes that were given to a socket as pages: kept until they cannot be seen any more.
//!
//! sendfile passes pages and not copies, so the owner of a place must not reuse it as soon as the
//! call returns: see [`device::Place`]. A Unix socket says how much of what was sent has not been
//! received, and a stream is received in order; so what was sent before those last bytes is let go.
//! TCP only says what the other machine has acknowledged, and over the loopback interface that may
//! lie in a socket as the same pages for long; so there a lease ends when the connection has, and its
//! client had the time to read its last replies.

use std::time::Duration;

use device::{Guard, is_same_guard};
use net::Stream;

/// How long a closed connection may take to read its last replies.
pub(crate) const LINGER: Duration = Duration::from_secs(10);
/// How many leases a connection may hold; what lies under another one is copied.
const MOST: usize = 256;

/// The leases that a connection holds.
#[derive(Default)]
pub(super) struct Leases {
    /// Each once, with the number of bytes that had been sent when the last of its own had.
    kept: Vec<(Guard, u64)>,
}

impl Leases {
    /// Whether bytes under this lease may be sent from their place.
    pub(super) fn may_keep(&self, guard: &Guard) -> bool {
        self.kept.len() < MOST || self.kept.iter().any(|(kept, _)| is_same_guard(kept, guard))
    }

    /// Bytes under this lease have been sent, and are among the first `sent` of the connection.
    pub(super) fn keep(&mut self, guard: &Guard, sent: u64) {
        match self.kept.iter_mut().find(|(kept, _)| is_same_guard(kept, guard)) {
            Some((_, until)) => *until = sent,
            None => self.kept.push((guard.clone(), sent)),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Lets go of what has been received, where the socket says so, or of all where it cannot say and
    /// the connection `ended` long ago; `sent` bytes have been sent.
    pub(super) fn release(&mut self, stream: &Stream, sent: u64, ended: Option<Duration>) {
        match stream.undelivered() {
            Some(left) => {
                // What was not received are the last bytes; the memory it takes is no less than they.
                let received = sent.saturating_sub(left);
                self.kept.retain(|(_, until)| *until > received);
            }
            None if ended.is_some_and(|ago| ago >= LINGER) => self.kept.clear(),
            None => {}
        }
    }
}
