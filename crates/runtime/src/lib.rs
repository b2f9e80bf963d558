//! Waiting and computing.
//!
//! A bounded [`WorkPool`] for work that may block a thread, [`Timers`] for work that is due later,
//! tasks ([`spawn`]) for work that waits without a thread, and synchronisation between tasks: a
//! [`Gate`], a [`Mailbox`], [`RangeLocks`], and [`each()`] for many pieces of which some are in
//! flight. One [`Context`], with one pool and one set of timers, serves a whole program, and all
//! that it opens. A [`batch()`] marks where several requests end.
//!
//! Each step of work has a [`Behalf`]: for which client, and whether that still wants it.
//!
//! What other crates share below them is here too: a [`Bell`], a [`RangeSet`], [`TimeBuckets`].
//!
//! This crate knows no disk. Nothing that runs in a pool waits for that pool, and a panic in a job,
//! a timer or a task ends that alone.

mod batch;
mod behalf;
mod bell;
mod contained;
mod context;
mod control;
mod cover;
mod debug;
mod deferred;
mod each;
mod gate;
mod mailbox;
mod numbers;
#[cfg(all(test, shuttle))]
mod orders;
mod pool;
mod ranges;
pub mod sync;
mod task;
mod thread;
mod timers;

pub use batch::{at_end_of_batch, batch, before_waiting};
pub use behalf::{Behalf, Wanted};
pub use bell::Bell;
pub use contained::{Panicked, contained, panics};
pub use context::{Context, Debugging, OperatorLog, Patience};
pub use control::{Complaint, Complaints, Control, Gauge};
pub use cover::Cover;
pub use deferred::{BegunJob, QuickJob, deferring};
pub use each::{StepBudget, each};
pub use gate::{Gate, Pass};
pub use mailbox::Mailbox;
pub use numbers::{SPREAD_STEP, TimeBuckets, spread_bits, to_usize};
pub use pool::WorkPool;
pub use ranges::{BlockAccess, RangeLock, RangeLocks, RangeSet};
pub use sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use task::{Promise, Promised, promise, spawn, spawn_while_wanted, wait_for};
pub use thread::{has_time, having_time, is_waiting, taking_time, where_there_is_time};
pub use timers::Timers;
