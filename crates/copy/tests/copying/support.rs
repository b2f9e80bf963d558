//! Devices made for these tests, and a generator of disks.

use runtime::{RangeSet, WorkPool};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use copy::{Cancel, FailedCopy, Options, Progress, Report, Watched, Witness};
use device::model::Model;
use device::{
    Abilities, BlockSizes, Blocking, Completed, Device, Edge, Error, Extent, ExtentKind, Info,
    Interest, Lane, LaneStep, Operation, OperationKind, Outcome, Place, Result, Simple,
    run_blocking,
};
use trial::{Fate, TestDevice};

/// Numbers that are the same in every run.
#[derive(Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    pub(crate) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[usize::try_from(self.below(list.len() as u64)).unwrap()]
    }
}

pub(crate) fn edge<B: Blocking>(disk: Arc<B>) -> Edge {
    Simple::shared_edge(disk, &WorkPool::undivided(8))
}

pub(crate) fn outside(device: Arc<dyn Device>) -> Edge {
    Edge::new(device, WorkPool::new(2))
}

pub(crate) fn run(
    source: &Edge,
    target: &Edge,
    options: &Options,
) -> std::result::Result<Report, Box<FailedCopy>> {
    run_until(source, target, options, &Progress::default(), &Cancel::default())
}

pub(crate) fn run_until(
    source: &Edge,
    target: &Edge,
    options: &Options,
    progress: &Progress,
    cancel: &Cancel,
) -> std::result::Result<Report, Box<FailedCopy>> {
    copy::run(source, target, &copy::CopyPlan::Map, options, progress, cancel)
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

/// Notes all that is copied, and where.
pub(crate) struct Notes(Mutex<(Vec<u8>, RangeSet)>);

impl Notes {
    /// For a source of this many bytes; and as an option of the copy.
    pub(crate) fn of(size: usize) -> (Arc<Self>, Option<Watched>) {
        let notes = Arc::new(Self(Mutex::new((vec![0; size], RangeSet::default()))));
        (notes.clone(), Some(Watched(notes)))
    }

    /// Every byte was seen once, as it is in the source.
    pub(crate) fn check(&self, source: &[u8], context: &str) {
        let (bytes, seen) = &*self.0.lock().unwrap();
        assert_eq!((seen.len(), bytes.len()), (source.len() as u64, source.len()), "{context}");
        assert!(bytes == source, "{context}");
    }

    fn note(&self, range: Range<u64>, bytes: Option<&[u8]>) {
        let (all, seen) = &mut *self.0.lock().unwrap();
        assert!(!seen.has_some_of(&range), "{range:?} was seen twice");
        seen.add(range.clone());
        if let Some(bytes) = bytes {
            all[usize::try_from(range.start).unwrap()..][..bytes.len()].copy_from_slice(bytes);
        }
    }
}

impl Witness for Notes {
    fn data(&self, offset: u64, bytes: &[u8]) {
        self.note(offset..offset + bytes.len() as u64, Some(bytes));
    }

    fn zeroes(&self, range: Range<u64>) {
        self.note(range, None);
    }
}

/// A device that tells few extents at a time, so that asking goes on; with so many lanes, or
/// without.
pub(crate) fn watched(model: Arc<Model>, lanes: usize) -> Arc<TestDevice> {
    watching(model, lanes).shared()
}

/// The same, for a test that changes more of it.
pub(crate) fn watching(model: Arc<Model>, lanes: usize) -> TestDevice {
    let (min, size) = (u64::from(model.info().blocks.minimum), model.info().size);
    let device = TestDevice::over(model)
        .info_with(|info| info.lanes = NonZeroUsize::new(lanes))
        .hooked(move |operation| Fate::Pass(few_extents(operation, min, size)));
    match lanes {
        0 => device,
        _ => device.lanes(|device| {
            let (device, seed) = (device.clone(), LANES.fetch_add(1, SeqCst));
            Ok(Shuffled::lane(seed, move |operation| run_blocking(&device, operation)))
        }),
    }
}

pub(crate) fn few_extents(operation: Operation, min: u64, size: u64) -> Operation {
    let Operation::Resolve { offset, len, max } = operation else { return operation };
    let ends = len.is_multiple_of(min) || offset + len == size;
    assert!(offset.is_multiple_of(min) && ends, "resolve {offset}+{len}");
    Operation::Resolve { offset, len: len.min(1 << 20), max: max.min(5) }
}

/// How many holes were read of a device whose model is as it was then.
pub(crate) fn holes_read(device: &TestDevice) -> usize {
    let mut map = Vec::new();
    for read in device.seen_of(OperationKind::Read) {
        device.model().resolve(read.offset, read.len, usize::MAX, &mut map).unwrap();
    }
    map.iter().filter(|extent| extent.kind.reads_zero()).count()
}

/// A lane that ends its operations late and in random order.
pub(crate) struct Shuffled<F> {
    run: F,
    waiting: Vec<(u64, Operation)>,
    random: Random,
    always: OwnedFd,
}

static LANES: AtomicU64 = AtomicU64::new(1);

impl<F: FnMut(Operation) -> Result<Outcome> + Send + 'static> Shuffled<F> {
    pub(crate) fn lane(seed: u64, run: F) -> Box<dyn Lane> {
        let always = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        Box::new(Self { run, waiting: Vec::new(), random: Random(seed), always })
    }
}

impl<F: FnMut(Operation) -> Result<Outcome> + Send> Lane for Shuffled<F> {
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
            out.push(Completed { ticket, outcome: (self.run)(operation) });
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

/// A device of any size that is all hole.
pub(crate) fn endless(size: u64, abilities: Abilities) -> Arc<TestDevice> {
    let info = Info { abilities, ..Info::new("endless", size) };
    let device = TestDevice::blank(info).hooked(|operation| match operation {
        Operation::Read { offset, .. } => panic!("a hole was read at {offset}"),
        Operation::Write { offset, .. } => panic!("zeroes were written at {offset}"),
        Operation::Resolve { offset, len, .. } => told(offset, len, ExtentKind::Hole),
        other => Fate::Pass(other),
    });
    device.shared()
}

/// One extent, as the answer to a request for the map.
pub(crate) fn told(offset: u64, len: u64, kind: ExtentKind) -> Fate {
    Fate::Answer(Ok(Outcome::Extents(vec![Extent::new(offset, len, kind)])))
}

/// A device over a file, with places at both ends, that counts what passes through user space. No
/// [`TestDevice`]: its bytes lie in a file.
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
