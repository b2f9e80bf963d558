//! A cache of table slices and decompressed clusters. All images of a program share one memory
//! budget, of which those have less while images hold changes that are not saved.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use runtime::{Context, Mutex, MutexGuard};

/// The memory budget, in bytes, of all images together.
const BUDGET: usize = 32 << 20;
/// Parts, each with a lock of its own.
const PARTS: usize = 8;
/// Bytes that a part keeps whatever is held beside the entries.
const LEAST: usize = BUDGET / PARTS / 4;
/// Overhead of an entry, in bytes.
const OVERHEAD: usize = 128;

/// The cache of a program.
pub(crate) struct Cache {
    parts: [Mutex<Part>; PARTS],
    shelves: AtomicU64,
    /// Bytes of the budget that are held beside the entries.
    held: AtomicUsize,
}

/// The shelf for one kind of entry of one image. Dropping it drops its entries.
pub(crate) struct Shelf {
    cache: Arc<Cache>,
    number: u64,
    /// Bytes of the budget that its owner holds beside the entries.
    held: AtomicUsize,
}

type Key = (u64, u64);

/// Entries in a circle with a moving hand (the CLOCK algorithm): an entry used since the hand's
/// last visit stays.
#[derive(Default)]
struct Part {
    index: HashMap<Key, usize>,
    entries: Vec<Entry>,
    hand: usize,
    bytes: usize,
}

struct Entry {
    key: Key,
    bytes: Arc<[u8]>,
    used: bool,
}

impl Cache {
    /// The cache of this program.
    pub(crate) fn of(context: &Context) -> Arc<Self> {
        #[derive(Clone, PartialEq)]
        struct OfImages;
        let mut is_new = false;
        let made = context.common(&OfImages, || {
            is_new = true;
            Ok::<_, std::convert::Infallible>(Self::new())
        });
        let cache: Arc<Self> = made.unwrap_or_else(|never| match never {});
        if is_new {
            let (name, help) = ("diskferry_image_cache_bytes", "Bytes kept of images");
            let all = Arc::downgrade(&cache);
            context.control.on_measured(name, help, move || all.upgrade().map_or(0, |c| c.bytes()));
        }
        cache
    }

    /// Bytes that are kept now.
    fn bytes(&self) -> u64 {
        let parts = self.parts.iter().map(|part| part.lock());
        parts.map(|part| part.bytes as u64).sum()
    }

    fn new() -> Self {
        Self { parts: Default::default(), shelves: AtomicU64::new(0), held: AtomicUsize::new(0) }
    }

    /// A shelf for one kind of entry.
    pub(crate) fn shelf(self: &Arc<Self>) -> Shelf {
        let number = self.shelves.fetch_add(1, Ordering::Relaxed);
        Shelf { cache: self.clone(), number, held: AtomicUsize::new(0) }
    }

    /// Bytes that a part may keep now.
    fn room(&self) -> usize {
        (BUDGET.saturating_sub(self.held.load(Ordering::Relaxed)) / PARTS).max(LEAST)
    }

    fn part(&self, (shelf, offset): Key) -> MutexGuard<'_, Part> {
        let mixed = (offset ^ shelf << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let [first, ..] = &self.parts;
        let part = usize::try_from(mixed).ok().and_then(|n| self.parts.get(n % PARTS));
        part.unwrap_or(first).lock()
    }
}

impl Shelf {
    /// The entry at `offset`.
    pub(crate) fn get(&self, offset: u64) -> Option<Arc<[u8]>> {
        let key = (self.number, offset);
        let mut part = self.cache.part(key);
        let at = *part.index.get(&key)?;
        let entry = part.entries.get_mut(at)?;
        entry.used = true;
        Some(entry.bytes.clone())
    }

    /// Keeps `bytes` under `offset`, for as long as there is room.
    pub(crate) fn put(&self, offset: u64, bytes: Arc<[u8]>) {
        let key = (self.number, offset);
        let room = self.cache.room();
        self.cache.part(key).put(key, bytes, room);
    }

    /// The owner holds so many bytes now that are not entries, of which those for `offset` are the
    /// last: the entry under it is out of date.
    pub(crate) fn holds(&self, bytes: usize, offset: u64) {
        self.hold(bytes);
        let key = (self.number, offset);
        let room = self.cache.room();
        let mut part = self.cache.part(key);
        part.remove(key);
        part.shrink(room);
    }

    /// The owner holds so many bytes now that are not entries.
    pub(crate) fn hold(&self, bytes: usize) {
        let before = self.held.swap(bytes, Ordering::Relaxed);
        self.cache.held.fetch_add(bytes, Ordering::Relaxed);
        self.cache.held.fetch_sub(before, Ordering::Relaxed);
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        self.hold(0);
        for part in &self.cache.parts {
            let mut part = part.lock();
            let mine: Vec<_> =
                part.index.keys().filter(|key| key.0 == self.number).copied().collect();
            mine.into_iter().for_each(|key| part.remove(key));
        }
    }
}

impl Part {
    /// Keeps an entry within so many bytes.
    fn put(&mut self, key: Key, bytes: Arc<[u8]>, room: usize) {
        let cost = bytes.len() + OVERHEAD;
        self.remove(key);
        if cost > room {
            return;
        }
        self.shrink(room - cost);
        self.bytes += cost;
        self.index.insert(key, self.entries.len());
        self.entries.push(Entry { key, bytes, used: false });
    }

    /// Evicts until there are no more than so many bytes.
    fn shrink(&mut self, room: usize) {
        while self.bytes > room && self.evict() {}
    }

    /// Evicts one entry, if there is any.
    fn evict(&mut self) -> bool {
        loop {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            match self.entries.get_mut(self.hand) {
                None => return false,
                Some(entry) if entry.used => {
                    entry.used = false;
                    self.hand += 1;
                }
                Some(entry) => {
                    let key = entry.key;
                    self.remove(key);
                    // The last entry moved here; it is younger than those that follow.
                    self.hand += 1;
                    return true;
                }
            }
        }
    }

    fn remove(&mut self, key: Key) {
        let Some(at) = self.index.remove(&key) else { return };
        let entry = self.entries.swap_remove(at);
        self.bytes -= entry.bytes.len() + OVERHEAD;
        if let Some(moved) = self.entries.get(at) {
            self.index.insert(moved.key, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(n: usize) -> Arc<[u8]> {
        vec![7; n].into()
    }

    #[test]
    fn what_is_kept_stays_within_the_budget_and_what_is_used_stays_longest() {
        let cache = Arc::new(Cache::new());
        let shelf = cache.shelf();
        shelf.put(1, bytes(4096));
        for i in 0..100_000 {
            shelf.put(1000 + i, bytes(4096));
            assert!(shelf.get(1).is_some(), "after {i}");
        }
        let parts = || cache.parts.iter().map(|part| part.lock());
        let kept: usize = parts().map(|part| part.bytes).sum();
        assert!(kept <= BUDGET && kept > BUDGET / 2, "{kept}");
        for part in parts() {
            let sum: usize = part.entries.iter().map(|e| e.bytes.len() + OVERHEAD).sum();
            assert!(sum == part.bytes && part.index.len() == part.entries.len());
        }
        assert!(shelf.get(1000).is_none());
        let other = cache.shelf();
        assert!(other.get(1).is_none(), "shelves are apart");
        other.put(1, bytes(1));
        drop(shelf);
        assert_eq!(parts().map(|part| part.bytes).sum::<usize>(), 1 + OVERHEAD);
    }

    #[test]
    fn what_is_held_beside_the_entries_is_within_the_budget_too() {
        let cache = Arc::new(Cache::new());
        let (shelf, other) = (cache.shelf(), cache.shelf());
        (0..20_000).for_each(|at| other.put(at, bytes(4096)));
        let kept = || cache.bytes();
        for n in 1..=2000 {
            let held = n * 4096;
            shelf.holds(held, n as u64);
            // The parts are trimmed one after the other.
            assert!(kept() + held as u64 <= (BUDGET + BUDGET / 16) as u64, "{n}: {}", kept());
        }
        shelf.put(9, bytes(1));
        shelf.holds(2001 * 4096, 9);
        assert!(shelf.get(9).is_none(), "it is out of date");
        shelf.holds(usize::MAX / 2, 10);
        (0..20_000).for_each(|at| other.put(at, bytes(4096)));
        assert!((1..=BUDGET as u64 / 4).contains(&kept()));
        drop(shelf);
        (0..20_000).for_each(|at| other.put(at, bytes(4096)));
        assert!(kept() > (BUDGET - BUDGET / 16) as u64);
    }

    #[test]
    fn what_is_put_twice_is_kept_once_and_what_is_too_large_not_at_all() {
        let cache = Arc::new(Cache::new());
        let shelf = cache.shelf();
        shelf.put(5, bytes(10));
        shelf.put(5, bytes(20));
        assert_eq!(shelf.get(5).unwrap().len(), 20);
        shelf.put(6, bytes(BUDGET));
        assert!(shelf.get(6).is_none());
    }
}
