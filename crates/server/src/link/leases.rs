//! The leases of bytes that were given to a socket as pages: kept until they cannot be seen any
//! more.
//!
//! sendfile passes pages and not copies, so the owner of a place must not reuse it as soon as the
//! call returns: see [`device::Place`]. A Unix socket says how much of what was sent has not been
//! received, and a stream is received in order; so leases of what was sent before those last bytes
//! end. TCP only says what the other machine has acknowledged, and over the loopback interface
//! those pages may still be in a socket for long; so there a lease ends only after the connection
//! has ended and its client had time to read its last replies.

use std::time::Duration;

use device::{Guard, is_same_guard};
use net::Stream;

/// How long a closed connection may take to read its last replies.
pub(crate) const LINGER: Duration = Duration::from_secs(10);
/// How many leases a connection may hold; bytes under further ones are copied.
const MOST: usize = 256;

/// The leases that a connection holds.
#[derive(Default)]
pub(super) struct Leases {
    /// Each once, with the number of bytes sent when the last byte under it was.
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

    /// Drops the leases of what has been received, where the socket reports that, or all of them if
    /// it does not and the connection `ended` long ago; `sent` bytes have been sent.
    pub(super) fn release(&mut self, stream: &Stream, sent: u64, ended: Option<Duration>) {
        match stream.undelivered() {
            Some(left) => {
                // The unreceived bytes are the last ones; the memory that the socket reports is at
                // least as much.
                let received = sent.saturating_sub(left);
                self.kept.retain(|(_, until)| *until > received);
            }
            None if ended.is_some_and(|ago| ago >= LINGER) => self.kept.clear(),
            None => {}
        }
    }
}
