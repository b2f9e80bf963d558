//! A server's silence: how long it has owed a reply without sending or taking a byte.
//!
//! Any byte counts, of whichever reply: a slow server is not a silent one.

use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Fault};

/// The state of one connection.
#[derive(Debug)]
pub(crate) struct Silence {
    limit: Duration,
    /// When a byte last moved, or the server began to owe.
    since: Instant,
    /// Whether it owed anything at the last look.
    owed: bool,
}

impl Silence {
    /// A silence that may last this long.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, since: Instant::now(), owed: false }
    }

    /// Called by the thread that drove the connection, with what it saw.
    pub(crate) fn note(&mut self, moved: bool, owes: bool) {
        if moved || !self.owed {
            self.since = Instant::now();
        }
        self.owed = owes;
    }

    /// When to look again, from now.
    ///
    /// # Errors
    /// It has lasted too long.
    pub(crate) fn left(&self) -> Result<Duration, Error> {
        if !self.owed {
            return Ok(self.limit);
        }
        let left = self.limit.saturating_sub(self.since.elapsed());
        if !left.is_zero() {
            return Ok(left);
        }
        let seconds = self.limit.as_secs_f64();
        let action = format!("talk to the server: it was silent for {seconds} seconds");
        Err(Error::new(ErrorKind::TimedOut, Fault::Peer, action))
    }
}
