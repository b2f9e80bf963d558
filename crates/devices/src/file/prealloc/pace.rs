//! A limit of bytes a second.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use runtime::Mutex;

use crate::preallocation::PreallocationWatch;

/// How long it runs without looking whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);
/// Pieces in a second, where they are cut for the limit.
const PIECES: u64 = 8;

/// Lets this many bytes pass in a second, for all threads together.
#[derive(Debug)]
pub(crate) struct Pace {
    rate: NonZeroU64,
    /// When the next bytes may pass.
    next: Mutex<Option<Instant>>,
}

impl Pace {
    pub(crate) fn new(rate: NonZeroU64) -> Self {
        Self { rate, next: Mutex::new(None) }
    }

    /// The longest piece that may pass at once.
    pub(crate) fn longest(&self) -> u64 {
        self.rate.get() / PIECES
    }

    /// Waits until `len` bytes may pass, or it is to stop.
    pub(crate) fn wait(&self, len: u64, watch: &PreallocationWatch) {
        let due = self.reserve(len, Instant::now());
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() || watch.is_stopped() {
                return;
            }
            std::thread::sleep(left.min(LOOK));
        }
    }

    /// When `len` bytes may pass that are wanted now. Unused capacity is not saved up.
    fn reserve(&self, len: u64, now: Instant) -> Instant {
        let mut next = self.next.lock();
        let start = next.map_or(now, |next| next.max(now));
        let nanos = u128::from(len) * 1_000_000_000 / u128::from(self.rate.get());
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        *next = start.checked_add(Duration::from_nanos(nanos)).or(Some(start));
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_pass_at_the_rate_and_what_was_not_used_is_not_saved_up() {
        let pace = Pace::new(NonZeroU64::new(1000).unwrap());
        let now = Instant::now();
        let after = |ms| now + Duration::from_millis(ms);
        assert_eq!(pace.reserve(500, now), now);
        assert_eq!(pace.reserve(500, now), after(500));
        assert_eq!(pace.reserve(1, after(100)), after(1000));
        assert_eq!(pace.reserve(1, after(9000)), after(9000));
    }
}
