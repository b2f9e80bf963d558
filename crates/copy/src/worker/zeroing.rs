//! The part of a worker that makes ranges of the target read as zeroes.

use std::ops::Range;

use device::{Extent, Operation, Result, Slice};

use super::{Todo, Worker, confused};
use crate::known::{Part, What};
use crate::progress::Moved;
use crate::ticket::Task;
use crate::zero_policy::ZeroBy;

/// Extents asked of the target at a time.
pub(super) const TARGET_EXTENTS: usize = 256;

impl Worker {
    /// A range that shall read as zeroes; it may wait for its neighbours.
    pub(super) fn want_zero(&mut self, range: Range<u64>) {
        if let Some(how) = self.job.zero.reads_zero(range.clone()) {
            self.retire(range, how);
        } else if let Some(range) = self.job.ranges.add(range) {
            self.zero(range);
        }
    }

    pub(super) fn zero(&mut self, range: Range<u64>) {
        for (range, how) in self.job.zero.decide(range) {
            let min = u64::from(self.job.target.info().blocks.minimum);
            let part = if how == ZeroBy::Asking { (range.end - range.start) % min } else { 0 };
            // The target answers only for whole blocks; the end of the source may lie inside one.
            let whole = range.end - part;
            self.zero_by(how, range.start..whole);
            self.zero_by(self.job.zero.do_it(), whole..range.end);
        }
    }

    pub(super) fn zero_by(&mut self, how: ZeroBy, range: Range<u64>) {
        let (offset, len) = (range.start, range.end - range.start);
        if len == 0 {
            return;
        }
        match how {
            ZeroBy::Asking => self.todo(Todo::Resolve { offset, len }),
            ZeroBy::Request(flags) => self.todo(Todo::Zero { offset, len, flags }),
            ZeroBy::Skipping(how) => self.retire(range, how),
            ZeroBy::Writing => self.todo(Todo::WriteZeroes { offset, len }),
        }
    }

    /// Writes the first piece of a range of zeroes, and leaves the rest for later.
    pub(super) fn write_zeroes(&mut self, offset: u64, len: u64) {
        let zeroes = self.job.zeroes().clone();
        let room = self.job.sizes.request - offset % self.job.sizes.request;
        let n = len.min(room);
        if n < len {
            self.backlog.push_front(Todo::WriteZeroes { offset: offset + n, len: len - n });
        }
        let size = usize::try_from(n).unwrap_or(usize::MAX);
        let Some(data) = Slice::part(&zeroes, 0, size) else {
            return self.job.queue.stop(confused("copy"));
        };
        self.job.progress.touch();
        let ticket = self.tickets.issue(Task::Write { offset, len: size, zeroes: true });
        self.writes.started();
        self.target.start(ticket, Operation::Write { offset, data, fua: false });
    }

    /// The target has said what it holds where it shall read as zeroes.
    pub(super) fn resolved(&mut self, range: Range<u64>, extents: &[Extent]) -> Result<()> {
        let mut at = range.start;
        let mut parts = Vec::with_capacity(extents.len());
        for extent in extents {
            if extent.start != at || extent.len == 0 || extent.len > range.end - at {
                return Err(confused("target's map"));
            }
            let zero = extent.kind.reads_zero();
            let what = if zero { What::Zero(Moved::Skipped) } else { What::Data };
            parts.push(Part { start: at, end: extent.end(), what });
            at = extent.end();
        }
        if at == range.start {
            return Err(confused("target's map"));
        }
        for (part, how) in self.job.zero.by_parts(&parts) {
            self.zero_by(how, part);
        }
        if at < range.end {
            self.todo(Todo::Resolve { offset: at, len: range.end - at });
        }
        Ok(())
    }
}
