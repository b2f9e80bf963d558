//! Sequential readers, and how far ahead of them to fetch.
//!
//! A stream is recognised by reads that begin where an earlier one ended, or nearly, so readers
//! that share a region in parallel make one stream. Nothing is fetched ahead of a reader that
//! jumps. Ahead of a sequential one it is half of what was read in order so far, and once that is
//! no coincidence, at least what keeps a distant server busy. The window limits how much may be
//! fetched for nothing.

use super::window::{CHUNK, LONGEST, Run, WINDOW};

/// Streams that are remembered.
const MOST: usize = 8;
/// A read that begins this many bytes further on still belongs to the stream: the gap may be
/// metadata of an image.
const GAP: u64 = 1 << 20;
/// A read this far behind the foremost one still belongs to the stream.
const BEHIND: u64 = 16 << 20;
/// Bytes that may be ahead of all readers, and not read yet.
const AHEAD: u64 = WINDOW / 4 * 3;
/// The shortest range that is asked for ahead.
const SHORTEST: u64 = 256 << 10;
/// A reader that has read this many bytes in order will go on.
const PROVEN: u64 = 2 << 20;
/// Bytes ahead of such a reader, at least: what is in flight at 1 Gbit/s and 50 ms, and some more.
const LEAST: u64 = 8 << 20;
/// Reads after which it is clear which readers are sequential.
const SOME: u64 = 16;

#[derive(Debug, Default)]
pub(super) struct Streams {
    list: Vec<SequentialReader>,
    clock: u64,
}

#[derive(Clone, Copy, Debug)]
struct SequentialReader {
    /// The chunk after the foremost read.
    next: u64,
    /// The chunk after the last one that was fetched ahead.
    fetched: u64,
    /// Bytes that were read in order.
    read: u64,
    /// When it was last read.
    stamp: u64,
}

impl Streams {
    /// A range is being read. `known` tells whether a chunk is here, in flight or wanted.
    pub(super) fn read(&mut self, offset: u64, len: u64, known: impl Fn(u64) -> bool) {
        self.clock += 1;
        let (first, end) = (offset / CHUNK, (offset + len).div_ceil(CHUNK));
        let found = self.list.iter_mut().find(|stream| {
            first <= stream.next + GAP / CHUNK && first + BEHIND / CHUNK >= stream.next
        });
        let Some(stream) = found else {
            let new = SequentialReader { next: end, fetched: end, read: 0, stamp: self.clock };
            return self.add(new);
        };
        // The first read of a prefetched beginning does not continue a stream yet.
        let goes_on = std::mem::replace(&mut stream.stamp, self.clock) > 0;
        if end > stream.next {
            stream.read += if goes_on { len.min((end - stream.next) * CHUNK) } else { 0 };
            stream.next = end;
        }
        // Others have read further on already.
        let mut steps = 0;
        while steps < LONGEST / CHUNK && stream.next >= stream.fetched && known(stream.next) {
            stream.next += 1;
            steps += 1;
        }
        let now = *stream;
        self.merge(now);
    }

    /// The first chunks, up to `end`, are being fetched before the first read.
    pub(super) fn begun(&mut self, end: u64) {
        self.add(SequentialReader { next: 0, fetched: end, read: 0, stamp: 0 });
    }

    /// Whether a sequential reader may come to this chunk soon; other readers of its stream may be
    /// behind it.
    pub(super) fn may_reach(&self, index: u64) -> bool {
        let near = |stream: &SequentialReader| {
            let is_ahead = index < stream.next.saturating_add(AHEAD / CHUNK);
            stream.read > 0 && is_ahead && index.saturating_add(BEHIND / CHUNK) >= stream.next
        };
        self.clock < SOME || self.list.iter().any(near)
    }

    fn add(&mut self, new: SequentialReader) {
        if self.list.len() >= MOST
            && let Some(oldest) = (0..MOST).min_by_key(|i| self.list.get(*i).map(|s| s.stamp))
        {
            self.list.swap_remove(oldest);
        }
        self.list.push(new);
    }

    /// Streams that have met are one.
    fn merge(&mut self, into: SequentialReader) {
        let met = |other: &SequentialReader| {
            other.stamp != into.stamp
                && other.next <= into.next
                && other.next + GAP / CHUNK >= into.next
        };
        let others = self.list.iter().filter(|other| met(other));
        let (read, fetched) = others
            .fold((0, 0), |(read, fetched), other| (read + other.read, other.fetched.max(fetched)));
        self.list.retain(|other| !met(other));
        if let Some(stream) = self.list.iter_mut().find(|stream| stream.stamp == into.stamp) {
            stream.read += read;
            stream.fetched = stream.fetched.max(fetched);
        }
    }

    /// What to fetch ahead of a reader, if anything: `end` is the chunk after the object, `unread`
    /// bytes are here that were not read, `gamble` bytes may be fetched for nothing, and `known`
    /// tells whether a chunk need not be fetched.
    pub(super) fn ahead(
        &mut self,
        end: u64,
        unread: u64,
        gamble: u64,
        known: impl Fn(u64) -> bool,
    ) -> Option<Run> {
        let active = self.list.iter().filter(|s| s.read >= 2 * SHORTEST).count() as u64;
        let most = (AHEAD.saturating_sub(unread) / active.max(1)).min(gamble);
        for stream in &mut self.list {
            let least = if stream.read >= PROVEN { LEAST } else { 0 };
            let ahead = (stream.read / 2).max(least).min(AHEAD / active.max(1));
            let range = (ahead / 4).clamp(SHORTEST, LONGEST) / CHUNK;
            let target = (stream.next + ahead / CHUNK).min(end);
            stream.fetched = stream.fetched.max(stream.next);
            while stream.fetched < target && known(stream.fetched) {
                stream.fetched += 1;
            }
            let left = target.saturating_sub(stream.fetched);
            // Whole ranges only, but for the last one.
            if left == 0 || (left < range && target < end) || most < range * CHUNK {
                continue;
            }
            let first = stream.fetched;
            let len = (first..first + left.min(range)).take_while(|index| !known(*index)).count();
            return Some(first..first + len as u64);
        }
        None
    }

    /// Prefetched chunks did not come: nothing more is prefetched until readers have gone on.
    pub(super) fn give_up(&mut self) {
        for stream in &mut self.list {
            stream.read = 0;
            stream.fetched = stream.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const END: u64 = 1 << 20;

    fn read_in_order(streams: &mut Streams, from: u64, bytes: u64) {
        for offset in (from..from + bytes).step_by(128 << 10) {
            streams.read(offset, 128 << 10, |_| false);
        }
    }

    #[test]
    fn more_is_fetched_ahead_the_more_was_read_in_order_and_little_more_than_half_of_it() {
        let mut streams = Streams::default();
        let mut fetched = 0;
        for mib in 0..200 {
            read_in_order(&mut streams, mib * MIB, MIB);
            while let Some(run) = streams.ahead(END, 0, AHEAD, |_| false) {
                let len = (run.end - run.start) * CHUNK;
                assert!((SHORTEST..=LONGEST).contains(&len), "{len}");
                fetched = run.end * CHUNK;
                streams.list[0].fetched = run.end;
            }
            let ahead = fetched.saturating_sub((mib + 1) * MIB);
            assert!(ahead <= ((mib + 1) * MIB / 2).max(LEAST) && ahead <= AHEAD, "{mib}: {ahead}");
            assert!(mib < 8 || ahead >= (mib * MIB / 4).min(AHEAD / 2), "{mib}: {ahead}");
        }
    }

    #[test]
    fn a_distant_server_is_kept_busy_once_a_reader_has_gone_on_for_a_while() {
        let mut streams = Streams::default();
        read_in_order(&mut streams, 0, PROVEN / 2);
        while let Some(run) = streams.ahead(END, 0, AHEAD, |_| false) {
            assert!(run.end * CHUNK <= PROVEN, "{run:?}");
            streams.list[0].fetched = run.end;
        }
        read_in_order(&mut streams, PROVEN / 2, PROVEN);
        while let Some(run) = streams.ahead(END, 0, AHEAD, |_| false) {
            streams.list[0].fetched = run.end;
        }
        assert_eq!(streams.list[0].fetched * CHUNK, PROVEN / 2 * 3 + LEAST);
    }

    #[test]
    fn what_was_begun_before_the_first_read_is_a_reader_at_the_beginning() {
        let mut streams = Streams::default();
        streams.begun(8 * MIB / CHUNK);
        read_in_order(&mut streams, 0, 128 << 10);
        assert_eq!(streams.list[0].read, 0, "that may be all");
        read_in_order(&mut streams, 128 << 10, 2 * MIB);
        assert_eq!((streams.list.len(), streams.list[0].read), (1, 2 * MIB));
        let known = |index: u64| index < 8 * MIB / CHUNK;
        let run = streams.ahead(END, 0, AHEAD, known).unwrap();
        assert_eq!(run.start, 8 * MIB / CHUNK);
        assert!(streams.may_reach(3 * MIB / CHUNK));
    }

    #[test]
    fn a_read_behind_the_foremost_of_its_stream_is_still_expected() {
        let mut streams = Streams::default();
        streams.begun(128);
        for i in 0..SOME {
            streams.read(i << 16, 64 << 10, |_| false);
            streams.read((i << 16) + 9 * MIB, 64 << 10, |_| false);
        }
        streams.read(2 * MIB, 9 * MIB, |_| false);
        assert!(streams.may_reach(64), "{streams:?}");
    }

    #[test]
    fn no_read_is_expected_where_no_sequential_reader_is() {
        let mut streams = Streams::default();
        streams.begun(128);
        assert!(streams.may_reach(100), "it is not known yet");
        for i in 1..=SOME {
            streams.read(i << 30, 4096, |_| false);
        }
        assert!(!streams.may_reach(100));
    }

    #[test]
    fn nothing_is_fetched_ahead_of_a_reader_that_jumps() {
        let mut streams = Streams::default();
        for i in 0..10_000u64 {
            let offset = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24;
            streams.read(offset, 4096, |_| false);
            assert_eq!(streams.ahead(u64::MAX >> 20, 0, AHEAD, |_| false), None);
        }
    }

    #[test]
    fn readers_that_share_a_region_make_one_stream() {
        let mut streams = Streams::default();
        for mib in (0..64).step_by(4) {
            for lane in [1, 0, 3, 2] {
                streams.read((mib + lane) * MIB, MIB, |_| false);
            }
        }
        assert_eq!(streams.list.len(), 1, "{streams:?}");
        assert!(streams.ahead(END, 0, AHEAD, |_| false).is_some());
    }

    #[test]
    fn nothing_is_fetched_twice_nor_beyond_the_end_nor_beyond_what_may_lie_unread() {
        let mut streams = Streams::default();
        read_in_order(&mut streams, 0, 64 * MIB);
        let end = 66 * MIB / CHUNK;
        let known = |index: u64| index < 65 * MIB / CHUNK;
        assert_eq!(streams.ahead(end, AHEAD, AHEAD, known), None);
        assert_eq!(streams.ahead(end, 0, 4096, known), None);
        let run = streams.ahead(end, 0, AHEAD, known).unwrap();
        assert_eq!(run, 65 * MIB / CHUNK..end);
        assert_eq!(streams.ahead(end, 0, AHEAD, |_| true), None);
    }
}
