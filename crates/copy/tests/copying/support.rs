//! Devices made for these tests, and a generator of disks.

use runtime::WorkPool;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use copy::{Cancel, FailedCopy, Options, Progress, Report};
use device::model::Model;
use device::{
    Abilities, BlockSizes, Blocking, Completed, Device, Edge, Error, ErrorKind, Extent, ExtentKind,
    Fault, Info, Interest, Lane, LaneStep, Operation, Place, Result, Simple, ZeroFlags,
    run_blocking,
};

/// Numbers that are the same in every run.
#[derive(Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

pub(crate) fn edge<B: Blocking>(disk: Arc<B>) -> Edge {
    Simple::edge(disk, &WorkPool::undivided(8))
}

pub(crate) fn outside(device: Arc<dyn Device>) -> Edge {
    Edge::new(device, WorkPool::new(2))
}

pub(crate) fn run(
    source: &Edge,
    target: &Edge,
    options: &Options,
) -> std::result::Result<Report, Box<FailedCopy>> {
    copy::run(
        source,
        target,
        &copy::CopyPlan::Map,
        options,
        &Progress::default(),
        &Cancel::default(),
    )
}

/// A disk of random stretches: holes, zeroes in data, data, small and large.
pub(crate) fn random_disk(model: &Model, random: &mut Random, grid: u64) {
    let size = model.info().size;
    let mut at = 0;
    while at < size {
        let len = match random.below(3) {
            0 => 1 + random.below(600),
            1 => 1 + random.below(10_000),
            _ => 1 + random.below(300_000),
        };
        let len = len.next_multiple_of(grid).min(size - at);
        let n = usize::try_from(len).unwrap();
        match random.below(4) {
            0 => {}
            1 => model.write_at(&vec![0; n], at, false).unwrap(),
            _ => {
                let seed = random.below(250);
                let bytes: Vec<u8> =
                    (0..n).map(|i| u8::try_from((i as u64 + seed) % 255 + 1).unwrap()).collect();
                model.write_at(&bytes, at, false).unwrap();
            }
        }
        at += len;
    }
}

pub(crate) fn fill(model: &Model, byte: u8) {
    let max = model.info().blocks.maximum as usize;
    let size = usize::try_from(model.info().size).unwrap();
    let (mut at, bytes) = (0, vec![byte; max.min(size)]);
    while at < size {
        let n = bytes.len().min(size - at);
        model.write_at(&bytes[..n], at as u64, false).unwrap();
        at += n;
    }
}

pub(crate) fn blocks(minimum: u32, preferred: u32, maximum: u32) -> BlockSizes {
    BlockSizes { minimum, preferred, maximum }
}

pub(crate) fn all_abilities() -> Abilities {
    Model::new(0).info().abilities
}

/// What happened at a device, and what shall go wrong.
#[derive(Default)]
pub(crate) struct Witness {
    pub(crate) reads: AtomicUsize,
    pub(crate) writes: AtomicUsize,
    pub(crate) zeroes: AtomicUsize,
    pub(crate) resolves: AtomicUsize,
    pub(crate) flushes: AtomicUsize,
    /// Counts down; the operation that finds 1 fails. 0 never does.
    pub(crate) fail_at: AtomicU64,
    /// The operation that fails panics instead.
    pub(crate) panics: bool,
    /// A hole was read.
    pub(crate) hole_read: AtomicUsize,
    pub(crate) ranges_written: Mutex<Vec<(u64, u64)>>,
}

impl Witness {
    fn step(&self, what: &str, offset: u64) -> Result<()> {
        let before = self.fail_at.fetch_update(SeqCst, SeqCst, |n| Some(n.saturating_sub(1)));
        if before != Ok(1) {
            return Ok(());
        }
        assert!(!self.panics, "a panic in a device, as this test wants it");
        Err(Error::new(ErrorKind::Io, Fault::File, what).on("faulty").at(offset))
    }
}

/// A device with a witness above it, with lanes or without.
pub(crate) struct Watched {
    pub(crate) inner: Arc<Model>,
    pub(crate) info: Info,
    pub(crate) seen: Arc<Witness>,
    /// How many lanes it has; 0 for none.
    pub(crate) lanes: usize,
}

impl Watched {
    pub(crate) fn new(inner: Arc<Model>, seen: Arc<Witness>, lanes: usize) -> Arc<Self> {
        let info = Info { lanes: NonZeroUsize::new(lanes), ..inner.info().clone() };
        Arc::new(Self { inner, info, seen, lanes })
    }

    fn clone_for_lane(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            info: self.info.clone(),
            seen: self.seen.clone(),
            lanes: self.lanes,
        }
    }
}

impl Blocking for Watched {
    fn info(&self) -> &Info {
        &self.info
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.seen.reads.fetch_add(1, SeqCst);
        self.seen.step("read", offset)?;
        let mut map = Vec::new();
        self.inner.resolve(offset, buf.len() as u64, usize::MAX, &mut map)?;
        let holes = map.iter().filter(|e| e.kind.reads_zero()).count();
        self.seen.hole_read.fetch_add(holes, SeqCst);
        self.inner.read_at(buf, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        self.seen.writes.fetch_add(1, SeqCst);
        self.seen.step("write", offset)?;
        self.seen.ranges_written.lock().unwrap().push((offset, data.len() as u64));
        self.inner.write_at(data, offset, fua)
    }
    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        self.seen.zeroes.fetch_add(1, SeqCst);
        self.seen.step("zero", offset)?;
        self.inner.zero(offset, len, flags)
    }
    fn flush(&self) -> Result<()> {
        self.seen.flushes.fetch_add(1, SeqCst);
        self.seen.step("flush", 0)?;
        self.inner.flush()
    }
    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        self.seen.resolves.fetch_add(1, SeqCst);
        self.seen.step("resolve", offset)?;
        let min = u64::from(self.info.blocks.minimum);
        let ends = len.is_multiple_of(min) || offset + len == self.info.size;
        assert!(offset.is_multiple_of(min) && ends, "resolve {offset}+{len}");
        // Few extents at a time, so that asking goes on.
        self.inner.resolve(offset, len.min(1 << 20), max.min(5), out)
    }
    fn lane(&self) -> Result<Option<Box<dyn Lane>>> {
        if self.lanes == 0 {
            return Ok(None);
        }
        self.seen.step("open a lane", 0)?;
        Ok(Some(Box::new(Shuffled::new(self.clone_for_lane()))))
    }
}

/// A lane that ends its operations late and in random order.
struct Shuffled {
    device: Watched,
    waiting: Vec<(u64, Operation)>,
    random: Random,
    always: OwnedFd,
}

static LANES: AtomicU64 = AtomicU64::new(1);

impl Shuffled {
    fn new(device: Watched) -> Self {
        let always = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        Self { device, waiting: Vec::new(), random: Random(LANES.fetch_add(1, SeqCst)), always }
    }
}

impl Lane for Shuffled {
    fn start(&mut self, ticket: u64, operation: Operation) {
        self.waiting.push((ticket, operation));
    }

    fn turn(&mut self, out: &mut Vec<Completed>) -> LaneStep {
        if self.waiting.is_empty() || self.random.below(3) == 0 {
            return LaneStep::Idle;
        }
        let n = self.random.below(4) + 1;
        for _ in 0..n.min(self.waiting.len() as u64) {
            let at = usize::try_from(self.random.below(self.waiting.len() as u64)).unwrap();
            let (ticket, operation) = self.waiting.swap_remove(at);
            out.push(Completed { ticket, outcome: run_blocking(&self.device, operation) });
        }
        LaneStep::Progress
    }

    fn waits_on(&self) -> Option<(BorrowedFd<'_>, Interest)> {
        let interest = Interest { read: true, write: false };
        (!self.waiting.is_empty()).then(|| (self.always.as_fd(), interest))
    }

    fn in_flight(&self) -> usize {
        self.waiting.len()
    }
}

/// A device of any size that is all hole, and as a target counts what it is asked.
pub(crate) struct Endless {
    info: Info,
    pub(crate) requests: AtomicUsize,
}

impl Endless {
    pub(crate) fn new(size: u64, abilities: Abilities) -> Arc<Self> {
        let info = Info { abilities, ..Info::new("endless", size) };
        Arc::new(Self { info, requests: AtomicUsize::new(0) })
    }
}

impl Blocking for Endless {
    fn info(&self) -> &Info {
        &self.info
    }
    fn read_at(&self, _: &mut [u8], offset: u64) -> Result<()> {
        panic!("a hole was read at {offset}");
    }
    fn write_at(&self, _: &[u8], offset: u64, _: bool) -> Result<()> {
        panic!("zeroes were written at {offset}");
    }
    fn zero(&self, _: u64, _: u64, _: ZeroFlags) -> Result<()> {
        self.requests.fetch_add(1, SeqCst);
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn resolve(&self, offset: u64, len: u64, _: usize, out: &mut Vec<Extent>) -> Result<()> {
        self.requests.fetch_add(1, SeqCst);
        out.push(Extent::new(offset, len, ExtentKind::Hole));
        Ok(())
    }
}

/// A device over a file, with places at both ends, that counts what passes through user space.
pub(crate) struct Filed {
    info: Info,
    file: Arc<OwnedFd>,
    pub(crate) read_or_written: AtomicU64,
}

impl Filed {
    pub(crate) fn new(file: std::fs::File) -> Arc<Self> {
        let size = file.metadata().unwrap().len();
        let abilities = Abilities { write: true, take: true, ..Abilities::READ };
        let file: Arc<OwnedFd> = Arc::new(file.into());
        let flat = Some(Place::new(file.clone(), 0));
        let info = Info { abilities, flat, ..Info::new("filed", size) };
        Arc::new(Self { info, file, read_or_written: AtomicU64::new(0) })
    }
}

impl Blocking for Filed {
    fn info(&self) -> &Info {
        &self.info
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_or_written.fetch_add(buf.len() as u64, SeqCst);
        let n =
            rustix::io::pread(&*self.file, &mut *buf, offset).map_err(|e| Error::os("read", e))?;
        assert_eq!(n, buf.len());
        Ok(())
    }
    fn write_at(&self, data: &[u8], offset: u64, _: bool) -> Result<()> {
        self.read_or_written.fetch_add(data.len() as u64, SeqCst);
        let n = rustix::io::pwrite(&*self.file, data, offset).map_err(|e| Error::os("write", e))?;
        assert_eq!(n, data.len());
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn waits(&self) -> bool {
        true
    }
    fn take(&self, offset: u64, len: u64, from: &Place, share_only: bool) -> Result<u64> {
        let (mut at, mut into) = (from.offset(), offset);
        let len = if share_only { 0 } else { usize::try_from(len).unwrap() };
        let copied = rustix::fs::copy_file_range(
            from.fd(),
            Some(&mut at),
            &*self.file,
            Some(&mut into),
            len,
        );
        Ok(copied.map_err(|e| Error::os("take", e))? as u64)
    }
}
