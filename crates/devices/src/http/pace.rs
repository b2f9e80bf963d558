//! How long a server may be silent, and how slow.

use std::time::{Duration, Instant};

/// A server that sends less than this many bytes in [`DRIP`] sends too little.
const LEAST: u64 = 30 << 10;
const DRIP: Duration = Duration::from_secs(30);

/// Whether enough bytes come, and often enough, while they are waited for.
#[derive(Debug)]
pub(super) struct Pace {
    received: u64,
    /// When the last byte came, or when waiting for it began.
    last: Instant,
    /// A period of [`DRIP`] that began with the first byte: its start, and the bytes until then.
    since: Option<(Instant, u64)>,
    /// When waiting ended: the time until it begins again does not count.
    ended: Instant,
}

impl Pace {
    /// For a new answer.
    pub(super) fn new(now: Instant, received: u64) -> Self {
        Self { received, last: now, since: None, ended: now }
    }

    pub(super) fn begin(&mut self, now: Instant) {
        self.last = now;
        if let Some((since, _)) = &mut self.since {
            *since += now.duration_since(self.ended);
        }
    }

    pub(super) fn end(&mut self, now: Instant) {
        self.ended = now;
    }

    /// How long to wait for more, at most.
    pub(super) fn left(
        &mut self,
        now: Instant,
        received: u64,
        patience: Duration,
    ) -> Result<Duration, String> {
        if received != self.received {
            self.received = received;
            self.last = now;
            let (since, before) = *self.since.get_or_insert((now, received));
            if now.duration_since(since) >= DRIP {
                if received - before < LEAST {
                    let (bytes, seconds) = (received - before, DRIP.as_secs());
                    return Err(format!("only {bytes} bytes in {seconds} seconds"));
                }
                self.since = Some((now, received));
            }
        }
        let silent = now.duration_since(self.last);
        match patience.checked_sub(silent).filter(|left| !left.is_zero()) {
            Some(left) => Ok(left),
            None => Err(format!("nothing was received for {} seconds", patience.as_secs_f64())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether bytes that come like this, in `(milliseconds, bytes)` steps, are waited for.
    fn is_fast_enough(steps: impl IntoIterator<Item = (u64, u64)>) -> bool {
        let (mut now, mut received) = (Instant::now(), 0);
        let mut pace = Pace::new(now, 0);
        steps.into_iter().all(|(millis, bytes)| {
            now += Duration::from_millis(millis);
            received += bytes;
            pace.left(now, received, Duration::from_secs(30)).is_ok()
        })
    }

    #[test]
    fn silence_and_drips_are_not_waited_for_without_end_and_slow_lines_are() {
        assert!(is_fast_enough([(29_999, 0)]));
        assert!(!is_fast_enough([(30_000, 0)]));
        assert!(!is_fast_enough((0..200).map(|_| (300, 1))));
        assert!(is_fast_enough((0..2000).map(|_| (1000, 2048))));
        // A long wait before the first byte is no drip.
        assert!(is_fast_enough([(29_000, 100), (2000, 100)]));
    }

    #[test]
    fn time_in_which_no_read_waited_does_not_count() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now, 0);
        for i in 1..100 {
            pace.begin(now);
            now += Duration::from_millis(100);
            assert!(pace.left(now, i * 1000, Duration::from_secs(1)).is_ok(), "{i}");
            pace.end(now);
            now += Duration::from_secs(60);
        }
    }
}
