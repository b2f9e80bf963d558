//! How many requests to keep under way on a lane: as many as make it faster, and no more.
//!
//! Every request under way holds a buffer. Too few leave a distant peer idle; too many fill
//! memory and the cache with bytes that wait. It begins with few and doubles every round while
//! requests come back as soon as the first did, that is, while none waits behind another; where
//! a round takes long, it does not wait for its end, because then it is the way or the peer that
//! takes long, and more requests side by side cost nothing but their buffers. From then on it tries twice as many now and then, and keeps them if more bytes arrive in a second.
//! The user's number is the limit.

use std::time::{Duration, Instant};

/// What it begins with.
const FEW: usize = 4;
/// When nothing has come back for so long, more are sent.
const SLOW: Duration = Duration::from_millis(2);
/// How long rates are measured, at least.
const WINDOW: Duration = Duration::from_millis(50);
/// How long to rest after an attempt that brought nothing: at first, and at most.
const REST: Duration = Duration::from_millis(100);
const LONG_REST: Duration = Duration::from_secs(3);

/// The payload requests under way on one end, and how many there should be.
#[derive(Debug)]
pub(crate) struct Lead {
    under_way: usize,
    /// None for an end that answers at once.
    depth: Option<Depth>,
}

impl Lead {
    pub(crate) fn new(inline: bool, limit: usize) -> Self {
        Self { under_way: 0, depth: (!inline).then(|| Depth::new(limit)) }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.depth.as_ref().is_none_or(|d| d.has_room(self.under_way))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    pub(crate) fn started(&mut self) {
        self.under_way += 1;
        if let Some(depth) = &mut self.depth {
            depth.moved = Some(Instant::now());
        }
    }

    /// How long to wait for an answer before asking again whether there is room.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let depth = self.depth.as_ref()?;
        depth.may_be_slow(self.under_way).then_some(SLOW)
    }

    /// Somebody has waited.
    pub(crate) fn waited(&mut self) {
        if let Some(depth) = &mut self.depth {
            depth.waited(self.under_way, Instant::now());
        }
    }

    pub(crate) fn ended(&mut self, started: Instant, len: usize) {
        self.under_way = self.under_way.saturating_sub(1);
        if let Some(depth) = &mut self.depth {
            depth.ended(started, Instant::now(), len as u64);
        }
    }
}

/// The number itself.
#[derive(Debug)]
struct Depth {
    limit: usize,
    depth: usize,
    phase: Phase,
    rest: Duration,
    /// The shortest time a request took.
    least: Duration,
    window: Window,
    /// When something was last sent or came back, or the number grew.
    moved: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Doubling every round.
    Starting,
    /// Leaving it as it is for a while.
    Resting,
    /// Measuring the rate before an attempt.
    Measuring,
    /// Twice as many are on their way; not yet at their peer.
    Filling { before: f64 },
    /// Measuring the rate with twice as many.
    Trying { before: f64 },
}

/// What ended since the phase began.
#[derive(Debug, Default)]
struct Window {
    since: Option<Instant>,
    ended: usize,
    bytes: u64,
    took: Duration,
}

impl Depth {
    fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            depth: FEW.min(limit).max(1),
            phase: Phase::Starting,
            rest: REST,
            least: Duration::MAX,
            window: Window::default(),
            moved: None,
        }
    }

    /// Whether it is at its first number, or one reached by doubling it, and all are under way.
    fn may_be_slow(&self, under_way: usize) -> bool {
        matches!(self.phase, Phase::Starting) && under_way >= self.depth && self.depth < self.limit
    }

    fn waited(&mut self, under_way: usize, now: Instant) {
        let since = self.moved.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        if since >= SLOW && self.may_be_slow(under_way) {
            self.depth = self.depth.saturating_mul(2).min(self.limit);
            self.moved = Some(now);
        }
    }

    /// Whether one more may be started beside so many.
    fn has_room(&self, under_way: usize) -> bool {
        under_way < self.depth
    }

    /// A request of so many bytes has ended.
    fn ended(&mut self, started: Instant, now: Instant, bytes: u64) {
        let took = now.saturating_duration_since(started);
        self.least = self.least.min(took);
        self.moved = Some(now);
        let since = *self.window.since.get_or_insert(started);
        self.window.ended += 1;
        self.window.bytes += bytes;
        self.window.took += took;
        let elapsed = now.saturating_duration_since(since);
        let measured = elapsed >= WINDOW && self.window.ended >= self.depth.saturating_mul(3);
        match self.phase {
            Phase::Starting if self.window.ended >= self.depth => self.end_of_round(now),
            Phase::Resting if elapsed >= self.rest => self.enter(Phase::Measuring, now),
            Phase::Measuring if measured && self.depth < self.limit => {
                let before = self.rate(elapsed);
                self.depth = self.depth.saturating_mul(2).min(self.limit);
                self.enter(Phase::Filling { before }, now);
            }
            Phase::Filling { before } if self.window.ended >= self.depth => {
                self.enter(Phase::Trying { before }, now);
            }
            Phase::Trying { before } if measured => self.judge(before, elapsed, now),
            _ => {}
        }
    }

    fn end_of_round(&mut self, now: Instant) {
        let rounds = u32::try_from(self.window.ended).unwrap_or(u32::MAX);
        let none_waits = self.window.took / rounds <= self.least.saturating_add(self.least / 4);
        if none_waits && self.depth < self.limit {
            self.depth = self.depth.saturating_mul(2).min(self.limit);
            self.enter(Phase::Starting, now);
        } else {
            self.enter(Phase::Measuring, now);
        }
    }

    fn judge(&mut self, before: f64, elapsed: Duration, now: Instant) {
        // Less than a quarter more may be chance, and is not worth twice the memory.
        if self.rate(elapsed) > before * 1.25 {
            self.rest = REST;
            self.enter(Phase::Measuring, now);
        } else {
            self.depth = self.depth.div_ceil(2);
            self.rest = self.rest.saturating_mul(2).min(LONG_REST);
            self.enter(Phase::Resting, now);
        }
    }

    fn rate(&self, elapsed: Duration) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits are enough to compare rates")]
        let bytes = self.window.bytes as f64;
        bytes / elapsed.as_secs_f64().max(1e-9)
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        self.phase = phase;
        self.window = Window { since: Some(now), ..Window::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 256 << 10;

    /// A peer that takes `apart` for each request, `at_once` of them side by side, after a way
    /// of `way`. Keeps it busy for `seconds` and returns the depth at the end.
    fn settle(limit: usize, way: Duration, apart: Duration, at_once: usize, seconds: u64) -> usize {
        let mut depth = Depth::new(limit);
        let begin = Instant::now();
        let mut servers = vec![begin; at_once];
        let mut now = begin;
        let mut under_way = std::collections::VecDeque::new();
        while now < begin + Duration::from_secs(seconds) {
            while depth.has_room(under_way.len()) {
                let server = servers.iter_mut().min().unwrap();
                *server = (*server).max(now + way / 2) + apart;
                under_way.push_back((now, *server + way / 2));
            }
            let (started, ended) = under_way.pop_front().unwrap();
            now = now.max(ended);
            depth.ended(started, now, BYTES);
        }
        depth.depth
    }

    #[test]
    fn a_near_peer_needs_few_and_a_distant_one_gets_all() {
        let us = Duration::from_micros;
        assert!(settle(64, us(30), us(25), 1, 2) <= 8, "a socket on this machine");
        assert_eq!(settle(64, us(50_000), us(250), 1, 4), 64, "far away");
        assert!(settle(64, us(100), us(2_000), 32, 3) >= 32, "a disk that likes company");
        assert_eq!(settle(2, us(50_000), us(250), 1, 4), 2, "the user's limit");
        assert_eq!(settle(1, us(10), us(10), 1, 1), 1, "one at a time");
    }

    #[test]
    fn a_peer_that_does_not_answer_at_once_is_sent_more_before_it_does() {
        let mut depth = Depth::new(64);
        let begin = Instant::now();
        let after = |us: u64| begin + Duration::from_micros(us);
        depth.moved = Some(begin);
        depth.waited(4, after(1_900));
        assert_eq!(depth.depth, 4, "too soon");
        depth.waited(3, after(9_000));
        assert_eq!(depth.depth, 4, "there is room");
        for (i, expected) in [8, 16, 32, 64, 64].into_iter().enumerate() {
            depth.waited(depth.depth, after(2_000 * (i as u64 + 1)));
            assert_eq!(depth.depth, expected);
        }
        // An answer in time: no reason.
        let mut depth = Depth::new(64);
        depth.moved = Some(begin);
        depth.ended(begin, after(1_500), BYTES);
        depth.waited(4, after(2_500));
        assert_eq!(depth.depth, 4);
    }

    #[test]
    fn a_peer_that_becomes_slow_to_answer_gets_more_later() {
        let mut depth = Depth::new(64);
        let begin = Instant::now();
        let mut now = begin;
        // Near: one every 25 us, each waiting behind the others.
        for _ in 0..20_000 {
            now += Duration::from_micros(25);
            depth.ended(now - Duration::from_micros(25 * depth.depth as u64), now, BYTES);
        }
        assert!(depth.depth <= 16, "{}", depth.depth);
        // Then a way of 5 ms: as many arrive in that time as are under way.
        let until = now + Duration::from_secs(20);
        while now < until {
            now += Duration::from_micros(5_000 / depth.depth as u64);
            depth.ended(now - Duration::from_millis(5), now, BYTES);
        }
        assert_eq!(depth.depth, 64);
    }
}
