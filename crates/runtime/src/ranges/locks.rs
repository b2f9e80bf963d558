//! Locks on ranges of blocks, for tasks: a waiting task holds no thread.
//!
//! First come, first served: no task passes one that waits for some of the same blocks. A range
//! costs the same however long it is. Taking and releasing a lock costs no more when many tasks
//! wait, and a release wakes only the tasks that waited for it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::queues::Queues;
use crate::sync::Mutex;
use crate::{Promise, promise};

/// What a task does with blocks, which decides what others may do with them meanwhile.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BlockAccess {
    /// Reads them where they are: no other task may remove them.
    Read,
    /// Changes their bytes where they are, together with other writers.
    Write,
    /// Makes the store and the device below agree: the blocks must not change; readers may go on.
    Save,
    /// Adds or removes them: alone.
    Own,
}

/// The locks. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct RangeLocks(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    /// The tasks that hold a lock or wait for one, by number.
    entries: HashMap<u64, Entry>,
    queues: Queues,
}

#[derive(Debug, Default)]
struct Entry {
    /// How many tasks it waits for.
    waits_for: usize,
    /// The tasks that wait for it.
    waiting: Vec<u64>,
    /// The lock, for when it need not wait any more.
    owed: Option<Promise<RangeLock>>,
}

/// A lock, until dropped.
#[derive(Debug)]
pub struct RangeLock {
    locks: RangeLocks,
    number: u64,
}

impl RangeLocks {
    fn held(&self, number: u64) -> RangeLock {
        RangeLock { locks: self.clone(), number }
    }

    /// Locks `blocks` as soon as possible.
    pub async fn take(&self, blocks: Range<u64>, access: BlockAccess) -> RangeLock {
        loop {
            let answer = {
                let mut inner = self.0.lock();
                let number = inner.enter(&blocks, access);
                let entry = inner.entries.get_mut(&number);
                let Some(entry) = entry.filter(|entry| entry.waits_for > 0) else {
                    return self.held(number);
                };
                let (owed, answer) = promise();
                entry.owed = Some(owed);
                answer
            };
            // This promise is always kept.
            if let Some(held) = answer.await {
                return held;
            }
        }
    }

    /// Locks `blocks` if that is possible at once.
    pub fn try_take(&self, blocks: Range<u64>, access: BlockAccess) -> Option<RangeLock> {
        let mut inner = self.0.lock();
        let Inner { entries, queues, .. } = &*inner;
        if queues.before(&blocks, access).any(|number| entries.contains_key(&number)) {
            return None;
        }
        let number = inner.enter(&blocks, access);
        drop(inner);
        Some(self.held(number))
    }
}

impl Inner {
    /// A task asks for `blocks`, and waits for earlier tasks.
    fn enter(&mut self, blocks: &Range<u64>, access: BlockAccess) -> u64 {
        self.next += 1;
        let number = self.next;
        let Self { entries, queues, .. } = self;
        let mut waits_for = 0;
        for before in queues.before(blocks, access) {
            if let Some(entry) = entries.get_mut(&before) {
                // A task that overlaps in several segments counts once.
                if entry.waiting.last() != Some(&number) {
                    entry.waiting.push(number);
                    waits_for += 1;
                }
            }
        }
        entries.insert(number, Entry { waits_for, ..Entry::default() });
        queues.enter(number, blocks, access, |number| entries.contains_key(&number));
        number
    }

    /// A task is done. Returns the tasks that no longer have to wait, in the order in which they
    /// came.
    fn release(&mut self, number: u64) -> Vec<(u64, Promise<RangeLock>)> {
        let gone = self.entries.remove(&number).unwrap_or_default();
        debug_assert!(gone.waits_for == 0, "a lock is given back that was never given");
        let mut free = Vec::new();
        for number in gone.waiting {
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            debug_assert!(entry.waits_for > 0, "a task waits for fewer than those before it");
            entry.waits_for -= 1;
            if entry.waits_for == 0 {
                free.extend(entry.owed.take().map(|owed| (number, owed)));
            }
        }
        if self.entries.is_empty() {
            self.queues.forget();
        }
        free
    }
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        let free = self.locks.0.lock().release(self.number);
        for (number, owed) in free {
            owed.keep(self.locks.held(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spawn;
    use proptest::prelude::*;

    type Log = Arc<Mutex<Vec<&'static str>>>;

    fn enter(
        locks: &RangeLocks,
        log: &Log,
        name: &'static str,
        blocks: Range<u64>,
        access: BlockAccess,
    ) {
        let (locks, log) = (locks.clone(), log.clone());
        spawn(async move {
            let held = locks.take(blocks, access).await;
            log.lock().push(name);
            // Held for ever, unless named so.
            if name.starts_with("brief") {
                drop(held);
            } else {
                std::mem::forget(held);
            }
        });
    }

    #[test]
    fn a_task_on_the_same_blocks_waits_and_others_do_not() {
        let (locks, log) = (RangeLocks::default(), Log::default());
        let first = locks.try_take(0..10, BlockAccess::Own).unwrap();
        enter(&locks, &log, "brief 5", 5..6, BlockAccess::Own);
        enter(&locks, &log, "brief 9", 9..20, BlockAccess::Own);
        enter(&locks, &log, "brief 10", 10..11, BlockAccess::Own);
        enter(&locks, &log, "brief 30", 30..31, BlockAccess::Own);
        // 10 does not pass 9, which waits for it too.
        assert_eq!(*log.lock(), ["brief 30"]);
        drop(first);
        assert_eq!(*log.lock(), ["brief 30", "brief 5", "brief 9", "brief 10"]);
        let inner = locks.0.lock();
        assert!(inner.entries.is_empty() && inner.queues.len() == 0);
    }

    #[test]
    fn each_access_excludes_what_would_disturb_it() {
        use BlockAccess::{Own, Read, Save, Write};
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
                let locks = RangeLocks::default();
                let _held = locks.try_take(0..1, first).unwrap();
                assert_eq!(locks.try_take(0..1, second).is_some(), together, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn a_long_queue_for_one_block_is_served_in_order_and_does_not_overflow_the_stack() {
        let locks = RangeLocks::default();
        let first = locks.try_take(0..1, BlockAccess::Own).unwrap();
        let served = Arc::new(Mutex::new(Vec::new()));
        for i in 0..100_000 {
            let (locks, served) = (locks.clone(), served.clone());
            spawn(async move {
                let _held = locks.take(0..1, BlockAccess::Own).await;
                served.lock().push(i);
            });
        }
        drop(first);
        assert_eq!(*served.lock(), (0..100_000).collect::<Vec<_>>());
    }

    /// The slow reference: each task waits for all earlier tasks that it excludes.
    #[derive(Default)]
    struct Plain(Vec<(u64, Range<u64>, BlockAccess)>);

    impl Plain {
        fn excludes(a: BlockAccess, b: BlockAccess) -> bool {
            use BlockAccess::{Own, Read, Save, Write};
            match (a, b) {
                (Own, _) | (_, Own) | (Save, Save | Write) | (Write, Save) => true,
                (Read, _) | (_, Read) | (Write, Write) => false,
            }
        }

        fn is_free(&self, at: usize) -> bool {
            let (_, blocks, access) = &self.0[at];
            let mut before = self.0[..at].iter();
            !before.any(|(_, b, a)| {
                blocks.start < b.end && b.start < blocks.end && Self::excludes(*access, *a)
            })
        }

        fn free(&self) -> Vec<u64> {
            (0..self.0.len()).filter(|at| self.is_free(*at)).map(|at| self.0[at].0).collect()
        }
    }

    const ALL: [BlockAccess; 4] =
        [BlockAccess::Read, BlockAccess::Write, BlockAccess::Save, BlockAccess::Own];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn locks_are_given_as_if_each_looked_at_all_others(
            steps in prop::collection::vec((0..24u64, 1..9u64, 0..4usize, any::<bool>()), 1..400),
        ) {
            let (locks, mut plain) = (RangeLocks::default(), Plain::default());
            let held = Arc::new(Mutex::new(HashMap::new()));
            for (number, (start, len, access, goes)) in (0u64..).zip(steps) {
                let (blocks, access) = (start..start + len, ALL[access]);
                plain.0.push((number, blocks.clone(), access));
                let (locks, given) = (locks.clone(), held.clone());
                spawn(async move {
                    let lock = locks.take(blocks, access).await;
                    given.lock().insert(number, lock);
                });
                // One task ends now, more later.
                let free = plain.free();
                for one in 0..=u64::from(goes && number > 99) {
                    if goes && let Some(number) = free.get(usize::try_from(start + one).unwrap()) {
                        plain.0.retain(|(n, ..)| n != number);
                        let lock = held.lock().remove(number);
                        drop(lock);
                    }
                }
                let mut now: Vec<_> = held.lock().keys().copied().collect();
                now.sort_unstable();
                prop_assert_eq!(now, plain.free());
            }
            let inner = locks.0.lock();
            // Each has two ends.
            prop_assert!(inner.queues.len() <= FEW_SEGMENTS.max(8 * inner.entries.len()));
        }
    }

    const FEW_SEGMENTS: usize = 64;

    #[test]
    fn short_locks_leave_nothing_behind_while_a_long_one_stays() {
        let locks = RangeLocks::default();
        let _stays = locks.try_take(0..100, BlockAccess::Read).unwrap();
        for i in 0..100_000 {
            drop(locks.try_take(i % 100..i % 100 + 1, BlockAccess::Read).unwrap());
            drop(locks.try_take(200 + i..201 + i, BlockAccess::Own).unwrap());
        }
        let inner = locks.0.lock();
        assert!(inner.queues.len() < 500, "{}", inner.queues.len());
        assert!(inner.queues.numbers() < 1000, "{}", inner.queues.numbers());
    }

    #[test]
    fn a_crowd_in_which_each_waits_for_its_neighbours_costs_what_its_number_does() {
        let locks = RangeLocks::default();
        let first = locks.try_take(0..1 << 40, BlockAccess::Own).unwrap();
        let served = Arc::new(Mutex::new(0));
        // If each task examined all others, this would take hours.
        for i in 0..50_000 {
            let (locks, served) = (locks.clone(), served.clone());
            let blocks = match i % 4 {
                3 => i..1 << 40,
                _ => i..i + 2,
            };
            spawn(async move {
                let _held = locks.take(blocks, BlockAccess::Own).await;
                *served.lock() += 1;
            });
        }
        drop(first);
        assert_eq!(*served.lock(), 50_000);
    }
}
