//! What is known of each block of a disk: a tree that is as small as the disk is uniform.
//!
//! A stretch of blocks in one state is one node, however long it is; where states differ, a leaf
//! has a byte for each block. So zeroing a terabyte costs a few nodes, and the most that a disk
//! can need is little more than a byte a block.

use std::ops::Range;

/// Where the bytes of a block are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum State {
    /// In the device below, only.
    Below,
    /// In the device below, and the same here.
    Copy,
    /// Here; below are others.
    Changed,
    /// Nowhere: it reads as zeroes, whatever is below.
    Hole,
}

impl State {
    /// How many there are.
    const COUNT: usize = 4;

    /// Whether the bytes are here.
    pub(crate) fn is_here(self) -> bool {
        matches!(self, Self::Copy | Self::Changed)
    }
}

const LEAF: usize = 1024;
const FAN: usize = 64;

/// The states of all blocks. All begin as `Below`.
#[derive(Debug)]
pub(crate) struct States {
    root: Node,
    /// The root spans `LEAF * FAN^height` blocks.
    height: u32,
    /// Blocks that are not `Below`, by state.
    counts: [u64; State::COUNT],
}

#[derive(Debug)]
enum Node {
    All(State),
    Leaf(Box<[State; LEAF]>),
    Split(Box<[Node; FAN]>),
}

/// Blocks that a node of a height spans.
fn span(height: u32) -> u64 {
    (LEAF as u64).saturating_mul((FAN as u64).saturating_pow(height))
}

/// The index of a block, or of what it is in, which is small.
fn index(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

impl Default for States {
    fn default() -> Self {
        Self { root: Node::All(State::Below), height: 0, counts: [0; State::COUNT] }
    }
}

impl States {
    /// The number of blocks in `state`, which is not `Below`.
    pub(crate) fn count(&self, state: State) -> u64 {
        self.counts[state as usize]
    }

    /// The state of a block.
    pub(crate) fn get(&self, block: u64) -> State {
        self.stretch(block).0
    }

    /// The state of a block, and a block up to which the state is the same (it may be longer).
    fn stretch(&self, block: u64) -> (State, u64) {
        let (mut node, mut height, mut start) = (&self.root, self.height, 0);
        if block >= span(height) {
            return (State::Below, u64::MAX);
        }
        loop {
            match node {
                Node::All(state) => return (*state, start + span(height)),
                Node::Leaf(leaf) => {
                    let at = index(block - start);
                    let state = leaf[at];
                    let len = leaf[at..].iter().take_while(|s| **s == state).count();
                    return (state, block + len as u64);
                }
                Node::Split(children) => {
                    height -= 1;
                    let child = (block - start) / span(height);
                    start += child * span(height);
                    node = &children[index(child)];
                }
            }
        }
    }

    /// The first run of blocks in `range` that are alike as `class` sees them.
    pub(crate) fn run<C: PartialEq>(
        &self,
        range: Range<u64>,
        class: impl Fn(State) -> C,
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
    pub(crate) fn next(&self, mut range: Range<u64>, state: State) -> Option<Range<u64>> {
        while !range.is_empty() {
            let (found, run) = self.run(range.clone(), |s| s == state);
            if found {
                return Some(run);
            }
            range.start = run.end;
        }
        None
    }

    /// Whether all blocks of `range` are as `what` says.
    pub(crate) fn all(&self, range: Range<u64>, what: impl Fn(State) -> bool) -> bool {
        let (yes, run) = self.run(range.clone(), what);
        range.is_empty() || (yes && run == range)
    }

    /// Puts all blocks of `range` in `state`.
    pub(crate) fn set(&mut self, range: Range<u64>, state: State) {
        while range.end > span(self.height) {
            let below = std::array::from_fn(|_| Node::All(State::Below));
            let root = std::mem::replace(&mut self.root, Node::Split(Box::new(below)));
            match (root, &mut self.root) {
                (Node::All(State::Below), root) => *root = Node::All(State::Below),
                (old, Node::Split(children)) => children[0] = old,
                _ => {}
            }
            self.height += 1;
        }
        set(&mut self.root, self.height, 0, &range, state, &mut self.counts);
    }
}

type Counts = [u64; State::COUNT];

fn set(
    node: &mut Node,
    height: u32,
    start: u64,
    range: &Range<u64>,
    state: State,
    counts: &mut Counts,
) {
    let end = start + span(height);
    if range.end <= start || range.start >= end {
        return;
    }
    if range.start <= start && range.end >= end {
        forget(node, height, counts);
        more(counts, state, span(height));
        *node = Node::All(state);
        return;
    }
    if let Node::All(old) = *node {
        if old == state {
            return;
        }
        *node = if height == 0 {
            Node::Leaf(Box::new([old; LEAF]))
        } else {
            Node::Split(Box::new(std::array::from_fn(|_| Node::All(old))))
        };
    }
    let uniform = match node {
        Node::All(_) => true,
        Node::Leaf(leaf) => {
            let within =
                index(range.start.saturating_sub(start))..index(range.end.min(end) - start);
            for old in &mut leaf[within] {
                less(counts, *old, 1);
                more(counts, state, 1);
                *old = state;
            }
            // From both ends: blocks are often written one after another.
            leaf[LEAF - 1] == state && leaf.iter().all(|s| *s == state)
        }
        Node::Split(children) => {
            let step = span(height - 1);
            let first = range.start.saturating_sub(start) / step;
            let last = (range.end.min(end) - start).div_ceil(step);
            for child in first..last {
                let at = start + child * step;
                set(&mut children[index(child)], height - 1, at, range, state, counts);
            }
            children.iter().all(|c| matches!(c, Node::All(s) if *s == state))
        }
    };
    if uniform {
        *node = Node::All(state);
    }
}

fn more(counts: &mut Counts, state: State, n: u64) {
    if state != State::Below {
        counts[state as usize] += n;
    }
}

fn less(counts: &mut Counts, state: State, n: u64) {
    if state != State::Below {
        counts[state as usize] -= n;
    }
}

/// Takes the blocks of a node out of the counts.
fn forget(node: &Node, height: u32, counts: &mut Counts) {
    match node {
        Node::All(state) => less(counts, *state, span(height)),
        Node::Leaf(leaf) => leaf.iter().for_each(|state| less(counts, *state, 1)),
        Node::Split(children) => children.iter().for_each(|c| forget(c, height - 1, counts)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const N: u64 = 100_000;
    const ALL: [State; 4] = [State::Below, State::Copy, State::Changed, State::Hole];

    fn nodes(node: &Node) -> usize {
        match node {
            Node::Split(children) => 1 + children.iter().map(nodes).sum::<usize>(),
            _ => 1,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn states_are_those_of_a_plain_array(
            sets in prop::collection::vec((0..N, 1..N, 0..4usize, any::<bool>()), 1..20),
        ) {
            let mut model = vec![State::Below; index(N)];
            let mut states = States::default();
            for (start, len, state, short) in sets {
                let len = if short { len % 9 + 1 } else { len };
                let end = (start + len).min(N);
                states.set(start..end, ALL[state]);
                model[index(start)..index(end)].fill(ALL[state]);
            }
            for state in &ALL[1..] {
                let count = model.iter().filter(|s| *s == state).count() as u64;
                prop_assert_eq!(states.count(*state), count);
            }
            let mut at = 0;
            while at < N {
                let (state, run) = states.run(at..N, |s| s);
                prop_assert!(model[index(at)..index(run.end)].iter().all(|s| *s == state));
                prop_assert!(run.end == N || model[index(run.end)] != state);
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
        states.set(0..blocks, State::Hole);
        states.set(blocks / 3..blocks / 3 + 1, State::Changed);
        assert!(nodes(&states.root) < 16 * FAN);
        assert_eq!(states.count(State::Hole), blocks - 1);
        assert_eq!(states.next(0..blocks, State::Changed), Some(blocks / 3..blocks / 3 + 1));
        states.set(0..blocks, State::Below);
        assert_eq!((states.count(State::Hole), states.count(State::Changed)), (0, 0));
    }

    #[test]
    fn blocks_written_one_by_one_become_one_stretch_again() {
        let mut states = States::default();
        for block in 0..100_000 {
            states.set(block..block + 1, State::Changed);
        }
        assert!(nodes(&states.root) < 3 * FAN);
    }
}
