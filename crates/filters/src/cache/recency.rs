//! When blocks were used: the order in which to evict them.

use std::collections::{BTreeMap, HashMap};

/// The order of use. About a hundred bytes a block.
#[derive(Debug, Default)]
pub(super) struct Recency {
    clock: u64,
    blocks: BTreeMap<u64, u64>,
    times: HashMap<u64, u64>,
}

impl Recency {
    /// A block is used.
    pub(super) fn touch(&mut self, block: u64) {
        self.clock += 1;
        if let Some(before) = self.times.insert(block, self.clock) {
            self.blocks.remove(&before);
        }
        self.blocks.insert(self.clock, block);
    }

    /// Removes the least recently used block.
    pub(super) fn take_oldest(&mut self) -> Option<u64> {
        let (_, block) = self.blocks.pop_first()?;
        self.times.remove(&block);
        Some(block)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.times.len()
    }

    /// Forgets those that `keep` does not want.
    pub(super) fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.times.retain(|block, _| keep(*block));
        self.blocks.retain(|_, block| keep(*block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_that_was_not_used_for_the_longest_time_goes_first() {
        let mut recency = Recency::default();
        [1, 2, 3, 1, 4].into_iter().for_each(|block| recency.touch(block));
        recency.retain(|block| block != 3);
        assert_eq!(recency.len(), 3);
        let order: Vec<_> = std::iter::from_fn(|| recency.take_oldest()).collect();
        assert_eq!(order, [2, 1, 4]);
    }
}
