//! Which units a worker has begun, and how much of each is still to come.
//!
//! A unit is finished when every byte of it is right in the target; only then does the queue
//! forget it.

use crate::job::Job;
use crate::plan::Unit;
use crate::progress::Moved;

/// The units that this worker has begun and not finished.
#[derive(Debug, Default)]
pub(crate) struct Units(Vec<Begun>);

#[derive(Debug)]
struct Begun {
    start: u64,
    end: u64,
    left: u64,
}

impl Units {
    pub(crate) fn add(&mut self, unit: &Unit) {
        let Unit { start, end, .. } = *unit;
        self.0.push(Begun { start, end, left: end - start });
    }

    /// The range is right in the target. It may lie in several units.
    pub(crate) fn retire(&mut self, job: &Job, offset: u64, len: u64, how: Moved) {
        job.progress.add(how, len);
        let end = offset + len;
        self.0.retain_mut(|unit| {
            let common = unit.end.min(end).saturating_sub(unit.start.max(offset));
            unit.left = unit.left.saturating_sub(common);
            if unit.left == 0 {
                job.queue.finish(unit.start);
            }
            unit.left > 0
        });
    }
}
