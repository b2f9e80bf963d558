//! Ranges of numbers, of bytes or of blocks: a set of them, and locks on them.

mod locks;
mod queues;
mod set;

pub use locks::{BlockAccess, RangeLock, RangeLocks};
pub use set::RangeSet;
