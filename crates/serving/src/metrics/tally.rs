//! Counts of what clients ask of an export, by command.
//!
//! Each thread counts in a shard of its own, as long as there are not more threads than shards, so
//! that counting is a few additions in cache lines that no other thread writes. A reader of the
//! sums adds the shards up; they are consistent enough for people.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use device::OperationKind;
use runtime::{Mutex, TimeBuckets};

/// The commands that are counted, and their names.
const COMMANDS: [(OperationKind, &str); 7] = [
    (OperationKind::Read, "read"),
    (OperationKind::Write, "write"),
    (OperationKind::Flush, "flush"),
    (OperationKind::Trim, "trim"),
    (OperationKind::Prefetch, "cache"),
    (OperationKind::Zero, "write_zeroes"),
    (OperationKind::Resolve, "block_status"),
];
/// Times are counted in buckets, four for each doubling, from 2^10 ns (1 µs) to 2^38 ns (five
/// minutes).
const BUCKETS: TimeBuckets = TimeBuckets { first: 10, last: 38, bits: 2 };

/// Bounds of the histogram that is told: from 2^12 ns (4 µs) to 2^36 ns (69 s), each four times
/// the last. Some hundred for each command and export would be a burden to whatever keeps them.
const BOUNDS: std::ops::RangeInclusive<u32> = 6..=18;

/// The counters of one command.
#[derive(Debug)]
struct Count {
    requests: AtomicU64,
    bytes: AtomicU64,
    nanos: AtomicU64,
    times: [AtomicU64; BUCKETS.count()],
}

impl Default for Count {
    fn default() -> Self {
        let times = std::array::from_fn(|_| AtomicU64::new(0));
        Self { requests: 0.into(), bytes: 0.into(), nanos: 0.into(), times }
    }
}

/// The counters of one thread; never in a cache line with another's.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard([Count; COMMANDS.len()]);

/// Counts of one export.
#[derive(Debug)]
pub struct Tally {
    shards: Box<[Shard]>,
    /// They are rare.
    errors: Mutex<Vec<(&'static str, u64)>>,
}

/// The sums of one command.
#[derive(Clone, Debug)]
pub(crate) struct Sum {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    /// Requests that were answered.
    pub(crate) answered: u64,
    pub(crate) seconds: f64,
    times: Vec<u64>,
}

/// Which shard this thread counts in, for any number of them.
fn seat() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SEAT: usize = NEXT.fetch_add(1, Relaxed));
    SEAT.with(|seat| *seat)
}

/// The index of a command; `None` for one that is not counted.
fn place(kind: Option<OperationKind>) -> Option<usize> {
    COMMANDS.iter().position(|(known, _)| Some(*known) == kind)
}

impl Tally {
    /// For this many threads that count often.
    pub(crate) fn new(threads: usize) -> Self {
        let shards = (0..threads.max(1)).map(|_| Shard::default()).collect();
        Self { shards, errors: Mutex::default() }
    }

    /// How many threads have counts of their own.
    #[cfg(test)]
    pub(super) fn sets(&self) -> usize {
        self.shards.len()
    }

    fn count(&self, kind: Option<OperationKind>) -> Option<&Count> {
        let place = place(kind)?;
        self.shards.get(seat() % self.shards.len())?.0.get(place)
    }

    /// A request of this many bytes begins.
    pub fn begun(&self, kind: Option<OperationKind>, bytes: u64) {
        if let Some(count) = self.count(kind) {
            count.requests.fetch_add(1, Relaxed);
            count.bytes.fetch_add(bytes, Relaxed);
        }
    }

    /// This many were answered, each within this time.
    pub fn answered(&self, kind: Option<OperationKind>, number: u64, time: Duration) {
        if let Some(count) = self.count(kind) {
            let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            count.nanos.fetch_add(nanos.saturating_mul(number), Relaxed);
            if let Some(times) = count.times.get(BUCKETS.place(nanos)) {
                times.fetch_add(number, Relaxed);
            }
        }
    }

    /// One was answered with the error of this name.
    pub fn failed(&self, error: &'static str) {
        let mut errors = self.errors.lock();
        match errors.iter_mut().find(|(known, _)| *known == error) {
            Some((_, number)) => *number += 1,
            None => errors.push((error, 1)),
        }
    }

    /// Errors so far.
    pub(crate) fn errors(&self) -> Vec<(&'static str, u64)> {
        self.errors.lock().clone()
    }

    /// The sums of each command.
    pub(crate) fn sums(&self) -> Vec<(&'static str, Sum)> {
        let sums = COMMANDS.iter().enumerate().map(|(place, (_, name))| {
            let counts = self.shards.iter().filter_map(|shard| shard.0.get(place));
            (*name, counts.fold(Sum::default(), Sum::with))
        });
        sums.collect()
    }
}

/// Requests that were answered in one turn, to be counted at its end.
#[derive(Debug, Default)]
pub struct Answered {
    numbers: [u64; COMMANDS.len()],
    any: bool,
}

impl Answered {
    /// One more.
    pub fn add(&mut self, kind: Option<OperationKind>) {
        if let Some(number) = place(kind).and_then(|place| self.numbers.get_mut(place)) {
            *number += 1;
            self.any = true;
        }
    }

    /// Counts those of a turn that began at this time.
    pub fn tell(&mut self, tally: &Tally, since: Instant) {
        if !std::mem::take(&mut self.any) {
            return;
        }
        let time = since.elapsed();
        let numbers = std::mem::take(&mut self.numbers);
        for ((kind, _), number) in COMMANDS.into_iter().zip(numbers) {
            if number > 0 {
                tally.answered(Some(kind), number, time);
            }
        }
    }
}

impl Default for Sum {
    fn default() -> Self {
        Self { requests: 0, bytes: 0, answered: 0, seconds: 0.0, times: vec![0; BUCKETS.count()] }
    }
}

impl Sum {
    fn with(mut self, count: &Count) -> Self {
        self.requests += count.requests.load(Relaxed);
        self.bytes += count.bytes.load(Relaxed);
        self.seconds += Duration::from_nanos(count.nanos.load(Relaxed)).as_secs_f64();
        for (sum, times) in self.times.iter_mut().zip(&count.times) {
            *sum += times.load(Relaxed);
        }
        self.answered = self.times.iter().sum();
        self
    }

    /// How many were answered within each bound, in seconds, in order.
    pub(crate) fn histogram(&self) -> impl Iterator<Item = (f64, u64)> {
        BOUNDS.map(|quadruplings| {
            let bound = 1 << (2 * quadruplings);
            let ends = (0..self.times.len()).map(|place| BUCKETS.end_of(place));
            let within = ends.zip(&self.times).filter(|(end, _)| *end <= bound);
            (Duration::from_nanos(bound).as_secs_f64(), within.map(|(_, times)| times).sum())
        })
    }

    /// The time in which this part (0 to 100) of a hundred was answered, in seconds; an upper
    /// bound, a quarter too long at most. 0 if nothing was.
    pub(crate) fn percentile(&self, percent: u64) -> f64 {
        let wanted = self.answered.saturating_mul(percent).div_ceil(100).max(1);
        let mut so_far = 0;
        let found = self.times.iter().position(|times| {
            so_far += times;
            so_far >= wanted
        });
        found.map_or(0.0, |place| Duration::from_nanos(BUCKETS.end_of(place)).as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_many_threads_count_is_summed_up() {
        let tally = Tally::new(3);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        tally.begun(Some(OperationKind::Read), 4096);
                        tally.answered(Some(OperationKind::Read), 1, Duration::from_micros(100));
                    }
                    tally.begun(Some(OperationKind::Write), 1);
                    tally.failed("EIO");
                });
            }
        });
        let sums = tally.sums();
        let (name, read) = &sums[0];
        assert_eq!((*name, read.requests, read.bytes), ("read", 8000, 8000 * 4096));
        assert_eq!(read.answered, 8000);
        assert!((0.7..0.9).contains(&read.seconds), "{}", read.seconds);
        assert_eq!((sums[1].1.requests, sums[1].1.answered), (8, 0));
        assert_eq!(tally.errors(), [("EIO", 8)]);
    }

    #[test]
    fn a_histogram_counts_what_was_within_each_bound() {
        let tally = Tally::new(1);
        for (micros, number) in [(1, 5), (100, 3), (1_000_000, 2), (600_000_000, 1)] {
            tally.answered(Some(OperationKind::Read), number, Duration::from_micros(micros));
        }
        let told: Vec<_> = tally.sums()[0].1.histogram().collect();
        assert_eq!(told.len(), 13);
        assert_eq!(told.iter().map(|(_, count)| count).max(), Some(&10), "ten minutes are beyond");
        for pair in told.windows(2) {
            assert!(pair[0].0 * 3.9 < pair[1].0 && pair[0].1 <= pair[1].1, "{told:?}");
        }
        let within = |seconds: f64| told.iter().rfind(|(bound, _)| *bound <= seconds).unwrap().1;
        assert_eq!((within(0.000_005), within(0.000_3), within(1.1)), (5, 8, 10));
    }

    #[test]
    fn percentiles_are_upper_bounds() {
        let tally = Tally::new(1);
        tally.answered(Some(OperationKind::Flush), 99, Duration::from_millis(1));
        tally.answered(Some(OperationKind::Flush), 1, Duration::from_secs(1));
        let sums = tally.sums();
        let flush = &sums[2].1;
        assert!((0.001..=0.001_26).contains(&flush.percentile(50)));
        assert!((0.001..=0.001_26).contains(&flush.percentile(99)));
        assert!((1.0..=1.26).contains(&flush.percentile(100)));
        assert!(sums[0].1.percentile(99) < f64::EPSILON);
    }
}
