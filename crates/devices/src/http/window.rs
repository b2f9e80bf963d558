//! The bytes of the object that are in memory, in flight, or wanted by readers.
//!
//! All clients of a device share one window of at most [`WINDOW`] bytes, in chunks of [`CHUNK`]. A
//! chunk is asked for once: other readers that want it meanwhile wait for the same bytes. Clients
//! take turns; what only clients that have left wanted is not fetched. Chunks that were read are
//! dropped first when room is needed, unread ones last. Nothing here waits and nothing here knows
//! HTTP: an [`ObjectWindow`] is told what is wanted and what has come, and says what to fetch next.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use device::{Buffer, Error};

use super::read::PendingRead;
use super::streams::Streams;
use super::turns::Turns;

/// Bytes of a chunk; the last one of an object may be shorter.
pub(super) const CHUNK: u64 = CHUNK_LEN as u64;
pub(super) const CHUNK_LEN: usize = 64 << 10;
/// Bytes that are kept in memory, at most. With the 40 MiB that a copy may have in flight besides,
/// it stays below 96 MiB.
pub(super) const WINDOW: u64 = 40 << 20;
/// Bytes of the longest range that is asked for at once.
pub(super) const LONGEST: u64 = 8 << 20;
/// Bytes of a range that is worth a request of its own while other threads are idle.
const SHARE: u64 = 1 << 20;
/// Bytes of the longest range that is asked for while other clients wait for their turn.
const IN_TURN: u64 = 1 << 20;
/// Chunks that may be prefetched and never read, and one more for each so many that were read: no
/// more than that is fetched for nothing.
const GAMBLE: u64 = 128;
const STAKE: u64 = 16;
/// Chunks in the window.
const ROOM: usize = 640;

/// A run of chunks that one request is to bring.
pub(super) type Run = Range<u64>;

/// What is known of one chunk.
#[derive(Debug)]
enum Chunk {
    /// It is wanted, or on its way.
    Owed(Owed),
    /// It is here.
    Here(Held),
}

/// The readers that a chunk is for.
#[derive(Debug, Default)]
struct Owed {
    waiters: Waiters,
    /// It was asked for without waiting for it.
    anyway: bool,
    /// A request is in flight that brings it.
    comes: bool,
}

impl Owed {
    /// Whether all that wanted it have gone.
    fn is_moot(&self) -> bool {
        !self.anyway && !self.waiters.iter().any(|read| read.is_wanted())
    }
}

type Waiters = Vec<Arc<PendingRead>>;

#[derive(Debug)]
struct Held {
    bytes: Arc<Buffer>,
    /// How many of its bytes were read.
    read: u64,
    /// When it was last touched.
    stamp: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ObjectWindow {
    size: u64,
    chunks: HashMap<u64, Chunk>,
    /// Chunks that are wanted; some may have come since.
    wanted: Turns,
    /// Reads whose clients have gone, to be failed.
    gone: Waiters,
    /// Chunks that are here, by when they were touched: those that were read in full, and the
    /// others.
    done: BTreeMap<u64, u64>,
    unread: BTreeMap<u64, u64>,
    clock: u64,
    streams: Streams,
    /// Chunks that were fetched ahead, are here or on their way, and have not been read.
    ahead: HashSet<u64>,
    /// Their number, and that of those that made room unread.
    gambled: u64,
    /// How many chunks were read.
    useful: u64,
}

impl ObjectWindow {
    /// A window on an object of `size` bytes.
    pub(super) fn new(size: u64) -> Self {
        Self { size, ..Self::default() }
    }

    /// The chunks that hold `len` (> 0) bytes from `offset`.
    pub(super) fn chunks_of(offset: u64, len: u64) -> Run {
        offset / CHUNK..(offset + len).div_ceil(CHUNK)
    }

    /// The first chunk after the object.
    pub(super) fn end(&self) -> u64 {
        self.size.div_ceil(CHUNK)
    }

    /// The bytes of a run of chunks, as offsets into the object.
    pub(super) fn bytes_of(&self, run: &Run) -> Range<u64> {
        run.start * CHUNK..(run.end * CHUNK).min(self.size)
    }

    /// Returns the chunks of a range if all of them are here; otherwise changes nothing.
    pub(super) fn all_here(&mut self, offset: u64, len: u64) -> Option<Vec<(u64, Arc<Buffer>)>> {
        let run = Self::chunks_of(offset, len);
        if !run.clone().all(|index| matches!(self.chunks.get(&index), Some(Chunk::Here(_)))) {
            return None;
        }
        self.streams.read(offset, len, |index| self.chunks.contains_key(&index));
        Some(run.filter_map(|index| Some((index, self.touch(index, offset, len)?))).collect())
    }

    /// Registers a read of a range: returns the chunks that are here; the read gets the others when
    /// they come. Their number is added to what it waits for.
    pub(super) fn want(
        &mut self,
        read: &Arc<PendingRead>,
        offset: u64,
        len: u64,
    ) -> Vec<(u64, Arc<Buffer>)> {
        let mut here = Vec::new();
        for index in Self::chunks_of(offset, len) {
            match self.chunks.get_mut(&index) {
                Some(Chunk::Here(_)) => {
                    here.extend(self.touch(index, offset, len).map(|bytes| (index, bytes)));
                    continue;
                }
                Some(Chunk::Owed(owed)) => {
                    owed.waiters.push(read.clone());
                    if owed.comes {
                        self.was_useful(index);
                    } else {
                        // Its turn may come sooner for this client.
                        self.wanted.push(read.client(), index);
                    }
                }
                None => {
                    self.useful += 1;
                    let owed = Owed { waiters: vec![read.clone()], ..Owed::default() };
                    self.chunks.insert(index, Chunk::Owed(owed));
                    self.wanted.push(read.client(), index);
                }
            }
            read.waits_for_one_more();
        }
        self.streams.read(offset, len, |index| self.chunks.contains_key(&index));
        here
    }

    /// Wants a range in the turns of `client`, for no particular reader; no more than half a window
    /// of it, and nothing while as much as the window has room for is on its way: such wishes have
    /// no end that holds them back.
    pub(super) fn prefetch(&mut self, client: u64, offset: u64, len: u64) {
        for index in Self::chunks_of(offset, len.min(WINDOW / 2)) {
            if self.chunks.len().saturating_sub(self.held()) >= ROOM {
                return;
            }
            if let std::collections::hash_map::Entry::Vacant(place) = self.chunks.entry(index) {
                place.insert(Chunk::Owed(Owed { anyway: true, ..Owed::default() }));
                self.wanted.push(client, index);
            }
        }
    }

    /// The first chunk that is wanted and not being fetched yet, of the client whose turn it is.
    fn first_wanted(&mut self) -> Option<u64> {
        while let Some(index) = self.wanted.first() {
            match self.chunks.get(&index) {
                Some(Chunk::Owed(owed)) if owed.comes => {}
                Some(Chunk::Owed(owed)) if !owed.is_moot() => return Some(index),
                Some(Chunk::Owed(_)) => self.is_gone(index),
                Some(Chunk::Here(_)) | None => {}
            }
            self.wanted.drop_first();
        }
        None
    }

    /// No client waits for a chunk any more.
    fn is_gone(&mut self, index: u64) {
        if let Some(Chunk::Owed(owed)) = self.chunks.remove(&index) {
            self.gone.extend(owed.waiters);
        }
    }

    /// Reads whose clients have gone and that nothing will be fetched for.
    pub(super) fn gone(&mut self) -> Waiters {
        std::mem::take(&mut self.gone)
    }

    /// Nothing is fetched by turns: all of it comes in its order.
    pub(super) fn without_turns(&mut self) {
        self.wanted = Turns::default();
    }

    /// What is wanted in turns.
    #[cfg(test)]
    pub(super) fn wishes(&self) -> usize {
        self.wanted.len()
    }

    /// Whether there is something to fetch that is not being fetched yet.
    pub(super) fn has_work(&mut self) -> bool {
        self.first_wanted().is_some() || self.ahead().is_some()
    }

    /// The first of the chunks from `from` on that a reader waits for.
    pub(super) fn first_awaited(&self, from: u64) -> Option<u64> {
        let awaited = self.chunks.iter().filter(|(index, chunk)| {
            **index >= from && matches!(chunk, Chunk::Owed(owed) if !owed.waiters.is_empty())
        });
        awaited.map(|(index, _)| *index).min()
    }

    /// What to fetch next, if anything: what is wanted first, and then what readers in order will
    /// want soon. `helpers` others could share the work at once.
    pub(super) fn next(&mut self, helpers: u64) -> Option<Run> {
        if let Some(first) = self.first_wanted() {
            let is_wanted = |index: &u64| matches!(self.chunks.get(index), Some(Chunk::Owed(owed)) if !owed.comes);
            let longest = if self.wanted.is_shared() { IN_TURN } else { LONGEST };
            let most = first.saturating_add(longest / CHUNK).min(self.end());
            let len = (first..most).take_while(is_wanted).count() as u64;
            let share = len.div_ceil(helpers + 1).max(SHARE / CHUNK);
            self.wanted.next_turn();
            return Some(self.begin(first..first + len.min(share)));
        }
        let run = self.ahead()?;
        Some(self.gamble(run))
    }

    /// The first chunks are in flight before the first read.
    pub(super) fn begun(&mut self, run: Run) {
        self.streams.begun(run.end);
        self.gamble(run);
    }

    fn gamble(&mut self, run: Run) -> Run {
        self.ahead.extend(run.clone());
        self.gambled += run.end - run.start;
        self.begin(run)
    }

    /// Whether the chunks of this run that are in flight are still needed.
    pub(super) fn needs(&self, run: &Run) -> bool {
        run.clone().any(|index| match self.chunks.get(&index) {
            Some(Chunk::Owed(owed)) if owed.comes => match self.ahead.contains(&index) {
                true => self.streams.may_reach(index),
                false => !owed.is_moot(),
            },
            _ => false,
        })
    }

    /// These chunks are no longer being fetched; those that a reader waits for are wanted again.
    pub(super) fn given_up(&mut self, run: &Run) {
        for index in self.known_of(run) {
            let Some(Chunk::Owed(owed)) = self.chunks.get_mut(&index) else { continue };
            if !std::mem::take(&mut owed.comes) {
                continue;
            }
            let is_moot = owed.is_moot();
            self.settle_gamble(index);
            if is_moot {
                self.is_gone(index);
            } else {
                self.wanted.push(0, index);
            }
        }
        self.streams.give_up();
    }

    /// A chunk is read: if it was prefetched, that was useful.
    fn was_useful(&mut self, index: u64) {
        self.useful += u64::from(self.settle_gamble(index));
    }

    /// A chunk is no longer one that was fetched ahead and not read; whether it was one.
    fn settle_gamble(&mut self, index: u64) -> bool {
        let was_ahead = self.ahead.remove(&index);
        self.gambled -= u64::from(was_ahead);
        was_ahead
    }

    /// The chunks that sequential readers will want soon.
    fn ahead(&mut self) -> Option<Run> {
        let unread = self.unread.len() as u64 * CHUNK;
        let gamble = GAMBLE.max(self.useful / STAKE).saturating_sub(self.gambled) * CHUNK;
        let end = self.end();
        self.streams.ahead(end, unread, gamble, |index| self.chunks.contains_key(&index))
    }

    /// Says that a request is in flight for these chunks, wanted or not.
    fn begin(&mut self, run: Run) -> Run {
        for index in run.clone() {
            let chunk = self.chunks.entry(index).or_insert(Chunk::Owed(Owed::default()));
            if let Chunk::Owed(owed) = chunk {
                owed.comes = true;
            }
        }
        run
    }

    /// Takes a chunk that has come, and returns the reads that waited for it. Makes room for it.
    pub(super) fn arrived(&mut self, index: u64, bytes: Arc<Buffer>) -> Waiters {
        let waiters = match self.chunks.get_mut(&index) {
            Some(Chunk::Owed(owed)) => std::mem::take(&mut owed.waiters),
            // Readers that came for it have it already.
            Some(Chunk::Here(_)) => return Vec::new(),
            None => Vec::new(),
        };
        while self.held() >= ROOM {
            let Some(oldest) = self.oldest() else { break };
            self.forget(oldest);
        }
        let start = index * CHUNK;
        let len = bytes.len() as u64;
        let read: u64 = waiters.iter().map(|read| read.overlap(start, len)).sum();
        self.clock += 1;
        let held = Held { bytes, read, stamp: self.clock };
        self.list(&held).insert(held.stamp, index);
        self.chunks.insert(index, Chunk::Here(held));
        waiters
    }

    /// Takes back chunks that did not come, and returns the reads that waited for them.
    pub(super) fn failed(&mut self, run: &Run) -> Waiters {
        let mut all = Vec::new();
        for index in self.known_of(run) {
            let Some(Chunk::Owed(owed)) = self.chunks.get_mut(&index) else { continue };
            all.append(&mut owed.waiters);
            self.chunks.remove(&index);
            self.settle_gamble(index);
        }
        self.streams.give_up();
        all
    }

    /// Everything that is wanted or in flight has failed.
    pub(super) fn failed_all(&mut self) -> Waiters {
        self.failed(&(0..self.end()))
    }

    /// The chunks of a run of which something is known. The run may be as long as a server says
    /// that the object is, so its numbers are not counted: at most those chunks are looked at that
    /// are here, on their way or wanted.
    fn known_of(&self, run: &Run) -> Vec<u64> {
        if run.end.saturating_sub(run.start) <= self.chunks.len() as u64 {
            return run.clone().filter(|index| self.chunks.contains_key(index)).collect();
        }
        let mut known: Vec<u64> =
            self.chunks.keys().filter(|index| run.contains(index)).copied().collect();
        known.sort_unstable();
        known
    }

    /// Whether much is unread: half a window.
    pub(super) fn is_far_ahead(&self) -> bool {
        self.unread.len() >= ROOM / 2
    }

    /// How many chunks are here.
    fn held(&self) -> usize {
        self.done.len() + self.unread.len()
    }

    fn oldest(&self) -> Option<u64> {
        let done = self.done.values().next();
        done.or_else(|| self.unread.values().next()).copied()
    }

    fn forget(&mut self, index: u64) {
        if let Some(Chunk::Here(held)) = self.chunks.remove(&index) {
            self.list(&held).remove(&held.stamp);
            self.ahead.remove(&index);
        }
    }

    fn list(&mut self, held: &Held) -> &mut BTreeMap<u64, u64> {
        if held.read >= held.bytes.len() as u64 { &mut self.done } else { &mut self.unread }
    }

    /// The bytes of a chunk that is here, of which `len` bytes from `offset` are read now.
    fn touch(&mut self, index: u64, offset: u64, len: u64) -> Option<Arc<Buffer>> {
        let Some(Chunk::Here(mut held)) = self.chunks.remove(&index) else { return None };
        self.list(&held).remove(&held.stamp);
        self.clock += 1;
        held.stamp = self.clock;
        let start = index * CHUNK;
        let end = (start + held.bytes.len() as u64).min(offset + len);
        held.read += end.saturating_sub(start.max(offset));
        self.list(&held).insert(held.stamp, index);
        let bytes = held.bytes.clone();
        self.chunks.insert(index, Chunk::Here(held));
        self.was_useful(index);
        Some(bytes)
    }
}

/// Fails all of `waiters` with the same error.
pub(super) fn fail(waiters: Waiters, error: &Error) {
    for read in waiters {
        read.fail(error);
    }
}

#[cfg(test)]
mod tests {

    use std::sync::atomic::{AtomicBool, Ordering};

    use runtime::{Behalf, Mutex, to_usize};

    use super::*;

    fn read(offset: u64, len: u64) -> Arc<PendingRead> {
        let buffer = Buffer::zeroed(usize::try_from(len).unwrap());
        PendingRead::new(offset, buffer, Box::new(|_| {}))
    }

    fn want(window: &mut ObjectWindow, offset: u64, len: u64) -> usize {
        window.want(&read(offset, len), offset, len).len()
    }

    fn arrive(window: &mut ObjectWindow, run: Run) {
        for index in run {
            window.arrived(index, Arc::new(Buffer::zeroed(64 << 10)));
        }
    }

    #[test]
    fn the_window_has_room_for_as_many_chunks_as_its_bytes_are() {
        assert_eq!(ROOM as u64 * CHUNK, WINDOW);
    }

    #[test]
    fn a_chunk_is_asked_for_once_however_many_readers_want_it() {
        let mut window = ObjectWindow::new(10 << 20);
        assert_eq!(want(&mut window, 100, 10), 0);
        assert_eq!(want(&mut window, 200, CHUNK), 0);
        assert_eq!(window.next(0), Some(0..2));
        assert_eq!(want(&mut window, 0, 3 * CHUNK), 0);
        assert_eq!(window.next(0), Some(2..3));
        assert_eq!(window.next(0), None);
        arrive(&mut window, 0..3);
        assert_eq!(want(&mut window, 0, 3 * CHUNK), 3);
        assert_eq!(window.next(0), None);
    }

    #[test]
    fn no_work_is_in_proportion_to_the_length_that_a_server_announces() {
        let mut window = ObjectWindow::new(i64::MAX as u64);
        let all = 0..window.end();
        assert_eq!(all.end, 1 << 47);
        arrive(&mut window, 0..2);
        want(&mut window, (1 << 62) + 5, 10);
        want(&mut window, CHUNK, 2 * CHUNK);
        assert!(window.next(0).is_some() && window.next(0).is_some());
        window.given_up(&all);
        assert!(window.next(0).is_some() && window.next(0).is_some(), "they are wanted again");
        let late = 1..all.end;
        assert_eq!(window.failed(&late).len(), 2, "a read in each of two chunks");
        assert!(window.failed(&all).is_empty() && window.failed_all().is_empty());
        assert!(window.all_here(0, 2 * CHUNK).is_some(), "what is here stays");
    }

    #[test]
    fn wishes_that_no_reader_waits_for_are_no_more_than_the_window_has_room_for() {
        let mut window = ObjectWindow::new(1 << 50);
        for i in 0..1000 {
            window.prefetch(0, i << 30, WINDOW);
        }
        assert!(window.chunks.len() <= ROOM && window.wanted.len() <= ROOM);
    }

    #[test]
    fn a_long_range_is_shared_among_idle_threads_and_none_is_longer_than_the_longest() {
        let mut window = ObjectWindow::new(1 << 30);
        want(&mut window, 0, 16 << 20);
        let len = |run: Option<Run>| run.map_or(0, |run| (run.end - run.start) * CHUNK);
        assert_eq!(len(window.next(0)), LONGEST);
        assert_eq!(len(window.next(3)), LONGEST / 4);
        assert_eq!(len(window.next(30)), SHARE);
    }

    #[test]
    fn what_was_read_makes_room_before_what_was_not() {
        let mut window = ObjectWindow::new(1 << 30);
        let full = ROOM as u64;
        arrive(&mut window, 0..full);
        assert!(window.is_far_ahead());
        assert_eq!(window.all_here(5 * CHUNK, CHUNK).map(|all| all.len()), Some(1));
        arrive(&mut window, full..full + 1);
        assert!(window.all_here(5 * CHUNK, 1).is_none(), "it was read, and went");
        assert!(window.all_here(0, 1).is_some());
        assert_eq!(window.held(), ROOM);
        arrive(&mut window, full + 1..full + 2);
        assert!(window.all_here(CHUNK, 1).is_none(), "the oldest one");
    }

    #[test]
    fn waiting_reads_end_when_their_bytes_come_or_fail() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let mut window = ObjectWindow::new(10 << 20);
        let read = |name: &'static str, offset, len| {
            let (told, buffer) = (told.clone(), Buffer::zeroed(len));
            PendingRead::new(
                offset,
                buffer,
                Box::new(move |outcome| told.lock().push((name, outcome.is_ok()))),
            )
        };
        let (a, b) = (read("a", 0, 10), read("b", CHUNK, 10));
        window.want(&a, 0, 10);
        window.want(&b, CHUNK, 10);
        a.registered();
        b.registered();
        assert_eq!(window.next(0), Some(0..2));
        let bytes = Arc::new(Buffer::zeroed(64 << 10));
        for waiter in window.arrived(0, bytes.clone()) {
            waiter.take(0, &bytes);
        }
        fail(window.failed(&(1..2)), &Error::unanswered());
        assert_eq!(*told.lock(), [("a", true), ("b", false)]);
        assert_eq!(window.next(0), None);
        assert_eq!(want(&mut window, CHUNK, 1), 0, "it can be asked for again");
        assert_eq!(window.next(0), Some(1..2));
    }

    /// A client that may leave.
    struct Requester(Arc<AtomicBool>);

    impl Requester {
        fn new() -> Self {
            Self(Arc::new(AtomicBool::new(true)))
        }

        fn wants(&self, window: &mut ObjectWindow, offset: u64, len: u64) {
            Behalf::default().wanted_by(self.0.clone()).run(|| want(window, offset, len));
        }

        fn leaves(&self) {
            self.0.store(false, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_short_read_does_not_wait_for_all_that_another_client_wants() {
        let mut window = ObjectWindow::new(1 << 30);
        Behalf::of_client(1).run(|| want(&mut window, 0, 64 << 20));
        assert_eq!(window.next(0), Some(0..LONGEST / CHUNK));
        let far = (1 << 30) / CHUNK - 1;
        Behalf::of_client(2).run(|| want(&mut window, far * CHUNK, 1));
        let (one, other) = (window.next(0).unwrap(), window.next(0).unwrap());
        assert_eq!((one.end - one.start) * CHUNK, IN_TURN, "in turns, each is short");
        assert_eq!(other, far..far + 1);
        assert_eq!(window.next(0).map(|run| (run.end - run.start) * CHUNK), Some(LONGEST));
    }

    #[test]
    fn chunks_that_only_departed_clients_wanted_are_not_fetched() {
        let mut window = ObjectWindow::new(1 << 30);
        let (a, b) = (Requester::new(), Requester::new());
        a.wants(&mut window, 0, 4 * CHUNK);
        b.wants(&mut window, 2 * CHUNK, CHUNK);
        window.prefetch(0, 3 * CHUNK, 2 * CHUNK);
        a.leaves();
        assert_eq!(window.next(0), Some(2..5), "prefetched is wanted anyway");
        assert_eq!(window.gone().len(), 2);
        assert_eq!(window.next(0), None);
    }

    #[test]
    fn a_fetch_that_no_client_wants_is_abandoned_and_a_wanted_one_is_not() {
        let mut window = ObjectWindow::new(1 << 30);
        let (a, b) = (Requester::new(), Requester::new());
        a.wants(&mut window, 0, 8 * CHUNK);
        let run = window.next(0).unwrap();
        assert!(window.needs(&run));
        a.leaves();
        assert!(!window.needs(&run));
        b.wants(&mut window, 6 * CHUNK, CHUNK);
        assert!(window.needs(&run));
        arrive(&mut window, 0..2);
        window.given_up(&(2..8));
        assert_eq!(window.gone().len(), 5);
        assert_eq!(window.next(0), Some(6..7), "it is asked for again");
        assert_eq!(want(&mut window, 0, 2 * CHUNK), 2, "what has come is here");
        assert_eq!(want(&mut window, 2 * CHUNK, CHUNK), 0);
        assert_eq!(window.next(0), Some(2..3));
    }

    #[test]
    fn what_is_fetched_ahead_is_needed_for_as_long_as_a_reader_may_come_to_it() {
        let mut window = ObjectWindow::new(1 << 30);
        window.begun(0..128);
        assert!(window.needs(&(0..128)), "nothing was read yet");
        for at in 1..=20 {
            want(&mut window, at << 25, 1);
        }
        assert!(!window.needs(&(0..128)), "all read elsewhere");
        window.given_up(&(0..128));
        assert_eq!(window.gambled, 0);
        assert_eq!(want(&mut window, 0, 1), 0);
    }

    /// How many chunks are fetched when the chunks of an object are read in this order, four
    /// readers at a time.
    fn fetched(size: u64, order: &[u64]) -> u64 {
        let mut window = ObjectWindow::new(size);
        let mut fetched = 0;
        for together in order.chunks(4) {
            for index in together {
                want(&mut window, index * CHUNK, CHUNK.min(size - index * CHUNK));
            }
            while let Some(run) = window.next(3) {
                fetched += run.end - run.start;
                arrive(&mut window, run);
            }
        }
        fetched
    }

    #[test]
    fn clusters_are_fetched_once_in_order_and_hardly_more_often_in_any_order() {
        let count = 8192;
        let in_order: Vec<u64> = (0..count).collect();
        assert_eq!(fetched(count * CHUNK, &in_order), count);
        let mut numbers = (0..).map(runtime::spread_bits);
        let mut random = |n: usize| to_usize(numbers.next().unwrap()) % n;
        // Shuffled locally, in runs at random places, and one by one.
        let mut near = in_order.clone();
        for i in 0..near.len() - 64 {
            near.swap(i, i + random(64));
        }
        let mut runs: Vec<Vec<u64>> = in_order.chunks(48).map(<[u64]>::to_vec).collect();
        for i in (1..runs.len()).rev() {
            runs.swap(i, random(i + 1));
        }
        let mut anywhere = in_order;
        for i in (1..anywhere.len()).rev() {
            anywhere.swap(i, random(i + 1));
        }
        for (what, order) in [("near", near), ("runs", runs.concat()), ("anywhere", anywhere)] {
            let times = fetched(count * CHUNK, &order) * 100 / count;
            assert!(times <= 110, "{what}: {times} %");
        }
    }
}
