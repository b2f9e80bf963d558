//! The arithmetic of a rate: what has been earned, which jobs wait, and which is next. No clock, no
//! lock.
//!
//! Bits are earned as time passes. Unused bits are saved up to one burst; at first there are none.
//! A waiting job pays in small parts, in turns with the others, so that a long request delays no
//! other by more than a part. Requests of one client keep their order.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Bits that one client pays before the next one's turn: 64 KiB.
const PART: u64 = 8 * (64 << 10);
/// The earnings of this time can always be saved, so that a timer may be late.
const SLACK: Duration = Duration::from_millis(100);
/// A bit, in the units of the account: earning is exact to the nanosecond.
const BIT: u128 = 1_000_000_000;

/// A rate, and jobs that wait to be paid.
pub(super) struct Meter<J> {
    /// Bits a second; 0 is no limit.
    rate: u64,
    burst: Duration,
    /// Bits · ns.
    credit: u128,
    /// Until when the credit was earned.
    at: Instant,
    /// Waiting clients; the first one pays.
    clients: VecDeque<Waiting<J>>,
}

struct Waiting<J> {
    client: u64,
    /// What it may still pay in this turn.
    part: u64,
    /// Jobs, never empty: the bits left to pay, and the job.
    jobs: VecDeque<(u64, J)>,
}

impl<J> Meter<J> {
    pub(super) fn new(rate: u64, burst: Duration, now: Instant) -> Self {
        Self { rate, burst, credit: 0, at: now, clients: VecDeque::new() }
    }

    /// Whether every job may run at once.
    pub(super) fn is_open(&self) -> bool {
        self.rate == 0 && self.clients.is_empty()
    }

    /// Whether no job waits.
    pub(super) fn is_idle(&self) -> bool {
        self.clients.is_empty()
    }

    /// From `now` on, so many bits a second (0: no limit). What was earned before stays earned.
    pub(super) fn set_rate(&mut self, rate: u64, now: Instant) {
        self.earn(now);
        self.rate = rate;
        self.credit = self.credit.min(self.most());
    }

    /// `job` of `client` waits until so many bits are paid.
    pub(super) fn push(&mut self, client: u64, bits: u64, job: J) {
        match self.clients.iter_mut().find(|c| c.client == client) {
            Some(waiting) => waiting.jobs.push_back((bits, job)),
            None => {
                let jobs = VecDeque::from([(bits, job)]);
                self.clients.push_back(Waiting { client, part: PART, jobs });
            }
        }
    }

    /// Removes all jobs of `client`; bits paid for them are lost.
    pub(super) fn forget(&mut self, client: u64) -> impl Iterator<Item = J> + use<J> {
        let at = self.clients.iter().position(|c| c.client == client);
        let gone = at.and_then(|at| self.clients.remove(at));
        gone.into_iter().flat_map(|c| c.jobs).map(|(_, job)| job)
    }

    /// The jobs that are paid by `now`, in order.
    pub(super) fn paid(&mut self, now: Instant) -> Vec<J> {
        self.earn(now);
        let mut paid = Vec::new();
        while let Some(mut first) = self.clients.pop_front() {
            let Some((left, job)) = first.jobs.pop_front() else { continue };
            let purse = u64::try_from(self.credit / BIT).unwrap_or(u64::MAX);
            let pay = if self.rate == 0 { left } else { left.min(first.part).min(purse) };
            if self.rate > 0 {
                self.credit -= u128::from(pay) * BIT;
            }
            first.part = first.part.saturating_sub(pay);
            if left > pay {
                first.jobs.push_front((left - pay, job));
            } else {
                paid.push(job);
            }
            let turn_is_over = first.part == 0;
            if turn_is_over {
                first.part = PART;
            }
            match first.jobs.is_empty() {
                true => {}
                false if turn_is_over => self.clients.push_back(first),
                false => self.clients.push_front(first),
            }
            if left > pay && !turn_is_over {
                break;
            }
        }
        paid
    }

    /// The time until the next part that a job waits for is earned; `None`: none waits.
    pub(super) fn wait(&self) -> Option<Duration> {
        let first = self.clients.front()?;
        let (left, _) = first.jobs.front()?;
        if self.rate == 0 {
            return Some(Duration::ZERO);
        }
        let missing = (u128::from((*left).min(first.part)) * BIT).saturating_sub(self.credit);
        let nanos = missing.div_ceil(u128::from(self.rate));
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    fn earn(&mut self, now: Instant) {
        let nanos = now.saturating_duration_since(self.at).as_nanos();
        self.at = self.at.max(now);
        let earned = nanos.saturating_mul(u128::from(self.rate));
        self.credit = self.credit.saturating_add(earned).min(self.most());
    }

    /// The most that can be saved.
    fn most(&self) -> u128 {
        let time = self.burst.max(SLACK).as_nanos();
        let part = u128::from(PART) * BIT;
        time.saturating_mul(u128::from(self.rate)).saturating_add(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: Duration = Duration::from_secs(2);

    /// Runs the meter until no job waits, or `end`; says when each job was paid.
    fn run<J>(meter: &mut Meter<J>, begun: Instant, end: Duration) -> Vec<(Duration, J)> {
        let (mut now, mut all) = (begun, Vec::new());
        loop {
            all.extend(meter.paid(now).into_iter().map(|job| (now - begun, job)));
            match meter.wait() {
                // A timer is a little late.
                Some(wait) => now += wait + Duration::from_micros(100),
                None => return all,
            }
            if now - begun > end {
                return all;
            }
        }
    }

    #[test]
    fn over_ten_seconds_the_rate_is_met_for_small_and_large_requests() {
        for bytes in [512u64, 4096, 256 << 10, 1 << 20] {
            let begun = Instant::now();
            let rate = 80_000_000;
            let mut meter = Meter::new(rate, BURST, begun);
            (0..200_000_000 / bytes).for_each(|i| meter.push(1, bytes * 8, i));
            let end = Duration::from_secs(10);
            let done = run(&mut meter, begun, end).len() as u64 * bytes;
            let wanted = 100_000_000;
            assert!(done <= wanted && wanted - done <= wanted / 50, "{bytes}: {done}");
        }
    }

    #[test]
    fn idle_time_saves_up_no_more_than_a_burst() {
        let begun = Instant::now();
        let mut meter = Meter::new(8_000_000, BURST, begun);
        assert!(meter.paid(begun + Duration::from_secs(3600)).is_empty());
        (0..10_000).for_each(|i| meter.push(1, 8000, i));
        let now = begun + Duration::from_secs(3600);
        let at_once = meter.paid(now).len();
        assert!((2000..2100).contains(&at_once), "{at_once}");
    }

    #[test]
    fn a_client_with_long_requests_does_not_starve_one_with_short_ones() {
        let begun = Instant::now();
        let mut meter = Meter::new(8 << 20, BURST, begun);
        (0..16).for_each(|_| meter.push(1, 8 * (32 << 20), "long"));
        meter.push(2, 8 * 4096, "short");
        let all = run(&mut meter, begun, Duration::from_secs(3600));
        assert_eq!(all[0].1, "short");
        // 64 KiB of the other client go before it, and its own 4 KiB.
        assert!(all[0].0 < Duration::from_millis(100), "{:?}", all[0].0);
        assert_eq!(all.len(), 17);
        assert!(all[16].0 >= Duration::from_secs(512));
    }

    #[test]
    fn requests_of_one_client_keep_their_order() {
        let begun = Instant::now();
        let mut meter = Meter::new(1 << 20, BURST, begun);
        (0..100u64).for_each(|i| meter.push(1, i % 7 * 100_000, i));
        let all = run(&mut meter, begun, Duration::from_secs(3600));
        assert!(all.iter().map(|(_, i)| *i).eq(0..100));
    }

    #[test]
    fn a_change_counts_from_then_on_and_no_limit_releases_all_waiting_requests() {
        let begun = Instant::now();
        let mut meter = Meter::new(8000, BURST, begun);
        (0..3).for_each(|i| meter.push(i, 80_000, i));
        let second = begun + Duration::from_secs(1);
        assert!(meter.paid(second).is_empty());
        meter.set_rate(80_000, second);
        // 232 000 bits are left.
        let third = second + Duration::from_millis(2899);
        assert!(meter.paid(third).len() < 3);
        meter.set_rate(0, third);
        assert!(!meter.is_open());
        meter.paid(third);
        assert!(meter.is_open() && meter.wait().is_none());
    }

    #[test]
    fn a_client_that_has_gone_pays_no_more_and_the_next_one_is_served() {
        let begun = Instant::now();
        let mut meter = Meter::new(8_000_000, BURST, begun);
        (0..100).for_each(|i| meter.push(1, 8_000_000, i));
        meter.push(2, 8000, 100);
        let second = begun + Duration::from_secs(1);
        assert_eq!(meter.paid(second), [100]);
        assert!(meter.forget(1).eq(0..100));
        assert!(meter.forget(1).next().is_none());
        meter.push(2, 8000, 101);
        assert_eq!(meter.paid(second + Duration::from_millis(2)), [101]);
    }
}
