//! A device made of blocking methods: what a simple device implements instead of [`Device`].
//!
//! What never waits is run by the caller, unless it is long; what may wait for a disk runs in the
//! pool, where flushes of one disk are joined. A thread that waits for the end anyway does the work
//! itself, so that nothing in a pool waits for that pool.

mod flushes;

use std::sync::Arc;

use runtime::{Behalf, WorkPool, contained, has_time, is_waiting};

use crate::{
    Device, Done, Edge, Error, Extent, ExtentKind, Info, Lane, Now, Operation, Outcome, Place,
    Result, Session, StatusRun, Window, ZeroFlags,
};
use flushes::Flushes;

/// Requests without data of more bytes than this are not run by the submitting thread: they would
/// keep a reactor or the timers from everything else.
const LONG: u64 = 16 << 20;
/// Nor are those with more bytes of data than this.
const LONG_DATA: usize = 4 << 20;
/// Nor are queries of the map that may return more extents than this.
const FEW: usize = 64;
/// Reads of more bytes than this are not tried by the submitting thread: they are copied.
const AT_ONCE: usize = 1 << 20;
/// Writes of more bytes than this are never quick.
const QUICK: u64 = 1 << 20;

/// A disk whose methods return when the operation is done.
pub trait Blocking: Send + Sync + 'static {
    /// What is known of it. Constant.
    fn info(&self) -> &Info;

    /// Whether an operation may wait for a disk, or, at this moment, for a long one that is in
    /// flight. Otherwise it is memory and arithmetic only, and any thread may call. Asked before
    /// each operation.
    fn waits(&self) -> bool {
        false
    }

    /// How many threads (≥ 1) may write to it at a time, except for durable writes. A file is
    /// locked while it is written through the page cache, and more of them burn a processor's time
    /// in waiting for the lock.
    fn writers(&self) -> usize {
        1
    }

    /// Whether a write that need not be durable takes microseconds nearly always: it goes into
    /// memory, and waits for a disk now and then.
    fn is_quick(&self) -> bool {
        false
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// Whatever prevents *all* of `buf` from being filled; its contents are then undefined.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;

    /// Writes `data` at `offset`; durable on return if `fua`.
    ///
    /// # Errors
    /// Whatever prevents all of it from being written; the range is then undefined.
    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()>;

    /// Makes everything durable whose completion was reported before the call.
    ///
    /// # Errors
    /// The system's error; after one nothing can be assumed durable.
    fn flush(&self) -> Result<()>;

    /// For callers that wait: see [`Device::now`].
    fn now(&self, now: Now<'_>) -> Result<bool> {
        let _ = now;
        Ok(false)
    }

    /// Makes a range read as zeroes without being sent zeroes.
    ///
    /// # Errors
    /// `Unsupported`: nothing was changed and the edge writes zeroes instead. `NotFast`: as in
    /// [`ZeroFlags::fast_only`].
    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        let _ = (offset, len);
        Err(if flags.fast_only { Error::not_fast() } else { Error::unsupported("zero") })
    }

    /// Says that a range is no longer needed; what it reads as afterwards is undefined. A hint:
    /// a device without the means succeeds without doing anything.
    ///
    /// # Errors
    /// Only real failures.
    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        let _ = (offset, len);
        if fua { self.flush() } else { Ok(()) }
    }

    /// Prefetches a range, if that means anything here. A hint.
    ///
    /// # Errors
    /// Only real failures.
    fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        let _ = (offset, len);
        Ok(())
    }

    /// Says what `len` bytes from `offset` hold: appends to `out` adjoining extents that begin
    /// at `offset`, end at or before `offset + len`, cover at least one byte, and are at most
    /// `max` (≥ 1) in number. The cost must not grow with `len`, only with what is appended.
    ///
    /// # Errors
    /// The system's error. A device in doubt returns `Data`, never a hole.
    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        let _ = max;
        let place = self.info().flat.as_ref().map(|place| place.advanced(offset));
        out.push(Extent::new(offset, len, ExtentKind::Data).at(place));
        Ok(())
    }

    /// Says what `len` bytes from `offset` are in the status context `context`, one of
    /// [`Info::contexts`]: appends to `out` at least one run and at most `max` (≥ 1), of which the
    /// first begins at `offset`, each other where the one before it ends, and none ends after
    /// `offset + len`.
    ///
    /// # Errors
    /// There is no such context; the system's error.
    fn status(
        &self,
        context: &str,
        offset: u64,
        len: u64,
        max: usize,
        out: &mut Vec<StatusRun>,
    ) -> Result<()> {
        let _ = (offset, len, max, out);
        Err(Error::unsupported(format!("status: there is no context `{context}`")))
    }

    /// Makes a range the bytes that lie at `from`, without moving them through this program: by
    /// sharing them, or else, unless `share_only`, copied by the system. Returns how many bytes
    /// from the start were taken, at most `len`; each of the others is old or new. 0 also if it is
    /// not possible at all: the caller then reads and writes, which reports errors.
    ///
    /// Only the bytes count, not their map: a hole may become data, and data of zeroes a hole.
    ///
    /// # Errors
    /// Some of the range may have been changed.
    fn take(&self, offset: u64, len: u64, from: &Place, share_only: bool) -> Result<u64> {
        let _ = (offset, len, from, share_only);
        Ok(0)
    }

    /// See [`Device::window`].
    fn window(&self, offset: u64, len: usize) -> Option<Window> {
        let _ = (offset, len);
        None
    }

    /// See [`Device::lane`].
    fn lane(&self) -> Result<Option<Box<dyn Lane>>> {
        Ok(None)
    }

    /// See [`Device::session`].
    fn session(&self) -> Option<&dyn Session> {
        None
    }

    /// See [`Device::resize`].
    fn resize(&self, size: u64) -> Result<()> {
        self.info().keep_size(size)
    }

    /// See [`Device::grows`].
    fn grows(&self) -> bool {
        false
    }

    /// See [`Device::size_now`].
    fn size_now(&self) -> Option<u64> {
        None
    }

    /// See [`Device::finish`].
    fn finish(&self) -> Result<()> {
        Ok(())
    }
}

/// Does an operation, and returns when it is done.
pub fn run<B: Blocking + ?Sized>(disk: &B, operation: Operation) -> Result<Outcome> {
    let done = |result: Result<()>| result.map(|()| Outcome::Done);
    match operation {
        Operation::Flush => done(disk.flush()),
        Operation::Prefetch { offset, len } => done(disk.prefetch(offset, len)),
        Operation::Read { offset, mut buffer } => {
            disk.read_at(&mut buffer, offset)?;
            Ok(Outcome::Read(buffer))
        }
        Operation::Resolve { offset, len, max } => {
            let mut extents = Vec::new();
            disk.resolve(offset, len, max, &mut extents)?;
            Ok(Outcome::Extents(extents))
        }
        Operation::Status { context, offset, len, max } => {
            let mut runs = Vec::new();
            disk.status(&context, offset, len, max, &mut runs)?;
            Ok(Outcome::Status(runs))
        }
        Operation::Take { offset, len, from, share_only } => {
            disk.take(offset, len, &from, share_only).map(Outcome::Taken)
        }
        Operation::Trim { offset, len, fua } => done(disk.trim(offset, len, fua)),
        Operation::Write { offset, data, fua } => done(disk.write_at(&data, offset, fua)),
        Operation::Zero { offset, len, flags } => done(disk.zero(offset, len, flags)),
    }
}

/// A [`Blocking`] disk as a [`Device`].
pub struct Simple<B> {
    disk: Arc<B>,
    pool: WorkPool,
    writers: WorkPool,
    /// For short writes: the same, unless writes are quick.
    quick: WorkPool,
    flushes: Arc<Flushes>,
}

impl<B: Blocking> Simple<B> {
    /// Makes a device of `disk`; what may wait, or is long, runs in `pool`.
    pub fn device(disk: B, pool: &WorkPool) -> Arc<dyn Device> {
        Self::shared(Arc::new(disk), pool)
    }

    /// The same of a disk that is used in other ways, too.
    pub fn shared(disk: Arc<B>, pool: &WorkPool) -> Arc<dyn Device> {
        let pool = if disk.waits() { pool.for_disk() } else { pool.for_computing() };
        let writers = pool.at_most(disk.writers());
        let quick = if disk.is_quick() { writers.for_quick_work() } else { writers.clone() };
        Arc::new(Self { disk, pool, writers, quick, flushes: Arc::default() })
    }

    /// The same, with an edge in front.
    pub fn edge(disk: B, pool: &WorkPool) -> Edge {
        Self::shared_edge(Arc::new(disk), pool)
    }

    /// The same of a disk that is used in other ways, too.
    pub fn shared_edge(disk: Arc<B>, pool: &WorkPool) -> Edge {
        Edge::new(Self::shared(disk, pool), pool.clone())
    }

    /// Reads what is in memory without a thread of the pool; gives back everything else.
    fn read_now(&self, operation: Operation) -> std::result::Result<Outcome, Operation> {
        let Operation::Read { offset, mut buffer } = operation else { return Err(operation) };
        // Errors are reported by the read that waits.
        if buffer.len() <= AT_ONCE
            && self.disk.now(Now::Read { offset, buffer: &mut buffer }).unwrap_or(false)
        {
            return Ok(Outcome::Read(buffer));
        }
        Err(Operation::Read { offset, buffer })
    }

    /// Whether the caller runs it.
    fn is_run_here(&self, operation: &Operation) -> bool {
        is_waiting() || (!self.disk.waits() && (has_time() || !is_long(operation)))
    }
}

impl<B: Blocking> std::fmt::Debug for Simple<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Simple({})", self.disk.info().name)
    }
}

impl<B: Blocking> Device for Simple<B> {
    fn info(&self) -> &Info {
        self.disk.info()
    }

    fn submit(&self, operation: Operation, done: Done) {
        if self.is_run_here(&operation) {
            return done(run(&*self.disk, operation));
        }
        let operation = match self.read_now(operation) {
            Ok(read) => return done(Ok(read)),
            Err(operation) => operation,
        };
        let disk = self.disk.clone();
        if matches!(operation, Operation::Flush) {
            return self.flushes.join(move || disk.flush(), &self.pool, done);
        }
        let writes = matches!(operation, Operation::Write { fua: false, .. });
        let (_, len) = operation.range().unwrap_or_default();
        let pool = match writes {
            true if len <= QUICK => &self.quick,
            true => &self.writers,
            false => &self.pool,
        };
        let behalf = Behalf::current();
        pool.run(move || {
            if !behalf.is_wanted() {
                return;
            }
            let result = contained("a request", || run(&*disk, operation));
            drop(disk);
            done(result.unwrap_or_else(|panic| Err(panic.into())));
        });
    }

    fn now(&self, now: Now<'_>) -> Result<bool> {
        if self.disk.waits() {
            return self.disk.now(now);
        }
        match now {
            Now::Read { offset, buffer } => self.disk.read_at(buffer, offset)?,
            Now::Resolve { offset, len, max, out } => self.disk.resolve(offset, len, max, out)?,
            Now::Write { offset, data, fua } => self.disk.write_at(data, offset, fua)?,
        }
        Ok(true)
    }

    fn window(&self, offset: u64, len: usize) -> Option<Window> {
        self.disk.window(offset, len)
    }

    fn lane(&self) -> Result<Option<Box<dyn Lane>>> {
        self.disk.lane()
    }

    fn session(&self) -> Option<&dyn Session> {
        self.disk.session()
    }

    fn resize(&self, size: u64) -> Result<()> {
        self.disk.resize(size)
    }

    fn grows(&self) -> bool {
        self.disk.grows()
    }

    fn size_now(&self) -> Option<u64> {
        self.disk.size_now()
    }

    fn finish(&self) -> Result<()> {
        self.disk.finish()
    }
}

/// Whether an operation may take long even without waiting.
fn is_long(operation: &Operation) -> bool {
    match operation {
        Operation::Prefetch { len, .. }
        | Operation::Take { len, .. }
        | Operation::Trim { len, .. }
        | Operation::Zero { len, .. } => *len > LONG,
        Operation::Read { buffer, .. } => buffer.len() > LONG_DATA,
        Operation::Write { data, .. } => data.len() > LONG_DATA,
        Operation::Resolve { max, .. } | Operation::Status { max, .. } => *max > FEW,
        Operation::Flush => false,
    }
}
