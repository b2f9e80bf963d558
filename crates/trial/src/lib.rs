//! For tests: the configurable [`TestDevice`], and random operations on a device and on the model,
//! both through the edge. The bytes are the same after each, a map never shows a hole where there
//! is data, and changed bytes are never reported as unchanged.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a failure is a failed test")]

mod direct;
mod power;
mod scratch;
mod shared_bytes;
mod test_device;

use runtime::WorkPool;
use std::ops::Range;
use std::sync::Arc;

use device::model::{CHANGED, Model};
use device::{Device, Edge, ErrorKind, Extent, Place, Simple, ZeroFlags};
use proptest::prelude::*;
use rustix::fs::{Mode, OFlags};

pub use direct::BlockingCalls;
pub use power::{PowerCut, TestDice};
pub use scratch::Scratch;
pub use test_device::{Fate, SeenOperation, TestDevice};

/// Bytes of the disks on trial: not a whole number of blocks of 64 KiB.
pub const SIZE: usize = 96 << 10;

/// The random scripts that `IMAGE_SCRIPTS` asks for, by their seeds: `N` of them, or `FROM..TO`,
/// so that a long run may be done in parts and by several processes.
#[must_use]
pub fn scripts() -> Option<Range<u64>> {
    let asked = std::env::var("IMAGE_SCRIPTS").ok()?;
    let (from, to) = asked.split_once("..").unwrap_or(("0", &asked));
    Some(from.parse().unwrap()..to.parse().unwrap())
}

/// An operation. Offsets and lengths in bytes.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the fields are offset, length, and as the contract has them")]
pub enum Op {
    Write(usize, usize, u8, bool),
    Zero(usize, usize, ZeroFlags),
    Trim(usize, usize, bool),
    Flush,
    Resolve(usize, usize, usize),
    Status(usize, usize, usize),
    Take(usize, usize, u8, bool),
}

fn range() -> impl Strategy<Value = (usize, usize)> {
    // Whole pages often, since only they become holes.
    let any = (0..SIZE, 0..SIZE / 2);
    let pages = (0..SIZE / 4096, 0..SIZE / 8192).prop_map(|(o, l)| (o * 4096, l * 4096));
    prop_oneof![any, pages].prop_map(|(o, l)| (o, l.min(SIZE - o)))
}

/// Any operation.
pub fn op() -> impl Strategy<Value = Op> {
    let zero = (range(), any::<[bool; 3]>()).prop_map(|((o, l), [may_unmap, fast_only, fua])| {
        Op::Zero(o, l, ZeroFlags { may_unmap, fast_only, fua, ..ZeroFlags::default() })
    });
    prop_oneof![
        4 => (range(), 1u8.., any::<bool>()).prop_map(|((o, l), b, f)| Op::Write(o, l, b, f)),
        3 => zero,
        2 => (range(), any::<bool>()).prop_map(|((o, l), f)| Op::Trim(o, l, f)),
        1 => Just(Op::Flush),
        4 => (range(), 1..6usize).prop_map(|((o, l), max)| Op::Resolve(o, l, max)),
        2 => (range(), 1..6usize).prop_map(|((o, l), max)| Op::Status(o, l, max)),
        2 => (range(), 1u8.., any::<bool>()).prop_map(|((o, l), b, s)| Op::Take(o, l, b, s)),
    ]
}

fn resolve(edge: &Edge, offset: usize, len: usize, max: usize) -> Vec<Extent> {
    let mut out = Vec::new();
    edge.resolve(offset as u64, len as u64, max, &mut out).unwrap();
    out
}

/// A place with `len` bytes of `byte`: in a memory file.
#[must_use]
pub fn lying(byte: u8, len: usize) -> Place {
    let (flags, mode) = (OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR);
    let file = rustix::fs::open("/dev/shm", flags, mode).unwrap();
    rustix::io::pwrite(&file, &vec![byte; len], 4096).unwrap();
    Place::new(Arc::new(file), 4096)
}

/// If the disk tracks changes, bytes that are not zero were changed.
fn check_status(
    edge: &Edge,
    (offset, len, max): (usize, usize, usize),
    bytes: &[u8],
) -> Result<(), TestCaseError> {
    if !edge.info().contexts.iter().any(|context| &**context == CHANGED) {
        let mut none = Vec::new();
        prop_assert!(edge.status(CHANGED, offset as u64, len as u64, max, &mut none).is_err());
        return Ok(());
    }
    let mut runs = Vec::new();
    edge.status(CHANGED, offset as u64, len as u64, max, &mut runs).unwrap();
    prop_assert!(runs.len() <= max && (len == 0) == runs.is_empty());
    let mut at = offset;
    for run in runs {
        let n = usize::try_from(run.len).unwrap();
        let same = bytes[at..at + n].iter().all(|b| *b == 0);
        prop_assert!(run.value == 1 || same, "changed at {at}+{n}");
        at += n;
    }
    Ok(())
}

/// The whole map, requested in pieces.
fn whole_map(edge: &Edge) -> Vec<Extent> {
    let (mut all, mut at) = (Vec::new(), 0);
    while at < SIZE {
        all.extend(resolve(edge, at, SIZE - at, 3));
        at = usize::try_from(all.last().unwrap().end()).unwrap();
    }
    all
}

fn check_map(extents: &[Extent], offset: usize, bytes: &[u8]) -> Result<(), TestCaseError> {
    let mut at = offset as u64;
    for e in extents {
        prop_assert_eq!(e.start, at);
        at = e.end();
        let range = usize::try_from(e.start).unwrap()..usize::try_from(e.end()).unwrap();
        if e.kind.reads_zero() {
            prop_assert!(bytes[range].iter().all(|b| *b == 0), "data in a hole: {:?}", e);
        }
        if let Some(place) = &e.place {
            let mut first = [0];
            rustix::io::pread(place.fd(), &mut first, place.offset()).unwrap();
            prop_assert_eq!(first[0], bytes[usize::try_from(e.start).unwrap()]);
        }
    }
    Ok(())
}

/// What a trim leaves behind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Trims {
    /// Zeroes, in all of the range.
    ToZeroes,
    /// A hint: each byte is zero or what it was.
    AsHint,
}

/// Runs `ops` on a device that is all zero, and on the model.
///
/// # Errors
/// They differ.
pub fn run(device: Arc<dyn Device>, ops: &[Op], trims: Trims) -> Result<(), TestCaseError> {
    run_on(&Edge::new(device, WorkPool::new(2)), ops, trims)
}

/// Like [`run`], on an edge that has its pool already.
///
/// # Errors
/// They differ.
pub fn run_on(left: &Edge, ops: &[Op], trims: Trims) -> Result<(), TestCaseError> {
    let model = Arc::new(Model::new(SIZE));
    let right = Simple::shared_edge(model.clone(), &WorkPool::new(2));
    for op in ops {
        match *op {
            Op::Write(o, l, b, fua) => {
                let data = vec![b; l];
                left.write(&data, o as u64, fua).unwrap();
                right.write(&data, o as u64, fua).unwrap();
            }
            Op::Zero(o, l, flags) => match left.zero(o as u64, l as u64, flags) {
                Err(e) if flags.fast_only && e.kind() == ErrorKind::NotFast => {}
                other => {
                    other.unwrap();
                    right.zero(o as u64, l as u64, flags).unwrap();
                }
            },
            Op::Trim(o, l, fua) if trims == Trims::AsHint => {
                let (mut before, mut after) = (vec![0; l], vec![0; l]);
                left.read(&mut before, o as u64).unwrap();
                left.trim(o as u64, l as u64, fua).unwrap();
                left.read(&mut after, o as u64).unwrap();
                prop_assert!(before.iter().zip(&after).all(|(b, a)| *a == 0 || a == b));
                right.write(&after, o as u64, fua).unwrap();
            }
            Op::Trim(o, l, fua) => {
                left.trim(o as u64, l as u64, fua).unwrap();
                right.trim(o as u64, l as u64, fua).unwrap();
            }
            Op::Flush => left.flush().unwrap(),
            Op::Resolve(o, l, max) => {
                let extents = resolve(left, o, l, max);
                prop_assert!(extents.len() <= max && (l == 0) == extents.is_empty());
                check_map(&extents, o, &model.bytes())?;
            }
            Op::Status(o, l, max) => check_status(left, (o, l, max), &model.bytes())?,
            Op::Take(o, l, b, share_only) => {
                let taken = left.take(o as u64, l as u64, lying(b, l), share_only).unwrap();
                let taken = usize::try_from(taken).unwrap();
                prop_assert!(taken <= l);
                right.write(&vec![b; taken], o as u64, false).unwrap();
            }
        }
        let mut bytes = vec![0xaa; SIZE];
        left.read(&mut bytes, 0).unwrap();
        prop_assert!(bytes == model.bytes(), "bytes differ after {:?}", op);
        bytes.fill(0xbb);
        if left.read_now(&mut bytes, 0).unwrap() {
            prop_assert!(bytes == model.bytes(), "bytes read at once differ after {:?}", op);
        }
    }
    check_map(&whole_map(left), 0, &model.bytes())
}
