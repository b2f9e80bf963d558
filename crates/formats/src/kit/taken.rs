//! Which clusters of a container are taken: a bit for each, so that a check finds those that two
//! entries claim.

/// The most clusters with a bit of their own. A container that claims more costs no more memory.
const MOST: u64 = 1 << 29;

/// The clusters of a container, all free at first.
pub(crate) struct Taken {
    words: Vec<u64>,
    rooms: u64,
    count: u64,
}

impl Taken {
    /// So many rooms.
    pub(crate) fn of(rooms: u64) -> Self {
        let words = usize::try_from(rooms.min(MOST).div_ceil(64)).unwrap_or(0);
        Self { words: vec![0; words], rooms, count: 0 }
    }

    /// Whether each has a bit of its own.
    pub(crate) fn is_whole(&self) -> bool {
        self.rooms <= MOST
    }

    /// The number taken.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Whether this one is taken.
    pub(crate) fn has(&self, index: u64) -> bool {
        let word = usize::try_from(index / 64).ok().and_then(|at| self.words.get(at));
        word.is_some_and(|word| word & 1 << (index % 64) != 0)
    }

    /// Takes clusters; returns whether all of them were free, as far as they have bits.
    pub(crate) fn take(&mut self, first: u64, count: u64) -> bool {
        let mut free = true;
        for index in first..first.saturating_add(count).min(self.rooms) {
            let word = usize::try_from(index / 64).ok().and_then(|at| self.words.get_mut(at));
            let Some(word) = word else { break };
            let bit = 1 << (index % 64);
            if *word & bit == 0 {
                *word |= bit;
                self.count += 1;
            } else {
                free = false;
            }
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_is_taken_once_and_what_is_not_there_costs_nothing() {
        let mut taken = Taken::of(130);
        assert!(taken.is_whole() && taken.take(0, 1) && taken.take(60, 70));
        assert!(taken.has(129) && !taken.has(1) && !taken.has(u64::MAX));
        assert!(!taken.take(129, 5) && !taken.take(0, 1) && taken.take(1, 1));
        assert_eq!(taken.count(), 72);
        let mut endless = Taken::of(u64::MAX);
        assert!(!endless.is_whole() && endless.take(u64::MAX, 3) && endless.take(5, 1));
        assert_eq!(endless.count(), 1);
    }
}
