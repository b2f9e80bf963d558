//! The cached blocks of one disk: reading, writing, writing back, and making room.
//!
//! A block that is [`BlockState::Changed`] is dirty. It stays dirty, and in the cache, until the
//! device below has written it, so no failed write is forgotten.

use runtime::{Mutex, promise, spawn, to_usize};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use device::{Buffer, Edge, Error, ErrorKind, Result, Slice, ZeroFlags};

use super::recency::Recency;
use crate::kit::below;
use crate::kit::store::{BlockAccess, BlockState, Store, confused, file_ended};

/// Blocks written back at a time, as one write, in bytes.
const SAVE: u64 = 1 << 20;

/// Writes in flight at a time when all is written back.
const WIDTH: u64 = 8;

/// How many blocks in use an eviction skips before it gives up until the next time.
const BUSY: u32 = 64;

/// How many blocks may be cached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The cache never has more blocks than this.
    pub(super) max: u64,
    /// Above this, blocks are evicted,
    pub(super) high: u64,
    /// until no more than this are left.
    pub(super) low: u64,
}

/// The cached blocks of one disk.
pub(super) struct Blocks {
    store: Store,
    limits: Option<Limits>,
    recency: Mutex<Recency>,
    /// A task is evicting blocks.
    evicting: AtomicBool,
    /// Something was changed below that no flush has covered yet.
    owes_flush: AtomicBool,
    /// How many flushes below have failed, and why the last one failed.
    failed: Mutex<(u64, Option<Error>)>,
}

impl Blocks {
    pub(super) fn new(store: Store, limits: Option<Limits>) -> Self {
        Self {
            store,
            limits,
            recency: Mutex::default(),
            evicting: AtomicBool::new(false),
            owes_flush: AtomicBool::new(false),
            failed: Mutex::default(),
        }
    }

    /// The blocks themselves.
    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// The dirty bytes, in whole blocks.
    pub(super) fn dirty(&self) -> u64 {
        self.store.states().count(BlockState::Changed) * self.store.block()
    }

    /// Whether the device below has changes that no flush has covered yet.
    pub(super) fn owes_flush(&self) -> bool {
        self.owes_flush.load(Ordering::Acquire)
    }

    /// Notes a change below; it is durable already if `fua`.
    fn changed_below(&self, fua: bool) {
        if !fua {
            self.owes_flush.store(true, Ordering::Release);
        }
    }

    fn used(&self) -> u64 {
        let states = self.store.states();
        states.count(BlockState::Changed) + states.count(BlockState::Copy)
    }

    /// Whether all blocks that a range touches may be cached.
    fn has_room(&self, offset: u64, len: u64) -> bool {
        let blocks = self.store.touched(offset, len);
        let Some(limits) = self.limits else { return self.store.admit(&blocks).is_ok() };
        let here = self.store.states().all(blocks.clone(), BlockState::is_here);
        let room = blocks.end - blocks.start <= limits.max.saturating_sub(self.used());
        here || (room && self.store.admit(&blocks).is_ok())
    }

    /// Notes that the blocks of a range were used.
    fn touch(self: &Arc<Self>, below: &Edge, offset: u64, len: u64) {
        let Some(limits) = self.limits else { return };
        let mut recency = self.recency.lock();
        for block in self.store.touched(offset, len) {
            if self.store.states().get(block).is_here() {
                recency.touch(block);
            }
        }
        // Blocks may also leave in other ways (when they are zeroed, say).
        if recency.len() as u64 > limits.max.saturating_mul(2) {
            recency.retain(|block| self.store.states().get(block).is_here());
        }
        drop(recency);
        if self.used() > limits.high && !self.evicting.swap(true, Ordering::AcqRel) {
            let (me, below) = (self.clone(), below.clone());
            spawn(async move {
                me.make_room(&below, limits.low).await;
                me.evicting.store(false, Ordering::Release);
            });
        }
    }

    /// Reads from the cache or below; caches what it reads, if asked to.
    pub(super) async fn read(
        self: &Arc<Self>,
        below: &Edge,
        offset: u64,
        buffer: Buffer,
        keep: bool,
    ) -> Result<Buffer> {
        let len = buffer.len() as u64;
        if keep && self.has_room(offset, len) {
            // Caching needs whole blocks, more than was asked for; if that fails, the plain read
            // may still succeed.
            let _ = self.store.fill(below, offset, len).await;
        }
        let blocks = self.store.touched(offset, len);
        let held = self.store.locks.take(blocks, BlockAccess::Read).await;
        let read = self.store.read(below, offset, buffer).await;
        drop(held);
        self.touch(below, offset, len);
        read
    }

    /// Caches a range, or as much of it as there is room for.
    pub(super) async fn prefetch(
        self: &Arc<Self>,
        below: &Edge,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let most = self.limits.map_or(u64::MAX, |l| l.low.saturating_mul(self.store.block()));
        let len = len.min(most);
        let mut brought = Ok(());
        if self.has_room(offset, len) {
            brought = self.store.prefetch(below, offset, len).await;
        }
        // Also blocks that came before a failure: only blocks on this list can be evicted.
        self.touch(below, offset, len);
        brought
    }

    /// Writes to the cache; below only if there is no room.
    pub(super) async fn write(
        self: &Arc<Self>,
        below: &Edge,
        offset: u64,
        data: Slice,
    ) -> Result<()> {
        let len = data.len() as u64;
        if !self.has_room(offset, len) {
            return self.write_through(below, offset, data, false, false).await;
        }
        let written = self.store.write(below, offset, data).await;
        self.touch(below, offset, len);
        written
    }

    /// Writes below, and updates cached blocks; also caches whole blocks if asked to.
    ///
    /// # Errors
    /// The error of the device below, or of the temporary file if the cached copy could not be
    /// updated.
    pub(super) async fn write_through(
        self: &Arc<Self>,
        below: &Edge,
        offset: u64,
        mut data: Slice,
        fua: bool,
        keep: bool,
    ) -> Result<()> {
        let len = data.len() as u64;
        let all = data.share(0, data.len()).ok_or_else(confused)?;
        let keep = keep && self.has_room(offset, len);
        let blocks = self.store.touched(offset, len);
        let held = self.store.locks.take(blocks.clone(), BlockAccess::Save).await;
        if let Err(e) = below::write(below, offset, all, fua).await {
            self.store.doubt(&blocks);
            drop(held);
            self.store.tidy(blocks).await;
            return Err(e);
        }
        self.changed_below(fua);
        let mut renewed = Ok(());
        for (range, whole) in self.store.segments(offset, len) {
            renewed = renewed.and(self.renew(range, whole, keep, offset, &mut data).await);
        }
        drop(held);
        self.touch(below, offset, len);
        renewed
    }

    /// Updates the cache after a segment was written below.
    async fn renew(
        &self,
        range: Range<u64>,
        whole: bool,
        keep: bool,
        offset: u64,
        data: &mut Slice,
    ) -> Result<()> {
        let mut blocks = self.store.touched(range.start, range.end - range.start);
        while !blocks.is_empty() {
            let (state, run) = self.store.states().run(blocks.clone(), |state| state);
            blocks.start = run.end;
            let wanted = state.is_here() || (whole && keep);
            if !wanted {
                continue;
            }
            let (start, n) = self.store.span(&run);
            let (from, to) = (start.max(range.start), (start + n).min(range.end));
            let part =
                data.share(to_usize(from - offset), to_usize(to - from)).ok_or_else(confused)?;
            let written = self.store.file.write(from, part).await;
            let next = match (&written, state) {
                // If the block is dirty elsewhere too, only this part of it is below.
                (_, BlockState::Changed) if !whole => BlockState::Changed,
                (Ok(()), _) => BlockState::Copy,
                (Err(_), BlockState::Changed) => BlockState::Changed,
                (Err(_), _) => BlockState::Below,
            };
            self.store.states().set(run, next);
            if next == BlockState::Changed {
                written?;
            }
        }
        Ok(())
    }

    /// Zeroes below, and drops the cached blocks.
    ///
    /// # Errors
    /// The error of the device below, or of the temporary file for parts of blocks.
    pub(super) async fn zero(
        &self,
        below: &Edge,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
    ) -> Result<()> {
        let blocks = self.store.touched(offset, len);
        let _held = self.store.locks.take(blocks.clone(), BlockAccess::Own).await;
        match below::zero(below, offset, len, flags).await {
            Ok(()) => {
                self.changed_below(flags.fua);
                self.forget_zeroed(offset, len).await
            }
            // Nothing was changed.
            Err(e) if e.kind() == ErrorKind::NotFast => Err(e),
            Err(e) => {
                self.forget_copies(blocks).await;
                Err(e)
            }
        }
    }

    /// Drops cached blocks that are, or were, the same below. The caller holds the blocks
    /// exclusively.
    async fn forget_copies(&self, blocks: Range<u64>) {
        for run in self.store.runs(blocks, BlockState::Copy) {
            self.store.forget(run).await;
        }
    }

    /// Updates the cache after a range was zeroed below. The caller holds its blocks exclusively.
    async fn forget_zeroed(&self, offset: u64, len: u64) -> Result<()> {
        for (range, whole) in self.store.segments(offset, len) {
            let (start, n) = (range.start, range.end - range.start);
            if whole {
                self.store.forget(self.store.whole(start, n)).await;
                continue;
            }
            let block = start / self.store.block();
            let state = self.store.states().get(block);
            if !state.is_here() {
                continue;
            }
            let written = self.store.file.write(start, Buffer::zeroed(to_usize(n)).into()).await;
            if written.is_err() && state == BlockState::Copy {
                self.store.forget(block..block + 1).await;
            } else {
                written?;
            }
        }
        Ok(())
    }

    /// Trims below. Dirty blocks there must not fall back to their contents before the write: they
    /// are zeroed if that is fast, and otherwise stay.
    pub(super) async fn trim(&self, below: &Edge, offset: u64, len: u64, fua: bool) -> Result<()> {
        let blocks = self.store.touched(offset, len);
        let _held = self.store.locks.take(blocks.clone(), BlockAccess::Own).await;
        let dirty = self.store.states().next(blocks.clone(), BlockState::Changed).is_some();
        if dirty && below.info().abilities.fast_zero {
            let flags = ZeroFlags { written: false, may_unmap: true, fast_only: true, fua };
            if below::zero(below, offset, len, flags).await.is_ok() {
                self.changed_below(fua);
                return self.forget_zeroed(offset, len).await;
            }
        }
        let trimmed = below::trim(below, offset, len, fua).await;
        self.changed_below(fua);
        self.forget_copies(blocks).await;
        trimmed
    }

    /// Writes back all dirty blocks, and makes them durable.
    ///
    /// # Errors
    /// What the device below says; what it did not take stays dirty.
    pub(super) async fn flush(self: &Arc<Self>, below: &Edge) -> Result<()> {
        self.save_all(below).await?;
        // This flush does not cover later writes.
        self.owes_flush.store(false, Ordering::Release);
        below::flush(below).await.inspect_err(|e| {
            self.owes_flush.store(true, Ordering::Release);
            let mut failed = self.failed.lock();
            *failed = (failed.0 + 1, Some(e.duplicate()));
        })
    }

    /// How many flushes below have failed.
    pub(super) fn failures(&self) -> u64 {
        self.failed.lock().0
    }

    /// A client's flush has succeeded. If another client's flush failed since this client was
    /// `told`, the lost writes may be this client's, and the next flush below need not report them.
    ///
    /// # Errors
    /// The error of the other client's flush; once.
    pub(super) fn tell(&self, told: &AtomicU64) -> Result<()> {
        let failed = self.failed.lock();
        let before = told.swap(failed.0, Ordering::AcqRel);
        match &failed.1 {
            Some(e) if before < failed.0 => Err(e.duplicate()),
            _ => Ok(()),
        }
    }

    /// Writes back all dirty blocks.
    ///
    /// # Errors
    /// What the device below says; what it did not take stays dirty.
    pub(super) async fn save_all(self: &Arc<Self>, below: &Edge) -> Result<()> {
        let workers = self.dirty().div_ceil(SAVE).min(WIDTH);
        let cursor = Arc::new(Mutex::new(0));
        let started: Vec<_> = (0..workers)
            .map(|_| {
                let (owed, answer) = promise();
                let (me, below, cursor) = (self.clone(), below.clone(), cursor.clone());
                spawn(async move { owed.keep(me.save_from(&below, &cursor).await) });
                answer
            })
            .collect();
        let mut result = Ok(());
        for answer in started {
            let saved = answer.await.unwrap_or_else(|| Err(confused()));
            result = result.and(saved);
        }
        result
    }

    /// Writes back dirty blocks from `cursor` on, which several tasks share.
    async fn save_from(&self, below: &Edge, cursor: &Mutex<u64>) -> Result<()> {
        let end = self.store.touched(0, below.info().size).end;
        loop {
            let run = {
                let mut cursor = cursor.lock();
                let dirty = self.store.states().next(*cursor..end, BlockState::Changed);
                let Some(run) = dirty.map(|run| self.at_most(run)) else { return Ok(()) };
                *cursor = run.end;
                run
            };
            if let Err(e) = self.save(below, run).await {
                *cursor.lock() = end;
                return Err(e);
            }
        }
    }

    /// As many blocks of a run as one write takes.
    fn at_most(&self, run: Range<u64>) -> Range<u64> {
        let most = (SAVE / self.store.block()).max(1);
        run.start..run.end.min(run.start + most)
    }

    /// Writes back the dirty blocks of a range.
    async fn save(&self, below: &Edge, blocks: Range<u64>) -> Result<()> {
        let _held = self.store.locks.take(blocks.clone(), BlockAccess::Save).await;
        for run in self.store.runs(blocks, BlockState::Changed) {
            let (start, n) = self.store.span(&run);
            let read = self.store.file.read(start, Buffer::zeroed(to_usize(n)));
            below::write(below, start, file_ended(read).await?.into(), false).await?;
            self.changed_below(false);
            self.store.states().set(run, BlockState::Copy);
        }
        Ok(())
    }

    /// Evicts blocks, the least recently used first, until no more than `low` are left. It writes
    /// dirty blocks back first; if that fails, it stops.
    async fn make_room(&self, below: &Edge, low: u64) {
        let mut busy = 0;
        while self.used() > low && busy < BUSY {
            let Some(block) = self.recency.lock().take_oldest() else { return };
            let dirty = self.store.states().next(block..block + 1, BlockState::Changed);
            if dirty.is_some() {
                let end = self.store.touched(0, below.info().size).end;
                let (_, run) = self.store.states().run(block..end, |s| s == BlockState::Changed);
                if self.save(below, self.at_most(run)).await.is_err() {
                    // The block stays, and the next flush fails with the reason.
                    self.recency.lock().touch(block);
                    return;
                }
            }
            let held = self.store.locks.try_take(block..block + 1, BlockAccess::Own);
            let state = self.store.states().get(block);
            if held.is_some() && state == BlockState::Copy {
                self.store.forget(block..block + 1).await;
            } else if state.is_here() {
                self.recency.lock().touch(block);
                busy += 1;
            }
        }
    }
}
