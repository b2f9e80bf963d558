//! The driver of tests of images that are written where they lie: random scripts over a
//! [`PowerCut`], for all formats.
//!
//! `IMAGE_SCRIPTS=N` tries so many random scripts instead of a few.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use device::{Edge, ErrorKind, Params, ZeroFlags};
use runtime::{Context, WorkPool};
use trial::{PowerCut, TestDice};

use crate::{Files, Findings, Format, Opening};

/// Scripts of one test, by their seeds.
pub(crate) fn scripts(usual: u64) -> Range<u64> {
    trial::scripts().unwrap_or(0..usual)
}

/// Images of a format, of random kinds.
pub(crate) trait Sample: Debug + Sized {
    const FORMAT: Format;

    /// One of them, the container with it, and what its bytes are.
    fn any(dice: &mut TestDice) -> (Self, PowerCut, Vec<u8>);

    /// The files that it names.
    fn files(&self) -> Box<dyn Files>;

    /// Whether a check of it may find room that is lost although it was closed.
    fn may_leak(&self) -> bool {
        false
    }

    /// Opens what is on a disk, to write it or to read it.
    fn opened(&self, disk: &PowerCut, write: bool) -> (Edge, Context) {
        let context = Context::new(WorkPool::new(1));
        let (params, files) = (Params::default(), self.files());
        let opening = Opening { params: &params, files: &*files, context: &context };
        let open = if write { Self::FORMAT.write.unwrap() } else { Self::FORMAT.open };
        let edge = Edge::new(open(disk.edge(), &opening).unwrap(), context.pool.clone());
        (edge, context)
    }

    /// Why what is on a disk cannot be written. It stays as it was.
    fn refused(&self, disk: &PowerCut) -> String {
        let context = Context::new(WorkPool::new(1));
        let (params, files) = (Params::default(), self.files());
        let opening = Opening { params: &params, files: &*files, context: &context };
        let refused = Self::FORMAT.write.unwrap()(disk.edge(), &opening).map(drop).unwrap_err();
        assert_eq!(disk.steps(), 0, "{refused}");
        refused.to_string()
    }

    /// What a check finds in what is on a disk now, if the format has one.
    fn checked(&self, disk: &PowerCut) -> Findings {
        let now = disk.again(true);
        let check = Self::FORMAT.check;
        check.map(|check| check(&now.edge(), &Context::default()).unwrap()).unwrap_or_default()
    }

    fn check_closed(&self, disk: &PowerCut, what: &str) {
        let found = self.checked(disk);
        assert_eq!(found.corruptions, [""; 0], "{what}: {self:?}");
        assert!(found.leaks == 0 || self.may_leak(), "{what}: {} leaks: {self:?}", found.leaks);
    }
}

/// An image, open to be written.
pub(crate) struct ScriptedImage<S> {
    pub(crate) sample: S,
    pub(crate) disk: PowerCut,
    pub(crate) edge: Edge,
    pub(crate) context: Context,
    /// What its bytes are.
    pub(crate) bytes: Vec<u8>,
}

pub(crate) fn all(edge: &Edge) -> Vec<u8> {
    let mut bytes = vec![0xaa; usize::try_from(edge.info().size).unwrap()];
    edge.read(&mut bytes, 0).unwrap();
    bytes
}

/// An operation of a script; offsets and lengths in sectors.
#[derive(Clone, Debug)]
pub(crate) enum DiskOp {
    Write(usize, usize, u8),
    /// Offset and length in bytes: neither end is that of a sector.
    WriteBytes(usize, usize, u8),
    Zero(usize, usize),
    Trim(usize, usize),
    Flush,
}

pub(crate) fn any_op(dice: &mut TestDice, sectors: u64) -> DiskOp {
    let offset = dice.below(sectors);
    let (kind, most) =
        (dice.below(10), [2, 9, 64, sectors][usize::try_from(dice.below(4)).unwrap()]);
    let len = 1 + dice.below(most.min(sectors - offset));
    let (offset, len) = (usize::try_from(offset).unwrap(), usize::try_from(len).unwrap());
    let mut byte = || u8::try_from(1 + dice.below(255)).unwrap();
    match kind {
        0..4 => DiskOp::Write(offset, len, byte()),
        4 => DiskOp::WriteBytes(offset * 512 + 300, len * 512 - 400, byte()),
        5 | 6 => DiskOp::Zero(offset, len),
        7 => DiskOp::Trim(offset, len),
        _ => DiskOp::Flush,
    }
}

impl<S: Sample> ScriptedImage<S> {
    fn new(dice: &mut TestDice) -> Self {
        let (sample, disk, bytes) = S::any(dice);
        sample.check_closed(&disk, "made");
        Self::of(sample, disk, bytes)
    }

    fn of(sample: S, disk: PowerCut, bytes: Vec<u8>) -> Self {
        let (edge, context) = sample.opened(&disk, true);
        assert!(all(&edge) == bytes, "{sample:?}");
        Self { sample, disk, edge, context, bytes }
    }
}

impl<S> ScriptedImage<S> {
    pub(crate) fn run(&self, op: &DiskOp) -> device::Result<()> {
        let bytes = |sectors: usize| (sectors * 512) as u64;
        let zero = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
        match *op {
            DiskOp::Write(at, len, byte) => {
                self.edge.write(&vec![byte; len * 512], bytes(at), false)
            }
            DiskOp::WriteBytes(at, len, byte) => {
                self.edge.write(&vec![byte; len], at as u64, false)
            }
            DiskOp::Zero(at, len) => self.edge.zero(bytes(at), bytes(len), zero),
            DiskOp::Trim(at, len) => self.edge.trim(bytes(at), bytes(len), false),
            DiskOp::Flush => self.edge.flush(),
        }
    }

    pub(crate) fn sectors(&self) -> u64 {
        self.edge.info().size / 512
    }

    /// What each sector may hold after an operation.
    pub(crate) fn expect(&mut self, op: &DiskOp) -> Option<(usize, usize)> {
        let (at, len, byte) = match *op {
            DiskOp::Write(at, len, byte) => (at, len, byte),
            DiskOp::WriteBytes(at, len, byte) => {
                self.bytes[at..at + len].fill(byte);
                return Some((at / 512, len.div_ceil(512)));
            }
            DiskOp::Zero(at, len) => (at, len, 0),
            DiskOp::Trim(at, len) => {
                let range = at * 512..(at + len) * 512;
                let now = all(&self.edge);
                for (was, is) in self.bytes[range.clone()].iter_mut().zip(&now[range]) {
                    assert!(*is == 0 || is == was, "after a trim");
                    *was = *is;
                }
                return Some((at, len));
            }
            DiskOp::Flush => return None,
        };
        self.bytes[at * 512..(at + len) * 512].fill(byte);
        Some((at, len))
    }

    pub(crate) fn close(&self) {
        self.context.control.end();
        let complaints = self.context.control.take_complaints();
        assert!(complaints.is_empty(), "{complaints:?}");
    }
}

/// It reads as the model, and is closed without a leak.
pub(crate) fn reads_as_the_model<S: Sample>(few: u64) {
    for seed in scripts(few) {
        let mut dice = TestDice(seed);
        let mut image = ScriptedImage::<S>::new(&mut dice);
        for step in 0..40 {
            let op = any_op(&mut dice, image.sectors());
            match image.run(&op) {
                Err(e) if e.kind() == ErrorKind::NoSpace => {
                    // Any part of it may have been done.
                    if let Some((at, len)) = image.expect(&op) {
                        let now = all(&image.edge);
                        let range = at * 512..(at + len) * 512;
                        image.bytes[range.clone()].copy_from_slice(&now[range]);
                    }
                }
                result => {
                    result.unwrap();
                    image.expect(&op);
                }
            }
            let now = all(&image.edge);
            assert!(now == image.bytes, "seed {seed}, step {step}: {op:?} {:?}", image.sample);
        }
        image.close();
        image.sample.check_closed(&image.disk, &format!("seed {seed}"));
        let (edge, _) = image.sample.opened(&image.disk.again(false), false);
        assert!(all(&edge) == image.bytes, "seed {seed}: not what was closed");
    }
}

/// What a sector may hold, after all that was begun since it was flushed.
pub(crate) type SectorVersions = Vec<Vec<Arc<[u8]>>>;

/// What the disk may hold from some step of the container on.
struct Since {
    step: usize,
    allowed: SectorVersions,
}

pub(crate) fn sectors(bytes: &[u8]) -> SectorVersions {
    bytes.chunks(512).map(|sector| vec![Arc::from(sector)]).collect()
}

pub(crate) fn check_allowed(bytes: &[u8], allowed: &SectorVersions, what: &str) {
    for (n, (sector, allowed)) in bytes.chunks(512).zip(allowed).enumerate() {
        assert!(
            allowed.iter().any(|one| **one == *sector),
            "{what}: sector {n} is {:?}",
            &sector[..4]
        );
    }
}

/// Whenever the power is cut, it is sound and holds what was flushed.
pub(crate) fn survives_power_cuts<S: Sample>(few: u64) {
    for seed in scripts(few) {
        let mut dice = TestDice(1000 + seed);
        let mut image = ScriptedImage::<S>::new(&mut dice);
        let mut history = vec![Since { step: 0, allowed: sectors(&image.bytes) }];
        for _ in 0..12 {
            let op = any_op(&mut dice, image.sectors());
            let step = image.disk.steps();
            // What an operation may leave behind holds from its beginning on.
            let mut during = history.last().unwrap().allowed.clone();
            if let Err(e) = image.run(&op) {
                assert_eq!(e.kind(), ErrorKind::NoSpace);
                let now = all(&image.edge);
                image.bytes.copy_from_slice(&now);
            } else {
                image.expect(&op);
            }
            for (allowed, new) in during.iter_mut().zip(image.bytes.chunks(512)) {
                if allowed.iter().all(|one| **one != *new) {
                    allowed.push(Arc::from(new));
                }
            }
            history.push(Since { step, allowed: during });
            if matches!(op, DiskOp::Flush) {
                let step = image.disk.steps();
                history.push(Since { step, allowed: sectors(&image.bytes) });
            }
        }
        image.close();
        for step in 0..=image.disk.steps() {
            let known = history.iter().rev().find(|since| since.step <= step).unwrap();
            let what = format!("seed {seed}, after step {step} of {}", image.disk.steps());
            for _ in 0..2 {
                let left = image.disk.after_cut(step, &mut dice);
                let found = image.sample.checked(&left);
                assert_eq!(found.corruptions, [""; 0], "{what}: {:?}", image.sample);
                let (edge, _) = image.sample.opened(&left, false);
                check_allowed(&all(&edge), &known.allowed, &what);
                if dice.below(8) == 0 {
                    goes_on(&image.sample, &left, &mut dice, &what);
                }
            }
        }
    }
}

/// What the power left behind is written again, and is then as sound as any.
fn goes_on<S: Sample>(sample: &S, left: &PowerCut, dice: &mut TestDice, what: &str) {
    let disk = left.again(true);
    let bytes = all(&sample.opened(&disk, false).0);
    let (edge, context) = sample.opened(&disk, true);
    let mut image = ScriptedImage { sample, disk, edge, context, bytes };
    for _ in 0..4 {
        let op = any_op(dice, image.edge.info().size / 512);
        image.run(&op).unwrap();
        image.expect(&op);
        assert!(all(&image.edge) == image.bytes, "{what}, then {op:?}");
    }
    image.close();
    assert_eq!(sample.checked(&image.disk).corruptions, [""; 0], "{what}, then closed");
    let closed = image.disk.again(false);
    assert!(all(&sample.opened(&closed, false).0) == image.bytes, "{what}, then closed");
}

/// Whichever write fails, it is sound and holds what was flushed.
pub(crate) fn survives_failures<S: Sample + Clone>(few: u64) {
    for seed in scripts(few) {
        let mut dice = TestDice(2000 + seed);
        let (sample, disk, bytes) = S::any(&mut dice);
        sample.check_closed(&disk, "made");
        let (dice, mut fails) = (dice.0, 0);
        loop {
            let mut dice = TestDice(dice);
            let mut image = ScriptedImage::of(sample.clone(), disk.settled(), bytes.clone());
            let kind = if fails % 2 == 0 { ErrorKind::Io } else { ErrorKind::NoSpace };
            let count = if fails % 3 == 0 { usize::MAX } else { 1 };
            image.disk.fail(fails, count, kind);
            let mut allowed = sectors(&image.bytes);
            let mut has_failed = false;
            for _ in 0..10 {
                let op = any_op(&mut dice, image.sectors());
                match image.run(&op) {
                    Ok(()) => drop(image.expect(&op)),
                    Err(_) => {
                        has_failed = true;
                        image.bytes = all(&image.edge);
                    }
                }
                assert!(all(&image.edge) == image.bytes, "seed {seed}, fails {fails}: {op:?}");
                let flushed = matches!(op, DiskOp::Flush) && !has_failed;
                if flushed {
                    allowed = sectors(&image.bytes);
                }
                for (allowed, new) in allowed.iter_mut().zip(image.bytes.chunks(512)) {
                    if allowed.iter().all(|one| **one != *new) {
                        allowed.push(Arc::from(new));
                    }
                }
            }
            let what = format!("seed {seed}, fails {fails}");
            let left = image.disk.after_cut(image.disk.steps(), &mut dice);
            assert_eq!(
                image.sample.checked(&left).corruptions,
                [""; 0],
                "{what}: {:?}",
                image.sample
            );
            check_allowed(&all(&image.sample.opened(&left, false).0), &allowed, &what);
            // It goes on where it can again.
            image.disk.fail(0, 0, kind);
            image.context.control.end();
            assert_eq!(image.sample.checked(&image.disk).corruptions, [""; 0], "{what}");
            let now = all(&image.sample.opened(&image.disk.again(true), false).0);
            assert!(now == image.bytes, "{what}: closed");
            if fails > image.disk.steps() {
                break;
            }
            fails += 1;
        }
    }
}
