//! The edge: what every device needs and none should write for itself.
//!
//! It stands between a device and whoever uses it. It refuses ranges outside the device, splits
//! what is longer than the device takes, reads and rewrites the blocks that an unaligned write
//! only touches, writes zeroes where the device cannot zero (but never for a fast zero), flushes
//! where it has no FUA, and makes each face of the device, blocking and not blocking, from the
//! other. It never retries and never hides an error.

mod flushes;
mod outside;
mod spread;

use runtime::{Gate, WorkPool, contained, has_time, taking_time};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock};

use crate::contract::run;
use crate::{
    Buffer, Device, Done, Error, ErrorKind, Extent, Fault, Info, Operation, Outcome, Place, Result,
    Slice, StatusRun, Wait, Window, ZeroFlags,
};
use flushes::Flushes;
pub use spread::{Arrival, Piece};

/// Zeroes are written in pieces of this many bytes where a device cannot zero.
const ZERO_PIECE: usize = 1 << 20;
/// Requests without data of more bytes than this are not run by whoever submits them: written as
/// zeroes, say, they would keep a reactor or the timers from everything else.
const LONG: u64 = 64 << 20;
/// Reads of more bytes than this are not tried by whoever submits them: they are copied.
const AT_ONCE: usize = 1 << 20;

/// The first `len` (at most [`ZERO_PIECE`]) bytes of zeroes that all share.
fn zeroes(len: usize) -> Option<Slice> {
    static ZEROES: OnceLock<Arc<Buffer>> = OnceLock::new();
    Slice::part(ZEROES.get_or_init(|| Arc::new(Buffer::zeroed(ZERO_PIECE))), 0, len)
}

/// A device with everything that can be derived for it. Cheap to clone; safe to share.
#[derive(Clone)]
pub struct Edge(Arc<Inner>);

struct Inner {
    device: Arc<dyn Device>,
    pool: WorkPool,
    /// Writers of whole blocks share it; a read-modify-write of part of a block is alone.
    part_of_block: Arc<RwLock<()>>,
    /// The same, for a device that waits for something outside.
    gate: Arc<Gate>,
    flushes: Arc<Flushes>,
}

impl std::fmt::Debug for Edge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Edge({})", self.info().name)
    }
}

impl Edge {
    /// Puts an edge around `device`; work that may wait for a disk runs in `pool`.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, pool: WorkPool) -> Self {
        let computes = device.info().wait == Wait::Never;
        let pool = if computes { pool.for_computing() } else { pool.for_disk() };
        Self(Arc::new(Inner {
            device,
            pool,
            part_of_block: Arc::default(),
            gate: Arc::default(),
            flushes: Arc::default(),
        }))
    }

    /// An edge around another path to the same disk (one client's, say). Both keep out of each
    /// other's way where only part of a block is written.
    #[must_use]
    pub fn beside(&self, device: Arc<dyn Device>) -> Self {
        let Inner { pool, part_of_block, gate, .. } = &*self.0;
        Self(Arc::new(Inner {
            device,
            pool: pool.clone(),
            part_of_block: part_of_block.clone(),
            gate: gate.clone(),
            // A flush of one path vouches for nothing that went another way.
            flushes: Arc::default(),
        }))
    }

    /// Where work runs that may wait.
    #[must_use]
    pub fn pool(&self) -> &WorkPool {
        &self.0.pool
    }

    /// What is known of the device.
    #[must_use]
    pub fn info(&self) -> &Info {
        self.0.device.info()
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
        let size = self.info().size;
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

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// The range lies outside, or the device fails.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.check("read", offset, buf.len() as u64)?;
        if self.waits_outside() {
            let buffer = Buffer::zeroed(buf.len());
            return match self.submit_and_wait(Operation::Read { offset, buffer })? {
                Outcome::Read(read) if read.len() == buf.len() => {
                    buf.copy_from_slice(&read);
                    Ok(())
                }
                _ => Err(confused("read").on(&self.info().name).at(offset)),
            };
        }
        let min = u64::from(self.info().blocks.minimum);
        let max = self.info().blocks.maximum as usize;
        if offset.is_multiple_of(min) && (buf.len() as u64).is_multiple_of(min) {
            let mut at = offset;
            for piece in buf.chunks_mut(max) {
                self.0.device.read_at(piece, at)?;
                at += piece.len() as u64;
            }
            return Ok(());
        }
        let (start, len) = self.widen(offset, buf.len() as u64)?;
        let mut whole = Buffer::zeroed(len);
        let mut at = start;
        for piece in whole.chunks_mut(max) {
            self.0.device.read_at(piece, at)?;
            at += piece.len() as u64;
        }
        let skip = to_usize(offset - start)?;
        buf.copy_from_slice(&whole[skip..skip + buf.len()]);
        Ok(())
    }

    fn waits_outside(&self) -> bool {
        self.info().wait == Wait::Outside
    }

    fn submit_and_wait(&self, operation: Operation) -> Result<Outcome> {
        wait_for(|done| outside::submit(self, operation, done))
    }

    /// The minimum block, in bytes.
    fn block(&self) -> u64 {
        u64::from(self.info().blocks.minimum.max(1))
    }

    /// The longest read or write the device takes, in bytes.
    fn longest(&self) -> usize {
        (self.info().blocks.maximum as usize).max(1)
    }

    /// Whether what is done in pieces is durable only if each of them is: there is no flush for all.
    fn needs_fua_each(&self) -> bool {
        self.info().abilities.fua && !self.info().abilities.flush
    }

    /// Whether a range is of whole blocks; a block that ends with the device is whole.
    fn is_whole(&self, offset: u64, len: u64) -> bool {
        let min = self.block();
        let to_the_end = offset + len == self.info().size;
        offset.is_multiple_of(min) && (len.is_multiple_of(min) || to_the_end)
    }

    /// The whole blocks inside a range; a block that ends with the device is whole.
    fn whole_blocks(&self, offset: u64, len: u64) -> (u64, u64) {
        let (min, end) = (self.block(), offset + len);
        let start = offset.next_multiple_of(min).min(end);
        let stop = if end == self.info().size { end } else { end - end % min };
        (start, stop.saturating_sub(start))
    }

    /// The smallest range of whole blocks around `offset..offset + len`.
    fn widen(&self, offset: u64, len: u64) -> Result<(u64, usize)> {
        let min = u64::from(self.info().blocks.minimum);
        let start = offset - offset % min;
        let end = (offset + len).next_multiple_of(min).min(self.info().size);
        Ok((start, to_usize(end - start)?))
    }

    /// Writes `data` at `offset`, durably if `fua`.
    ///
    /// # Errors
    /// The device is read-only, the range lies outside, or the device fails.
    pub fn write(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        self.check_write("write", offset, data.len() as u64)?;
        if self.waits_outside() {
            let data = Buffer::copy_of(data).into();
            return self.submit_and_wait(Operation::Write { offset, data, fua }).map(drop);
        }
        let min = u64::from(self.info().blocks.minimum);
        let native_fua = fua && self.info().abilities.fua;
        if min == 1 {
            self.write_pieces(data, offset, native_fua)?;
        } else {
            self.write_blocks(data, offset, native_fua, min)?;
        }
        if fua && !native_fua { self.0.device.flush() } else { Ok(()) }
    }

    /// Like `write`; a filter below gets the bytes without a copy.
    fn write_slice(&self, data: Slice, offset: u64, fua: bool) -> Result<()> {
        let (block, len) = (self.block(), data.len() as u64);
        let aligned = offset.is_multiple_of(block) && len.is_multiple_of(block);
        if self.waits_outside() || !aligned || data.is_empty() || data.len() > self.longest() {
            return self.write(&data, offset, fua);
        }
        self.check_write("write", offset, len)?;
        let _shared = (block > 1)
            .then(|| self.0.part_of_block.read().unwrap_or_else(PoisonError::into_inner));
        let native_fua = fua && self.info().abilities.fua;
        let operation = Operation::Write { offset, data, fua: native_fua };
        self.0.device.submit_and_wait(operation)?;
        self.after(fua && !native_fua)
    }

    /// Writes in pieces, if need be, which are made durable by one flush, if they can be.
    fn write_pieces(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        let each = fua && (data.len() <= self.longest() || self.needs_fua_each());
        let mut at = offset;
        for piece in data.chunks(self.longest()) {
            self.0.device.write_at(piece, at, each)?;
            at += piece.len() as u64;
        }
        self.after(fua && !each)
    }

    /// A write to a device of blocks: the blocks at its ends that are only touched are read,
    /// changed and written back, alone.
    fn write_blocks(&self, data: &[u8], offset: u64, fua: bool, min: u64) -> Result<()> {
        let (start, len) = self.widen(offset, data.len() as u64)?;
        if start == offset && len == data.len() {
            let _shared = self.0.part_of_block.read().unwrap_or_else(PoisonError::into_inner);
            return self.write_pieces(data, offset, fua);
        }
        let _alone = self.0.part_of_block.write().unwrap_or_else(PoisonError::into_inner);
        let block = to_usize(min)?;
        let mut whole = Buffer::zeroed(len);
        let first = block.min(len);
        self.0.device.read_at(&mut whole[..first], start)?;
        if len > block {
            let last = (len - 1) / block * block;
            self.0.device.read_at(&mut whole[last..], start + last as u64)?;
        }
        let skip = to_usize(offset - start)?;
        whole[skip..skip + data.len()].copy_from_slice(data);
        self.write_pieces(&whole, start, fua)
    }

    /// Where a write of `len` bytes to `offset` may be received directly: see [`Device::window`].
    #[must_use]
    pub fn window(&self, offset: u64, len: usize) -> Option<Window> {
        self.check_write("write", offset, len as u64).ok()?;
        // Blocks that are only touched must be read and rewritten.
        if self.block() != 1 {
            return None;
        }
        self.0.device.window(offset, len)
    }

    /// Makes a range read as zeroes.
    ///
    /// # Errors
    /// As for `write`; `NotFast` when a fast zero was asked for and cannot be promised.
    pub fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        self.check_write("zero", offset, len)?;
        if self.waits_outside() {
            return self.submit_and_wait(Operation::Zero { offset, len, flags }).map(drop);
        }
        if len == 0 {
            return self.after(flags.fua);
        }
        let min = u64::from(self.info().blocks.minimum);
        if self.is_whole(offset, len) {
            return self.zero_blocks(offset, len, flags);
        }
        if flags.fast_only {
            return Err(Error::not_fast().on(&self.info().name).at(offset));
        }
        // The parts of blocks at both ends are written, the blocks between are zeroed.
        let (end, size) = (offset + len, self.info().size);
        let inner = offset.next_multiple_of(min).min(end);
        let inner_end = if end == size { end } else { (end - end % min).max(inner) };
        self.write_zeroes(offset, inner - offset, flags.fua)?;
        if inner_end > inner {
            self.zero_blocks(inner, inner_end - inner, flags)?;
        }
        self.write_zeroes(inner_end, end - inner_end, flags.fua)
    }

    fn zero_blocks(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        let native_fua = flags.fua && self.info().abilities.fua;
        let zeroed = {
            // A read-modify-write of part of these blocks must not bring back what is zeroed.
            let _shared = self.0.part_of_block.read().unwrap_or_else(PoisonError::into_inner);
            self.0.device.zero(offset, len, ZeroFlags { fua: native_fua, ..flags })
        };
        match zeroed {
            Ok(()) => self.after(flags.fua && !native_fua),
            Err(e) if e.is_unsupported() && flags.fast_only => {
                Err(Error::not_fast().on(&self.info().name).at(offset))
            }
            Err(e) if e.is_unsupported() => self.write_zeroes(offset, len, flags.fua),
            Err(e) => Err(e),
        }
    }

    /// The slow way: zeroes written as data, all of them, however long the range is.
    fn write_zeroes(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        let (mut at, mut left) = (offset, len);
        let piece = (self.info().blocks.maximum as usize).min(ZERO_PIECE) as u64;
        // One flush at the end costs less than FUA on every piece.
        while left > 0 {
            let n = left.min(piece);
            let data = zeroes(to_usize(n)?).ok_or_else(|| confused("zero"))?;
            self.write_slice(data, at, false)?;
            at += n;
            left -= n;
        }
        self.after(fua && len > 0)
    }

    fn after(&self, fua: bool) -> Result<()> {
        if fua { self.0.device.flush() } else { Ok(()) }
    }

    /// Says that a range is no longer needed.
    ///
    /// # Errors
    /// As for `write`.
    pub fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.check_write("trim", offset, len)?;
        if self.waits_outside() {
            return self.submit_and_wait(Operation::Trim { offset, len, fua }).map(drop);
        }
        // A hint: only whole blocks may go.
        let (start, len) = self.whole_blocks(offset, len);
        let native_fua = fua && self.info().abilities.fua;
        if len > 0 {
            match self.0.device.trim(start, len, native_fua) {
                Err(e) if e.is_unsupported() => return self.after(fua),
                other => other?,
            }
            return self.after(fua && !native_fua);
        }
        self.after(fua)
    }

    /// Makes everything durable whose completion was reported before.
    ///
    /// # Errors
    /// What the device says.
    pub fn flush(&self) -> Result<()> {
        self.0.device.flush()
    }

    /// Brings a range closer.
    ///
    /// # Errors
    /// The range lies outside, or the device fails.
    pub fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.check("prefetch", offset, len)?;
        self.0.device.prefetch(offset, len)
    }

    /// Says what a range holds: see [`Device::resolve`]. For `len` 0, nothing.
    ///
    /// # Errors
    /// The range lies outside, the device fails, or it answers nonsense.
    pub fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        self.check("resolve", offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let before = out.len();
        self.0.device.resolve(offset, len, max.max(1), out)?;
        self.check_extents(&out[before..], offset, len)
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

    /// Fills `buf` from `offset` if that needs no waiting: see [`Device::read_now`].
    ///
    /// # Errors
    /// As for `read`.
    pub fn read_now(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        if self.info().wait == Wait::Never {
            return self.read(buf, offset).map(|()| true);
        }
        self.check("read", offset, buf.len() as u64)?;
        // What must be cut or widened first is not done here.
        if !self.is_whole(offset, buf.len() as u64) || buf.len() > self.longest() {
            return Ok(false);
        }
        self.0.device.read_now(buf, offset)
    }

    /// Says what a range is in a status context: see [`Device::status`]. For `len` 0, nothing.
    ///
    /// # Errors
    /// There is no such context, the range lies outside, the device fails, or it answers nonsense.
    pub fn status(
        &self,
        context: &str,
        offset: u64,
        len: u64,
        max: usize,
        out: &mut Vec<StatusRun>,
    ) -> Result<()> {
        self.check_context(context)?;
        self.check("status", offset, len)?;
        if len == 0 {
            return Ok(());
        }
        if self.waits_outside() {
            let context = context.into();
            let status = Operation::Status { context, offset, len, max };
            return match self.submit_and_wait(status)? {
                Outcome::Status(mut runs) => {
                    out.append(&mut runs);
                    Ok(())
                }
                _ => Err(confused("status").on(&self.info().name).at(offset)),
            };
        }
        let before = out.len();
        self.0.device.status(context, offset, len, max.max(1), out)?;
        self.check_runs(&out[before..], offset, len)
    }

    fn check_context(&self, context: &str) -> Result<()> {
        if self.info().contexts.iter().any(|known| **known == *context) {
            return Ok(());
        }
        let action = format!("status: there is no context `{context}`");
        Err(Error::unsupported(action).on(&self.info().name))
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

    /// Makes a range the bytes that lie at `from`: see [`Device::take`].
    ///
    /// # Errors
    /// As for `write`.
    pub fn take(&self, offset: u64, len: u64, from: Place, share_only: bool) -> Result<u64> {
        self.check_write("take", offset, len)?;
        let operation = Operation::Take { offset, len, from, share_only };
        let outcome = if self.waits_outside() {
            self.submit_and_wait(operation)?
        } else {
            let Some(operation) = self.whole_take(operation) else { return Ok(0) };
            // A read-modify-write of part of these blocks must not bring back what they were.
            let _shared = self.0.part_of_block.read().unwrap_or_else(PoisonError::into_inner);
            run(&*self.0.device, operation)?
        };
        match outcome {
            Outcome::Taken(taken) if taken <= len => Ok(taken),
            _ => Err(confused("take").on(&self.info().name).at(offset)),
        }
    }

    /// What a device of blocks may be asked to take: whole blocks from the start of the range.
    fn whole_take(&self, operation: Operation) -> Option<Operation> {
        let Operation::Take { offset, len, from, share_only } = operation else { return None };
        match self.whole_blocks(offset, len) {
            (start, len) if start == offset && len > 0 => {
                Some(Operation::Take { offset, len, from, share_only })
            }
            _ => None,
        }
    }

    /// Writes `data` at `offset` if that needs no waiting: see [`Device::write_now`].
    ///
    /// # Errors
    /// As for `write`.
    pub fn write_now(&self, data: &[u8], offset: u64) -> Result<bool> {
        if self.info().wait == Wait::Never {
            return self.write(data, offset, false).map(|()| true);
        }
        self.check_write("write", offset, data.len() as u64)?;
        // What must be cut or widened first is not done here.
        if self.block() != 1 || data.len() > self.longest() {
            return Ok(false);
        }
        self.0.device.write_now(data, offset)
    }

    /// Says what a range holds if that needs no waiting: see [`Device::resolve_now`].
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
        if self.info().wait == Wait::Never {
            return self.resolve(offset, len, max, out).map(|()| true);
        }
        self.check("resolve", offset, len)?;
        let before = out.len();
        let known = len == 0 || self.0.device.resolve_now(offset, len, max.max(1), out)?;
        if known && len > 0 {
            self.check_extents(&out[before..], offset, len)?;
        }
        Ok(known)
    }

    /// Runs any operation and waits for it.
    ///
    /// # Errors
    /// As for the operation.
    pub fn run(&self, operation: Operation) -> Result<Outcome> {
        match operation {
            Operation::Flush => self.flush().map(|()| Outcome::Done),
            Operation::Prefetch { offset, len } => {
                self.prefetch(offset, len).map(|()| Outcome::Done)
            }
            Operation::Read { offset, mut buffer } => {
                self.read(&mut buffer, offset)?;
                Ok(Outcome::Read(buffer))
            }
            Operation::Resolve { offset, len, max } => {
                let mut extents = Vec::new();
                self.resolve(offset, len, max, &mut extents)?;
                Ok(Outcome::Extents(extents))
            }
            Operation::Status { context, offset, len, max } => {
                let mut runs = Vec::new();
                self.status(&context, offset, len, max, &mut runs)?;
                Ok(Outcome::Status(runs))
            }
            Operation::Take { offset, len, from, share_only } => {
                self.take(offset, len, from, share_only).map(Outcome::Taken)
            }
            Operation::Trim { offset, len, fua } => {
                self.trim(offset, len, fua).map(|()| Outcome::Done)
            }
            Operation::Write { offset, data, fua } => {
                self.write_slice(data, offset, fua).map(|()| Outcome::Done)
            }
            Operation::Zero { offset, len, flags } => {
                self.zero(offset, len, flags).map(|()| Outcome::Done)
            }
        }
    }

    /// Starts any operation and returns at once, unless the device never waits: then it runs
    /// here, if it is not long. `done` is called exactly once.
    pub fn submit(&self, operation: Operation, done: Done) {
        match self.info().wait {
            Wait::Never if is_long(&operation) && !has_time() => {
                self.in_pool(operation, done);
            }
            Wait::Never => done(self.run(operation)),
            Wait::Disk if matches!(operation, Operation::Flush) => {
                self.0.flushes.join(&self.0.device, &self.0.pool, done);
            }
            Wait::Disk => match self.at_once(operation) {
                Ok(read) => done(Ok(read)),
                Err(operation) => self.in_pool(operation, done),
            },
            Wait::Outside => outside::submit(self, operation, done),
        }
    }

    /// Does here what needs neither a disk nor long: a filter over a file reads what is in memory
    /// without a thread of the pool. What is not done is given back.
    fn at_once(&self, operation: Operation) -> std::result::Result<Outcome, Operation> {
        let Operation::Read { offset, mut buffer } = operation else { return Err(operation) };
        // Whatever is wrong, the read that waits will say it.
        if buffer.len() <= AT_ONCE && self.read_now(&mut buffer, offset).unwrap_or(false) {
            return Ok(Outcome::Read(buffer));
        }
        Err(Operation::Read { offset, buffer })
    }

    fn checked(&self, outcome: Outcome, offset: u64, len: u64) -> Result<Outcome> {
        match &outcome {
            Outcome::Extents(extents) => self.check_extents(extents, offset, len)?,
            Outcome::Status(runs) => self.check_runs(runs, offset, len)?,
            Outcome::Taken(taken) if *taken <= len => {}
            _ => return Err(confused("an operation").on(&self.info().name).at(offset)),
        }
        Ok(outcome)
    }

    fn in_pool(&self, operation: Operation, done: Done) {
        let edge = self.clone();
        self.0.pool.run(move || {
            let result = contained("a request", || edge.run(operation));
            done(result.unwrap_or_else(|panic| Err(panic.into())));
        });
    }
}

impl dyn Device + '_ {
    /// The blocking face of a device that only has the other one.
    ///
    /// # Errors
    /// As for the operation.
    pub fn submit_and_wait(&self, operation: Operation) -> Result<Outcome> {
        submit_and_wait(self, operation)
    }

    /// The blocking face, as a value.
    ///
    /// # Errors
    /// As for the operation.
    pub fn run_blocking(&self, operation: Operation) -> Result<Outcome> {
        run(self, operation)
    }
}

fn submit_and_wait<D: Device + ?Sized>(device: &D, operation: Operation) -> Result<Outcome> {
    wait_for(|done| device.submit(operation, done))
}

/// What somebody waits for, and whether he waits yet: to wake nobody is a system call too.
#[derive(Default)]
struct Awaited {
    outcome: Option<Result<Outcome>>,
    waiting: bool,
}

/// Blocks until what `start` starts has ended.
pub(crate) fn wait_for(start: impl FnOnce(Done)) -> Result<Outcome> {
    let slot = Arc::new((Mutex::new(Awaited::default()), Condvar::new()));
    let filled = slot.clone();
    let done: Done = Box::new(move |outcome| {
        let mut awaited = filled.0.lock().unwrap_or_else(PoisonError::into_inner);
        awaited.outcome = Some(outcome);
        let waiting = awaited.waiting;
        drop(awaited);
        if waiting {
            filled.1.notify_one();
        }
    });
    taking_time(|| start(done));
    runtime::before_waiting();
    let mut guard = slot.0.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(outcome) = guard.outcome.take() {
            return outcome;
        }
        guard.waiting = true;
        guard = slot.1.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Whether an operation may take long even if it waits for nothing.
fn is_long(operation: &Operation) -> bool {
    match operation {
        Operation::Prefetch { len, .. }
        | Operation::Take { len, .. }
        | Operation::Trim { len, .. }
        | Operation::Zero { len, .. } => *len > LONG,
        // One answer, or the bytes of one buffer.
        Operation::Flush
        | Operation::Read { .. }
        | Operation::Resolve { .. }
        | Operation::Status { .. }
        | Operation::Write { .. } => false,
    }
}

fn confused(what: &str) -> Error {
    let action = format!("{what}: the device gave an answer that makes no sense; this is a defect");
    Error::new(ErrorKind::Io, Fault::Us, action)
}

fn to_usize(n: u64) -> Result<usize> {
    usize::try_from(n).map_err(|_| Error::invalid(format!("{n} bytes do not fit in memory")))
}
