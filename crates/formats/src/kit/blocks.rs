//! The metadata of a container that is written: blocks of a fixed length, clean and changed.
//!
//! Changes stay in memory until they are saved, all together, as they were at one moment: what
//! other metadata refer to first ([`Rank`]), with a barrier between. So a container always holds
//! metadata that were right at some time, and refer to nothing that is not there. Clean blocks are
//! in the cache of all images; a pinned one stays.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use device::{Buffer, Edge, Result, below, is_zero};
use runtime::{Mutex, MutexGuard};

use super::cache::Shelf;
use super::{confused, flush};

/// The most bytes in one write.
const AT_ONCE: usize = 1 << 20;
/// The most bytes in writes that have not ended.
const IN_FLIGHT: usize = 4 * AT_ONCE;

/// What is durable before what is written: a block of a rank refers only to lower ones, and to
/// data, which are durable before all but the first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Rank {
    /// It refers to nothing: refcounts. So is what nothing refers to yet.
    First,
    /// It refers to the first.
    Second,
    /// It refers to all of these, and to data.
    Last,
}

/// The blocks of a container.
pub(crate) struct Blocks {
    container: Edge,
    /// Bytes of one.
    unit: u64,
    clean: Shelf,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// By their offsets.
    changed: BTreeMap<u64, Changed>,
    pins: HashMap<u64, Pinned>,
    /// Of the last change.
    version: u64,
}

struct Changed {
    bytes: Arc<[u8]>,
    version: u64,
    rank: Rank,
    /// Nothing that is durable refers to it, so it can be written at any time.
    is_new: bool,
}

impl Changed {
    fn rank(&self) -> Rank {
        if self.is_new { Rank::First } else { self.rank }
    }
}

#[derive(Default)]
struct Pinned {
    count: usize,
    /// Its bytes, if it is clean and known.
    bytes: Option<Arc<[u8]>>,
}

/// A block that stays in memory until this is dropped.
pub(crate) struct Pin<'a> {
    blocks: &'a Blocks,
    at: u64,
}

/// What was changed at one moment.
pub(crate) struct Moment(Vec<Saved>);

#[derive(Clone)]
struct Saved {
    at: u64,
    bytes: Arc<[u8]>,
    version: u64,
    rank: Rank,
}

impl Moment {
    /// In parts of at most `most` (≥ 1) blocks, of lower ranks first.
    pub(crate) fn parts(&self, most: usize) -> Vec<Self> {
        let mut all = self.0.clone();
        all.sort_by_key(|block| (block.rank, block.at));
        all.chunks(most.max(1)).map(|part| Self(part.to_vec())).collect()
    }

    /// Each block and where it begins.
    pub(crate) fn blocks(&self) -> Vec<(u64, &[u8])> {
        self.0.iter().map(|block| (block.at, &*block.bytes)).collect()
    }
}

impl Blocks {
    /// Those of `container`, of `unit` bytes each. It is at most as long as the unit in which the
    /// format gives out room, and divides it.
    pub(crate) fn new(container: Edge, unit: u64, clean: Shelf) -> Self {
        Self { container, unit, clean, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Where the block of a byte begins.
    pub(crate) fn start(&self, at: u64) -> u64 {
        at - at % self.unit
    }

    /// Bytes of a block.
    pub(crate) fn unit(&self) -> u64 {
        self.unit
    }

    /// Bytes that were changed and are not saved.
    pub(crate) fn unsaved(&self) -> u64 {
        self.lock().changed.len() as u64 * self.unit
    }

    /// The block that begins at `at`, if it is in memory.
    pub(crate) fn get(&self, at: u64) -> Option<Arc<[u8]>> {
        let inner = self.lock();
        inner.get(at).or_else(|| self.clean.get(at))
    }

    /// The same, if it stays there: it is pinned. Only such a block may be [changed](Self::change):
    /// any other may go at any time, when another image needs its room.
    pub(crate) fn held(&self, at: u64) -> Option<Arc<[u8]>> {
        let inner = self.lock();
        inner.pins.get(&at).and_then(|_| inner.get(at))
    }

    /// Bytes of a block that the container has: its last block may be cut off.
    fn there(&self, at: u64) -> usize {
        let there = self.container.info().size.saturating_sub(at).min(self.unit);
        usize::try_from(there).unwrap_or(0)
    }

    async fn read(&self, at: u64) -> Result<Vec<u8>> {
        let read = below::read(&self.container, at, Buffer::zeroed(self.there(at))).await?;
        let mut bytes = read.to_vec();
        bytes.resize(usize::try_from(self.unit).map_err(|_| confused())?, 0);
        Ok(bytes)
    }

    /// Reads the block that begins at `at`, if it is not in memory, and keeps it there.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) async fn pin(&self, at: u64) -> Result<Pin<'_>> {
        debug_assert!(at.is_multiple_of(self.unit), "no block begins at {at}");
        let is_known = {
            let inner = &mut *self.lock();
            let known = inner.get(at).or_else(|| self.clean.get(at));
            let is_known = known.is_some();
            let pin = inner.pins.entry(at).or_default();
            pin.count += 1;
            pin.bytes = known;
            is_known
        };
        let pin = Pin { blocks: self, at };
        if is_known {
            return Ok(pin);
        }
        let read = self.read(at).await?;
        let inner = &mut *self.lock();
        // Another task may have read it meanwhile, and changed it, and saved it.
        if inner.get(at).is_none()
            && let Some(pinned) = inner.pins.get_mut(&at)
        {
            let bytes: Arc<[u8]> = Arc::from(read);
            self.clean.put(at, bytes.clone());
            pinned.bytes = Some(bytes);
        }
        Ok(pin)
    }

    /// The block that begins at `at`, read if need be.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) async fn load(&self, at: u64) -> Result<Arc<[u8]>> {
        let _pin = self.pin(at).await?;
        self.get(at).ok_or_else(confused)
    }

    /// Bytes of any blocks; `None` if that would have to wait and `may_wait` is false.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) async fn bytes(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<Vec<u8>>> {
        let (mut found, end) = (Vec::new(), at + len);
        let mut start = self.start(at);
        while start < end {
            let block = match self.get(start) {
                Some(block) => block,
                None if !may_wait => return Ok(None),
                None => self.load(start).await?,
            };
            let narrow = |n: u64| usize::try_from(n).map_err(|_| confused());
            let (from, to) = (at.max(start) - start, (end - start).min(self.unit));
            let part = block.get(narrow(from)?..narrow(to)?).ok_or_else(confused)?;
            found.extend_from_slice(part);
            start += self.unit;
        }
        Ok(Some(found))
    }

    /// Sets bits of bytes that are [held](Self::held): in each byte of the range those that `mask`
    /// gives for it.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub(crate) fn set_bits(
        &self,
        range: Range<u64>,
        rank: Rank,
        mask: impl Fn(u64) -> u8,
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let start = self.start(at);
            let end = range.end.min(start + self.unit);
            let block = self.get(start).ok_or_else(confused)?;
            let narrow = |n: u64| usize::try_from(n).map_err(|_| confused());
            let old = block.get(narrow(at - start)?..narrow(end - start)?).ok_or_else(confused)?;
            let new: Vec<u8> = (at..end).zip(old).map(|(at, old)| old | mask(at)).collect();
            self.change(at, rank, &new)?;
            at = end;
        }
        Ok(())
    }

    /// Changes bytes at `at`, within a block that is [held](Self::held). All changes that belong
    /// together are made under one lock of the caller, which it also holds when it takes a
    /// [`Moment`].
    ///
    /// # Errors
    /// The block is not held, or is shorter: a defect.
    pub(crate) fn change(&self, at: u64, rank: Rank, bytes: &[u8]) -> Result<()> {
        let start = self.start(at);
        let inner = &mut *self.lock();
        let known = inner.get(start).ok_or_else(confused)?;
        inner.version += 1;
        let (version, before) = (inner.version, inner.changed.len());
        let block = inner.changed.entry(start).or_insert_with(|| Changed {
            bytes: known,
            version,
            rank,
            is_new: false,
        });
        debug_assert_eq!(block.rank, rank, "the block at {start} is of one kind");
        block.version = version;
        let within = usize::try_from(at - start).map_err(|_| confused())?;
        let room = Arc::make_mut(&mut block.bytes).get_mut(within..);
        let room = room.and_then(|room| room.get_mut(..bytes.len())).ok_or_else(confused)?;
        room.copy_from_slice(bytes);
        if inner.changed.len() > before {
            self.clean.holds(self.bytes_of(inner), start);
        }
        Ok(())
    }

    /// Bytes of what is changed.
    fn bytes_of(&self, inner: &Inner) -> usize {
        inner.changed.len().saturating_mul(usize::try_from(self.unit).unwrap_or(usize::MAX))
    }

    /// New blocks from `at` on, of these bytes, whatever is there now: nothing that is durable
    /// refers to them.
    pub(crate) fn add(&self, at: u64, rank: Rank, bytes: &[u8]) {
        let unit = usize::try_from(self.unit).unwrap_or(usize::MAX);
        debug_assert!(bytes.len().is_multiple_of(unit));
        let inner = &mut *self.lock();
        inner.version += 1;
        let mut zero: Option<Arc<[u8]>> = None;
        for (at, bytes) in (at..).step_by(unit).zip(bytes.chunks(unit)) {
            // Those without anything in them share their bytes.
            let bytes = match &mut zero {
                Some(zero) if is_zero(bytes) => zero.clone(),
                zero => {
                    let new: Arc<[u8]> = Arc::from(bytes);
                    if is_zero(bytes) {
                        *zero = Some(new.clone());
                    }
                    new
                }
            };
            let version = inner.version;
            inner.changed.insert(at, Changed { bytes, version, rank, is_new: true });
            self.clean.holds(self.bytes_of(inner), at);
        }
    }

    /// Forgets the changes of blocks to which nothing refers any more.
    pub(crate) fn forget(&self, at: u64, len: u64) {
        let inner = &mut *self.lock();
        let gone: Vec<_> =
            inner.changed.range(at..at.saturating_add(len)).map(|(at, _)| *at).collect();
        gone.iter().for_each(|at| drop(inner.changed.remove(at)));
        self.clean.hold(self.bytes_of(inner));
    }

    /// What is changed now.
    pub(crate) fn snapshot(&self) -> Moment {
        let inner = self.lock();
        let saved = inner.changed.iter().map(|(at, block)| Saved {
            at: *at,
            bytes: block.bytes.clone(),
            version: block.version,
            rank: block.rank(),
        });
        Moment(saved.collect())
    }

    /// Makes a snapshot durable, and before it all data that was written when it was taken. One at
    /// a time, and the younger one later.
    ///
    /// # Errors
    /// What failed is not saved, and stays changed.
    pub(crate) async fn save(&self, Moment(saved): &Moment) -> Result<()> {
        for rank in [Rank::First, Rank::Second, Rank::Last] {
            let these: Vec<_> = saved.iter().filter(|block| block.rank == rank).collect();
            let is_needed = rank == Rank::First || !these.is_empty();
            if is_needed {
                self.write(&these).await?;
                flush(&self.container).await?;
                self.is_saved(&these);
            }
        }
        Ok(())
    }

    /// Writes a snapshot that the format has made durable elsewhere: in its log.
    ///
    /// # Errors
    /// It stays changed.
    pub(crate) async fn write_back(&self, Moment(saved): &Moment) -> Result<()> {
        let these: Vec<_> = saved.iter().collect();
        self.write(&these).await?;
        self.is_saved(&these);
        Ok(())
    }

    /// What was [written back](Self::write_back) may not be there: it is changed, as it was before.
    pub(crate) fn take_back(&self, Moment(saved): Moment) {
        let inner = &mut *self.lock();
        for Saved { at, bytes, version, rank } in saved {
            let changed = Changed { bytes, version, rank, is_new: false };
            inner.changed.entry(at).or_insert(changed);
            self.clean.holds(self.bytes_of(inner), at);
        }
    }

    /// Writes blocks, neighbours at once.
    async fn write(&self, blocks: &[&Saved]) -> Result<()> {
        let (mut writes, mut in_flight) = (VecDeque::new(), 0);
        let (mut rest, mut result) = (blocks, Ok(()));
        while let Some(first) = rest.first() {
            let follows = |(n, block): &(usize, &&Saved)| {
                let before = *n as u64 * self.unit;
                block.at == first.at + before && before < AT_ONCE as u64
            };
            let count = rest.iter().enumerate().take_while(follows).count().max(1);
            let (these, after) = rest.split_at(count);
            let data = self.joined(these)?;
            let len = data.len();
            while in_flight + len > IN_FLIGHT
                && let Some((write, len)) = writes.pop_front()
            {
                result = result.and(below::ended(write).await.map(drop));
                in_flight -= len;
            }
            let data = data.into();
            let operation = device::Operation::Write { offset: first.at, data, fua: false };
            writes.push_back((below::submit(&self.container, operation), len));
            in_flight += len;
            rest = after;
        }
        for (write, _) in writes {
            result = result.and(below::ended(write).await.map(drop));
        }
        result
    }

    /// The bytes of neighbours, as far as the container has them.
    fn joined(&self, blocks: &[&Saved]) -> Result<Buffer> {
        let mut data = Buffer::zeroed(blocks.iter().map(|block| self.there(block.at)).sum());
        let mut rest = &mut data[..];
        for block in blocks {
            let bytes = block.bytes.get(..self.there(block.at)).ok_or_else(confused)?;
            let (room, after) = rest.split_at_mut_checked(bytes.len()).ok_or_else(confused)?;
            room.copy_from_slice(bytes);
            rest = after;
        }
        Ok(data)
    }

    fn is_saved(&self, blocks: &[&Saved]) {
        let inner = &mut *self.lock();
        for saved in blocks {
            let Some(block) = inner.changed.get_mut(&saved.at) else { continue };
            if block.version != saved.version {
                // From now on it may be referred to.
                block.is_new = false;
                continue;
            }
            self.clean.put(saved.at, saved.bytes.clone());
            inner.changed.remove(&saved.at);
            if let Some(pinned) = inner.pins.get_mut(&saved.at) {
                pinned.bytes = Some(saved.bytes.clone());
            }
        }
        self.clean.hold(self.bytes_of(inner));
    }
}

impl Inner {
    fn get(&self, at: u64) -> Option<Arc<[u8]>> {
        let changed = self.changed.get(&at).map(|block| block.bytes.clone());
        changed.or_else(|| self.pins.get(&at)?.bytes.clone())
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let inner = &mut *self.blocks.lock();
        if let Some(pinned) = inner.pins.get_mut(&self.at) {
            pinned.count -= 1;
            if pinned.count == 0 {
                inner.pins.remove(&self.at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use runtime::{Context, WorkPool};
    use trial::PowerCut;

    use super::super::cache::Cache;
    use super::*;

    /// What is ready at once: the container answers at once.
    fn now<T>(work: impl Future<Output = Result<T>>) -> T {
        super::super::at_once(work).unwrap().unwrap()
    }

    #[test]
    fn only_a_block_that_cannot_go_is_changed_and_it_is_the_one_that_is_saved() {
        let context = Context::new(WorkPool::new(1));
        let cache = Cache::of(&context);
        let disk = PowerCut::new(vec![1; 8192], false);
        let blocks = Blocks::new(disk.edge(), 4096, cache.shelf());
        let other = cache.shelf();
        // Other images need all of the cache, between any two steps.
        let crowd = || (0..100_000).for_each(|at| other.put(at, vec![0; 4096].into()));
        drop(now(blocks.pin(0)));
        assert!(blocks.get(0).is_some(), "it is in the cache");
        assert!(blocks.held(0).is_none() && blocks.change(0, Rank::Last, &[2]).is_err());
        let pin = now(blocks.pin(0));
        crowd();
        assert!(blocks.held(0).is_some());
        blocks.change(0, Rank::Last, &[2]).unwrap();
        now(blocks.save(&blocks.snapshot()));
        crowd();
        // It was saved meanwhile, and is still the one that the pin holds.
        assert_eq!(blocks.held(0).unwrap().first(), Some(&2));
        blocks.change(1, Rank::Last, &[3]).unwrap();
        drop(pin);
        crowd();
        assert!(blocks.held(0).is_none());
        blocks.change(2, Rank::Last, &[4]).unwrap();
        now(blocks.save(&blocks.snapshot()));
        assert_eq!(disk.bytes().get(..4), Some(&[2, 3, 4, 1][..]));
        assert_eq!(blocks.unsaved(), 0);
    }
}
