//! Long reads and writes of a queue, which copy all the time: where several wait, threads of the
//! pool help its own. A helper takes one after the other, since to wake a thread for each costs
//! more than it saves. Reads have as many helpers as there are processors beside its own, and the
//! queue's thread takes of them, too, when the guest has no more requests. Writes have one, since
//! writers of a file wait for each other: meanwhile the queue's thread copies what is written next.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::available_parallelism;

use runtime::{Mutex, WorkPool};

/// What does a long read or write. Dropped, it fails.
type LongCopy = Box<dyn FnOnce() + Send>;

/// Long reads and writes that have begun and that no thread does yet.
pub(super) struct LongCopies {
    reads: Mutex<Waiting>,
    writes: Mutex<Waiting>,
}

struct Waiting {
    copies: VecDeque<LongCopy>,
    helpers: usize,
    /// Helpers, at most.
    most: usize,
}

impl Waiting {
    fn new(most: usize) -> Mutex<Self> {
        Mutex::new(Self { copies: VecDeque::new(), helpers: 0, most })
    }
}

impl LongCopies {
    pub(super) fn new() -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self { reads: Waiting::new((processors - 1).max(1)), writes: Waiting::new(1) }
    }

    fn waiting(&self, is_write: bool) -> &Mutex<Waiting> {
        if is_write { &self.writes } else { &self.reads }
    }

    /// Adds one, or does it at once, if the guest has no more requests. None is left without a
    /// helper: the queue's own thread may wait for memory that it holds. No copy may panic.
    pub(super) fn add(
        self: &Arc<Self>,
        pool: &WorkPool,
        (is_write, has_more): (bool, bool),
        copy: impl FnOnce() + Send + 'static,
    ) {
        let mut waiting = self.waiting(is_write).lock();
        let wanted = (waiting.copies.len() + usize::from(has_more)).min(waiting.most);
        if wanted == 0 && waiting.helpers == 0 {
            drop(waiting);
            return copy();
        }
        waiting.copies.push_back(Box::new(copy));
        if waiting.helpers < wanted {
            waiting.helpers += 1;
            drop(waiting);
            let own = self.clone();
            pool.run(move || while own.run(is_write, true) {});
        }
    }

    /// Does the next read; whether there was one.
    pub(super) fn read(&self) -> bool {
        self.run(false, false)
    }

    /// Does the next one; whether there was one. Where not, a helper is none any more.
    fn run(&self, is_write: bool, is_helper: bool) -> bool {
        let mut waiting = self.waiting(is_write).lock();
        let next = waiting.copies.pop_front();
        waiting.helpers -= usize::from(is_helper && next.is_none());
        drop(waiting);
        let is_there = next.is_some();
        if let Some(copy) = next {
            copy();
        }
        is_there
    }
}
