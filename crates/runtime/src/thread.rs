//! What a thread may be used for while it runs something.
//!
//! A fact of the thread and not of the work, so it does not travel: a task goes on on the thread
//! that wakes it, a reactor perhaps, where what held before its wait would block all other clients.

use std::cell::RefCell;

use crate::pool::WorkPool;
#[cfg(shuttle)]
use crate::sync::RefCellKey;
use crate::sync::{thread_local, with_local};

/// How long a thread may be kept.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
enum Leisure {
    /// Others wait for it: a reactor, the timers.
    None,
    /// It may compute, but not block: a worker of a copy drives other work beside; a thread of a
    /// pool would wait for the pool.
    ToCompute,
    /// It waits for the result anyway, so it may block.
    ToWait,
}

thread_local! {
    static LEISURE: RefCell<Leisure> = const { RefCell::new(Leisure::None) };
}

fn leisure() -> Leisure {
    LEISURE.with_borrow(|leisure| *leisure)
}

/// Whether this thread may be kept for long: it belongs to a pool, or waits for the result anyway.
/// A reactor and the timers may not.
#[must_use]
pub fn has_time() -> bool {
    leisure() >= Leisure::ToCompute
}

/// Whether this thread waits for the result of what it starts now, so that blocking work may as
/// well run here.
#[must_use]
pub fn is_waiting() -> bool {
    leisure() == Leisure::ToWait
}

/// Runs `work` on a thread that waits for its result and has nothing else to do meanwhile.
pub fn taking_time<R>(work: impl FnOnce() -> R) -> R {
    with_local(&LEISURE, Leisure::ToWait, work)
}

/// Runs `work` on a thread that only does what it starts itself (a worker of a copy): long
/// computations run here, blocking work does not.
pub fn having_time<R>(work: impl FnOnce() -> R) -> R {
    with_local(&LEISURE, leisure().max(Leisure::ToCompute), work)
}

/// Continues a task where a processor may be kept busy: here, if this thread has time, otherwise on
/// a thread of `pool`.
pub async fn where_there_is_time(pool: &WorkPool) {
    if !has_time() {
        pool.enter().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contained::contained;

    #[test]
    fn a_thread_has_as_much_time_as_it_had_once_work_within_has_ended_or_panicked() {
        let seen = || (has_time(), is_waiting());
        having_time(|| {
            assert_eq!(seen(), (true, false));
            let ended =
                contained("work", || taking_time(|| having_time(|| assert!(!is_waiting()))));
            assert!(ended.is_err(), "who waits may compute, and still waits");
            assert_eq!(seen(), (true, false));
        });
        assert_eq!(seen(), (false, false));
    }
}
