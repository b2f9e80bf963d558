//! How many connections a lane drives: one more as long as that helps.
//!
//! A lane that waits half of its time, while requests are in flight, asks for another connection.
//! If that made it faster by a tenth, it asks again; if not, it is measured once more, because
//! other programs may have used the processor or the network meanwhile, and then it has enough. A
//! lane that is busy needs no more connections.

use std::time::{Duration, Instant};

/// How long it is measured before a decision.
const WHILE: Duration = Duration::from_millis(200);

/// What is known of a lane.
#[derive(Debug)]
pub(crate) struct Growth {
    since: Instant,
    /// Bytes since then, and how long the lane waited.
    bytes: u64,
    waited: Duration,
    /// Bytes a second before the last connection came.
    before: Option<u64>,
    /// A connection came just now: the next measurement is mixed.
    is_new: bool,
    /// It did not seem to help.
    in_doubt: bool,
    enough: bool,
}

impl Growth {
    pub(crate) fn new(now: Instant) -> Self {
        let (bytes, waited) = (0, Duration::ZERO);
        Self {
            since: now,
            bytes,
            waited,
            before: None,
            is_new: true,
            in_doubt: false,
            enough: false,
        }
    }

    /// Counts bytes that were asked for.
    pub(crate) fn asked(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Another connection is there.
    pub(crate) fn came(&mut self, now: Instant) {
        self.again(now);
        self.is_new = true;
    }

    /// Whether one more did not help: no other is tried.
    pub(crate) fn has_enough(&self) -> bool {
        self.enough
    }

    fn again(&mut self, now: Instant) {
        (self.since, self.bytes, self.waited) = (now, 0, Duration::ZERO);
    }

    /// The lane has waited this long, until now. Returns whether one more connection should be
    /// tried.
    pub(crate) fn waited(&mut self, time: Duration, now: Instant) -> bool {
        self.waited += time;
        let whole = now.saturating_duration_since(self.since);
        // Where requests come seldom it is measured from one to the next.
        if self.enough || whole < WHILE || self.bytes == 0 {
            return false;
        }
        let millis = u64::try_from(whole.as_millis()).unwrap_or(u64::MAX).max(1);
        let (rate, idle) = (self.bytes.saturating_mul(1000) / millis, self.waited * 2 >= whole);
        self.again(now);
        if std::mem::take(&mut self.is_new) {
            return false;
        }
        if self.before.is_some_and(|before| rate < before.saturating_add(before / 10)) {
            if !std::mem::replace(&mut self.in_doubt, true) {
                return false;
            }
            self.enough = true;
        }
        (self.before, self.in_doubt) = (None, false);
        if idle && !self.enough {
            self.before = Some(rate);
        }
        idle && !self.enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many connections a lane gets in the end that waits for this part of its time (in
    /// hundredths) and moves this many bytes in a millisecond over `n` of them.
    fn settle(waits: u32, rate: impl Fn(u64) -> u64) -> u64 {
        let begin = Instant::now();
        let (mut growth, mut number) = (Growth::new(begin), 1);
        for millis in 1..20_000u64 {
            let now = begin + Duration::from_millis(millis);
            growth.asked(rate(number));
            if growth.waited(Duration::from_millis(1) * waits / 100, now) && number < 64 {
                number += 1;
                growth.came(now);
            }
        }
        number
    }

    #[test]
    fn there_are_more_as_long_as_each_helps() {
        assert_eq!(settle(90, |n| n * 1000), 12, "the twelfth was less than a tenth more");
        assert_eq!(settle(90, |n| n.min(4) * 1000), 5, "one more was tried");
        assert_eq!(settle(90, |_| 1000), 2, "the way is full");
        assert_eq!(settle(20, |n| n * 1000), 1, "the lane is busy");
        assert_eq!(settle(90, |_| 0), 1, "there is nothing to do");
    }

    #[test]
    fn requests_that_take_long_are_measured_from_one_to_the_next() {
        let begin = Instant::now();
        let (mut growth, mut number) = (Growth::new(begin), 1u64);
        for millis in 1..60_000u64 {
            // A part of a long reply comes each millisecond, and the next request is due when all
            // of it has come.
            if millis % (900 / number.min(3)) == 1 {
                growth.asked(1 << 20);
            }
            let now = begin + Duration::from_millis(millis);
            if growth.waited(Duration::from_millis(1), now) && number < 64 {
                number += 1;
                growth.came(now);
            }
        }
        assert_eq!(number, 4, "one more than helps was tried");
    }

    #[test]
    fn one_that_seemed_to_be_of_no_help_is_looked_at_once_more() {
        let mut looks = 0;
        let begin = Instant::now();
        let (mut growth, mut number) = (Growth::new(begin), 1u64);
        for millis in 1..20_000u64 {
            let now = begin + Duration::from_millis(millis);
            // Each time another one is there, other traffic has the network for 300 ms.
            looks += 1;
            growth.asked(if number > 1 && looks < 300 { 500 } else { number.min(4) * 1000 });
            if growth.waited(Duration::from_millis(1), now) && number < 64 {
                (number, looks) = (number + 1, 0);
                growth.came(now);
            }
        }
        assert!((5..=6).contains(&number), "{number}: one or two more than help were tried");
    }
}
