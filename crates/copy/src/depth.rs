//! How many requests to keep in flight on a lane: few for a peer that answers at once, as many as
//! the path carries for one that is far away.
//!
//! Every request in flight holds a buffer. Too few leave a distant peer, or a disk that works best
//! with a deep queue, idle; too many fill memory and the cache with bytes that wait. It begins with
//! few, and doubles with each round, from the second on, in which every answer was slow, and was
//! waited for: then the path or the peer is slow, and more requests side by side cost nothing but
//! their buffers. One quick answer means that the others only waited for a processor; a worker that
//! never had to wait has enough to do. A peer that is very slow from the first answer on gets many
//! at once: several rounds would cost more there than the buffers.
//!
//! The number of requests in flight divided by their time is a rate: where twice as many take twice
//! as long, the rate is the same, and they only wait behind one another. A step that brought less
//! than a third more is taken back, and is the last. A long path carries the rate times the time of
//! an answer that waits for no other: twice that stays in flight, so that the path is never empty,
//! and a larger bandwidth is noticed (another connection, say): then answers wait for no other
//! again, and the depth grows. The limit is what the worker may hold in memory.

use std::time::{Duration, Instant};

/// The depth to begin with: this many requests, or this many bytes if requests are short. This is
/// fastest for a local socket: more bytes only leave the cache, and with fewer both ends only wake
/// each other.
const FEW: usize = 4;
const FEW_BYTES: u64 = 512 << 10;
/// An answer that takes longer is slow: ten times what a local peer needs for as much as is in
/// flight, and less than a round trip through most networks.
const SLOW: Duration = Duration::from_millis(1);

/// An answer that takes longer comes from far away, or from a slow peer.
const FAR: Duration = Duration::from_millis(8);
/// The depth that such a peer gets at once.
const MANY: usize = 64;

/// The payload requests in flight on one end, and how many there should be.
#[derive(Debug)]
pub(crate) struct Lead {
    under_way: usize,
    depth: Depth,
}

impl Lead {
    /// For `few` requests to begin with, and `limit` of them at most.
    pub(crate) fn new(limit: usize, few: usize) -> Self {
        Self { under_way: 0, depth: Depth::new(few, limit) }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.depth.has_room(self.under_way)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    pub(crate) fn started(&mut self) {
        self.under_way += 1;
    }

    pub(crate) fn under_way(&self) -> usize {
        self.under_way
    }

    /// The worker had nothing to do for this long.
    pub(crate) fn waited(&mut self, time: Duration) {
        self.depth.waited += time;
    }

    pub(crate) fn ended(&mut self, started: Instant) {
        self.under_way = self.under_way.saturating_sub(1);
        self.depth.ended(started, Instant::now());
    }
}

/// The number itself.
#[derive(Debug)]
struct Depth {
    /// The number to begin with.
    few: usize,
    limit: usize,
    depth: usize,
    /// Answers of this round, as many as may be in flight, and the quickest of them.
    answers: usize,
    quickest: Duration,
    /// How long the worker waited in this round.
    waited: Duration,
    /// No answer of the last round was quick.
    slow: bool,
    /// The number before it grew for the last time, and the quickest answer then, if that was not
    /// long ago.
    before: Option<(usize, Duration)>,
    /// It grew a round ago: some answers of this round were in flight before.
    grew: bool,
    /// More would only wait for one another.
    enough: bool,
    /// The quickest answer so far, if all came from far away.
    alone: Option<Duration>,
}

/// How many requests of this many bytes are few.
pub(crate) fn few(request: u64) -> usize {
    let fitting = usize::try_from(FEW_BYTES / request.max(1)).unwrap_or(usize::MAX);
    fitting.clamp(FEW, MANY * 2)
}

impl Depth {
    fn new(few: usize, limit: usize) -> Self {
        let depth = few.min(limit).max(1);
        Self {
            few,
            limit: limit.max(1),
            depth,
            answers: 0,
            quickest: Duration::MAX,
            waited: Duration::ZERO,
            slow: false,
            before: None,
            grew: false,
            enough: false,
            alone: None,
        }
    }

    /// Whether one more may be started beside this many.
    fn has_room(&self, under_way: usize) -> bool {
        under_way < self.depth
    }

    /// A request has been answered.
    fn ended(&mut self, started: Instant, now: Instant) {
        self.quickest = self.quickest.min(now.saturating_duration_since(started));
        self.answers += 1;
        if self.answers < self.depth {
            return;
        }
        let slow = self.quickest >= SLOW && self.waited >= SLOW;
        let far = slow && self.quickest >= FAR && self.depth <= self.few;
        if std::mem::take(&mut self.grew) {
            // The next round shows the effect.
        } else {
            if let Some((depth, quickest)) = self.before.take() {
                self.judge(depth, quickest);
            } else if self.alone.is_some_and(|alone| self.quickest <= alone * 5 / 4) {
                self.enough = false;
            }
            if far || self.alone.is_some() {
                self.alone = Some(self.alone.unwrap_or(Duration::MAX).min(self.quickest));
            }
            if slow && (self.slow || far) && !self.enough && self.depth < self.limit {
                (self.before, self.grew) = (Some((self.depth, self.quickest)), true);
                let twice = self.depth.saturating_mul(2);
                let more = if far { twice.max(MANY) } else { twice };
                self.depth = more.min(self.limit);
            }
        }
        self.slow = slow;
        (self.answers, self.quickest, self.waited) = (0, Duration::MAX, Duration::ZERO);
    }

    /// Judges a step from this many requests, the quickest of which took this long then.
    fn judge(&mut self, before: usize, quickest: Duration) {
        let (was, is) = (quickest.as_nanos(), self.quickest.as_nanos().max(1));
        let (depth, before_it) = (self.depth as u128, before as u128);
        let step = (depth - before_it.min(depth)).min(before_it);
        // Twice as many as there would be in flight at this rate if none waited for another.
        let alone = self.alone.map_or(was, |alone| alone.as_nanos().min(was));
        let twice = usize::try_from(depth.saturating_mul(alone) * 2 / is).unwrap_or(usize::MAX);
        let is_same_rate =
            depth.saturating_mul(was).saturating_mul(3) < (before_it * 3 + step).saturating_mul(is);
        if is_same_rate && self.alone.is_none() {
            (self.depth, self.enough) = (before, true);
        } else if is_same_rate || twice < self.depth {
            (self.depth, self.enough) = (twice.clamp(before.min(self.depth), self.depth), true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that takes `apart` for each request, `at_once` of them side by side, after a latency
    /// of `way`. Keeps it busy for `seconds` and returns the depth at the end.
    fn settle(limit: usize, way: Duration, apart: Duration, at_once: usize, seconds: u64) -> usize {
        let mut depth = Depth::new(FEW, limit);
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
            depth.waited += ended.saturating_duration_since(now);
            now = now.max(ended);
            depth.ended(started, now);
        }
        depth.depth
    }

    /// Workers that share a path of `round_trip` and this many bytes a second, in requests of 256
    /// KiB: the part of it that they use once they have found their depth, in percent, and how many
    /// bytes are in flight then, at most.
    fn share(workers: usize, limit: usize, round_trip: u64, rate: u64) -> (u64, u64) {
        const REQUEST: u64 = 256 << 10;
        let carries = Duration::from_nanos(REQUEST * 1_000_000_000 / rate);
        let way = Duration::from_millis(round_trip);
        let begin = Instant::now();
        let (seen, end) = (begin + way * 150, begin + way * 250);
        let mut depths: Vec<_> = (0..workers).map(|_| Depth::new(FEW, limit)).collect();
        let mut under_way = vec![0; workers];
        let mut answers = std::collections::VecDeque::new();
        let (mut free, mut now, mut bytes, mut most) = (begin, begin, 0, 0);
        while now < end {
            for worker in 0..workers {
                while depths[worker].has_room(under_way[worker]) {
                    under_way[worker] += 1;
                    free = free.max(now + way / 2) + carries;
                    answers.push_back((worker, now, free + way / 2));
                }
            }
            let (worker, started, ended) = answers.pop_front().unwrap();
            depths.iter_mut().for_each(|d| d.waited += ended.saturating_duration_since(now));
            now = now.max(ended);
            under_way[worker] -= 1;
            depths[worker].ended(started, now);
            if now > seen {
                bytes += REQUEST;
                most = most.max((answers.len() as u64 + 1) * REQUEST);
            }
        }
        let millis = u64::try_from((end - seen).as_millis()).unwrap();
        (bytes * 100 / (rate / 1000 * millis), most)
    }

    #[test]
    fn a_long_link_is_full_and_not_much_more_is_in_flight_than_it_carries() {
        for (round_trip, rate) in [(50, 125_000_000), (20, 1_250_000_000), (100, 12_500_000)] {
            for workers in [1, 2, 4, 8] {
                let (percent, most) = share(workers, 144 / workers, round_trip, rate);
                let carried = rate / 1000 * round_trip;
                let text =
                    format!("{workers} workers, {round_trip} ms, {rate}: {percent} %, {most}");
                assert!(percent >= 97, "{text}");
                assert!(most <= carried * 3 + workers as u64 * (3 << 20), "{text}");
            }
        }
    }

    #[test]
    fn a_link_that_becomes_faster_is_filled_again() {
        // 20 ms, and another connection each second, each of which carries 3 MB at a time.
        let (way, begin) = (Duration::from_millis(20), Instant::now());
        let mut depth = Depth::new(FEW, 160);
        let mut under_way = std::collections::VecDeque::new();
        let (mut now, mut free, mut last) = (begin, begin, 0);
        while now < begin + Duration::from_secs(10) {
            let connections = (1 + (now - begin).as_secs()).min(8);
            let carries = Duration::from_nanos(262_144 * 20_000_000 / (3_000_000 * connections));
            while depth.has_room(under_way.len()) {
                free = free.max(now + way / 2) + carries;
                under_way.push_back((now, free + way / 2));
            }
            let (started, ended) = under_way.pop_front().unwrap();
            depth.waited += ended.saturating_duration_since(now);
            now = now.max(ended);
            depth.ended(started, now);
            last += u64::from(now >= begin + Duration::from_secs(9));
        }
        assert!(last * 262_144 > 1_150_000_000, "{last} requests in the last second");
    }

    #[test]
    fn of_many_at_once_as_many_stay_as_a_peer_does_side_by_side() {
        let far = Duration::from_millis(20);
        let depth = settle(64, Duration::from_micros(30), far, 16, 30);
        assert!((16..=64).contains(&depth), "{depth}");
        assert_eq!(
            settle(160, far * 2, Duration::from_micros(20), 1, 30),
            160,
            "the way is not full"
        );
    }

    #[test]
    fn short_requests_are_few_when_they_are_few_bytes() {
        let depth = |request, limit| Depth::new(few(request), limit).depth;
        assert_eq!([256 << 10, 2 << 20, 64 << 10, 4096].map(|r| depth(r, 64)), [4, 4, 8, 64]);
        assert_eq!((depth(4096, 32), depth(1, usize::MAX), depth(0, 0)), (32, 128, 1));
    }

    #[test]
    fn a_near_peer_needs_few_and_a_distant_one_gets_all() {
        let us = Duration::from_micros;
        assert_eq!(settle(64, us(30), us(25), 1, 2), 4, "a socket on this machine");
        assert_eq!(settle(64, us(50_000), us(250), 1, 4), 64, "far away");
        assert!(settle(64, us(100), us(2_000), 32, 3) >= 32, "a disk that likes company");
        assert_eq!(settle(2, us(50_000), us(250), 1, 4), 2, "the user's limit");
        assert_eq!(settle(1, us(10), us(10), 1, 1), 1, "one at a time");
    }

    #[test]
    fn a_peer_that_is_slow_from_the_first_answer_on_gets_all_at_once_unless_they_wait_for_one_another()
     {
        let far = Duration::from_millis(20);
        let mut depth = Depth::new(FEW, 64);
        let begin = Instant::now();
        depth.waited = far;
        (0..FEW).for_each(|_| depth.ended(begin, begin + far));
        assert_eq!(depth.depth, 64);
        let depth = settle(64, Duration::from_micros(30), far, 1, 30);
        assert!(depth <= 2 * FEW, "one after the other: {depth}");
    }

    #[test]
    fn a_peer_that_stalls_now_and_then_gets_no_more_requests() {
        let mut depth = Depth::new(FEW, 64);
        let mut now = Instant::now();
        for i in 0..20_000u64 {
            // A processor that is taken away for 5 ms: all requests in flight wait.
            let late = if i % 50 < depth.depth as u64 { 5_000 } else { 0 };
            now += Duration::from_micros(25);
            depth.waited += Duration::from_micros(25 + late);
            depth.ended(now - Duration::from_micros(100 + late), now);
        }
        assert_eq!(depth.depth, 4);
    }

    #[test]
    fn a_near_peer_that_is_slow_by_itself_gets_no_more_to_wait_behind_one_another() {
        let us = Duration::from_micros;
        assert_eq!(settle(64, us(30), us(400), 1, 4), 4, "a file whose pages are fresh");
    }

    #[test]
    fn a_peer_with_enough_to_do_gets_no_more_requests() {
        let mut depth = Depth::new(FEW, 64);
        let mut now = Instant::now();
        for _ in 0..20_000 {
            // Each is written for 400 us, and the others wait for that.
            now += Duration::from_micros(400);
            depth.ended(now - Duration::from_micros(400 * depth.depth as u64), now);
        }
        assert_eq!(depth.depth, 4);
    }

    #[test]
    fn a_peer_that_becomes_slow_to_answer_gets_more_later() {
        let mut depth = Depth::new(FEW, 64);
        let begin = Instant::now();
        let mut now = begin;
        // Near: one every 25 us, each waiting behind the others.
        for _ in 0..20_000 {
            now += Duration::from_micros(25);
            depth.ended(now - Duration::from_micros(25 * depth.depth as u64), now);
        }
        assert_eq!(depth.depth, 4);
        // Then a latency of 5 ms: as many arrive in that time as are in flight.
        let until = now + Duration::from_secs(20);
        while now < until {
            let apart = Duration::from_micros(5_000 / depth.depth as u64);
            depth.waited += apart;
            now += apart;
            depth.ended(now - Duration::from_millis(5), now);
        }
        assert_eq!(depth.depth, 64);
    }
}
