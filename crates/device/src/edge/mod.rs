//! The edge: what every device needs and none should have to implement.
//!
//! It is between a device and its users. It refuses ranges outside the device, splits what is
//! longer than the device takes, reads and rewrites blocks that a write covers only in part, writes
//! zeroes where the device cannot zero (but never for a fast zero), and flushes where it has no
//! FUA. What the device takes as it is passes straight through; the rest is one task that holds no
//! thread while it waits ([`pieces`]). It never retries and never hides an error.

mod pieces;
mod resident;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use runtime::{Behalf, Gate, WorkPool, spawn_while_wanted, to_usize};

use crate::{
    Buffer, Device, Done, EdgeLane, Error, ErrorKind, Extent, Fault, Info, Now, Operation, Outcome,
    Place, Result, StatusRun, Window, ZeroFlags,
};

/// A device with everything that can be derived for it. Cheap to clone; safe to share.
#[derive(Clone)]
pub struct Edge(Arc<Inner>);

struct Inner {
    device: Arc<dyn Device>,
    /// In bytes, as far as it is known.
    size: AtomicU64,
    pool: WorkPool,
    /// Writers of whole blocks pass together; a read-modify-write of part of a block is alone.
    gate: Arc<Gate>,
}

runtime::debug_as!(Edge, |edge| "Edge({})", edge.info().name);

impl Edge {
    /// Puts an edge around `device`; long work continues in `pool`.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, pool: WorkPool) -> Self {
        Self::over(device, pool.for_computing(), Arc::default())
    }

    /// An edge around another path to the same disk (one client's, say). The two exclude each other
    /// where only part of a block is written.
    #[must_use]
    pub fn beside(&self, device: Arc<dyn Device>) -> Self {
        let Inner { pool, gate, .. } = &*self.0;
        Self::over(device, pool.clone(), gate.clone())
    }

    fn over(device: Arc<dyn Device>, pool: WorkPool, gate: Arc<Gate>) -> Self {
        let size = AtomicU64::new(device.info().size);
        Self(Arc::new(Inner { device, size, pool, gate }))
    }

    /// The pool for work that may wait.
    #[must_use]
    pub fn pool(&self) -> &WorkPool {
        &self.0.pool
    }

    /// What is known of the device.
    #[must_use]
    pub fn info(&self) -> &Info {
        self.0.device.info()
    }

    /// The size in bytes: when it was opened, or as it was when somebody [looked](Self::look) last.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.0.size.load(Ordering::Relaxed)
    }

    /// Looks whether the disk has another size by now (see [`Device::size_now`]). From then on
    /// ranges are inside of that, for all who have this edge. It may wait for the system.
    pub fn look(&self) -> u64 {
        if let Some(now) = self.0.device.size_now() {
            // Of a disk as it was opened the last block may be a part.
            let part = if now == self.info().size { 0 } else { now % self.block() };
            self.0.size.store(now - part, Ordering::Relaxed);
        }
        self.size()
    }

    /// The device itself.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.0.device
    }

    /// Refuses a range that does not lie inside the device.
    ///
    /// # Errors
    /// `OutOfBounds`.
    pub fn check(&self, what: &str, offset: u64, len: u64) -> Result<()> {
        let size = self.size();
        if offset <= size && len <= size - offset {
            return Ok(());
        }
        let action = format!("{what} {len} bytes beyond the end ({size} bytes)");
        Err(Error::new(ErrorKind::OutOfBounds, Fault::User, action)
            .on(&self.info().name)
            .at(offset))
    }

    fn check_write(&self, what: &str, offset: u64, len: u64) -> Result<()> {
        if !self.info().abilities.write {
            return Err(Error::new(ErrorKind::ReadOnly, Fault::User, format!("{what}: read-only"))
                .on(&self.info().name));
        }
        self.check(what, offset, len)
    }

    fn admit(&self, operation: &Operation) -> Result<()> {
        let Some((offset, len)) = operation.range() else { return Ok(()) };
        if let Operation::Status { context, .. } = operation {
            self.check_context(context)?;
        }
        let what = operation.kind().name();
        if operation.changes() {
            self.check_write(what, offset, len)
        } else {
            self.check(what, offset, len)
        }
    }

    fn check_context(&self, context: &str) -> Result<()> {
        if self.info().contexts.iter().any(|known| **known == *context) {
            return Ok(());
        }
        let action = format!("status: there is no context `{context}`");
        Err(Error::unsupported(action).on(&self.info().name))
    }

    /// Starts any operation and returns at once: see [`Device::submit`].
    pub fn submit(&self, operation: Operation, done: Done) {
        if let Err(e) = self.admit(&operation) {
            return done(Err(e));
        }
        match operation {
            // If the device refuses it after all, zeroes are written.
            Operation::Zero { offset, len, flags } if self.fits(&operation) => {
                let edge = self.clone();
                let then: Done = Box::new(move |result| match result {
                    Err(e) if e.is_unsupported() => edge.answer(done, move |edge| async move {
                        pieces::unzeroable(&edge, offset, len, flags).await
                    }),
                    other => {
                        drop(edge);
                        done(other);
                    }
                });
                self.0.device.submit(operation, then);
            }
            operation if self.fits(&operation) => self.0.device.submit(operation, done),
            operation => {
                self.answer(done, move |edge| async move { pieces::run(&edge, operation).await });
            }
        }
    }

    /// Completes with the result of a task. A task that panics, or is given up because its
    /// requester has gone, drops `done`, which is an error, too.
    fn answer<F>(&self, done: Done, work: impl FnOnce(Self) -> F)
    where
        F: Future<Output = Result<Outcome>> + Send + 'static,
    {
        let (work, behalf) = (work(self.clone()), Behalf::current());
        spawn_while_wanted(async move {
            let result = work.await;
            if result.is_ok() || behalf.is_wanted() {
                done(result);
            }
        });
    }

    /// Whether the device takes an operation as it is.
    fn fits(&self, operation: &Operation) -> bool {
        match operation {
            Operation::Flush | Operation::Prefetch { .. } => true,
            Operation::Read { offset, buffer } => self.is_one_read(*offset, buffer.len()),
            Operation::Write { data, fua, .. } => self.is_one_write(data.len(), *fua),
            Operation::Zero { len, flags, .. } => {
                *len > 0 && self.block() == 1 && self.is_native(flags.fua) && self.zeroes_so(*flags)
            }
            // Their results are checked.
            Operation::Resolve { .. }
            | Operation::Status { .. }
            | Operation::Take { .. }
            | Operation::Trim { .. } => false,
        }
    }

    /// Whether the device takes an operation as it is, when nothing is added to it: a zero that it
    /// refuses is refused, and writes are not kept apart from read-modify-writes of a block.
    pub(crate) fn takes(&self, operation: &Operation) -> bool {
        let (offset, len) = match operation {
            Operation::Flush => return true,
            Operation::Read { offset, buffer } if buffer.len() <= self.longest() => {
                (*offset, buffer.len() as u64)
            }
            Operation::Write { offset, data, fua: false } if data.len() <= self.longest() => {
                (*offset, data.len() as u64)
            }
            Operation::Zero { offset, len, flags } if !flags.fua && self.zeroes_so(*flags) => {
                (*offset, *len)
            }
            Operation::Resolve { offset, len, .. } => (*offset, *len),
            _ => return false,
        };
        let block = self.block();
        len > 0
            && offset.is_multiple_of(block)
            && len.is_multiple_of(block)
            && self.admit(operation).is_ok()
    }

    fn is_one_read(&self, offset: u64, len: usize) -> bool {
        let block = self.block();
        let aligned = offset.is_multiple_of(block) && (len as u64).is_multiple_of(block);
        aligned && len > 0 && len <= self.longest()
    }

    /// A device of blocks has a gate in front of each write.
    fn is_one_write(&self, len: usize, fua: bool) -> bool {
        self.block() == 1 && len > 0 && len <= self.longest() && self.is_native(fua)
    }

    /// Whether the device may be asked for such a zero: it may not know written ones.
    pub(crate) fn zeroes_so(&self, flags: ZeroFlags) -> bool {
        !flags.written || self.info().abilities.written_zero
    }

    /// Whether the device itself makes it durable, if it has to be.
    fn is_native(&self, fua: bool) -> bool {
        !fua || self.info().abilities.fua
    }

    /// Fills `buf` from `offset` if that needs no waiting: see [`Device::now`].
    ///
    /// # Errors
    /// As for `read`.
    pub fn read_now(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        self.check("read", offset, buf.len() as u64)?;
        if !self.is_one_read(offset, buf.len()) {
            return Ok(buf.is_empty());
        }
        self.0.device.now(Now::Read { offset, buffer: buf })
    }

    /// Writes `data` at `offset` if that needs no waiting: see [`Device::now`].
    ///
    /// # Errors
    /// As for `write`.
    pub fn write_now(&self, data: &[u8], offset: u64, fua: bool) -> Result<bool> {
        self.check_write("write", offset, data.len() as u64)?;
        if !self.is_one_write(data.len(), fua) {
            return Ok(data.is_empty() && !fua);
        }
        self.0.device.now(Now::Write { offset, data, fua })
    }

    /// Resolves a range if that needs no waiting: see [`Device::now`].
    ///
    /// # Errors
    /// As for `resolve`.
    pub fn resolve_now(
        &self,
        offset: u64,
        len: u64,
        max: usize,
        out: &mut Vec<Extent>,
    ) -> Result<bool> {
        self.check("resolve", offset, len)?;
        if len == 0 {
            return Ok(true);
        }
        let (before, max) = (out.len(), max.max(1));
        let known = self.0.device.now(Now::Resolve { offset, len, max, out: &mut *out })?;
        if known {
            self.check_extents(&out[before..], offset, len)?;
        }
        Ok(known)
    }

    /// The minimum block, in bytes.
    fn block(&self) -> u64 {
        u64::from(self.info().blocks.minimum.max(1))
    }

    /// The longest read or write the device takes, in bytes.
    fn longest(&self) -> usize {
        (self.info().blocks.maximum as usize).max(1)
    }

    /// Whether pieces are durable only if each of them is: there is no flush for all.
    fn needs_fua_each(&self) -> bool {
        self.info().abilities.fua && !self.info().abilities.flush
    }

    /// Whether a range is of whole blocks; a block that ends with the device is whole.
    fn is_whole(&self, offset: u64, len: u64) -> bool {
        let min = self.block();
        let to_the_end = offset + len == self.size();
        offset.is_multiple_of(min) && (len.is_multiple_of(min) || to_the_end)
    }

    /// The whole blocks inside a range; a block that ends with the device is whole.
    fn whole_blocks(&self, offset: u64, len: u64) -> (u64, u64) {
        let (min, end) = (self.block(), offset + len);
        let start = offset.next_multiple_of(min).min(end);
        let stop = if end == self.size() { end } else { end - end % min };
        (start, stop.saturating_sub(start))
    }

    /// The smallest range of whole blocks around `offset..offset + len`.
    fn widen(&self, offset: u64, len: u64) -> (u64, usize) {
        let min = self.block();
        let start = offset - offset % min;
        let end = (offset + len).next_multiple_of(min).min(self.size());
        (start, to_usize(end - start))
    }

    /// Where a write of `len` bytes to `offset` may be received directly: see [`Device::window`].
    #[must_use]
    pub fn window(&self, offset: u64, len: usize) -> Option<Window> {
        self.check_write("write", offset, len as u64).ok()?;
        // Blocks that are covered only in part must be read and rewritten.
        if self.block() != 1 {
            return None;
        }
        self.0.device.window(offset, len)
    }

    /// A thread's private path to the device, whatever device it is.
    ///
    /// # Errors
    /// What prevents it from being opened.
    pub fn lane(&self) -> Result<EdgeLane> {
        EdgeLane::open(self)
    }

    fn check_runs(&self, runs: &[StatusRun], offset: u64, len: u64) -> Result<()> {
        let left = runs.iter().try_fold(len, |left, run| match run.len {
            0 => None,
            n => left.checked_sub(n),
        });
        match left {
            Some(left) if left < len => Ok(()),
            _ => Err(confused("status").on(&self.info().name).at(offset)),
        }
    }

    fn check_extents(&self, extents: &[Extent], offset: u64, len: u64) -> Result<()> {
        let mut at = offset;
        for extent in extents {
            if extent.start != at || extent.len == 0 || extent.len > len - (at - offset) {
                let action = "resolve: the map of the device is broken";
                return Err(Error::new(ErrorKind::Io, Fault::Us, action)
                    .on(&self.info().name)
                    .at(at));
            }
            at += extent.len;
        }
        if at == offset {
            let action = "resolve: the device says nothing";
            return Err(Error::new(ErrorKind::Io, Fault::Us, action).on(&self.info().name).at(at));
        }
        Ok(())
    }
}

/// The blocking methods: each returns when the operation is done. Not for a reactor or a timer.
impl Edge {
    /// Runs any operation and waits for it.
    pub fn run(&self, operation: Operation) -> Result<Outcome> {
        let answer = runtime::wait_for(|promise| {
            self.submit(operation, Box::new(move |result| promise.keep(result)));
        });
        answer.unwrap_or_else(|| Err(Error::unanswered().on(&self.info().name)))
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// The range lies outside, or the device fails.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if self.read_now(buf, offset)? {
            return Ok(());
        }
        buf.copy_from_slice(&self.read_waiting(Buffer::zeroed(buf.len()), offset)?);
        Ok(())
    }

    /// Fills a buffer from `offset`, and gives it, or another one of its length, back.
    ///
    /// # Errors
    /// The range lies outside, or the device fails.
    pub fn read_buffer(&self, mut buffer: Buffer, offset: u64) -> Result<Buffer> {
        if self.read_now(&mut buffer, offset)? {
            return Ok(buffer);
        }
        self.read_waiting(buffer, offset)
    }

    fn read_waiting(&self, buffer: Buffer, offset: u64) -> Result<Buffer> {
        let len = buffer.len();
        match self.run(Operation::Read { offset, buffer })? {
            Outcome::Read(read) if read.len() == len => Ok(read),
            _ => Err(confused("read").on(&self.info().name).at(offset)),
        }
    }

    /// Writes `data` at `offset`, durably if `fua`.
    ///
    /// # Errors
    /// The device is read-only, the range lies outside, or the device fails.
    pub fn write(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        if self.write_now(data, offset, fua)? {
            return Ok(());
        }
        let data = Buffer::copy_of(data).into();
        self.run(Operation::Write { offset, data, fua }).map(drop)
    }

    /// Makes a range read as zeroes.
    ///
    /// # Errors
    /// As for `write`; `NotFast` when a fast zero was asked for and cannot be promised.
    pub fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        self.run(Operation::Zero { offset, len, flags }).map(drop)
    }

    /// Says that a range is no longer needed.
    ///
    /// # Errors
    /// As for `write`.
    pub fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.run(Operation::Trim { offset, len, fua }).map(drop)
    }

    /// Makes everything durable whose completion was reported before.
    ///
    /// # Errors
    /// The device fails.
    pub fn flush(&self) -> Result<()> {
        self.run(Operation::Flush).map(drop)
    }

    /// Brings a range closer.
    ///
    /// # Errors
    /// The range lies outside, or the device fails.
    pub fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.run(Operation::Prefetch { offset, len }).map(drop)
    }

    /// Says what a range holds: see [`Operation::Resolve`]. For `len` 0, nothing.
    ///
    /// # Errors
    /// The range lies outside, the device fails, or its answer makes no sense.
    pub fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        if self.resolve_now(offset, len, max, out)? {
            return Ok(());
        }
        match self.run(Operation::Resolve { offset, len, max })? {
            Outcome::Extents(mut extents) => {
                out.append(&mut extents);
                Ok(())
            }
            _ => Err(confused("resolve").on(&self.info().name).at(offset)),
        }
    }

    /// Says what a range is in a status context: see [`Operation::Status`]. For `len` 0, nothing.
    ///
    /// # Errors
    /// There is no such context, the range lies outside, the device fails, or its answer makes no
    /// sense.
    pub fn status(
        &self,
        context: &str,
        offset: u64,
        len: u64,
        max: usize,
        out: &mut Vec<StatusRun>,
    ) -> Result<()> {
        let context = context.into();
        match self.run(Operation::Status { context, offset, len, max })? {
            Outcome::Status(mut runs) => {
                out.append(&mut runs);
                Ok(())
            }
            _ => Err(confused("status").on(&self.info().name).at(offset)),
        }
    }

    /// Makes a range the bytes that lie at `from`: see [`Operation::Take`].
    ///
    /// # Errors
    /// As for `write`.
    pub fn take(&self, offset: u64, len: u64, from: Place, share_only: bool) -> Result<u64> {
        match self.run(Operation::Take { offset, len, from, share_only })? {
            Outcome::Taken(taken) => Ok(taken),
            _ => Err(confused("take").on(&self.info().name).at(offset)),
        }
    }
}

fn confused(what: &str) -> Error {
    let action = format!("{what}: the device returned an invalid result; this is a defect");
    Error::new(ErrorKind::Io, Fault::Us, action)
}
