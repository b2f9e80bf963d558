//! A server's silence: how long it has owed a reply without sending or taking a byte.
//!
//! Any byte counts, of whichever reply or request, also one that the socket took earlier and that
//! is on its way: a slow server is not a silent one.

use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Fault};

/// While bytes are on their way, they are looked at this many times within the limit.
const LOOKS: u32 = 4;

/// The state of one connection.
#[derive(Debug)]
pub(crate) struct Silence {
    limit: Duration,
    /// When a byte last moved, or the server began to owe.
    since: Instant,
    /// Whether it owed anything at the last look.
    owed: bool,
    /// How much was on its way at the last look, if nothing has moved since.
    on_the_way: Option<u64>,
}

impl Silence {
    /// A silence that may last this long.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, since: Instant::now(), owed: false, on_the_way: None }
    }

    /// Called by the thread that drove the connection, with what it saw.
    pub(crate) fn note(&mut self, moved: bool, owes: bool) {
        if moved || !self.owed {
            self.since = Instant::now();
            self.on_the_way = None;
        }
        self.owed = owes;
    }

    /// When to look again, from now. `on_the_way`: what the socket took and the server has not
    /// received ([`net::Stream::on_the_way`]).
    ///
    /// # Errors
    /// It has lasted too long.
    pub(crate) fn look(&mut self, on_the_way: u64) -> Result<Duration, Error> {
        if !self.owed {
            return Ok(self.limit);
        }
        let often = if on_the_way > 0 { self.limit / LOOKS } else { self.limit };
        let before = self.on_the_way.replace(on_the_way);
        if before.is_some_and(|before| on_the_way < before) {
            self.since = Instant::now();
        }
        if before.is_none() && on_the_way > 0 {
            // Nothing to compare it with yet.
            return Ok(often);
        }
        let left = self.limit.saturating_sub(self.since.elapsed());
        if !left.is_zero() {
            return Ok(left.min(often));
        }
        let seconds = self.limit.as_secs_f64();
        let action = format!("talk to the server: it was silent for {seconds} seconds");
        Err(Error::new(ErrorKind::TimedOut, Fault::Peer, action))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that has lasted too long, unless something moves.
    fn owing() -> Silence {
        let mut silence = Silence::new(Duration::from_nanos(4));
        silence.note(false, true);
        std::thread::sleep(Duration::from_nanos(5));
        silence
    }

    #[test]
    fn bytes_that_leave_the_socket_break_it_and_bytes_that_stay_there_do_not() {
        let mut silence = owing();
        assert!(silence.look(0).is_err());
        let mut silence = owing();
        assert_eq!(silence.look(500).unwrap(), Duration::from_nanos(1), "it may be leaving");
        assert!(silence.look(500).is_err());
        let mut silence = Silence::new(Duration::from_secs(3600));
        silence.note(false, true);
        silence.look(500).unwrap();
        let before = silence.since;
        silence.look(500).unwrap();
        silence.look(501).unwrap();
        assert_eq!(silence.since, before);
        assert_eq!(silence.look(499).unwrap(), Duration::from_secs(900));
        assert!(silence.since > before);
    }

    #[test]
    fn a_server_that_owes_nothing_may_be_silent() {
        let mut silence = owing();
        silence.note(true, false);
        assert_eq!(silence.look(0).unwrap(), Duration::from_nanos(4));
    }
}
