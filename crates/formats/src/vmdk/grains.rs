//! Grains that were decompressed lately, for those who read less than a grain at a time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::Buffer;

/// Bytes that are kept.
const BUDGET: usize = 8 << 20;

/// What a grain is known by: its extent, and its number there.
pub(super) type Key = (usize, u64);

/// The grains that are kept, the one that was used last at the end.
#[derive(Default)]
pub(super) struct Grains(Mutex<Vec<(Key, Arc<Buffer>)>>);

impl Grains {
    fn lock(&self) -> MutexGuard<'_, Vec<(Key, Arc<Buffer>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, key: Key) -> Option<Arc<Buffer>> {
        let mut kept = self.lock();
        let at = kept.iter().rposition(|(other, _)| *other == key)?;
        let found = kept.remove(at);
        let grain = found.1.clone();
        kept.push(found);
        Some(grain)
    }

    pub(super) fn keep(&self, key: Key, grain: Arc<Buffer>) {
        let mut gone = VecDeque::new();
        let mut kept = self.lock();
        kept.retain(|(other, _)| *other != key);
        kept.push((key, grain));
        let mut bytes: usize = kept.iter().map(|(_, grain)| grain.capacity()).sum();
        while bytes > BUDGET && kept.len() > 1 {
            let first = kept.remove(0);
            bytes -= first.1.capacity();
            gone.push_back(first);
        }
        // They are given back when nobody waits for the lock.
        drop(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grains_that_were_used_last_stay_within_the_budget() {
        let grains = Grains::default();
        for number in 0..200 {
            grains.keep((0, number), Arc::new(Buffer::zeroed(64 << 10)));
            assert!(grains.get((0, 0)).is_some());
        }
        let bytes: usize = grains.lock().iter().map(|(_, grain)| grain.capacity()).sum();
        assert!(bytes <= BUDGET && grains.get((0, 1)).is_none() && grains.get((0, 199)).is_some());
    }
}
