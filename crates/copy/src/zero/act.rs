//! Turns ranges that are to read as zeroes into actions for the caller.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use device::{Buffer, Extent, Result};

use super::coalesce::Coalescer;
use super::known::{KnownRange, TargetState};
use super::policy::{Policy, ZeroBy};
use crate::Options;
use crate::answer::confused;
use crate::pair::Pair;
use crate::progress::Moved;

/// Ranges, and how each is made to read as zeroes.
pub(crate) type Acts = Vec<(Range<u64>, ZeroBy)>;

/// What is known and planned about zeroes, shared by all of a copy.
pub(crate) struct Zeroes {
    pub(crate) policy: Policy,
    /// What waits for its neighbours.
    pub(crate) waiting: Coalescer,
    /// The epoch of the target that the policy's knowledge is from.
    pub(crate) epoch: u64,
    /// The target's smallest block, and the longest write, in bytes.
    block: u64,
    longest: u64,
    buffer: OnceLock<Arc<Buffer>>,
}

impl Zeroes {
    pub(crate) fn new(pair: &Pair, options: &Options) -> Self {
        Self {
            policy: Policy::new(pair.target.info(), options, pair.sizes.request),
            waiting: match options.durably {
                Some(_) => Coalescer::of_few(),
                None => Coalescer::default(),
            },
            epoch: pair.target_epoch(),
            block: u64::from(pair.target.info().blocks.minimum),
            longest: pair.sizes.request,
            buffer: OnceLock::new(),
        }
    }

    /// A buffer of zeroes, one request long.
    pub(crate) fn buffer(&self) -> &Arc<Buffer> {
        let len = usize::try_from(self.longest).unwrap_or(4096);
        self.buffer.get_or_init(|| Arc::new(Buffer::zeroed(len)))
    }

    /// A range that is to read as zeroes. It may wait for its neighbours: then there is nothing to
    /// do yet.
    pub(crate) fn want(&self, range: Range<u64>) -> Acts {
        if let Some(how) = self.policy.reads_zero(range.clone()) {
            return vec![(range, ZeroBy::Skipping(how))];
        }
        if self.policy.told {
            return self.now(range);
        }
        self.waiting.add(range).map_or_else(Vec::new, |range| self.now(range))
    }

    /// A worker will ask no more. The last one gets all ranges that wait.
    pub(crate) fn leave(&self) -> Acts {
        self.waiting.leave().into_iter().flat_map(|range| self.now(range)).collect()
    }

    /// A range that is to read as zeroes and does not wait.
    pub(crate) fn now(&self, range: Range<u64>) -> Acts {
        let mut acts = Vec::new();
        for (range, how) in self.policy.decide(range) {
            // The target answers only for whole blocks; the end of the source may lie inside one.
            let asking = how == ZeroBy::Asking;
            let part = if asking { (range.end - range.start) % self.block } else { 0 };
            let whole = range.end - part;
            acts.push((range.start..whole, how));
            acts.push((whole..range.end, self.policy.do_it(part)));
        }
        acts.retain(|(range, _)| !range.is_empty());
        acts
    }

    /// The target has returned its map of a range that is to read as zeroes.
    ///
    /// # Errors
    /// The map makes no sense.
    pub(crate) fn answered(&self, range: &Range<u64>, extents: &[Extent]) -> Result<Acts> {
        let mut at = range.start;
        let mut parts = Vec::with_capacity(extents.len());
        for extent in extents {
            if extent.start != at || extent.len == 0 || extent.len > range.end - at {
                return Err(confused("target's map"));
            }
            let zero = extent.kind.reads_zero();
            let what = if zero { TargetState::Zero(Moved::Skipped) } else { TargetState::Data };
            parts.push(KnownRange { start: at, end: extent.end(), what });
            at = extent.end();
        }
        if at == range.start {
            return Err(confused("target's map"));
        }
        let mut acts = self.policy.by_parts(&parts);
        if at < range.end {
            acts.push((at..range.end, ZeroBy::Asking));
        }
        Ok(acts)
    }
}
