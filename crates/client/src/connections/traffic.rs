//! How many connections there are for callers that submit, as the clients of a server do: one more
//! as long as that helps, and one again where that is enough.
//!
//! A submitting thread does not wait here, so the load is measured instead: a connection is busy
//! while two operations are in flight on it and another one comes. Where all are, most of the time,
//! one more is tried; if the throughput does not grow by a tenth, it is closed again, and for a
//! minute none is tried. Where for a while one connection would have been enough, the others are
//! closed: unused ones should cost the server nothing.
//!
//! That is checked every few milliseconds. In between an operation is only counted: no lock is
//! taken for it, and the clock that is read is the kernel's last tick.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, Ordering::Relaxed};
use std::time::{Duration, Instant};

use device::Operation;
use runtime::Mutex;
use rustix::time::{ClockId, clock_gettime};

use super::Shared;
use super::growth::Growth;

/// A clock that costs least to read. That it moves only every few milliseconds does no harm here.
#[cfg(target_os = "linux")]
const COARSE: ClockId = ClockId::MonotonicCoarse;
#[cfg(not(target_os = "linux"))]
const COARSE: ClockId = ClockId::Monotonic;
/// A connection with this many operations in flight is busy.
const BUSY: usize = 2;
/// Nanoseconds between two checks: many of them fit into the time before a decision. The first
/// operation after such a time stands for the whole gap before it, so what it sees is weighted by
/// that time.
const APART: u64 = 4_000_000;
/// Between two operations this far apart much may have changed.
const GAP: Duration = Duration::from_millis(200);
/// How long after one that did not help another is tried.
const AGAIN: Duration = Duration::from_secs(60);
/// How long one connection must have been enough.
const QUIET: Duration = Duration::from_secs(10);

/// The state when an operation comes.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Bytes that it and those before it read or write.
    bytes: u64,
    /// Operations in flight, this one not among them, and connections.
    under_way: usize,
    connections: usize,
}

/// The decision.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Verdict {
    Stay,
    /// One more is to be tried.
    More,
    /// The last connection did not help.
    Fewer,
    /// The connection that was last asked for does not come.
    Enough,
}

/// The traffic of callers that submit: it is counted, and checked now and then.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// The time of the next check.
    next: AtomicU64,
    /// Bytes that were asked for since the last check.
    bytes: AtomicU64,
    known: Mutex<Known>,
}

impl Traffic {
    pub(crate) fn new(now: Instant) -> Self {
        let known = Mutex::new(Known::new(now));
        Self { next: AtomicU64::new(0), bytes: AtomicU64::new(0), known }
    }

    /// Counts bytes that are asked for at this time, in nanoseconds. Returns the sum since the last
    /// check, if it is time for another.
    fn count(&self, bytes: u64, now: u64) -> Option<u64> {
        let next = self.next.load(Relaxed);
        let after = now.saturating_add(APART);
        if now < next || self.next.compare_exchange(next, after, Relaxed, Relaxed).is_err() {
            self.bytes.fetch_add(bytes, Relaxed);
            return None;
        }
        Some(self.bytes.swap(0, Relaxed).saturating_add(bytes))
    }
}

/// Nanoseconds at the kernel's last tick, which is as cheap as reading a few bytes.
fn ticks() -> u64 {
    let now = clock_gettime(COARSE);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
    seconds.saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

/// What is known of the traffic.
#[derive(Debug)]
struct Known {
    growth: Growth,
    /// When the last operation came, and the last one for which a single connection was busy.
    last: Instant,
    busy: Instant,
    /// How many connections there were then.
    connections: usize,
    /// When one more was asked for that has not come.
    asked: Option<Instant>,
    /// Connections that came since the beginning, or since the last that did not help.
    grew: bool,
    /// The time of the next attempt.
    rests: Option<Instant>,
}

impl Known {
    fn new(now: Instant) -> Self {
        Self {
            growth: Growth::new(now),
            last: now,
            busy: now,
            connections: 1,
            asked: None,
            grew: false,
            rests: None,
        }
    }

    /// An operation has come, with the bytes of all since the last check.
    fn comes(&mut self, seen: Seen, now: Instant) -> Verdict {
        let past = now.saturating_duration_since(std::mem::replace(&mut self.last, now));
        if seen.under_way >= BUSY {
            self.busy = now;
        }
        let more = seen.connections > self.connections;
        if more || seen.connections < self.connections || past > GAP {
            self.connections = seen.connections;
            self.grew |= more && self.asked.take().is_some();
            self.growth.came(now);
        }
        if let Some(asked) = self.asked {
            if now.saturating_duration_since(asked) < AGAIN {
                return Verdict::Stay;
            }
            // The server may accept it later.
            *self = Self { busy: self.busy, connections: self.connections, ..Self::new(now) };
            return Verdict::Enough;
        }
        if let Some(rests) = self.rests {
            if now < rests {
                return Verdict::Stay;
            }
            *self = Self { busy: self.busy, connections: self.connections, ..Self::new(now) };
        }
        self.growth.asked(seen.bytes);
        let all_busy = seen.under_way >= BUSY * seen.connections;
        let waited = if all_busy { past } else { Duration::ZERO };
        if self.growth.waited(waited, now) {
            self.asked = Some(now);
            return Verdict::More;
        }
        if !self.growth.has_enough() {
            return Verdict::Stay;
        }
        self.rests = Some(now + AGAIN);
        if std::mem::take(&mut self.grew) { Verdict::Fewer } else { Verdict::Stay }
    }

    /// Whether one connection has been enough for a while.
    fn is_quiet(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.busy) >= QUIET
    }
}

impl Shared {
    /// Asks for one more connection than there are or will be. Returns whether it is allowed.
    pub(super) fn want_more(self: &Arc<Self>) -> bool {
        let state = self.state.lock();
        let list = self.list.lock();
        let live = list.iter().filter(|connection| !connection.is_over()).count();
        if list.len() >= self.most || state.making.alone {
            return false;
        }
        drop(list);
        let wanted = state.making.wanted.max(live) + 1;
        drop(state);
        self.want(wanted);
        true
    }

    /// An operation comes from a caller without a lane: there are more connections if that helps,
    /// and fewer if not.
    pub(super) fn weigh(self: &Arc<Self>, operation: &Operation) {
        if self.most == 1 || self.upstream.target.eager || self.lanes.load(Ordering::Acquire) > 0 {
            return;
        }
        let bytes = match operation {
            Operation::Read { buffer, .. } => buffer.len() as u64,
            Operation::Write { data, .. } => data.len() as u64,
            _ => 0,
        };
        let Some(bytes) = self.traffic.count(bytes, ticks()) else { return };
        let mut known = self.traffic.known.lock();
        let list = self.list.lock();
        let under_way = list.iter().map(|connection| connection.under_way()).sum();
        let seen = Seen { bytes, under_way, connections: list.len() };
        drop(list);
        if seen.connections == 0 {
            return;
        }
        let verdict = known.comes(seen, Instant::now());
        drop(known);
        match verdict {
            Verdict::Stay => {}
            Verdict::More => {
                if self.want_more() {
                    self.look_for_quiet();
                }
            }
            Verdict::Fewer => self.leave_all_but(seen.connections.saturating_sub(1)),
            Verdict::Enough => self.leave_all_but(seen.connections),
        }
    }

    /// Closes connections without a lane until this many are left, at least one, and does not
    /// replace them. Replies that they owe still come. While one is lost, the others cannot be
    /// judged. The last one that a flush may go over stays.
    pub(super) fn leave_all_but(&self, number: usize) {
        let number = number.max(1);
        let mut state = self.state.lock();
        let mut list = self.list.lock();
        let mut left = Vec::new();
        if !list.iter().any(|connection| connection.is_over()) {
            while list.len() > number
                && let Some(last) =
                    list.iter().rposition(|one| !one.has_lane() && !Self::vouches_alone(one, &list))
            {
                left.push(list.remove(last));
            }
        }
        state.making.wanted = state.making.wanted.min(number.max(list.len()));
        drop(list);
        drop(state);
        left.iter().for_each(|connection| connection.leave());
        self.let_go(left);
    }

    /// Goes back to one connection when one is enough.
    fn look_for_quiet(self: &Arc<Self>) {
        let is_first = !std::mem::replace(&mut self.state.lock().making.looks_for_quiet, true);
        if is_first {
            self.look_for_quiet_later();
        }
    }

    fn look_for_quiet_later(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.upstream.timers.after(QUIET, move || {
            let Some(shared) = weak.upgrade() else { return };
            let mut known = shared.traffic.known.lock();
            let now = Instant::now();
            let is_quiet = known.is_quiet(now);
            if is_quiet {
                // The next traffic may be different.
                *known = Known::new(now);
            }
            drop(known);
            if is_quiet && shared.lanes.load(Ordering::Acquire) == 0 {
                shared.leave_all_but(1);
            }
            let mut state = shared.state.lock();
            let making = &state.making;
            let goes_on = making.wanted > 1 || making.trying || shared.list.lock().len() > 1;
            state.making.looks_for_quiet = goes_on;
            drop(state);
            if goes_on {
                shared.look_for_quiet_later();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients with this many operations in flight, over a server that does this many a second on
    /// each connection, and no more than `most` in all.
    struct Scene {
        begun: Instant,
        now: Instant,
        traffic: Traffic,
        connections: usize,
        /// How many there were at most.
        peak: usize,
        /// How often one more was asked for.
        asked: usize,
    }

    impl Scene {
        fn new() -> Self {
            let now = Instant::now();
            let traffic = Traffic::new(now);
            Self { begun: now, now, traffic, connections: 1, peak: 1, asked: 0 }
        }

        /// Simulates this many seconds; a connection that is asked for comes after `late`
        /// milliseconds.
        fn play(&mut self, seconds: u64, deep: usize, each: u64, most: u64, late: u64) {
            let end = self.now + Duration::from_secs(seconds);
            let mut coming: Vec<Instant> = Vec::new();
            while self.now < end {
                let used = self.connections.min(deep) as u64;
                let rate = (each * used).min(most);
                self.now += Duration::from_nanos(1_000_000_000 / rate);
                let before = coming.len();
                coming.retain(|at| *at > self.now);
                self.connections += before - coming.len();
                self.peak = self.peak.max(self.connections);
                let nanos = u64::try_from((self.now - self.begun).as_nanos()).unwrap();
                let Some(bytes) = self.traffic.count(4096, nanos) else { continue };
                let connections = self.connections;
                let seen = Seen { bytes, under_way: deep - 1, connections };
                let verdict = self.traffic.known.lock().comes(seen, self.now);
                match verdict {
                    Verdict::Stay | Verdict::Enough => {}
                    Verdict::More if self.connections + coming.len() < 8 => {
                        self.asked += 1;
                        coming.push(self.now + Duration::from_millis(late));
                    }
                    Verdict::More => self.asked += 1,
                    Verdict::Fewer => self.connections -= 1,
                }
            }
        }

        fn is_quiet(&self) -> bool {
            self.traffic.known.lock().is_quiet(self.now)
        }
    }

    #[test]
    fn between_two_looks_operations_are_only_counted_and_none_is_forgotten() {
        let traffic = Traffic::new(Instant::now());
        assert_eq!(traffic.count(1, 50 * APART), Some(1), "the first is looked at");
        // Another thread has the lock, and this one does not wait for it.
        let known = traffic.known.lock();
        let between = (0..1000).filter_map(|n| traffic.count(7, 50 * APART + n)).count();
        assert_eq!(between, 0);
        drop(known);
        assert_eq!(traffic.count(3, 51 * APART), Some(7003));
        assert_eq!(traffic.count(3, 51 * APART), None);
        assert_eq!(traffic.count(2, 100 * APART), Some(5));
    }

    #[test]
    fn the_clock_goes_on() {
        let before = ticks();
        while ticks() == before {
            std::thread::yield_now();
        }
        assert!(before > 0 && ticks() > before);
    }

    #[test]
    fn one_client_that_waits_for_each_answer_keeps_one_connection() {
        let mut scene = Scene::new();
        scene.play(60, 1, 5_000, u64::MAX, 1);
        scene.play(60, 2, 5_000, u64::MAX, 1);
        assert_eq!((scene.peak, scene.asked), (1, 0));
        assert!(scene.is_quiet());
    }

    #[test]
    fn there_are_as_many_as_help_and_one_that_does_not_is_left_again() {
        let mut scene = Scene::new();
        scene.play(30, 64, 2_000, u64::MAX, 1);
        assert_eq!(scene.connections, 8, "each helps");
        assert!(!scene.is_quiet());
        let mut scene = Scene::new();
        scene.play(30, 64, 2_000, 6_000, 1);
        assert_eq!((scene.connections, scene.peak, scene.asked), (3, 4, 3));
        // It is tried again, but not often.
        scene.play(210, 64, 2_000, 6_000, 1);
        assert_eq!((scene.connections, scene.peak), (3, 4));
        assert!((5..=8).contains(&scene.asked), "{}", scene.asked);
    }

    #[test]
    fn a_connection_that_is_long_in_coming_is_judged_when_it_has_come() {
        let mut scene = Scene::new();
        scene.play(60, 64, 2_000, u64::MAX, 3_000);
        assert_eq!(scene.connections, 8);
        // A connection that never comes does no harm, and is asked for now and then.
        let mut scene = Scene::new();
        scene.play(300, 64, 2_000, u64::MAX, 1_000_000);
        assert_eq!(scene.connections, 1);
        assert!((4..=6).contains(&scene.asked), "{}", scene.asked);
    }

    #[test]
    fn a_client_with_more_to_do_later_gets_more_and_one_is_enough_again_when_little_is_asked_for() {
        let mut scene = Scene::new();
        scene.play(30, 1, 1_000, u64::MAX, 1);
        scene.play(60, 32, 1_000, u64::MAX, 1);
        assert_eq!(scene.connections, 8);
        scene.play(9, 1, 1_000, u64::MAX, 1);
        assert!(!scene.is_quiet());
        scene.play(2, 1, 1_000, u64::MAX, 1);
        assert!(scene.is_quiet());
        // As the clock is made to.
        scene.connections = 1;
        scene.play(60, 32, 1_000, u64::MAX, 1);
        assert_eq!(scene.connections, 8, "and again");
    }
}
