//! The state of each block of a disk, in a map that is small if the disk is uniform.
//!
//! A stretch of blocks in one state is one entry, however long it is; where states change often, a
//! table has a byte for each block. So zeroing a terabyte costs one entry, and a disk needs little
//! more than a byte per block at most. Memory is limited: callers ask [`States::is_full`] before
//! they add to it.

use std::collections::BTreeMap;
use std::ops::Range;

use runtime::to_usize;

/// Where the bytes of a block are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum BlockState {
    /// Only in the device below.
    Below,
    /// In the device below, with the same bytes here.
    Copy,
    /// Here, with other bytes below.
    Changed,
    /// Nowhere: the block reads as zeroes, whatever is below.
    Hole,
}

impl BlockState {
    /// How many states there are.
    const COUNT: usize = 4;

    /// Whether the bytes are here.
    pub(crate) fn is_here(self) -> bool {
        matches!(self, Self::Copy | Self::Changed)
    }
}

/// Blocks of a table; it begins at a multiple of this.
const TABLE: u64 = LEN as u64;
const LEN: usize = 1024;
/// A table replaces this many stretches in its range: it costs as much.
const CROWD: usize = 16;
/// About the most memory that a stretch costs, in bytes.
const COST: usize = 64;
/// The most memory, in bytes: enough for 16 million separate blocks, or a thousand million in a
/// row.
const LARGEST: usize = 1 << 30;

/// The states of all blocks, at first all `Below`.
#[derive(Debug)]
pub(crate) struct States {
    /// By their first block. Blocks in none are `Below`.
    stretches: BTreeMap<u64, Stretch>,
    /// How many of them are tables.
    tables: usize,
    /// Blocks that are not `Below`, by state.
    counts: [u64; BlockState::COUNT],
    /// The memory beyond which they are full, in bytes.
    largest: usize,
}

#[derive(Debug)]
struct Stretch {
    end: u64,
    blocks: Blocks,
}

#[derive(Debug)]
enum Blocks {
    /// All blocks are in this state, which is not `Below`.
    All(BlockState),
    /// Each block has its own state; they differ.
    Each(Box<[BlockState; LEN]>),
}

/// The index of a block in a table.
fn index(block: u64) -> usize {
    to_usize(block % TABLE)
}

/// The blocks of the table in which a block would be.
fn table(block: u64) -> Range<u64> {
    let start = block - block % TABLE;
    start..start.saturating_add(TABLE)
}

impl Default for States {
    fn default() -> Self {
        let counts = [0; BlockState::COUNT];
        Self { stretches: BTreeMap::new(), tables: 0, counts, largest: LARGEST }
    }
}

impl States {
    /// Whether setting `range` would exceed the memory limit. Callers must not set it then.
    pub(crate) fn is_full(&self, range: &Range<u64>) -> bool {
        let tables = self.tables * size_of::<[BlockState; LEN]>();
        if self.stretches.len() * COST + tables < self.largest {
            return false;
        }
        // Two stretches are cut off, and two others disappear.
        let is_table = self.stretches.get(&table(range.start).start).is_some_and(Stretch::is_table);
        let in_table = is_table && range.end <= table(range.start).end;
        !in_table && self.stretches.range(range.clone()).take(2).count() < 2
    }

    /// Lowers the limit.
    #[cfg(test)]
    pub(crate) fn limit(&mut self, bytes: usize) {
        self.largest = bytes;
    }

    /// The number of blocks in `state`, which is not `Below`.
    pub(crate) fn count(&self, state: BlockState) -> u64 {
        self.counts[state as usize]
    }

    /// The state of a block.
    pub(crate) fn get(&self, block: u64) -> BlockState {
        self.stretch(block).0
    }

    /// The state of a block, and a block up to which the state is the same (perhaps not the last).
    fn stretch(&self, block: u64) -> (BlockState, u64) {
        let last = self.stretches.range(..=block).next_back();
        match last.map(|(_, stretch)| stretch).filter(|stretch| block < stretch.end) {
            Some(Stretch { end, blocks: Blocks::All(state) }) => (*state, *end),
            Some(Stretch { blocks: Blocks::Each(each), .. }) => {
                let rest = &each[index(block)..];
                let state = each[index(block)];
                let len = rest.iter().take_while(|s| **s == state).count();
                (state, block + len as u64)
            }
            None => {
                let next = self.stretches.range(block..).next();
                (BlockState::Below, next.map_or(u64::MAX, |(start, _)| *start))
            }
        }
    }

    /// The first run of blocks in `range` that are alike as `class` sees them.
    pub(crate) fn run<C: PartialEq>(
        &self,
        range: Range<u64>,
        class: impl Fn(BlockState) -> C,
    ) -> (C, Range<u64>) {
        let (state, mut end) = self.stretch(range.start);
        let found = class(state);
        while end < range.end {
            let (state, next) = self.stretch(end);
            if class(state) != found {
                break;
            }
            end = next;
        }
        (found, range.start..end.min(range.end))
    }

    /// The first run of blocks in `range` that are in `state`.
    pub(crate) fn next(&self, mut range: Range<u64>, state: BlockState) -> Option<Range<u64>> {
        while !range.is_empty() {
            let (found, run) = self.run(range.clone(), |s| s == state);
            if found {
                return Some(run);
            }
            range.start = run.end;
        }
        None
    }

    /// Whether `what` holds for all blocks of `range`.
    pub(crate) fn all(&self, range: Range<u64>, what: impl Fn(BlockState) -> bool) -> bool {
        let (yes, run) = self.run(range.clone(), what);
        range.is_empty() || (yes && run == range)
    }

    /// Puts all blocks of `range` in `state`.
    pub(crate) fn set(&mut self, range: Range<u64>, state: BlockState) {
        let mut rest = range;
        if rest.is_empty() {
            return;
        }
        // The tables at both ends stay, if they are only touched.
        if let Some(part) = self.set_in_table(rest.start, &rest, state) {
            rest.start = part.end;
        }
        if let Some(last) = rest.end.checked_sub(1).filter(|last| rest.contains(last))
            && let Some(part) = self.set_in_table(last, &rest, state)
        {
            rest.end = part.start;
        }
        if rest.is_empty() {
            return;
        }
        self.clear(&rest);
        if state != BlockState::Below {
            self.add(rest.clone(), state);
        }
        self.thin_out(rest.start);
        self.thin_out(rest.end);
    }

    /// If `block` is in a table that `range` does not cover, sets the table's part of the range.
    /// Returns that part.
    fn set_in_table(
        &mut self,
        block: u64,
        range: &Range<u64>,
        state: BlockState,
    ) -> Option<Range<u64>> {
        let whole = table(block);
        let covered = range.start <= whole.start && whole.end <= range.end;
        let stretch = self.stretches.get_mut(&whole.start).filter(|_| !covered)?;
        let Blocks::Each(each) = &mut stretch.blocks else { return None };
        let part = range.start.max(whole.start)..range.end.min(whole.end);
        for old in &mut each[index(part.start)..=index(part.end - 1)] {
            less(&mut self.counts, *old, 1);
            more(&mut self.counts, state, 1);
            *old = state;
        }
        // From both ends: blocks are often written one after another.
        if each[index(TABLE - 1)] == state && each.iter().all(|s| *s == state) {
            self.clear(&whole);
            if state != BlockState::Below {
                self.add(whole, state);
            }
        }
        Some(part)
    }

    /// Makes all blocks of `range` `Below`. No table is in it in part.
    fn clear(&mut self, range: &Range<u64>) {
        self.cut(range.start);
        self.cut(range.end);
        while let Some((start, _)) = self.stretches.range(range.clone()).next() {
            let start = *start;
            match self.stretches.remove(&start) {
                Some(Stretch { end, blocks: Blocks::All(state) }) => {
                    less(&mut self.counts, state, end - start);
                }
                Some(Stretch { blocks: Blocks::Each(each), .. }) => {
                    self.tables -= 1;
                    each.iter().for_each(|state| less(&mut self.counts, *state, 1));
                }
                None => {}
            }
        }
    }

    /// Makes a stretch begin at `block`, if one that is alike reaches over it.
    fn cut(&mut self, block: u64) {
        let Some((_, stretch)) = self.stretches.range_mut(..block).next_back() else { return };
        if let (Stretch { end, blocks: Blocks::All(state) }, true) = (&stretch, stretch.end > block)
        {
            let rest = Stretch { end: *end, blocks: Blocks::All(*state) };
            stretch.end = block;
            self.stretches.insert(block, rest);
        }
    }

    /// Puts blocks that are `Below` in another state, together with those beside them.
    fn add(&mut self, range: Range<u64>, state: BlockState) {
        more(&mut self.counts, state, range.end - range.start);
        let Range { mut start, mut end } = range;
        if let Some((before, stretch)) = self.stretches.range(..start).next_back()
            && stretch.end == start
            && stretch.is_all(state)
        {
            start = *before;
        }
        if let Some(after) = self.stretches.get(&end).filter(|after| after.is_all(state)) {
            let next = end;
            end = after.end;
            self.stretches.remove(&next);
        }
        self.stretches.insert(start, Stretch { end, blocks: Blocks::All(state) });
    }

    /// Makes a table around `block`, if there are many stretches.
    fn thin_out(&mut self, block: u64) {
        let whole = table(block);
        if whole.end - whole.start < TABLE
            || self.stretches.range(whole.clone()).take(CROWD).count() < CROWD
        {
            return;
        }
        let mut each = Box::new([BlockState::Below; LEN]);
        let mut at = whole.start;
        while at < whole.end {
            let (state, end) = self.stretch(at);
            let end = end.min(whole.end);
            each[index(at)..=index(end - 1)].fill(state);
            at = end;
        }
        self.clear(&whole);
        each.iter().for_each(|state| more(&mut self.counts, *state, 1));
        self.tables += 1;
        let stretch = Stretch { end: whole.end, blocks: Blocks::Each(each) };
        self.stretches.insert(whole.start, stretch);
    }
}

impl Stretch {
    fn is_table(&self) -> bool {
        matches!(&self.blocks, Blocks::Each(_))
    }

    fn is_all(&self, state: BlockState) -> bool {
        matches!(&self.blocks, Blocks::All(s) if *s == state)
    }
}

type Counts = [u64; BlockState::COUNT];

fn more(counts: &mut Counts, state: BlockState, n: u64) {
    if state != BlockState::Below {
        counts[state as usize] += n;
    }
}

fn less(counts: &mut Counts, state: BlockState, n: u64) {
    if state != BlockState::Below {
        counts[state as usize] -= n;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const N: u64 = 100_000;
    const ALL: [BlockState; 4] =
        [BlockState::Below, BlockState::Copy, BlockState::Changed, BlockState::Hole];

    fn plain(n: u64) -> usize {
        usize::try_from(n).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn states_are_those_of_a_plain_array(
            sets in prop::collection::vec((0..N, 1..N, 0..4usize, 0..4u8), 1..300),
        ) {
            let mut model = vec![BlockState::Below; plain(N)];
            let mut states = States::default();
            for (start, len, state, short) in sets {
                // Most are short, and many of them in one place.
                let (start, len) = match short {
                    0 => (start, len),
                    1 => (start, len % 9 + 1),
                    _ => (start % 3000, len % 30 + 1),
                };
                let end = (start + len).min(N);
                states.set(start..end, ALL[state]);
                model[plain(start)..plain(end)].fill(ALL[state]);
            }
            for state in &ALL[1..] {
                let count = model.iter().filter(|s| *s == state).count() as u64;
                prop_assert_eq!(states.count(*state), count);
            }
            let mut at = 0;
            while at < N {
                let (state, run) = states.run(at..N, |s| s);
                prop_assert!(model[plain(at)..plain(run.end)].iter().all(|s| *s == state));
                prop_assert!(run.end == N || model[plain(run.end)] != state);
                at = run.end;
            }
            for state in ALL {
                let first = model[77..].iter().position(|s| *s == state).map(|i| i as u64 + 77);
                prop_assert_eq!(states.next(77..N, state).map(|r| r.start), first);
            }
        }
    }

    #[test]
    fn the_largest_disk_in_one_state_costs_a_few_nodes() {
        let mut states = States::default();
        let blocks = (1u64 << 63) / 4096;
        states.set(0..blocks, BlockState::Hole);
        states.set(blocks / 3..blocks / 3 + 1, BlockState::Changed);
        assert_eq!((states.stretches.len(), states.tables), (3, 0));
        assert_eq!(states.count(BlockState::Hole), blocks - 1);
        assert_eq!(states.next(0..blocks, BlockState::Changed), Some(blocks / 3..blocks / 3 + 1));
        states.set(0..blocks, BlockState::Below);
        assert_eq!((states.count(BlockState::Hole), states.count(BlockState::Changed)), (0, 0));
    }

    #[test]
    fn blocks_written_one_by_one_become_one_stretch_again() {
        let mut states = States::default();
        for block in 0..100_000 {
            states.set(block..block + 1, BlockState::Changed);
        }
        assert_eq!((states.stretches.len(), states.tables), (1, 0));
    }

    #[test]
    fn blocks_apart_cost_little_and_blocks_beside_each_other_a_byte() {
        let mut apart = States::default();
        for i in 0..10_000 {
            apart.set(i << 33..(i << 33) + 1, BlockState::Hole);
        }
        assert_eq!((apart.stretches.len(), apart.tables), (10_000, 0));
        let mut dense = States::default();
        for i in 0..TABLE * 10 {
            dense.set(
                i..i + 1,
                if i.is_multiple_of(2) { BlockState::Copy } else { BlockState::Changed },
            );
        }
        assert_eq!((dense.stretches.len(), dense.tables), (10, 10));
        assert!(!apart.is_full(&(3..4)));
        apart.limit(COST * 10_000);
        assert!(apart.is_full(&(3..4)) && apart.is_full(&(0..1 << 33)));
        // There is always room if something is removed too.
        assert!(!apart.is_full(&(0..2 << 33)));
        dense.limit(0);
        assert!(!dense.is_full(&(3..4)) && dense.is_full(&(TABLE * 10..TABLE * 10 + 1)));
        dense.set(0..TABLE * 10, BlockState::Below);
        assert_eq!((dense.stretches.len(), dense.tables), (0, 0));
    }
}
