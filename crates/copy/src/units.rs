//! Which units are begun, and how much of each is still to come.
//!
//! A unit is finished when every byte of it is right in the target; only then does the queue
//! forget it. A range of zeroes may lie in units of several workers, so they share the account.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::job::Job;
use crate::plan::Unit;
use crate::progress::Moved;

/// The units that are begun and not finished, by their start.
#[derive(Debug, Default)]
pub(crate) struct Units(Mutex<BTreeMap<u64, Begun>>);

#[derive(Debug)]
struct Begun {
    end: u64,
    left: u64,
}

impl Units {
    pub(crate) fn add(&self, unit: &Unit) {
        let Unit { start, end, .. } = *unit;
        let mut units = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        units.insert(start, Begun { end, left: end - start });
    }

    /// The range is right in the target. It may lie in several units.
    pub(crate) fn retire(&self, job: &Job, offset: u64, len: u64, how: Moved) {
        job.progress.add(how, len);
        let end = offset + len;
        let mut units = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = units.range(..=offset).next_back().map_or(offset, |(start, _)| *start);
        let mut finished = Vec::new();
        for (start, unit) in units.range_mut(first..end) {
            let common = unit.end.min(end).saturating_sub((*start).max(offset));
            unit.left = unit.left.saturating_sub(common);
            if unit.left == 0 {
                finished.push(*start);
            }
        }
        for start in finished {
            units.remove(&start);
            job.queue.finish(start);
        }
    }
}
