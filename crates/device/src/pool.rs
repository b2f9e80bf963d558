//! A bounded pool of threads for work that may wait for a disk.
//!
//! Threads are made when work waits and nobody is idle, up to the limit, and leave after a few
//! idle seconds. Work is taken in the order given. Dropping the pool lets queued work finish.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;

const IDLE: Duration = Duration::from_secs(5);

/// The pool. Cheap to clone; all clones share.
#[derive(Clone)]
pub struct WorkPool(Arc<Shared>);

struct Shared {
    limit: usize,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

thread_local! {
    static HAS_TIME: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread may be kept for long: it belongs to a pool, or waits for the end anyway.
/// A reactor and the timers may not.
pub(crate) fn has_time() -> bool {
    HAS_TIME.get()
}

/// Runs `work` on a thread that waits for its end and has nothing else to do meanwhile.
pub(crate) fn taking_time<R>(work: impl FnOnce() -> R) -> R {
    let before = HAS_TIME.replace(true);
    let result = work();
    HAS_TIME.set(before);
    result
}

impl WorkPool {
    /// A pool of at most `limit` (≥ 1) threads.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Shared {
            limit: limit.max(1),
            state: Mutex::default(),
            wake: Condvar::new(),
        }))
    }

    /// Runs `job` soon, on some thread of the pool. If no thread can be had at all, it runs here.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock();
        state.queue.push_back(Box::new(job));
        if state.idle >= state.queue.len() {
            drop(state);
            self.0.wake.notify_one();
            return;
        }
        if state.threads < self.0.limit {
            state.threads += 1;
            drop(state);
            let shared = self.0.clone();
            let made = std::thread::Builder::new().name("work".into()).spawn(move || shared.work());
            if made.is_err() {
                self.0.without_a_thread();
            }
        }
    }
}

impl std::fmt::Debug for WorkPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WorkPool(at most {} threads)", self.0.limit)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        HAS_TIME.set(true);
        let mut state = self.lock();
        loop {
            while let Some(job) = state.queue.pop_front() {
                drop(state);
                job();
                state = self.lock();
            }
            state.idle += 1;
            let (woken, waited) =
                self.wake.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if waited.timed_out() && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }

    /// The system gave no thread: if there is none at all, nobody else would do the work.
    fn without_a_thread(&self) {
        let mut state = self.lock();
        state.threads -= 1;
        while state.threads == 0
            && let Some(job) = state.queue.pop_front()
        {
            drop(state);
            job();
            state = self.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn all_work_is_done_by_no_more_threads_than_allowed() {
        let pool = WorkPool::new(3);
        let (tx, rx) = mpsc::channel();
        for i in 0..200 {
            let tx = tx.clone();
            pool.run(move || tx.send((i, std::thread::current().id())).unwrap());
        }
        drop(tx);
        let all: Vec<_> = rx.into_iter().collect();
        assert_eq!(all.len(), 200);
        let threads: std::collections::HashSet<_> = all.iter().map(|(_, t)| *t).collect();
        assert!(threads.len() <= 3);
    }
}
