//! Counts of what clients ask of an export, by command.
//!
//! Each thread counts in a shard of its own, as long as there are not more threads than shards, so
//! that counting is a few additions in cache lines that no other thread writes. A reader of the
//! sums adds the shards up; they are consistent enough for people.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use runtime::{Mutex, TimeBuckets};
use wire::{Command, ErrorCode};

/// The commands that are counted, and their names.
const COMMANDS: [(Command, &str); 7] = [
    (Command::Read, "read"),
    (Command::Write, "write"),
    (Command::Flush, "flush"),
    (Command::Trim, "trim"),
    (Command::Cache, "cache"),
    (Command::WriteZeroes, "write_zeroes"),
    (Command::BlockStatus, "block_status"),
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
pub(crate) struct Tally {
    shards: Box<[Shard]>,
    /// They are rare.
    errors: Mutex<Vec<(ErrorCode, u64)>>,
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

/// The index of a command; `None` for one that is unknown.
fn place(command: Option<Command>) -> Option<usize> {
    COMMANDS.iter().position(|(known, _)| Some(*known) == command)
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

    fn count(&self, command: Option<Command>) -> Option<&Count> {
        let place = place(command)?;
        self.shards.get(seat() % self.shards.len())?.0.get(place)
    }

    /// A request of this many bytes begins.
    pub(crate) fn begun(&self, command: Option<Command>, bytes: u64) {
        if let Some(count) = self.count(command) {
            count.requests.fetch_add(1, Relaxed);
            count.bytes.fetch_add(bytes, Relaxed);
        }
    }

    /// This many were answered, each within this time.
    pub(crate) fn answered(&self, command: Option<Command>, number: u64, time: Duration) {
        if let Some(count) = self.count(command) {
            let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            count.nanos.fetch_add(nanos.saturating_mul(number), Relaxed);
            if let Some(times) = count.times.get(BUCKETS.place(nanos)) {
                times.fetch_add(number, Relaxed);
            }
        }
    }

    /// One was answered with an error.
    pub(crate) fn failed(&self, code: ErrorCode) {
        let mut errors = self.errors.lock();
        match errors.iter_mut().find(|(known, _)| *known == code) {
            Some((_, number)) => *number += 1,
            None => errors.push((code, 1)),
        }
    }

    /// Errors so far.
    pub(crate) fn errors(&self) -> Vec<(ErrorCode, u64)> {
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
pub(crate) struct Answered {
    numbers: [u64; COMMANDS.len()],
    any: bool,
}

impl Answered {
    /// One more.
    pub(crate) fn add(&mut self, command: Option<Command>) {
        if let Some(number) = place(command).and_then(|place| self.numbers.get_mut(place)) {
            *number += 1;
            self.any = true;
        }
    }

    /// Counts those of a turn that began at this time.
    pub(crate) fn tell(&mut self, tally: &Tally, since: Instant) {
        if !std::mem::take(&mut self.any) {
            return;
        }
        let time = since.elapsed();
        let numbers = std::mem::take(&mut self.numbers);
        for ((command, _), number) in COMMANDS.into_iter().zip(numbers) {
            if number > 0 {
                tally.answered(Some(command), number, time);
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
                        tally.begun(Some(Command::Read), 4096);
                        tally.answered(Some(Command::Read), 1, Duration::from_micros(100));
                    }
                    tally.begun(Some(Command::Write), 1);
                    tally.failed(ErrorCode::EIO);
                });
            }
        });
        let sums = tally.sums();
        let (name, read) = &sums[0];
        assert_eq!((*name, read.requests, read.bytes), ("read", 8000, 8000 * 4096));
        assert_eq!(read.answered, 8000);
        assert!((0.7..0.9).contains(&read.seconds), "{}", read.seconds);
        assert_eq!((sums[1].1.requests, sums[1].1.answered), (8, 0));
        assert_eq!(tally.errors(), [(ErrorCode::EIO, 8)]);
    }

    #[test]
    fn a_histogram_counts_what_was_within_each_bound() {
        let tally = Tally::new(1);
        for (micros, number) in [(1, 5), (100, 3), (1_000_000, 2), (600_000_000, 1)] {
            tally.answered(Some(Command::Read), number, Duration::from_micros(micros));
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
        tally.answered(Some(Command::Flush), 99, Duration::from_millis(1));
        tally.answered(Some(Command::Flush), 1, Duration::from_secs(1));
        let sums = tally.sums();
        let flush = &sums[2].1;
        assert!((0.001..=0.001_26).contains(&flush.percentile(50)));
        assert!((0.001..=0.001_26).contains(&flush.percentile(99)));
        assert!((1.0..=1.26).contains(&flush.percentile(100)));
        assert!(sums[0].1.percentile(99) < f64::EPSILON);
    }
}
