//! The queue of a handle's requests: a thread that came for one request also runs those that come
//! meanwhile.
//!
//! Waking a thread of the pool costs more than a fast plugin takes for a request, and so does
//! waking the reactor that sends the reply; but a slow plugin needs many threads at a time. So,
//! while requests are slow, a thread that finds more of them wakes another, and that one the next.
//! If most of the last requests were quick, the thread goes on alone, reports several results
//! together, and waits a moment for more before it leaves. A timer checks that it makes progress: a
//! slow request delays the others, and the results before it, by no more than that.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::{Done, Operation, Outcome, Result};
use runtime::{Behalf, Mutex, MutexGuard, Timers, WorkPool, batch, is_waiting};

/// How long a thread works on new requests before others get a turn.
const TURN: Duration = Duration::from_millis(1);
/// The longest quick request.
const QUICK: Duration = Duration::from_micros(30);
/// The best score of a queue.
const SCORE: u8 = 8;
/// The most results to report together.
const BATCH: usize = 32;
/// How long a thread waits for more.
const LINGER: Duration = Duration::from_micros(50);
/// How often a timer checks that a thread makes progress.
const LOOK: Duration = Duration::from_millis(1);

/// The handler of a request.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Runs the request; may block.
    fn serve(&self, operation: Operation) -> Result<Outcome>;
}

/// See the module.
#[derive(Default)]
pub(crate) struct RequestQueue {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Asked>,
    /// Results not reported yet.
    ends: Vec<End>,
    /// Threads at work.
    working: usize,
    /// A thread was woken and has not come yet.
    called: bool,
    /// A thread has nothing to do, and waits for more.
    lingers: bool,
    /// How quick requests are: each quick one counts 1, each other one -2. A request that now and
    /// then waits for another thread's lock is no reason to wake more threads.
    score: u8,
    /// A timer is set.
    watched: bool,
    /// Requests started.
    begun: u64,
}

struct Asked {
    operation: Operation,
    done: Done,
    behalf: Behalf,
}

struct End {
    done: Done,
    result: Result<Outcome>,
    /// What follows is its requester's, whichever thread reports it.
    behalf: Behalf,
}

/// What a thread does next, in this order.
struct Step {
    tell: Vec<End>,
    call: bool,
    watch: bool,
    asked: Option<Asked>,
}

runtime::debug_as!(RequestQueue);

impl State {
    fn is_quick(&self) -> bool {
        self.score >= SCORE / 2
    }

    /// Notes whether a request was quick.
    fn rate(&mut self, quick: bool) {
        self.score = if quick { (self.score + 1).min(SCORE) } else { self.score.saturating_sub(2) };
    }

    /// Whether to wake another thread; notes that it was.
    fn calls(&mut self, most: usize) -> bool {
        let waits = !self.queue.is_empty() && !self.called && !self.lingers;
        let calls = waits && self.working < most;
        self.called |= calls;
        calls
    }

    fn next(&mut self, most: usize) -> Step {
        let is_due = !self.is_quick() || self.queue.is_empty() || self.ends.len() >= BATCH;
        let tell = if is_due { std::mem::take(&mut self.ends) } else { Vec::new() };
        let asked = self.queue.pop_front();
        if asked.is_some() {
            self.begun = self.begun.wrapping_add(1);
        }
        let call = !self.is_quick() && self.calls(most);
        let others = !self.queue.is_empty() || !self.ends.is_empty();
        let watch = self.is_quick() && others && !self.watched;
        self.watched |= watch;
        Step { tell, call, watch, asked }
    }
}

/// Reports results; wakes their reactors once, at the end.
fn tell(ends: Vec<End>) {
    if !ends.is_empty() {
        let report = |End { done, result, behalf }: End| behalf.run(|| done(result));
        batch(|| ends.into_iter().for_each(report));
    }
}

/// The handler, and the threads that it runs on.
pub(crate) struct Staff<C> {
    pub(crate) handler: Arc<C>,
    /// Threads at a time.
    pub(crate) most: usize,
    pub(crate) pool: WorkPool,
    pub(crate) timers: Timers,
}

impl<C> Clone for Staff<C> {
    fn clone(&self) -> Self {
        let Self { handler, most, pool, timers } = self;
        Self { handler: handler.clone(), most: *most, pool: pool.clone(), timers: timers.clone() }
    }
}

impl RequestQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Runs a request; on the caller's thread if the caller waits for the end anyway and fewer than
    /// `most` threads are at work.
    pub(crate) fn ask<C: Handler>(
        self: &Arc<Self>,
        (operation, done): (Operation, Done),
        staff: impl FnOnce() -> Staff<C>,
        most: usize,
    ) {
        let mut state = self.lock();
        state.queue.push_back(Asked { operation, done, behalf: Behalf::current() });
        if is_waiting() && state.working < most {
            state.working += 1;
            drop(state);
            return self.work(&staff());
        }
        // A quick thread comes back for it.
        let alone = state.is_quick() && state.working > 0;
        let watch = alone && !state.lingers && !state.watched;
        state.watched |= watch;
        let calls = !alone && state.calls(most);
        drop(state);
        if calls {
            self.call(&staff());
        } else if watch {
            self.watch(staff());
        }
    }

    fn call<C: Handler>(self: &Arc<Self>, staff: &Staff<C>) {
        let (requests, own) = (self.clone(), staff.clone());
        staff.pool.run(move || {
            let mut state = requests.lock();
            state.called = false;
            if state.working < own.most {
                state.working += 1;
                drop(state);
                requests.work(&own);
            }
        });
    }

    /// If no request started for a while, reports the results so far, and wakes another thread.
    fn watch<C: Handler>(self: &Arc<Self>, staff: Staff<C>) {
        let (requests, before) = (self.clone(), self.lock().begun);
        let timers = staff.timers.clone();
        timers.after(LOOK, move || {
            let mut state = requests.lock();
            state.watched = false;
            if state.queue.is_empty() && state.ends.is_empty() {
                return;
            }
            if state.begun != before {
                state.watched = true;
                drop(state);
                return requests.watch(staff);
            }
            state.score = 0;
            let (ends, calls) = (std::mem::take(&mut state.ends), state.calls(staff.most));
            drop(state);
            if calls {
                requests.call(&staff);
            }
            tell(ends);
        });
    }

    /// Runs waiting requests, as one of the counted threads.
    fn work<C: Handler>(self: &Arc<Self>, staff: &Staff<C>) {
        let began = Instant::now();
        let _counted = Counted { requests: self, staff };
        let mut step = self.lock().next(staff.most);
        loop {
            tell(std::mem::take(&mut step.tell));
            let Some(asked) = step.asked else {
                let Some(next) = self.linger(staff.most) else { return };
                step = next;
                continue;
            };
            if step.call {
                self.call(staff);
            } else if step.watch {
                self.watch(staff.clone());
            }
            let before = Instant::now();
            let Asked { operation, done, behalf } = asked;
            let end = behalf.is_wanted().then(|| {
                let result = behalf.clone().run(|| staff.handler.serve(operation));
                End { done, result, behalf }
            });
            let now = Instant::now();
            let mut state = self.lock();
            state.rate(now.saturating_duration_since(before) < QUICK);
            state.ends.extend(end);
            if now.saturating_duration_since(began) >= TURN {
                drop(state);
                return;
            }
            step = state.next(staff.most);
        }
    }

    /// If requests are quick, waits a moment for the next.
    fn linger(&self, most: usize) -> Option<Step> {
        let mut state = self.lock();
        if !state.queue.is_empty() {
            return Some(state.next(most));
        }
        if !state.is_quick() || state.lingers || is_waiting() {
            return None;
        }
        state.lingers = true;
        drop(state);
        let since = Instant::now();
        loop {
            std::thread::yield_now();
            let mut state = self.lock();
            if !state.queue.is_empty() || since.elapsed() >= LINGER {
                state.lingers = false;
                return (!state.queue.is_empty()).then(|| state.next(most));
            }
        }
    }
}

/// A thread that counts as working until this is dropped, also by a panic; waiting requests then
/// get another.
struct Counted<'a, C: Handler> {
    requests: &'a Arc<RequestQueue>,
    staff: &'a Staff<C>,
}

impl<C: Handler> Drop for Counted<'_, C> {
    fn drop(&mut self) {
        let mut state = self.requests.lock();
        state.working -= 1;
        let (ends, calls) = (std::mem::take(&mut state.ends), state.calls(self.staff.most));
        drop(state);
        if calls {
            self.requests.call(self.staff);
        }
        tell(ends);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    /// Flushes need nothing.
    struct Counting {
        now: AtomicUsize,
        most: AtomicUsize,
        meet: Option<Barrier>,
    }

    impl Counting {
        fn new(meet: Option<Barrier>) -> Arc<Self> {
            Arc::new(Self { now: AtomicUsize::new(0), most: AtomicUsize::new(0), meet })
        }
    }

    impl Handler for Counting {
        fn serve(&self, _: Operation) -> Result<Outcome> {
            let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            if let Some(meet) = &self.meet {
                meet.wait();
            }
            self.now.fetch_sub(1, Ordering::SeqCst);
            Ok(Outcome::Done)
        }
    }

    fn staff(handler: &Arc<Counting>, most: usize, pool: &WorkPool) -> Staff<Counting> {
        Staff { handler: handler.clone(), most, pool: pool.clone(), timers: Timers::default() }
    }

    /// A requester that has gone.
    struct Gone;

    impl runtime::Wanted for Gone {
        fn is_wanted(&self) -> bool {
            false
        }
    }

    #[test]
    fn what_follows_a_request_is_its_own_requesters_whichever_thread_reports_it() {
        let (requests, handler) = (Arc::<RequestQueue>::default(), Counting::new(None));
        let pool = WorkPool::undivided(1);
        let (tx, rx) = mpsc::channel();
        // It waits in the queue: nothing works on it yet.
        let done: Done = Box::new(move |result| {
            let behalf = Behalf::current();
            tx.send((result.is_ok(), behalf.client(), behalf.is_wanted())).unwrap();
        });
        let behalf = Behalf::of_client(2);
        requests.lock().queue.push_back(Asked { operation: Operation::Flush, done, behalf });
        // A thread that waits serves it on its way, for a client that has gone meanwhile.
        Behalf::of_client(1).wanted_by(Arc::new(Gone)).run(|| {
            runtime::taking_time(|| {
                let nothing: Done = Box::new(|_| {});
                requests.ask((Operation::Flush, nothing), || staff(&handler, 1, &pool), 1);
            });
        });
        assert_eq!(rx.recv().unwrap(), (true, 2, true));
    }

    fn ask_many(count: usize, most: usize, handler: &Arc<Counting>) {
        let (requests, pool) = (Arc::<RequestQueue>::default(), WorkPool::undivided(8));
        let (tx, rx) = mpsc::channel();
        for _ in 0..count {
            let tx = tx.clone();
            let done: Done = Box::new(move |result| tx.send(result.is_ok()).unwrap());
            requests.ask((Operation::Flush, done), || staff(handler, most, &pool), most);
        }
        drop(tx);
        assert_eq!(rx.into_iter().filter(|ok| *ok).count(), count);
    }

    #[test]
    fn all_are_done_by_no_more_threads_than_may_be() {
        for most in [1, 3] {
            let handler = Counting::new(None);
            ask_many(2000, most, &handler);
            assert!(handler.most.load(Ordering::SeqCst) <= most);
        }
    }

    #[test]
    fn requests_that_wait_for_one_another_are_done_together() {
        let handler = Counting::new(Some(Barrier::new(4)));
        ask_many(8, 8, &handler);
        assert!(handler.most.load(Ordering::SeqCst) >= 4);
    }

    /// Of each ten requests the last two end together.
    #[derive(Default)]
    struct Pairs(AtomicUsize, Mutex<HashMap<usize, Arc<Barrier>>>);

    impl Handler for Pairs {
        fn serve(&self, _: Operation) -> Result<Outcome> {
            let number = self.0.fetch_add(1, Ordering::SeqCst);
            if number % 10 >= 8 {
                let mut all = self.1.lock();
                let both = all.entry(number / 10).or_insert_with(|| Arc::new(Barrier::new(2)));
                let both = both.clone();
                drop(all);
                both.wait();
            }
            Ok(Outcome::Done)
        }
    }

    #[test]
    fn a_request_that_takes_long_after_quick_ones_keeps_no_other_waiting() {
        let (requests, pool, timers) =
            (Arc::<RequestQueue>::default(), WorkPool::undivided(8), Timers::default());
        let handler = Arc::<Pairs>::default();
        let (tx, rx) = mpsc::channel();
        for _ in 0..200 {
            let tx = tx.clone();
            let done: Done = Box::new(move |result| tx.send(result.is_ok()).unwrap());
            let staff = || Staff {
                handler: handler.clone(),
                most: 8,
                pool: pool.clone(),
                timers: timers.clone(),
            };
            requests.ask((Operation::Flush, done), staff, 8);
        }
        drop(tx);
        assert_eq!(rx.into_iter().filter(|ok| *ok).count(), 200);
    }

    /// Of each ten requests the last ends only when those before it were reported.
    struct LastOfTen(AtomicUsize, Mutex<mpsc::Receiver<()>>);

    impl Handler for LastOfTen {
        fn serve(&self, _: Operation) -> Result<Outcome> {
            if self.0.fetch_add(1, Ordering::SeqCst) % 10 == 9 {
                let told = self.1.lock();
                (0..9).for_each(|_| told.recv().unwrap());
            }
            Ok(Outcome::Done)
        }
    }

    #[test]
    fn the_ends_of_quick_requests_do_not_wait_for_one_that_takes_long() {
        let (requests, pool, timers) =
            (Arc::<RequestQueue>::default(), WorkPool::undivided(8), Timers::default());
        let (told, hears) = mpsc::channel();
        let handler = Arc::new(LastOfTen(AtomicUsize::default(), Mutex::new(hears)));
        let (tx, rx) = mpsc::channel();
        for number in 0..200 {
            let (tx, told) = (tx.clone(), told.clone());
            let done: Done = Box::new(move |result| {
                if number % 10 != 9 {
                    told.send(()).unwrap();
                }
                tx.send(result.is_ok()).unwrap();
            });
            let (handler, pool, timers) = (handler.clone(), pool.clone(), timers.clone());
            // One thread: they run in order.
            requests.ask((Operation::Flush, done), || Staff { handler, most: 1, pool, timers }, 1);
        }
        drop(tx);
        assert_eq!(rx.into_iter().filter(|ok| *ok).count(), 200);
    }

    #[test]
    fn a_thread_that_waits_for_the_end_does_the_work_itself() {
        let (requests, pool) = (Arc::<RequestQueue>::default(), WorkPool::undivided(1));
        let (gate, stuck) = mpsc::channel::<()>();
        pool.run(move || assert!(stuck.recv().is_err()));
        let handler = Counting::new(None);
        let answer = runtime::wait_for(|promise| {
            let done: Done = Box::new(move |result| promise.keep(result.is_ok()));
            requests.ask((Operation::Flush, done), || staff(&handler, 1, &pool), 1);
        });
        assert_eq!(answer, Some(true));
        drop(gate);
    }
}
