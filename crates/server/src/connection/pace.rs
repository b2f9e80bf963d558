//! Whether a peer that must move bytes does: by their number in a window of time, not by signs of
//! life.
//!
//! A byte now and then costs an attacker nothing and would hold what others wait for. So a
//! connection in the middle of a payload, or with replies that its peer has not read, must move a
//! least number of bytes in each window of time; while others wait for memory the window is short,
//! and the number follows what the connection holds.

use std::time::{Duration, Instant};

/// The window, and the bytes that must move in it, as long as no other waits for memory.
const PATIENT: (Duration, u64) = (Duration::from_secs(300), 4 << 10);
/// The window while another does.
const SHORT: Duration = Duration::from_secs(10);
/// A connection that holds no more bytes than this is not worth closing.
pub(super) const TRIFLE: u64 = 64 << 10;
/// No more than this many bytes must move in a short window, however much is held.
const ENOUGH: u64 = 1 << 20;

/// The pace of one connection.
#[derive(Debug)]
pub(super) struct Pace {
    since: Instant,
    /// Bytes moved by then.
    moved: u64,
    /// The beginning of the short window.
    short_since: Instant,
    short_moved: u64,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, moved: 0, short_since: now, short_moved: 0 }
    }

    /// Nothing is expected of the peer: the windows start over.
    pub(super) fn rest(&mut self, now: Instant, moved: u64) {
        *self = Self { since: now, moved, short_since: now, short_moved: moved };
    }

    /// Whether a peer that must move, and has moved `moved` bytes since it came, is too slow.
    /// `held`: bytes of memory that wait for it; `short`: another connection waits for them.
    pub(super) fn is_too_slow(&mut self, now: Instant, moved: u64, held: u64, short: bool) -> bool {
        let mut slow = false;
        if now.duration_since(self.short_since) >= SHORT {
            let wanted = (held / 8).clamp(TRIFLE, ENOUGH);
            slow = short && held > TRIFLE && moved.saturating_sub(self.short_moved) < wanted;
            (self.short_since, self.short_moved) = (now, moved);
        }
        if now.duration_since(self.since) >= PATIENT.0 {
            slow |= moved.saturating_sub(self.moved) < PATIENT.1;
            (self.since, self.moved) = (now, moved);
        }
        slow
    }
}

/// How long nothing at all has moved: this counts while a server stops.
#[derive(Debug)]
pub(super) struct Standstill {
    since: Instant,
    /// Counters at that time: they change when something moves.
    seen: [u64; 3],
}

impl Standstill {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, seen: [0; 3] }
    }

    /// For how long it has lasted. `rests`: nothing is expected of the peer now.
    pub(super) fn lasts(&mut self, now: Instant, seen: [u64; 3], rests: bool) -> Duration {
        if rests || seen != self.seen {
            *self = Self { since: now, seen };
        }
        now.duration_since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_byte_now_and_then_is_no_progress_while_others_wait() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert!(!pace.is_too_slow(after(start, 9), 3, 8 * MIB, true));
        assert!(pace.is_too_slow(after(start, 10), 4, 8 * MIB, true));
    }

    #[test]
    fn a_connection_that_moves_or_holds_little_is_left_alone() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert!(!pace.is_too_slow(after(start, 10), MIB, 8 * MIB, true));
        assert!(!pace.is_too_slow(after(start, 20), MIB, 10, true));
        assert!(!pace.is_too_slow(after(start, 30), MIB, 8 * MIB, false));
    }

    #[test]
    fn a_byte_ends_a_standstill_and_so_does_a_disk_that_is_waited_for() {
        let start = Instant::now();
        let mut standstill = Standstill::new(start);
        let mut lasts =
            |seconds, seen, rests| standstill.lasts(after(start, seconds), seen, rests).as_secs();
        assert_eq!([lasts(1, [5, 0, 0], false), lasts(3, [5, 0, 0], false)], [0, 2]);
        assert_eq!([lasts(4, [5, 0, 9], false), lasts(7, [5, 0, 9], false)], [0, 3]);
        assert_eq!([lasts(8, [5, 0, 9], true), lasts(9, [5, 0, 9], false)], [0, 1]);
    }

    #[test]
    fn a_peer_that_stands_still_is_given_up_in_the_end_and_one_that_rested_is_not() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        pace.rest(after(start, 200), 0);
        assert!(!pace.is_too_slow(after(start, 300), 0, 10, false));
        assert!(pace.is_too_slow(after(start, 500), 1, 10, false));
    }
}
