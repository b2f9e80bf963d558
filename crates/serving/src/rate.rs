//! How much may have begun by now: requests of a connection, or bytes of an export.

use std::time::Instant;

/// Units (requests, or bytes) that may be begun, refilled as time passes: those of a tenth of a
/// second may come at once. What begins when some are left may take more, and is paid for later.
#[derive(Debug)]
pub struct RateLimit {
    /// Units a second (> 0).
    limit: u64,
    /// What is left, in units of a nanosecond each; what is owed, below 0.
    credit: i128,
    since: Instant,
}

const SECOND: i128 = 1_000_000_000;

impl RateLimit {
    /// So many units a second, from now on.
    #[must_use]
    pub fn new(limit: u64, now: Instant) -> Self {
        let rate = Self { limit: limit.max(1), credit: 0, since: now };
        Self { credit: rate.most(), ..rate }
    }

    /// Units a second.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    fn most(&self) -> i128 {
        (i128::from(self.limit) * SECOND / 10).max(SECOND)
    }

    /// Whether one more may begin.
    pub fn allows(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since).as_nanos();
        self.since = self.since.max(now);
        let earned = i128::from(u64::try_from(passed).unwrap_or(u64::MAX)) * i128::from(self.limit);
        self.credit = (self.credit + earned).min(self.most());
        self.credit >= SECOND
    }

    /// So many have begun.
    pub fn spend(&mut self, units: u64) {
        self.credit -= i128::from(units) * SECOND;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// How many begin in this many milliseconds of asking all the time.
    fn begun(limit: u64, millis: u64) -> u64 {
        let mut now = Instant::now();
        let mut rate = RateLimit::new(limit, now);
        let mut begun = 0;
        for _ in 0..millis {
            while rate.allows(now) {
                rate.spend(1);
                begun += 1;
            }
            now += Duration::from_millis(1);
        }
        begun
    }

    #[test]
    fn no_more_begin_than_are_allowed_and_not_fewer() {
        for limit in [1, 7, 100, 12_345] {
            let begun = begun(limit, 10_000);
            let most = 10 * limit + limit.div_ceil(10) + 1;
            assert!((10 * limit - 1..=most).contains(&begun), "{limit}: {begun}");
        }
    }

    #[test]
    fn what_takes_more_than_is_left_is_paid_for_before_the_next_begins() {
        let mut now = Instant::now();
        let mut rate = RateLimit::new(1000, now);
        assert!(rate.allows(now));
        rate.spend(2100);
        for _ in 0..4 {
            now += Duration::from_millis(500);
            assert!(!rate.allows(now));
        }
        now += Duration::from_millis(1);
        assert!(rate.allows(now));
        rate.spend(u64::MAX);
        assert!(!rate.allows(now + Duration::from_secs(1 << 40)));
    }
}
