//! Which task must wait for which, when tasks ask for ranges of blocks one after another.
//!
//! Neighbouring blocks with the same tasks are one segment. A segment remembers only the tasks that
//! a newcomer must wait for itself: an owner of blocks waits for all tasks before it, so those are
//! forgotten. So a newcomer visits the segments of its range (which an owner merges into one),
//! never all other tasks.

use std::collections::BTreeMap;
use std::ops::Range;

use super::locks::BlockAccess;

/// With fewer segments than this, none are removed.
const FEW: usize = 64;

/// The segments. No current task has asked for blocks outside of them.
#[derive(Debug, Default)]
pub(super) struct Queues {
    segments: BTreeMap<u64, Segment>,
    /// How many segments were left when unused ones were last removed.
    left: usize,
}

/// The latest tasks, by number, that asked for some blocks; some may be done.
#[derive(Clone, Debug, Default)]
struct Segment {
    end: u64,
    owner: Option<u64>,
    /// The last task since then that asked to save.
    saver: Option<u64>,
    /// The tasks that asked to write since both.
    writers: Vec<u64>,
    /// The tasks that asked to read since the owner.
    readers: Vec<u64>,
}

impl Segment {
    /// The tasks that a newcomer waits for: all that exclude it, except those that one of these
    /// waits for itself.
    fn before(&self, access: BlockAccess) -> impl Iterator<Item = u64> {
        let (saver, writers, readers): (_, &[u64], &[u64]) = match access {
            BlockAccess::Read => (None, &[], &[]),
            BlockAccess::Write => (self.saver, &[], &[]),
            BlockAccess::Save => (self.saver, &self.writers, &[]),
            BlockAccess::Own => (self.saver, &self.writers, &self.readers),
        };
        self.owner.into_iter().chain(saver).chain(writers.iter().chain(readers).copied())
    }

    fn push(&mut self, number: u64, access: BlockAccess, is_here: &impl Fn(u64) -> bool) {
        match access {
            BlockAccess::Read => push(&mut self.readers, number, is_here),
            BlockAccess::Write => push(&mut self.writers, number, is_here),
            BlockAccess::Save => {
                self.saver = Some(number);
                self.writers.clear();
            }
            BlockAccess::Own => {
                *self = Self { end: self.end, owner: Some(number), ..Self::default() }
            }
        }
    }

    /// Forgets the tasks that are done; returns whether any is left.
    fn tidy(&mut self, is_here: &impl Fn(u64) -> bool) -> bool {
        self.owner = self.owner.filter(|n| is_here(*n));
        self.saver = self.saver.filter(|n| is_here(*n));
        self.writers.retain(|n| is_here(*n));
        self.readers.retain(|n| is_here(*n));
        let alone = self.owner.is_none() && self.saver.is_none();
        !(alone && self.writers.is_empty() && self.readers.is_empty())
    }
}

/// Adds `number`. A full list first drops the tasks that are done, and doubles only if half of it
/// is in use.
fn push(numbers: &mut Vec<u64>, number: u64, is_here: &impl Fn(u64) -> bool) {
    if numbers.len() == numbers.capacity() {
        numbers.retain(|n| is_here(*n));
        if numbers.len() < numbers.capacity() / 2 {
            numbers.shrink_to(numbers.len() * 2);
        }
    }
    numbers.push(number);
}

impl Queues {
    /// The tasks that a task asking for `blocks` now would wait for. Some appear more than once,
    /// and some are done.
    pub(super) fn before(
        &self,
        blocks: &Range<u64>,
        access: BlockAccess,
    ) -> impl Iterator<Item = u64> + use<'_> {
        let first = self.segments.range(..blocks.start).next_back().map(|(_, segment)| segment);
        let first = first.filter(|segment| segment.end > blocks.start && !blocks.is_empty());
        let others = self.segments.range(blocks.start..blocks.end.max(blocks.start));
        let touched = first.into_iter().chain(others.map(|(_, segment)| segment));
        touched.flat_map(move |segment| segment.before(access))
    }

    /// `number` asks for `blocks`; `is_here` says which tasks are not done.
    pub(super) fn enter(
        &mut self,
        number: u64,
        blocks: &Range<u64>,
        access: BlockAccess,
        is_here: impl Fn(u64) -> bool,
    ) {
        if blocks.is_empty() {
            return;
        }
        self.tidy(&is_here);
        self.cut(blocks.start);
        self.cut(blocks.end);
        if access == BlockAccess::Own {
            self.clear(blocks);
        }
        let mut at = blocks.start;
        let mut gaps = Vec::new();
        for (start, segment) in self.segments.range_mut(blocks.clone()) {
            if at < *start {
                gaps.push(at..*start);
            }
            debug_assert!(at <= *start && *start < segment.end, "segments do not overlap");
            at = segment.end;
            segment.push(number, access, &is_here);
        }
        if at < blocks.end {
            gaps.push(at..blocks.end);
        }
        debug_assert!(at <= blocks.end, "a segment was cut at each end");
        for gap in gaps {
            let mut segment = Segment { end: gap.end, ..Segment::default() };
            segment.push(number, access, &is_here);
            self.segments.insert(gap.start, segment);
        }
    }

    /// No task is left.
    pub(super) fn forget(&mut self) {
        self.segments.clear();
        self.left = 0;
    }

    /// Makes a segment begin at `block`, if one reaches over it.
    fn cut(&mut self, block: u64) {
        let Some((_, segment)) = self.segments.range_mut(..block).next_back() else { return };
        if segment.end > block {
            let rest = segment.clone();
            segment.end = block;
            self.segments.insert(block, rest);
        }
    }

    fn clear(&mut self, blocks: &Range<u64>) {
        while let Some((start, _)) = self.segments.range(blocks.clone()).next() {
            let start = *start;
            self.segments.remove(&start);
        }
    }

    /// Removes unused segments, if there are twice as many as were left the last time.
    fn tidy(&mut self, is_here: &impl Fn(u64) -> bool) {
        if self.segments.len() >= FEW.max(self.left.saturating_mul(2)) {
            self.segments.retain(|_, segment| segment.tidy(is_here));
            self.left = self.segments.len();
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.segments.len()
    }

    /// Room for numbers in all segments.
    #[cfg(test)]
    pub(super) fn numbers(&self) -> usize {
        let all = self.segments.values();
        all.map(|segment| segment.writers.capacity() + segment.readers.capacity()).sum()
    }
}
