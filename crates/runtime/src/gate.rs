//! A gate: some tasks pass together, some alone, and none waits in a thread.
//!
//! First come, first served. The edge has one in front of the blocks of a device: a write of
//! whole blocks passes together with others, a read-modify-write of part of a block passes
//! alone. Where nothing is in the way, a pass costs a lock and no allocation.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crate::sync::Mutex;
use crate::task::{Promise, promise};

/// See the module. Used through an `Arc`.
#[derive(Default)]
pub struct Gate(Mutex<State>);

#[derive(Default)]
struct State {
    together: usize,
    alone: bool,
    /// Those that wait, and whether they are to be alone.
    queue: VecDeque<(bool, Promise<Pass>)>,
}

/// The right to be behind the gate, until dropped.
pub struct Pass {
    gate: Arc<Gate>,
    alone: bool,
}

crate::debug_as!(Gate);

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.alone { "Pass(alone)" } else { "Pass(together)" })
    }
}

impl State {
    /// Lets one in, if it may pass.
    fn admit(&mut self, alone: bool) -> bool {
        let free = !self.alone && (!alone || self.together == 0);
        if free && alone {
            self.alone = true;
        } else if free {
            self.together += 1;
        }
        free
    }
}

impl Gate {
    /// Passes, together with others that do not need to be alone.
    pub async fn together(self: &Arc<Self>) -> Pass {
        self.pass(false).await
    }

    /// Passes, with no other task behind the gate.
    pub async fn alone(self: &Arc<Self>) -> Pass {
        self.pass(true).await
    }

    async fn pass(self: &Arc<Self>, alone: bool) -> Pass {
        loop {
            let answer = {
                let mut state = self.0.lock();
                if state.queue.is_empty() && state.admit(alone) {
                    return Pass { gate: self.clone(), alone };
                }
                let (promise, answer) = promise();
                state.queue.push_back((alone, promise));
                answer
            };
            // This promise is always kept: the queue lives as long as we hold the gate.
            if let Some(pass) = answer.await {
                return pass;
            }
        }
    }

    /// Lets in the tasks that may pass.
    fn open(self: &Arc<Self>) {
        let mut state = self.0.lock();
        let mut admitted = Vec::new();
        while let Some((alone, _)) = state.queue.front() {
            let alone = *alone;
            if !state.admit(alone) {
                break;
            }
            admitted.extend(state.queue.pop_front());
        }
        drop(state);
        // If nothing waits for the pass any more, it is dropped.
        for (alone, promise) in admitted {
            promise.keep(Pass { gate: self.clone(), alone });
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.gate.0.lock();
        debug_assert_eq!((state.alone, state.together == 0), (self.alone, self.alone));
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
    use crate::task::spawn;

    type Seen = Arc<Mutex<Vec<&'static str>>>;
    type Held = Arc<Mutex<Vec<Pass>>>;

    fn enter(gate: &Arc<Gate>, name: &'static str, alone: bool, seen: &Seen, held: &Held) {
        let (gate, seen, held) = (gate.clone(), seen.clone(), held.clone());
        spawn(async move {
            let pass = if alone { gate.alone().await } else { gate.together().await };
            seen.lock().push(name);
            held.lock().push(pass);
        });
    }

    #[test]
    fn an_exclusive_pass_waits_for_shared_ones_and_they_for_it() {
        let (gate, seen, held) = (Arc::<Gate>::default(), Seen::default(), Held::default());
        enter(&gate, "a", false, &seen, &held);
        enter(&gate, "b", false, &seen, &held);
        enter(&gate, "c", true, &seen, &held);
        enter(&gate, "d", false, &seen, &held);
        assert_eq!(*seen.lock(), ["a", "b"]);
        let passes: Vec<_> = held.lock().drain(..).collect();
        drop(passes);
        assert_eq!(*seen.lock(), ["a", "b", "c"]);
        let passes: Vec<_> = held.lock().drain(..).collect();
        drop(passes);
        assert_eq!(*seen.lock(), ["a", "b", "c", "d"]);
    }

    #[test]
    fn a_long_queue_of_tasks_that_end_at_once_does_not_overflow_the_stack() {
        let (gate, seen, held) = (Arc::<Gate>::default(), Seen::default(), Held::default());
        enter(&gate, "first", true, &seen, &held);
        let count = Arc::new(Mutex::new(0));
        for _ in 0..100_000 {
            let (gate, count) = (gate.clone(), count.clone());
            spawn(async move {
                let _pass = gate.alone().await;
                *count.lock() += 1;
            });
        }
        let passes: Vec<_> = held.lock().drain(..).collect();
        drop(passes);
        assert_eq!(*count.lock(), 100_000);
    }

    #[test]
    fn a_task_that_panics_leaves_the_gate_open() {
        let (gate, seen, held) = (Arc::<Gate>::default(), Seen::default(), Held::default());
        enter(&gate, "first", true, &seen, &held);
        for i in 0..3 {
            let (gate, seen) = (gate.clone(), seen.clone());
            spawn(async move {
                let _pass = gate.alone().await;
                seen.lock().push("one");
                assert!(i != 0, "on purpose");
            });
        }
        let passes: Vec<_> = held.lock().drain(..).collect();
        drop(passes);
        enter(&gate, "last", false, &seen, &held);
        assert_eq!(*seen.lock(), ["first", "one", "one", "one", "last"]);
    }
}
