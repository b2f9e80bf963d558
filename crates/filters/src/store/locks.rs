//! Locks on ranges of blocks, for tasks: whoever must wait holds no thread.
//!
//! First come, first served: nobody passes one who waits for some of the same blocks. A range
//! costs the same however long it is.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::task::{Promise, promise};

/// What somebody does with blocks, which says who else may do what with them meanwhile.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Access {
    /// Reads them where they are: nobody may take them away.
    Read,
    /// Changes their bytes where they are, together with other writers.
    Write,
    /// Makes here and below agree: nobody may change them, readers do not mind.
    Save,
    /// Brings them, or takes them away: nobody else.
    Own,
}

impl Access {
    fn excludes(self, other: Self) -> bool {
        use Access::{Own, Read, Save, Write};
        match (self, other) {
            (Own, _) | (_, Own) | (Save, Save | Write) | (Write, Save) => true,
            (Read, _) | (_, Read) | (Write, Write) => false,
        }
    }
}

/// The locks. Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub(crate) struct Locks(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    next: u64,
    held: Vec<Entry>,
    waiting: VecDeque<(Entry, Promise<Held>)>,
}

#[derive(Clone)]
struct Entry {
    id: u64,
    blocks: Range<u64>,
    access: Access,
}

impl Entry {
    fn excludes(&self, other: &Self) -> bool {
        let touch = self.blocks.start < other.blocks.end && other.blocks.start < self.blocks.end;
        touch && self.access.excludes(other.access)
    }
}

/// A lock, until dropped.
pub(crate) struct Held {
    locks: Locks,
    id: u64,
}

impl Locks {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self, id: u64) -> Held {
        Held { locks: self.clone(), id }
    }

    /// Locks `blocks`, when it can be.
    pub(crate) async fn take(&self, blocks: Range<u64>, access: Access) -> Held {
        loop {
            let answer = {
                let mut inner = self.lock();
                let entry = inner.entry(blocks.clone(), access);
                if inner.is_free(&entry) {
                    let id = entry.id;
                    inner.held.push(entry);
                    return self.held(id);
                }
                let (owed, answer) = promise();
                inner.waiting.push_back((entry, owed));
                answer
            };
            // Nobody breaks this promise.
            if let Some(held) = answer.await {
                return held;
            }
        }
    }

    /// Locks `blocks` if that can be done at once.
    pub(crate) fn try_take(&self, blocks: Range<u64>, access: Access) -> Option<Held> {
        let mut inner = self.lock();
        let entry = inner.entry(blocks, access);
        if !inner.is_free(&entry) {
            return None;
        }
        let id = entry.id;
        inner.held.push(entry);
        drop(inner);
        Some(self.held(id))
    }
}

impl Inner {
    fn entry(&mut self, blocks: Range<u64>, access: Access) -> Entry {
        self.next += 1;
        Entry { id: self.next, blocks, access }
    }

    fn is_free(&self, entry: &Entry) -> bool {
        let excluded = |other: &Entry| other.excludes(entry);
        !self.held.iter().any(excluded) && !self.waiting.iter().any(|(other, _)| excluded(other))
    }

    /// Who waited and now need not any more.
    fn release(&mut self, id: u64) -> Vec<(Entry, Promise<Held>)> {
        self.held.retain(|entry| entry.id != id);
        let (mut free, mut still) = (Vec::new(), VecDeque::new());
        for (entry, owed) in self.waiting.drain(..) {
            let excluded = |other: &Entry| other.excludes(&entry);
            if self.held.iter().any(excluded) || still.iter().any(|(other, _)| excluded(other)) {
                still.push_back((entry, owed));
            } else {
                self.held.push(entry.clone());
                free.push((entry, owed));
            }
        }
        self.waiting = still;
        free
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let free = self.locks.lock().release(self.id);
        for (entry, owed) in free {
            owed.keep(self.locks.held(entry.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::spawn;

    type Log = Arc<Mutex<Vec<&'static str>>>;

    fn enter(locks: &Locks, log: &Log, name: &'static str, blocks: Range<u64>, access: Access) {
        let (locks, log) = (locks.clone(), log.clone());
        spawn(async move {
            let held = locks.take(blocks, access).await;
            log.lock().unwrap().push(name);
            // Held for ever, unless named so.
            if name.starts_with("brief") {
                drop(held);
            } else {
                std::mem::forget(held);
            }
        });
    }

    #[test]
    fn who_touches_the_same_blocks_waits_and_others_do_not() {
        let (locks, log) = (Locks::default(), Log::default());
        let first = locks.try_take(0..10, Access::Own).unwrap();
        enter(&locks, &log, "brief 5", 5..6, Access::Own);
        enter(&locks, &log, "brief 9", 9..20, Access::Own);
        enter(&locks, &log, "brief 10", 10..11, Access::Own);
        enter(&locks, &log, "brief 30", 30..31, Access::Own);
        // 10 does not pass 9, which waits for it too.
        assert_eq!(*log.lock().unwrap(), ["brief 30"]);
        drop(first);
        assert_eq!(*log.lock().unwrap(), ["brief 30", "brief 5", "brief 9", "brief 10"]);
        assert!(locks.lock().held.is_empty() && locks.lock().waiting.is_empty());
    }

    #[test]
    fn each_access_excludes_what_would_disturb_it() {
        use Access::{Own, Read, Save, Write};
        for (a, b, together) in [
            (Read, Read, true),
            (Read, Write, true),
            (Read, Save, true),
            (Read, Own, false),
            (Write, Write, true),
            (Write, Save, false),
            (Write, Own, false),
            (Save, Save, false),
            (Save, Own, false),
            (Own, Own, false),
        ] {
            for (first, second) in [(a, b), (b, a)] {
                let locks = Locks::default();
                let _held = locks.try_take(0..1, first).unwrap();
                assert_eq!(locks.try_take(0..1, second).is_some(), together, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn a_long_queue_for_one_block_is_served_in_order_and_does_not_overflow_the_stack() {
        let locks = Locks::default();
        let first = locks.try_take(0..1, Access::Own).unwrap();
        let served = Arc::new(Mutex::new(Vec::new()));
        for i in 0..3_000 {
            let (locks, served) = (locks.clone(), served.clone());
            spawn(async move {
                let _held = locks.take(0..1, Access::Own).await;
                served.lock().unwrap().push(i);
            });
        }
        drop(first);
        assert_eq!(*served.lock().unwrap(), (0..3_000).collect::<Vec<_>>());
    }
}
