//! The state that fetching threads share: the window, the work, and how many requests may be in
//! flight.
//!
//! Clients take turns: one that waits for little does not wait for all that others want. Threads
//! are started when work waits and all are busy, and end when there was nothing to do for a while.
//! Their number grows while they cannot keep up, and is halved when the server reports that it is
//! overloaded: then all of them pause.

use std::sync::Arc;
use std::time::{Duration, Instant};

use device::{Buffer, BufferPool, Done, Error, ErrorKind, Fault, Outcome, copy_overlap};

use super::asking::Asker;
use super::calling::Trouble;
use super::connection::{IDLE, unneeded};
use super::dial::Dialer;
use super::fetching::Begun;
use super::origin::Origin;
use super::read::PendingRead;
use super::window::{CHUNK, ObjectWindow, Run, fail};
use super::{fetching, pass};
use runtime::{Bell, Condvar, Mutex, MutexGuard, spread_bits};

/// Buffers that are kept for reuse, in bytes.
const KEPT: usize = 4 << 20;
/// Connections at first.
const FEW: usize = 4;
/// The first pause after a failure, doubled with each one in a row; and the longest.
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// See the module.
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Idle threads wait here, and the one that makes the single pass.
    work: Condvar,
    /// Pausing threads wait here: work that comes meanwhile is for others, and must not wake these
    /// instead.
    closed: Condvar,
    pub(super) origin: Arc<Origin>,
    pub(super) dialer: Arc<Dialer>,
    pub(super) buffers: BufferPool,
    bell: Arc<Bell>,
    /// Failures in a row before one is reported.
    pub(super) retries: u32,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) window: ObjectWindow,
    /// Threads, and those of them that have nothing to do.
    workers: usize,
    idle: usize,
    /// Idle threads that were woken and have not looked for work yet.
    told: usize,
    /// How many there may be now, and ever.
    limit: usize,
    most: usize,
    /// No request is sent before.
    paused: Option<Instant>,
    closing: bool,
    /// The chunk that a single pass over the object brings next, where the server has no ranges.
    pub(super) pass: Option<u64>,
    /// Why that pass ended early.
    pub(super) broken: Option<Error>,
    /// Counts failures, so that pauses differ.
    failures: u64,
}

impl Shared {
    pub(super) fn new(
        window: ObjectWindow,
        most: usize,
        retries: u32,
        (origin, dialer, bell): (Arc<Origin>, Arc<Dialer>, Arc<Bell>),
    ) -> Arc<Self> {
        let state = State { window, limit: most.min(FEW), most, ..State::default() };
        let (state, work, closed) = (Mutex::new(state), Condvar::new(), Condvar::new());
        let buffers = BufferPool::new(KEPT);
        Arc::new(Self { state, work, closed, origin, dialer, buffers, bell, retries })
    }

    /// Reads from memory; false if not all of it is there.
    pub(super) fn read_now(self: &Arc<Self>, offset: u64, buffer: &mut [u8]) -> bool {
        let mut state = self.state.lock();
        let Some(chunks) = state.window.all_here(offset, buffer.len() as u64) else { return false };
        self.set_to_work(state);
        for (index, bytes) in chunks {
            copy_overlap(buffer, offset, &bytes, index * CHUNK);
        }
        true
    }

    /// Reads what is in memory, and fetches the rest.
    pub(super) fn read(self: &Arc<Self>, offset: u64, buffer: Buffer, done: Done) {
        let len = buffer.len() as u64;
        if len == 0 {
            return done(Ok(Outcome::Read(buffer)));
        }
        let read = PendingRead::new(offset, buffer, done);
        let mut state = self.state.lock();
        let here = state.window.want(&read, offset, len);
        let lost = state.lost(&ObjectWindow::chunks_of(offset, len));
        let lost = lost.map(|(run, error)| (state.window.failed(&run), error));
        self.set_to_work(state);
        if let Some((waiters, error)) = lost {
            fail(waiters, &error.on(self.origin.original()).at(offset));
        }
        for (index, bytes) in here {
            read.copy(index, &bytes);
        }
        read.registered();
    }

    /// Prefetches a range.
    pub(super) fn prefetch(self: &Arc<Self>, offset: u64, len: u64) {
        let mut state = self.state.lock();
        // A single pass brings everything in its own order.
        if state.pass.is_none() && len > 0 {
            state.window.prefetch(runtime::Behalf::current().client(), offset, len);
        }
        self.set_to_work(state);
    }

    /// Wakes or makes a thread, if there is work that none does.
    fn set_to_work(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.pass.is_some() {
            state.window.without_turns();
            drop(state);
            return self.work.notify_all();
        }
        let has_work = state.window.has_work();
        let gone = state.window.gone();
        let wake = has_work && state.idle > state.told;
        let hire = has_work && !wake && state.workers < state.limit;
        state.told += usize::from(wake);
        state.workers += usize::from(hire);
        drop(state);
        if wake {
            self.work.notify_one();
        }
        if hire {
            self.hire(Asker::new(self.origin.clone(), self.dialer.clone()), None);
        }
        fail(gone, &unneeded());
    }

    /// Starts the first requests on `asker`, which may be connected already; a response that has
    /// begun is read first.
    pub(super) fn begin(self: &Arc<Self>, asker: Asker, begun: Option<Begun>) {
        let mut state = self.state.lock();
        state.workers += 1;
        if let Some(begun) = &begun {
            state.window.begun(begun.run.clone());
        }
        drop(state);
        self.hire(asker, begun);
    }

    fn hire(self: &Arc<Self>, asker: Asker, begun: Option<Begun>) {
        let shared = self.clone();
        let work = move || {
            let thread = FetchingThread(shared.clone());
            let ended = runtime::contained("a fetch", || fetching::run(&shared, asker, begun));
            if let Err(panic) = ended {
                // Its requests in flight are not known.
                shared.fail_all(&Error::from(panic));
            }
            drop(thread);
        };
        if let Err(e) = std::thread::Builder::new().name("http".into()).spawn(work) {
            let mut state = self.state.lock();
            state.workers -= 1;
            if state.workers == 0 {
                drop(state);
                self.fail_all(&Error::os("start a thread", e));
            }
        }
    }

    /// Fails all reads that wait.
    pub(super) fn fail_all(&self, error: &Error) {
        let waiters = self.state.lock().window.failed_all();
        fail(waiters, error);
    }

    /// What to fetch next; waits for it. `None` when there has been nothing for a while.
    pub(super) fn next(self: &Arc<Self>) -> Option<Run> {
        let mut state = self.state.lock();
        let until = Instant::now() + IDLE;
        loop {
            let now = Instant::now();
            if state.closing {
                return None;
            }
            let mut wait = until.saturating_duration_since(now);
            match state.paused {
                Some(paused) if paused > now => wait = paused - now,
                _ => {
                    state.paused = None;
                    let idle = state.idle + state.limit.saturating_sub(state.workers);
                    if let Some(run) = state.window.next(idle as u64) {
                        // There may be enough work for others.
                        self.set_to_work(state);
                        return Some(run);
                    }
                }
            }
            if wait.is_zero() {
                return None;
            }
            state.idle += 1;
            let woken = self.work.wait_timeout(state, wait);
            state = woken.0;
            state.idle -= 1;
            state.told = state.told.saturating_sub(1);
        }
    }

    /// A request was answered in full: more threads may run, if there is more to do.
    pub(super) fn went_well(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.window.has_work() {
            state.limit = (state.limit + 1).min(state.most);
            self.set_to_work(state);
        }
    }

    /// Takes chunks that have come, from the `first` on. Returns whether the rest, if any, is
    /// needed.
    pub(super) fn arrived(&self, first: u64, chunks: Vec<Buffer>, rest: &Run) -> bool {
        let chunks = (first..).zip(chunks.into_iter().map(Arc::new));
        let mut taken = Vec::new();
        let mut state = self.state.lock();
        for (index, bytes) in chunks {
            for read in state.window.arrived(index, bytes.clone()) {
                taken.push((read, index, bytes.clone()));
            }
        }
        let needed = state.pass.is_some() || state.window.needs(rest);
        drop(state);
        for (read, index, bytes) in taken {
            read.take(index, &bytes);
        }
        needed
    }

    /// Whether the missing part of `run` is still needed.
    pub(super) fn needs(&self, run: &Run) -> bool {
        self.state.lock().window.needs(run)
    }

    /// Stops fetching these chunks. Readers that came for them meanwhile wait for other threads to
    /// do so.
    pub(super) fn give_up(self: &Arc<Self>, run: &Run, error: &Error) {
        let mut state = self.state.lock();
        if state.closing {
            let waiters = state.window.failed(run);
            drop(state);
            return fail(waiters, error);
        }
        state.window.given_up(run);
        self.set_to_work(state);
    }

    /// These chunks do not come.
    pub(super) fn failed(&self, run: &Run, error: &Error) {
        let waiters = self.state.lock().window.failed(run);
        fail(waiters, error);
    }

    /// Waits after a failure, the `count`th in a row. Returns whether it still makes sense to go
    /// on.
    pub(super) fn pause(&self, trouble: &Trouble, count: u32) -> bool {
        let mut state = self.state.lock();
        state.failures += 1;
        let wait = trouble.wait.unwrap_or_else(|| back_off(count, state.failures));
        let until = Instant::now() + wait;
        if trouble.throttled {
            state.paused = Some(state.paused.map_or(until, |paused| paused.max(until)));
            state.limit = (state.limit / 2).max(1);
            state.most = state.limit;
        }
        loop {
            let now = Instant::now();
            if state.closing {
                return false;
            }
            let paused = state.paused.map_or(until, |paused| paused.max(until));
            if paused <= now {
                return true;
            }
            let woken = self.closed.wait_timeout(state, paused - now);
            state = woken.0;
        }
    }

    /// Waits until `ready` says so; false when the device is closed.
    pub(super) fn wait_until(&self, mut ready: impl FnMut(&mut State) -> bool) -> bool {
        let mut state = self.state.lock();
        while !state.closing {
            if ready(&mut state) {
                return true;
            }
            state = self.work.wait(state);
        }
        false
    }

    /// Ends all threads. Reads that wait fail.
    pub(super) fn close(&self) {
        self.state.lock().closing = true;
        self.bell.ring();
        self.work.notify_all();
        self.closed.notify_all();
        let error = Error::new(ErrorKind::Cancelled, Fault::User, "the disk was closed");
        self.fail_all(&error);
    }
}

impl State {
    /// The chunks that a single pass will not bring any more, if there may be some, and why.
    fn lost(&self, run: &Run) -> Option<(Run, Error)> {
        let pass = self.pass?;
        if let Some(error) = &self.broken {
            return Some((run.clone(), error.duplicate()));
        }
        (run.start < pass).then(|| (run.start..run.end.min(pass), pass::passed()))
    }
}

/// A thread that fetches, until dropped.
struct FetchingThread(Arc<Shared>);

impl Drop for FetchingThread {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.workers = state.workers.saturating_sub(1);
        // Work that came while it ended.
        if !state.closing && state.pass.is_none() {
            self.0.set_to_work(state);
        }
    }
}

/// How long to wait after the `count`th failure in a row; `seed` makes it differ.
pub(super) fn back_off(count: u32, seed: u64) -> Duration {
    let whole = PAUSE.saturating_mul(1 << count.saturating_sub(1).min(10)).min(LONGEST_PAUSE);
    // Between a half and the whole of it.
    whole / 2 + whole / 512 * u32::from(spread_bits(seed).to_le_bytes()[0])
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use device::Params;

    use super::super::params::HttpParams;
    use super::*;

    /// An object of 64 MiB at a server that gets no request, and `most` threads.
    fn shared(most: usize) -> Arc<Shared> {
        let params = Params::parse(["url=http://127.0.0.1:9/"]).unwrap();
        let wanted = HttpParams::parse(&params).unwrap();
        let bell = Arc::new(Bell::new().unwrap());
        let dialer = Arc::new(Dialer::new(wanted.ways, bell.clone()));
        let origin = Arc::new(Origin::new(wanted.url, wanted.credentials, wanted.manners));
        let shared = Shared::new(ObjectWindow::new(64 << 20), most, 5, (origin, dialer, bell));
        // All of them are the test's.
        shared.state.lock().workers = most;
        shared
    }

    fn until(shared: &Shared, ready: impl Fn(&State) -> bool) {
        while !ready(&shared.state.lock()) {
            thread::yield_now();
        }
    }

    fn want(shared: &Arc<Shared>, chunk: u64) {
        shared.read(chunk * CHUNK, Buffer::zeroed(10), Box::new(|_| {}));
    }

    /// What a thread that has nothing to do finds to do.
    fn looks_for_work(shared: &Arc<Shared>) -> Receiver<Option<Run>> {
        let (tell, told) = channel();
        let idle = shared.state.lock().idle;
        let same = shared.clone();
        thread::spawn(move || tell.send(same.next()).unwrap());
        until(shared, |state| state.idle > idle);
        told
    }

    /// A thread that waits after a failure, for an hour unless the device is closed.
    fn pauses(shared: &Arc<Shared>) -> Receiver<bool> {
        let (tell, told) = channel();
        let failures = shared.state.lock().failures;
        let same = shared.clone();
        thread::spawn(move || {
            let error = Error::new(ErrorKind::Disconnected, Fault::Peer, "GET");
            let wait = Some(Duration::from_secs(3600));
            tell.send(same.pause(&Trouble { wait, ..Trouble::passing(error) }, 1)).unwrap();
        });
        // It holds the lock until it waits.
        until(shared, |state| state.failures > failures);
        told
    }

    #[test]
    fn a_pass_keeps_no_list_of_what_is_wanted_however_often_a_read_of_it_fails() {
        let shared = shared(1);
        shared.state.lock().pass = Some(1);
        shared.state.lock().broken = Some(Error::new(ErrorKind::Disconnected, Fault::Peer, "GET"));
        for chunk in 0..1000 {
            want(&shared, chunk);
        }
        assert_eq!(shared.state.lock().window.wishes(), 0);
    }

    #[test]
    fn new_work_wakes_idle_threads_and_not_those_that_pause_after_a_failure() {
        // An idle thread looks by itself after some time, but no reader may have to wait for that.
        let soon = IDLE - Duration::from_secs(5);
        for pausing in 1..4 {
            let shared = shared(pausing + 2);
            let paused: Vec<_> = (0..pausing).map(|_| pauses(&shared)).collect();
            let idle = [looks_for_work(&shared), looks_for_work(&shared)];
            // Each reads elsewhere.
            want(&shared, 100);
            want(&shared, 500);
            let found = idle.map(|one| one.recv_timeout(soon).expect("it was not woken"));
            let mut found: Vec<_> = found.into_iter().flatten().map(|run| run.start).collect();
            found.sort_unstable();
            assert_eq!(found, [100, 500]);
            shared.close();
            for one in paused {
                assert!(!one.recv().unwrap(), "a pause ends when the disk is closed");
            }
        }
    }
}
