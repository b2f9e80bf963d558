//! A cache of table slices and decompressed clusters. All images of a program share one memory
//! budget.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use runtime::{Context, Mutex, MutexGuard};

/// The memory budget, in bytes, of all images together.
const BUDGET: usize = 32 << 20;
/// Parts, each with a lock of its own.
const PARTS: usize = 8;
/// Overhead of an entry, in bytes.
const OVERHEAD: usize = 128;

/// The cache of a program.
pub(crate) struct Cache {
    parts: [Mutex<Part>; PARTS],
    shelves: AtomicU64,
}

/// The shelf for one kind of entry of one image. Dropping it drops its entries.
pub(crate) struct Shelf {
    cache: Arc<Cache>,
    number: u64,
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
        Self { parts: Default::default(), shelves: AtomicU64::new(0) }
    }

    /// A shelf for one kind of entry.
    pub(crate) fn shelf(self: &Arc<Self>) -> Shelf {
        let number = self.shelves.fetch_add(1, Ordering::Relaxed);
        Shelf { cache: self.clone(), number }
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
        self.cache.part(key).put(key, bytes);
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        for part in &self.cache.parts {
            let mut part = part.lock();
            let mine: Vec<_> =
                part.index.keys().filter(|key| key.0 == self.number).copied().collect();
            mine.into_iter().for_each(|key| part.remove(key));
        }
    }
}

impl Part {
    fn put(&mut self, key: Key, bytes: Arc<[u8]>) {
        let cost = bytes.len() + OVERHEAD;
        if cost > BUDGET / PARTS {
            return;
        }
        self.remove(key);
        while self.bytes + cost > BUDGET / PARTS && self.evict() {}
        self.bytes += cost;
        self.index.insert(key, self.entries.len());
        self.entries.push(Entry { key, bytes, used: false });
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
