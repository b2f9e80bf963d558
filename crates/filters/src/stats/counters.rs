//! Counters for one kind of operation. Many threads count at once, without a lock; a report
//! meanwhile may be off by the operations of that moment.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use runtime::TimeBuckets;

/// Powers of two that a length, an offset or a time may have.
const BITS: usize = 64;
/// A percentile is right to 1/16.
const TIMES: TimeBuckets = TimeBuckets { first: 0, last: 64, bits: 4 };

/// Operations of one kind.
pub(super) struct Counters {
    pub(super) ops: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) bytes: AtomicU64,
    nanos: AtomicU64,
    slowest: AtomicU64,
    times: Box<[AtomicU64]>,
    sizes: Box<[Size]>,
}

/// Requests whose length has the same power of two.
struct Size {
    bytes: AtomicU64,
    /// By the number of zero bits at the end of the offset.
    aligned: [AtomicU64; BITS],
}

/// Requests of about the same length.
#[derive(Debug)]
pub(super) struct SizeRow {
    /// They have from 2^bits to less than 2^(bits+1) bytes.
    pub(super) bits: usize,
    pub(super) requests: u64,
    pub(super) bytes: u64,
    /// How many are aligned to 2^i bytes, where that is more than are aligned to 2^(i+1).
    pub(super) aligned: Vec<(usize, u64)>,
}

impl Default for Size {
    fn default() -> Self {
        Self { bytes: AtomicU64::new(0), aligned: [const { AtomicU64::new(0) }; BITS] }
    }
}

impl Default for Counters {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            ops: zero(),
            errors: zero(),
            bytes: zero(),
            nanos: zero(),
            slowest: zero(),
            times: (0..TIMES.count()).map(|_| zero()).collect(),
            sizes: (0..BITS).map(|_| Size::default()).collect(),
        }
    }
}

impl Counters {
    /// Counts an operation on `len` bytes from `offset`, and its time.
    pub(super) fn count(&self, took: Duration, offset: u64, len: u64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.ops.fetch_add(1, Relaxed);
        self.bytes.fetch_add(len, Relaxed);
        self.nanos.fetch_add(nanos, Relaxed);
        self.slowest.fetch_max(nanos, Relaxed);
        if let Some(slot) = self.times.get(TIMES.place(nanos)) {
            slot.fetch_add(1, Relaxed);
        }
        let Some(bits) = len.checked_ilog2() else { return };
        let Some(size) = self.sizes.get(bits as usize) else { return };
        size.bytes.fetch_add(len, Relaxed);
        let zeroes = (offset.trailing_zeros() as usize).min(BITS - 1);
        if let Some(slot) = size.aligned.get(zeroes) {
            slot.fetch_add(1, Relaxed);
        }
    }

    /// The time of all operations together.
    pub(super) fn time(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Relaxed))
    }

    /// The longest time of one operation.
    pub(super) fn slowest(&self) -> Duration {
        Duration::from_nanos(self.slowest.load(Relaxed))
    }

    /// The time within which so many of a thousand operations ended; at most 1/16 too long. Zero if
    /// there were none.
    pub(super) fn percentile(&self, of_a_thousand: u64) -> Duration {
        let counts: Vec<u64> = self.times.iter().map(|c| c.load(Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let wanted = u128::from(total) * u128::from(of_a_thousand);
        let mut seen = 0u64;
        for (slot, count) in counts.iter().enumerate() {
            seen += count;
            if *count > 0 && u128::from(seen) * 1000 >= wanted {
                return Duration::from_nanos(TIMES.end_of(slot) - 1).min(self.slowest());
            }
        }
        Duration::ZERO
    }

    /// Requests by length, the most frequent first.
    pub(super) fn sizes(&self) -> Vec<SizeRow> {
        let rows = self.sizes.iter().enumerate().map(|(bits, size)| {
            let (mut aligned, mut sum) = (Vec::new(), 0);
            for (i, slot) in size.aligned.iter().enumerate().rev() {
                let n = slot.load(Relaxed);
                sum += n;
                // The last one holds offset zero, which is aligned to everything.
                if n > 0 && i < BITS - 1 {
                    aligned.push((i, sum));
                }
            }
            aligned.reverse();
            SizeRow { bits, requests: sum, bytes: size.bytes.load(Relaxed), aligned }
        });
        let mut rows: Vec<_> = rows.filter(|row| row.requests > 0).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.requests));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_to_a_sixteenth_and_none_is_more_than_the_slowest() {
        let counters = Counters::default();
        for micros in 1..=1000 {
            counters.count(Duration::from_micros(micros), 0, 0);
        }
        for of_a_thousand in [500, 900, 990, 999] {
            let truth = Duration::from_micros(of_a_thousand);
            let said = counters.percentile(of_a_thousand);
            assert!(said >= truth && said <= truth + truth / 16, "{of_a_thousand}: {said:?}");
        }
        assert_eq!(counters.percentile(1000), Duration::from_millis(1));
        assert_eq!(counters.slowest(), Duration::from_millis(1));
    }
}
