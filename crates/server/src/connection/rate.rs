//! How many requests a connection may have begun by now.

use std::time::Instant;

/// Requests that may be begun, refilled as time passes: those of a tenth of a second may come at
/// once.
#[derive(Debug)]
pub(super) struct Rate {
    /// Requests a second (> 0).
    limit: u64,
    /// Nanoseconds' worth of requests that are left.
    credit: u64,
    since: Instant,
}

const SECOND: u64 = 1_000_000_000;

impl Rate {
    pub(super) fn new(limit: u64, now: Instant) -> Self {
        let rate = Self { limit: limit.max(1), credit: 0, since: now };
        Self { credit: rate.most(), ..rate }
    }

    /// Requests a second.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// What one request costs.
    fn price(&self) -> u64 {
        (SECOND / self.limit).max(1)
    }

    fn most(&self) -> u64 {
        (SECOND / 10).max(self.price())
    }

    /// Whether one more may begin.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since).as_nanos();
        self.since = self.since.max(now);
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        self.credit = self.credit.saturating_add(passed).min(self.most());
        self.credit >= self.price()
    }

    /// One has begun.
    pub(super) fn spend(&mut self) {
        self.credit = self.credit.saturating_sub(self.price());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// How many begin in this many milliseconds of asking all the time.
    fn begun(limit: u64, millis: u64) -> u64 {
        let mut now = Instant::now();
        let mut rate = Rate::new(limit, now);
        let mut begun = 0;
        for _ in 0..millis {
            while rate.allows(now) {
                rate.spend();
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
}
