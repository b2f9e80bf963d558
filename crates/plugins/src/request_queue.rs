//! Where requests of a handle wait for a thread: one that came for one request does those that came meanwhile, too.
//!
//! A thread of the pool costs more to wake than a quick plugin takes for a request, and a slow one needs many at a time. So a
//! thread that finds more than it does now calls another, and that one the next, as long as anything waits: a plugin that is
//! quick is done before they come.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use device::{Done, Operation};
use runtime::{Wanted, WorkPool, is_waiting, who_wants};

/// How long a thread works on what comes before others have a turn.
const TURN: Duration = Duration::from_millis(1);

/// What is done with a request.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Does it; may block.
    fn serve(&self, operation: Operation, done: Done);
}

/// See the module.
#[derive(Default)]
pub(crate) struct RequestQueue {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Asked>,
    /// Threads at work.
    working: usize,
    /// A thread was called and has not come yet.
    called: bool,
}

struct Asked {
    operation: Operation,
    done: Done,
    who: Option<Arc<dyn Wanted>>,
}

impl fmt::Debug for RequestQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestQueue")
    }
}

impl State {
    /// Whether another thread is to be called: it is, from here on.
    fn calls(&mut self, most: usize) -> bool {
        let calls = !self.called && !self.queue.is_empty() && self.working < most;
        self.called |= calls;
        calls
    }
}

impl RequestQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a request done by `handler`, by at most `most` threads of `pool` at a time; here, if the caller waits for the end
    /// anyway and there are not so many.
    pub(crate) fn ask(
        self: &Arc<Self>,
        (operation, done): (Operation, Done),
        handler: &Arc<impl Handler>,
        most: usize,
        pool: &WorkPool,
    ) {
        let mut state = self.lock();
        state.queue.push_back(Asked { operation, done, who: who_wants() });
        if is_waiting() && state.working < most {
            state.working += 1;
            drop(state);
            return self.work(handler, most, pool);
        }
        let calls = state.calls(most);
        drop(state);
        if calls {
            self.call(handler, most, pool);
        }
    }

    fn call(self: &Arc<Self>, handler: &Arc<impl Handler>, most: usize, pool: &WorkPool) {
        let (requests, handler, own) = (self.clone(), handler.clone(), pool.clone());
        pool.run(move || {
            let mut state = requests.lock();
            state.called = false;
            if state.working < most {
                state.working += 1;
                drop(state);
                requests.work(&handler, most, &own);
            }
        });
    }

    /// Does what waits, as one of those that are counted.
    fn work(self: &Arc<Self>, handler: &Arc<impl Handler>, most: usize, pool: &WorkPool) {
        let begun = Instant::now();
        let counted = Counted { requests: self, handler, most, pool };
        loop {
            let mut state = self.lock();
            let Some(asked) = state.queue.pop_front() else { break };
            let calls = state.calls(most);
            drop(state);
            if calls {
                self.call(handler, most, pool);
            }
            if asked.who.is_none_or(|who| who.is_wanted()) {
                handler.serve(asked.operation, asked.done);
            }
            if begun.elapsed() >= TURN {
                break;
            }
        }
        drop(counted);
    }
}

/// A thread that is counted as one at work until this is dropped, also by a panic; what waits then has another one.
struct Counted<'a, C: Handler> {
    requests: &'a Arc<RequestQueue>,
    handler: &'a Arc<C>,
    most: usize,
    pool: &'a WorkPool,
}

impl<C: Handler> Drop for Counted<'_, C> {
    fn drop(&mut self) {
        let mut state = self.requests.lock();
        state.working -= 1;
        let calls = state.calls(self.most);
        drop(state);
        if calls {
            self.requests.call(self.handler, self.most, self.pool);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;
    use device::Outcome;

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
        fn serve(&self, _: Operation, done: Done) {
            let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            if let Some(meet) = &self.meet {
                meet.wait();
            }
            self.now.fetch_sub(1, Ordering::SeqCst);
            done(Ok(Outcome::Done));
        }
    }

    fn ask_many(count: usize, most: usize, handler: &Arc<Counting>) {
        let (requests, pool) = (Arc::<RequestQueue>::default(), WorkPool::undivided(8));
        let (tx, rx) = mpsc::channel();
        for _ in 0..count {
            let tx = tx.clone();
            let done: Done = Box::new(move |result| tx.send(result.is_ok()).unwrap());
            requests.ask((Operation::Flush, done), handler, most, &pool);
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

    #[test]
    fn who_waits_for_the_end_does_it_himself() {
        let (requests, pool) = (Arc::<RequestQueue>::default(), WorkPool::undivided(1));
        let (gate, stuck) = mpsc::channel::<()>();
        pool.run(move || assert!(stuck.recv().is_err()));
        let handler = Counting::new(None);
        let answer = runtime::wait_for(|promise| {
            let done: Done = Box::new(move |result| promise.keep(result.is_ok()));
            requests.ask((Operation::Flush, done), &handler, 1, &pool);
        });
        assert_eq!(answer, Some(true));
        drop(gate);
    }
}
