//! Work that is due later, without a thread for each.
//!
//! One thread (made when it is first needed) sleeps until the earliest time and runs what is due.
//! Jobs must be short and must not block: they submit, complete, or hand on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::behalf::Behalf;
use crate::contained::contained;
use crate::sync::{Condvar, Mutex};

type Job = Box<dyn FnOnce() + Send>;

/// The timers. Cheap to clone; all clones share one thread, which ends with the last of them.
#[derive(Clone, Default)]
pub struct Timers(Arc<Owner>);

#[derive(Default)]
struct Owner(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// By time, then in the order in which they were asked for.
    jobs: BTreeMap<(Instant, u64), Job>,
    count: u64,
    running: bool,
    ended: bool,
}

crate::debug_as!(Timers);

impl Timers {
    /// Runs `job` when `wait` has passed; at once if there is nothing to wait for. Jobs of the same
    /// time run in the order given. If no thread can be started, it waits here.
    pub fn after(&self, wait: Duration, job: impl FnOnce() + Send + 'static) {
        let now = Instant::now();
        match now.checked_add(wait) {
            Some(at) if at > now => self.at(at, job),
            Some(_) => job(),
            // Beyond the range of the clock: never.
            None => {}
        }
    }

    /// Runs `job` at the time `at`, or soon after, on behalf of the same client.
    pub fn at(&self, at: Instant, job: impl FnOnce() + Send + 'static) {
        let behalf = Behalf::current().lasting();
        let job = Box::new(move || behalf.run(job));
        let shared = &self.0.0;
        let mut state = shared.state.lock();
        let number = state.count;
        state.count += 1;
        let is_first = state.jobs.first_key_value().is_none_or(|((first, _), _)| at < *first);
        state.jobs.insert((at, number), job);
        if !state.running {
            state.running = true;
            drop(state);
            shared.clone().start();
        } else if is_first {
            drop(state);
            shared.wake.notify_one();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.state.lock().ended = true;
        self.0.wake.notify_one();
    }
}

impl Shared {
    fn start(self: Arc<Self>) {
        let shared = self.clone();
        let made = std::thread::Builder::new().name("timers".into()).spawn(move || shared.run());
        if made.is_err() {
            // Late and in the wrong place is better than never.
            self.drain();
        }
    }

    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            let wait = match state.jobs.first_key_value() {
                Some(((at, _), _)) if *at <= now => None,
                Some(((at, _), _)) => Some(*at - now),
                // No more jobs can come.
                None if state.ended => return,
                None => Some(Duration::from_secs(3600)),
            };
            state = match wait {
                Some(wait) => {
                    let woken = self.wake.wait_timeout(state, wait);
                    woken.0
                }
                None => {
                    let first = state.jobs.pop_first();
                    drop(state);
                    if let Some((_, job)) = first {
                        // A defect of one job must not end the timers of all.
                        let _ = contained("a timer", job);
                    }
                    self.state.lock()
                }
            };
        }
    }

    fn drain(&self) {
        loop {
            let mut state = self.state.lock();
            let Some(((at, _), job)) = state.jobs.pop_first() else {
                state.running = false;
                return;
            };
            drop(state);
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            let _ = contained("a timer", job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn what_is_due_earlier_runs_earlier_and_nothing_runs_too_early() {
        let timers = Timers::default();
        let (tx, rx) = mpsc::channel();
        let begun = Instant::now();
        for ms in [30, 10, 20, 10] {
            let tx = tx.clone();
            timers.after(Duration::from_millis(ms), move || {
                tx.send((ms, begun.elapsed())).unwrap();
            });
        }
        drop(tx);
        let all: Vec<_> = rx.into_iter().collect();
        assert_eq!(all.iter().map(|(ms, _)| *ms).collect::<Vec<_>>(), [10, 10, 20, 30]);
        assert!(all.iter().all(|(ms, after)| *after >= Duration::from_millis(*ms)));
    }

    #[test]
    fn what_is_done_later_is_done_in_the_name_of_the_same_client() {
        let timers = Timers::default();
        let (tx, rx) = mpsc::channel();
        let later = move || tx.send(Behalf::current().client()).unwrap();
        Behalf::of_client(7).run(|| timers.after(Duration::from_millis(1), later));
        assert_eq!(rx.recv().unwrap(), 7);
    }

    #[test]
    fn what_was_asked_for_still_happens_when_the_timers_are_dropped() {
        let (tx, rx) = mpsc::channel();
        let timers = Timers::default();
        timers.after(Duration::from_millis(10), move || tx.send(()).unwrap());
        drop(timers);
        rx.recv().unwrap();
    }
}
