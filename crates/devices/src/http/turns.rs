//! Chunks that are wanted, by client: clients take turns, however many chunks each waits for.

use std::collections::{HashMap, VecDeque};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// What each client wants, in the order in which it asked. None is empty.
    queues: HashMap<u64, VecDeque<u64>>,
    /// Those clients; the first one's turn is next.
    order: VecDeque<u64>,
}

impl Turns {
    /// A client (0 is none) wants a chunk.
    pub(super) fn push(&mut self, client: u64, index: u64) {
        let queue = self.queues.entry(client).or_default();
        if queue.is_empty() {
            self.order.push_back(client);
        }
        if queue.back() != Some(&index) {
            queue.push_back(index);
        }
    }

    /// The first wish of the client whose turn it is.
    pub(super) fn first(&self) -> Option<u64> {
        self.queues.get(self.order.front()?)?.front().copied()
    }

    /// Removes it; it is still the same client's turn, if it wants more.
    pub(super) fn drop_first(&mut self) {
        let Some(client) = self.order.front() else { return };
        let Some(queue) = self.queues.get_mut(client) else { return };
        queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(client);
            self.order.pop_front();
        }
    }

    /// The same, and the next client's turn comes.
    pub(super) fn next_turn(&mut self) {
        let before = self.order.len();
        self.drop_first();
        if self.order.len() == before && before > 1 {
            self.order.rotate_left(1);
        }
    }

    /// How many wishes are kept.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.queues.values().map(VecDeque::len).sum()
    }

    /// Whether several clients wait.
    pub(super) fn is_shared(&self) -> bool {
        self.order.len() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_take_turns_however_much_each_wants() {
        let mut turns = Turns::default();
        (0..100).for_each(|index| turns.push(1, index));
        turns.push(2, 1000);
        (2000..2002).for_each(|index| turns.push(3, index));
        let mut order = Vec::new();
        while let Some(index) = turns.first() {
            order.push(index);
            turns.next_turn();
        }
        assert_eq!(order[..7], [0, 1000, 2000, 1, 2001, 2, 3]);
        assert_eq!(order.len(), 103);
        assert!(turns.queues.is_empty() && turns.order.is_empty());
    }
}
