//! A gate: some pass together, some alone, and nobody waits in a thread.
//!
//! What is to be done behind the gate is kept and run by whoever leaves. First come, first
//! served. The edge has one in front of the blocks of a device that waits for something outside:
//! whoever writes whole blocks passes together with others, whoever reads and rewrites part of a
//! block passes alone.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::contained::contained;

type Job = Box<dyn FnOnce(Pass) + Send>;

/// See the module. It is used through an `Arc`.
#[derive(Default)]
pub struct Gate(Mutex<State>);

#[derive(Default)]
struct State {
    together: usize,
    alone: bool,
    queue: VecDeque<(bool, Job)>,
    /// Somebody lets the next ones in.
    opening: bool,
}

/// The right to be behind the gate, until dropped.
#[derive(Debug)]
pub struct Pass {
    gate: Arc<Gate>,
    alone: bool,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gate")
    }
}

impl Gate {
    /// Runs `job`, now or later, with others that do not need to be alone.
    pub fn together(self: &Arc<Self>, job: impl FnOnce(Pass) + Send + 'static) {
        self.enter(false, Box::new(job));
    }

    /// Runs `job`, now or later, with nobody else behind the gate.
    pub fn alone(self: &Arc<Self>, job: impl FnOnce(Pass) + Send + 'static) {
        self.enter(true, Box::new(job));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(self: &Arc<Self>, alone: bool, job: Job) {
        self.lock().queue.push_back((alone, job));
        self.open();
    }

    /// Lets in whoever may. Jobs that end at once leave while others are being let in, so this
    /// is a loop and not a recursion.
    fn open(self: &Arc<Self>) {
        let mut state = self.lock();
        if state.opening {
            return;
        }
        state.opening = true;
        while let Some((alone, _)) = state.queue.front() {
            let alone = *alone;
            if state.alone || (alone && state.together > 0) {
                break;
            }
            if alone {
                state.alone = true;
            } else {
                state.together += 1;
            }
            let job = state.queue.pop_front().map(|(_, job)| job);
            drop(state);
            let pass = Pass { gate: self.clone(), alone };
            if let Some(job) = job {
                // One that panics drops its pass, and those behind it are let in all the same.
                let _ = contained("a request behind a gate", || job(pass));
            }
            state = self.lock();
        }
        state.opening = false;
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        if self.alone {
            state.alone = false;
        } else {
            state.together -= 1;
        }
        let waiting = !state.queue.is_empty();
        drop(state);
        if waiting {
            self.gate.open();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_alone_waits_for_the_others_and_the_others_for_him() {
        let gate = Arc::new(Gate::default());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let held = Arc::new(Mutex::new(Vec::new()));
        let enter = |name: &'static str, alone: bool| {
            let (seen, held) = (seen.clone(), held.clone());
            let job = move |pass| {
                seen.lock().unwrap().push(name);
                held.lock().unwrap().push(pass);
            };
            if alone { gate.alone(job) } else { gate.together(job) }
        };
        enter("a", false);
        enter("b", false);
        enter("c", true);
        enter("d", false);
        assert_eq!(*seen.lock().unwrap(), ["a", "b"]);
        let passes: Vec<_> = held.lock().unwrap().drain(..).collect();
        drop(passes);
        assert_eq!(*seen.lock().unwrap(), ["a", "b", "c"]);
        let passes: Vec<_> = held.lock().unwrap().drain(..).collect();
        drop(passes);
        assert_eq!(*seen.lock().unwrap(), ["a", "b", "c", "d"]);
    }

    #[test]
    fn a_long_queue_of_jobs_that_end_at_once_does_not_overflow_the_stack() {
        let gate = Arc::new(Gate::default());
        let first = Arc::new(Mutex::new(None));
        let slot = first.clone();
        gate.alone(move |pass| *slot.lock().unwrap() = Some(pass));
        let count = Arc::new(Mutex::new(0));
        for _ in 0..100_000 {
            let count = count.clone();
            gate.alone(move |_pass| *count.lock().unwrap() += 1);
        }
        let pass = first.lock().unwrap().take();
        drop(pass);
        assert_eq!(*count.lock().unwrap(), 100_000);
    }

    #[test]
    fn a_job_that_panics_keeps_nobody_out() {
        let gate = Arc::new(Gate::default());
        let (slot, count) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(0)));
        let first = slot.clone();
        gate.alone(move |pass| *first.lock().unwrap() = Some(pass));
        for i in 0..3 {
            let count = count.clone();
            gate.alone(move |_pass| {
                *count.lock().unwrap() += 1;
                assert!(i != 0, "on purpose");
            });
        }
        let pass = slot.lock().unwrap().take();
        drop(pass);
        let last = count.clone();
        gate.together(move |_pass| *last.lock().unwrap() += 10);
        assert_eq!(*count.lock().unwrap(), 13);
    }
}
