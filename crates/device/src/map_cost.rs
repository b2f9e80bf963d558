//! Whether a map is worth asking for, by what it has cost and what it has found.
//!
//! A map says where zeroes are, which then need not be read. Most maps are quick; some take longer
//! than reading the bytes would. That cannot be known of a disk in advance, so the time is
//! accounted for: a map that costs more than it saves is left alone for a while, which doubles each
//! time that another query does not pay either. Ranges that are not queried count as data: reading
//! them is always right.

use std::time::Duration;

use runtime::Mutex;

use crate::Extent;

/// Time that a map may cost, and queries that it may take, before its savings are checked: on a
/// busy machine a few queries may be slow.
const FREE: Duration = Duration::from_millis(100);
const FREE_ANSWERS: u32 = 16;
/// Bytes read in a second, where it was not measured.
const RATE: u64 = 2 << 30;
/// How long a map is left alone at first, in bytes.
const QUIET: u64 = 64 << 20;

/// The account of one map.
#[derive(Debug, Default)]
pub struct MapCost(Mutex<Account>);

#[derive(Debug)]
struct Account {
    spent: Duration,
    answers: u32,
    /// Bytes that it reported as zeroes.
    zeroes: u64,
    /// Bytes a second.
    rate: u64,
    measured: bool,
    /// Bytes left before it is asked again.
    quiet: u64,
    /// How many they will be the next time.
    next: u64,
}

impl Default for Account {
    fn default() -> Self {
        let (spent, zeroes, rate) = (Duration::ZERO, 0, RATE);
        Self { spent, answers: 0, zeroes, rate, measured: false, quiet: 0, next: QUIET }
    }
}

impl Account {
    /// The time that reading would have taken.
    fn saved(&self, zeroes: u64) -> Duration {
        let nanos = u128::from(zeroes) * 1_000_000_000 / u128::from(self.rate.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn costs_too_much(&self) -> bool {
        self.answers >= FREE_ANSWERS && self.spent > FREE + self.saved(self.zeroes) * 2
    }
}

impl MapCost {
    /// Of the next `len` bytes, how many are not worth asking about; 0: ask. They count as passed.
    pub fn pass(&self, len: u64) -> u64 {
        let mut account = self.0.lock();
        let passed = account.quiet.min(len);
        account.quiet -= passed;
        passed
    }

    /// The map took this long to return these extents.
    pub fn told(&self, took: Duration, extents: &[Extent]) {
        let zeroes = extents.iter().filter(|e| e.kind.reads_zero()).map(|e| e.len);
        let zeroes = zeroes.fold(0, u64::saturating_add);
        let mut account = self.0.lock();
        if account.next > QUIET && took <= account.saved(zeroes) * 2 {
            // It was left alone, and may find something again.
            *account =
                Account { rate: account.rate, measured: account.measured, ..Account::default() };
        }
        account.spent = account.spent.saturating_add(took);
        account.zeroes = account.zeroes.saturating_add(zeroes);
        account.answers = account.answers.saturating_add(1);
        if account.costs_too_much() {
            account.quiet = account.next;
            account.next = account.next.saturating_mul(2);
        }
    }

    /// Whether it is about to be left alone, and what reading costs was not measured.
    #[must_use]
    pub fn wants_rate(&self) -> bool {
        let account = self.0.lock();
        account.quiet > 0 && !account.measured
    }

    /// Reading `len` bytes took this long. Earlier queries are judged by that.
    pub fn read(&self, len: u64, took: Duration) {
        let mut account = self.0.lock();
        let nanos = took.as_nanos().max(1);
        let rate = u128::from(len) * 1_000_000_000 / nanos;
        account.rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
        account.measured = true;
        if !account.costs_too_much() {
            (account.quiet, account.next) = (0, QUIET);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ExtentKind;

    const MIB: u64 = 1 << 20;

    fn answer(len: u64, kind: ExtentKind) -> [Extent; 1] {
        [Extent::new(0, len, kind)]
    }

    #[test]
    fn a_map_that_answers_at_once_is_always_asked() {
        let cost = MapCost::default();
        for _ in 0..1000 {
            assert_eq!(cost.pass(MIB), 0);
            cost.told(Duration::from_micros(10), &answer(MIB, ExtentKind::Data));
        }
    }

    #[test]
    fn a_slow_map_without_zeroes_is_asked_ever_less() {
        let cost = MapCost::default();
        let (mut at, mut asked, size) = (0, 0, 1 << 40);
        while at < size {
            let passed = cost.pass(size - at);
            at += passed;
            if passed == 0 {
                asked += 1;
                at += MIB;
                cost.told(Duration::from_millis(10), &answer(MIB, ExtentKind::Data));
            }
        }
        assert!(asked < 40, "{asked}");
    }

    #[test]
    fn a_slow_map_of_long_holes_is_asked_to_the_end() {
        let cost = MapCost::default();
        for _ in 0..1000 {
            assert_eq!(cost.pass(MIB), 0);
            cost.told(Duration::from_millis(50), &answer(4 << 30, ExtentKind::Hole));
        }
    }

    #[test]
    fn holes_behind_much_data_are_found_again() {
        let cost = MapCost::default();
        let slow = Duration::from_millis(30);
        for _ in 0..FREE_ANSWERS {
            assert_eq!(cost.pass(1 << 40), 0);
            cost.told(slow, &answer(MIB, ExtentKind::Data));
        }
        assert_eq!(cost.pass(1 << 40), QUIET);
        for _ in 0..100 {
            assert_eq!(cost.pass(MIB), 0);
            cost.told(slow, &answer(1 << 30, ExtentKind::Hole));
        }
    }

    #[test]
    fn where_reading_is_slow_too_the_map_pays() {
        let cost = MapCost::default();
        for _ in 0..FREE_ANSWERS {
            cost.told(Duration::from_millis(50), &answer(MIB, ExtentKind::Hole));
        }
        assert!(cost.wants_rate());
        // 10 MiB a second.
        cost.read(MIB, Duration::from_millis(100));
        assert!(!cost.wants_rate());
        assert_eq!(cost.pass(MIB), 0);
    }
}
