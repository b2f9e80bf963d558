//! Load: requests that are kept in flight on each of some connections, and how long each took.
//!
//! Each connection has a lane of its own, each processor a thread; nothing is shared while it
//! measures. The first failure ends all of it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use device::{
    Buffer, BufferPool, Completed, Edge, EdgeLane, Error, ErrorKind, Fault, Operation, Slice,
};
use runtime::{SPREAD_STEP, TimeBuckets, spread_bits, to_usize};

use super::order::PlaceOrder;

/// From 1 µs to 274 s, within 6 %.
pub(super) const TIMES: TimeBuckets = TimeBuckets { first: 10, last: 38, bits: 4 };
/// How often a lane is asked before its thread sleeps: a sleep and a wake-up cost more.
const LOOKS: u32 = 64;
/// How long it sleeps at most, before it looks whether another one has failed.
const SLEEP: Duration = Duration::from_millis(100);

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(super) enum Amount {
    Time(Duration),
    Requests(u64),
}

/// What is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bytes {
    Random,
    All(u8),
    /// What can be compared: bytes that depend on where they lie.
    OfPlace,
}

/// One thing to measure.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// Bytes of a request.
    pub(super) size: u64,
    /// Requests in flight on each connection.
    pub(super) depth: u64,
    pub(super) order: PlaceOrder,
    /// Of 100 requests.
    pub(super) reads: u64,
    pub(super) bytes: Bytes,
    pub(super) amount: Amount,
}

impl Load {
    /// Whether the request with this number is a read.
    fn reads(&self, number: u64) -> bool {
        spread_bits(number.wrapping_mul(SPREAD_STEP)) % 100 < self.reads
    }
}

/// What was measured.
#[derive(Debug)]
pub(super) struct LoadResult {
    pub(super) connections: usize,
    pub(super) requests: u64,
    pub(super) elapsed: Duration,
    /// How long the flush behind writes took.
    pub(super) flush: Option<Duration>,
    /// Requests of each bucket of [`TIMES`].
    pub(super) times: Vec<u64>,
    pub(super) longest: Duration,
    /// All requests with numbers below this one were sent and answered.
    pub(super) whole: u64,
}

impl LoadResult {
    /// The time within which so many of `of` requests were answered, in ns.
    pub(super) fn within(&self, part: u64, of: u64) -> u64 {
        let wanted = u128::from(self.requests) * u128::from(part);
        let mut seen = 0u128;
        for (place, count) in self.times.iter().enumerate() {
            seen += u128::from(*count);
            if seen * u128::from(of) >= wanted && seen > 0 {
                return TIMES.end_of(place).min(nanos(self.longest));
            }
        }
        0
    }
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Measures. Writes are flushed behind the measured time.
pub(super) fn measure(edge: &Edge, load: &Load, connections: usize) -> Result<LoadResult, Error> {
    let lanes = lanes(edge, connections)?;
    let (load, stop) = (Arc::new(load.clone()), Arc::new(AtomicBool::new(false)));
    let (told, results) = mpsc::channel();
    let connections = lanes.len();
    let mut workers: Vec<_> = (0..processors().min(connections)).map(|_| Vec::new()).collect();
    let count = workers.len();
    for (number, lane) in lanes.into_iter().enumerate() {
        let line = Line::new(lane, (number as u64, connections as u64), &load);
        if let Some(lines) = workers.get_mut(number % count) {
            lines.push(line);
        }
    }
    let began = Instant::now();
    for lines in workers {
        let (load, stop, told) = (load.clone(), stop.clone(), told.clone());
        std::thread::spawn(move || {
            let _ = told.send(Worker::new(lines, load, began).run(&stop));
        });
    }
    drop(told);
    let mut all = LoadResult {
        connections,
        requests: 0,
        elapsed: Duration::ZERO,
        flush: None,
        times: vec![0; TIMES.count()],
        longest: Duration::ZERO,
        whole: u64::MAX,
    };
    let mut failed = None;
    for result in results {
        match result {
            Ok(tally) => all.add(&tally),
            Err(e) => {
                stop.store(true, Relaxed);
                failed.get_or_insert(e);
            }
        }
    }
    all.elapsed = began.elapsed();
    if let Some(e) = failed {
        return Err(e);
    }
    if load.reads < 100 && edge.info().abilities.flush {
        let began = Instant::now();
        edge.flush()?;
        all.flush = Some(began.elapsed());
    }
    Ok(all)
}

impl LoadResult {
    fn add(&mut self, tally: &LoadTally) {
        self.requests += tally.requests;
        self.longest = self.longest.max(tally.longest);
        self.whole = self.whole.min(tally.next);
        self.times.iter_mut().zip(&tally.times).for_each(|(all, some)| *all += some);
    }
}

/// As many lanes as the device has, up to the wish.
fn lanes(edge: &Edge, connections: usize) -> Result<Vec<EdgeLane>, Error> {
    let mut lanes = vec![edge.lane()?];
    while lanes.len() < connections {
        match edge.lane() {
            Ok(lane) => lanes.push(lane),
            Err(e) if e.kind() == ErrorKind::Limit => break,
            Err(e) => return Err(e),
        }
    }
    Ok(lanes)
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// What one worker has counted.
struct LoadTally {
    requests: u64,
    times: Vec<u64>,
    longest: Duration,
    /// The lowest number of a request of its own that it did not send.
    next: u64,
}

/// A connection with its requests.
struct Line {
    lane: EdgeLane,
    /// The number of its next request, and how many numbers are left out for the other lines.
    next: (u64, u64),
    /// When each slot's request was sent.
    sent: Vec<Instant>,
    free: Vec<usize>,
}

impl Line {
    fn new(lane: EdgeLane, next: (u64, u64), load: &Load) -> Self {
        let depth = to_usize(load.depth);
        Self { lane, next, sent: vec![Instant::now(); depth], free: (0..depth).rev().collect() }
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.sent.len()
    }
}

/// A thread with some connections.
struct Worker {
    load: Arc<Load>,
    began: Instant,
    lines: Vec<Line>,
    buffers: BufferPool,
    /// What is written, unless that depends on the place.
    data: Slice,
    tally: LoadTally,
}

impl Worker {
    fn new(lines: Vec<Line>, load: Arc<Load>, began: Instant) -> Self {
        let (depth, size) = (to_usize(load.depth), to_usize(load.size));
        let mut data = Buffer::zeroed(if load.reads < 100 { size } else { 0 });
        match load.bytes {
            Bytes::All(byte) => data.fill(byte),
            Bytes::Random | Bytes::OfPlace => fill(&mut data, 0),
        }
        let kept = lines.len() * depth * size.next_power_of_two().max(4096);
        Self {
            load,
            began,
            lines,
            buffers: BufferPool::new(kept),
            data: data.into(),
            tally: LoadTally {
                requests: 0,
                times: vec![0; TIMES.count()],
                longest: Duration::ZERO,
                next: 0,
            },
        }
    }

    fn run(mut self, stop: &AtomicBool) -> Result<LoadTally, Error> {
        let mut lines = std::mem::take(&mut self.lines);
        let (mut ended, mut idle) = (Vec::new(), 0);
        // After a failure of another one nothing in flight is waited for.
        while !stop.load(Relaxed) && !lines.iter().all(|line| line.is_idle() && self.is_over(line))
        {
            let mut moved = false;
            for line in &mut lines {
                while !self.is_over(line)
                    && let Some(slot) = line.free.pop()
                {
                    self.send(line, slot);
                }
                if !line.is_idle() {
                    moved |= line.lane.turn(&mut ended);
                    for completed in ended.drain(..) {
                        self.take(line, completed)?;
                    }
                }
            }
            idle = if moved { 0 } else { idle + 1 };
            if idle > LOOKS {
                idle = 0;
                EdgeLane::wait(lines.iter().map(|line| &line.lane), SLEEP)?;
            } else if idle > 0 {
                std::thread::yield_now();
            }
        }
        self.tally.next = lines.iter().map(|line| line.next.0).min().unwrap_or(0);
        Ok(self.tally)
    }

    /// Whether nothing more is to be sent on a connection.
    fn is_over(&self, line: &Line) -> bool {
        match self.load.amount {
            Amount::Time(time) => self.began.elapsed() >= time,
            Amount::Requests(count) => line.next.0 >= count,
        }
    }

    fn send(&mut self, line: &mut Line, slot: usize) {
        let (number, others) = line.next;
        line.next.0 = number.saturating_add(others);
        let offset = self.load.order.place(number);
        let size = to_usize(self.load.size);
        let operation = if self.load.reads(number) {
            Operation::Read { offset, buffer: self.buffers.take(size) }
        } else {
            Operation::Write { offset, data: self.data(offset, size), fua: false }
        };
        if let Some(sent) = line.sent.get_mut(slot) {
            *sent = Instant::now();
        }
        line.lane.start(slot as u64, operation);
    }

    fn data(&mut self, offset: u64, size: usize) -> Slice {
        match self.load.bytes {
            Bytes::OfPlace => {
                let mut buffer = self.buffers.take(size);
                fill(&mut buffer, offset);
                buffer.into()
            }
            _ => self.data.same(),
        }
    }

    fn take(&mut self, line: &mut Line, completed: Completed) -> Result<(), Error> {
        completed.outcome?;
        let slot = to_usize(completed.ticket);
        let took = line.sent.get(slot).map(Instant::elapsed).unwrap_or_default();
        self.tally.requests += 1;
        self.tally.longest = self.tally.longest.max(took);
        if let Some(count) = self.tally.times.get_mut(TIMES.place(nanos(took))) {
            *count += 1;
        }
        line.free.push(slot);
        Ok(())
    }
}

/// Bytes that depend on where they lie: those of each 8 bytes of the disk are a number that looks
/// random.
fn fill(bytes: &mut [u8], offset: u64) {
    let word = |at: u64| spread_bits((at / 8 + 1).wrapping_mul(SPREAD_STEP)).to_le_bytes();
    let (mut at, mut rest) = (offset, bytes);
    while !rest.is_empty() {
        let word = word(at);
        let part = word.get(to_usize(at % 8)..).unwrap_or_default();
        let len = part.len().min(rest.len());
        let (now, later) = rest.split_at_mut(len);
        now.copy_from_slice(part.get(..len).unwrap_or_default());
        at += len as u64;
        rest = later;
    }
}

/// Reads what `load` has written with its first `requests` requests, which are answered, and
/// compares it. Returns how many bytes that were.
///
/// # Errors
/// The first place that holds other bytes.
pub(super) fn verify(edge: &Edge, load: &Load, requests: u64) -> Result<u64, Error> {
    let size = to_usize(load.size);
    let (mut found, mut right) = (vec![0; size], vec![0; size]);
    let mut bytes = 0;
    for number in (0..requests.min(load.order.places())).filter(|number| !load.reads(*number)) {
        let at = load.order.place(number);
        edge.read(&mut found, at)?;
        fill(&mut right, at);
        if let Some(wrong) = found.iter().zip(&right).position(|(one, other)| one != other) {
            let what = "verify: the bytes read differ from the bytes written";
            return Err(Error::new(ErrorKind::Io, Fault::Us, what)
                .on(&edge.info().name)
                .at(at + wrong as u64));
        }
        bytes += load.size;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_their_place_wherever_a_request_begins() {
        let mut all = vec![0; 100];
        fill(&mut all, 1000);
        for (from, to) in [(0, 100), (1, 99), (7, 9), (8, 64), (99, 100)] {
            let mut some = vec![0; to - from];
            fill(&mut some, 1000 + from as u64);
            assert_eq!(some, all[from..to]);
        }
        assert!(all.windows(8).all(|eight| eight.iter().any(|byte| *byte != eight[0])));
    }

    #[test]
    fn percentiles_are_those_of_the_buckets() {
        let mut measured = LoadResult {
            connections: 1,
            requests: 1000,
            elapsed: Duration::ZERO,
            flush: None,
            times: vec![0; TIMES.count()],
            longest: Duration::from_micros(900),
            whole: 1000,
        };
        measured.times[TIMES.place(10_000)] = 990;
        measured.times[TIMES.place(800_000)] = 10;
        let near = |found: u64, nanos: u64| found >= nanos && found - nanos <= nanos / 16 + 1;
        assert!(near(measured.within(50, 100), 10_000) && near(measured.within(99, 100), 10_000));
        assert!(near(measured.within(999, 1000), 800_000));
        assert_eq!(measured.within(1, 1), measured.within(999, 1000));
    }
}
