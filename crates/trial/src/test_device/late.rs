//! Threads that answer a [`TestDevice`](super::TestDevice) late, and in any order.

use std::sync::{Arc, Weak};

use device::{Done, Operation};
use runtime::{Condvar, Mutex, contained};

use super::Core;

/// What waits for a thread.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<Waiting>,
    wake: Condvar,
}

#[derive(Default)]
struct Waiting {
    list: Vec<(Operation, Done)>,
    is_closed: bool,
}

impl Queue {
    pub(super) fn put(&self, operation: Operation, done: Done) {
        self.state.lock().list.push((operation, done));
        self.wake.notify_one();
    }

    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.wake.notify_all();
    }

    /// Starts a thread, which ends with the device.
    pub(super) fn serve(self: &Arc<Self>, device: Weak<Core>, seed: u64) {
        let queue = self.clone();
        let work = move || {
            let mut dice = Dice(seed);
            while let Some((operation, done)) = queue.next(&mut dice) {
                let Some(device) = device.upgrade() else { return };
                // What a panic leaves unanswered has failed.
                let _ = contained("a late answer", || device.answer(operation, done));
            }
        };
        std::thread::Builder::new().name("late".into()).spawn(work).expect("a thread");
    }

    /// Any of those that wait, after others had time to come.
    fn next(&self, dice: &mut Dice) -> Option<(Operation, Done)> {
        loop {
            let state = self.state.lock();
            let is_idle = |state: &mut Waiting| state.list.is_empty() && !state.is_closed;
            let state = self.wake.wait_while(state, is_idle);
            if state.is_closed {
                return None;
            }
            drop(state);
            std::thread::yield_now();
            let mut state = self.state.lock();
            if !state.list.is_empty() {
                let any = dice.below(state.list.len());
                return Some(state.list.swap_remove(any));
            }
        }
    }
}

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or_default() % bound
    }
}
