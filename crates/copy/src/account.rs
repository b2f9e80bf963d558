//! The account of a copy: what is to be done, what is right in the target, and what stopped it.

use std::ops::Range;
use std::sync::Arc;

use crate::ledger::Ledger;
use crate::progress::{Cancel, Moved, Progress};
use crate::queue::Queue;

pub(crate) struct CopyAccount {
    pub(crate) queue: Queue,
    /// What is not durable yet, if the target may forget it.
    pub(crate) ledger: Option<Arc<Ledger>>,
    pub(crate) progress: Progress,
    pub(crate) cancel: Cancel,
}

impl CopyAccount {
    /// The range is right in the target, by what began in the epoch `began`. It may lie in several
    /// units.
    pub(crate) fn retire(&self, range: Range<u64>, how: Moved, began: u64) {
        self.progress.add(how, range.end - range.start);
        self.queue.retire(&range);
        if let Some(ledger) = &self.ledger {
            ledger.written(range, how, began);
        }
    }

    /// Whether all threads are to stop.
    pub(crate) fn is_over(&self) -> bool {
        self.cancel.is_cancelled() || self.queue.is_stopped()
    }
}
