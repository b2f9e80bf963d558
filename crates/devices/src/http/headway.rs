//! Whether a server that is asked again and again brings enough for that.
//!
//! Each try has to bring something worth a request, and in time: else it counts as a failure,
//! though bytes came. So neither drips nor parts of a byte are followed for ever, and the requests
//! for a range are in proportion to its bytes, as all bytes are that come for it. A try that brings
//! the last missing byte is never asked for more.

use std::time::{Duration, Instant};

/// Bytes that are worth a request.
const WORTH: u64 = 4 << 10;
/// Bytes a second, pauses between tries included.
const RATE: u64 = 1 << 10;
/// Bytes that may come again for each new one.
const AGAIN: u64 = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Headway {
    /// The offset that was reached, and when, as enough had come for the last time.
    at: u64,
    since: Instant,
    /// Bytes that came again since then.
    again: u64,
    /// Failures since then.
    failures: u32,
}

impl Headway {
    /// From this offset on, and now.
    pub(super) fn new(at: u64) -> Self {
        Self { at, since: Instant::now(), again: 0, failures: 0 }
    }

    /// Whether enough has come by now, at the end of a try that reached the offset `at`.
    pub(super) fn is_enough(&mut self, at: u64) -> bool {
        self.is_enough_by(at, Instant::now())
    }

    fn is_enough_by(&mut self, at: u64, now: Instant) -> bool {
        let came = at.saturating_sub(self.at);
        let seconds = now.saturating_duration_since(self.since).as_secs();
        let enough = came >= WORTH.max(self.again / AGAIN) && came / RATE >= seconds;
        if enough {
            *self = Self { at, since: now, again: 0, failures: 0 };
        }
        enough
    }

    /// A try that reached `at` has failed: how many have now, in a row.
    pub(super) fn failed(&mut self, at: u64) -> u32 {
        self.is_enough(at);
        self.failures = self.failures.saturating_add(1);
        self.failures
    }

    /// Bytes that had come before have come again.
    pub(super) fn came_again(&mut self, bytes: u64) {
        self.again = self.again.saturating_add(bytes);
    }

    /// Time in which the server was not the one that was waited for does not count.
    pub(super) fn not_counting(&mut self, time: Duration) {
        self.since += time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether each of these steps, of `(seconds, bytes)`, is enough.
    fn enough(steps: &[(u64, u64)]) -> Vec<bool> {
        let mut headway = Headway::new(1 << 40);
        let (mut at, mut now) = (headway.at, headway.since);
        let step = |(seconds, bytes): &(u64, u64)| {
            at += bytes;
            now += Duration::from_secs(*seconds);
            headway.is_enough_by(at, now)
        };
        steps.iter().map(step).collect()
    }

    #[test]
    fn parts_of_a_byte_and_drips_are_not_enough_and_small_honest_parts_are() {
        assert_eq!(enough(&[(0, 1); 6]), [false; 6]);
        assert_eq!(enough(&[(30, 30), (30, 18_000), (35, 30_000)]), [false; 3]);
        assert_eq!(enough(&[(0, 4096), (4, 4096), (20, 65_536)]), [true; 3]);
        // A link of 100 kB/s that stalls for 20 s, and one that is silent for a minute.
        assert_eq!(enough(&[(21, 100_000), (90, 100_000)]), [true; 2]);
        // A long silence is made up for by what comes then.
        assert_eq!(enough(&[(30, 0), (30, 10_000), (1, 60_000)]), [false, false, true]);
    }

    #[test]
    fn failures_are_counted_from_the_last_try_that_brought_enough() {
        let mut headway = Headway::new(0);
        assert_eq!([headway.failed(0), headway.failed(1), headway.failed(4095)], [1, 2, 3]);
        assert_eq!([headway.failed(4096), headway.failed(4096)], [1, 2]);
        assert!(headway.is_enough(9000));
        assert_eq!(headway.failed(9001), 1);
    }

    #[test]
    fn what_comes_again_for_a_few_new_bytes_is_not_enough() {
        let mut headway = Headway::new(0);
        headway.came_again(64 << 20);
        assert!(!headway.is_enough((1 << 20) - 1));
        assert!(headway.is_enough(1 << 20));
        assert!(headway.is_enough((1 << 20) + 4096), "counting has begun again");
    }

    #[test]
    fn time_in_which_readers_were_waited_for_does_not_count() {
        let mut headway = Headway::new(0);
        let later = headway.since + Duration::from_secs(3600);
        assert!(!headway.is_enough_by(4096, later));
        headway.not_counting(Duration::from_secs(3599));
        assert!(headway.is_enough_by(4096, later));
    }
}
