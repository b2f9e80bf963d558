//! Random pairs of disks: the result is the first difference or failure.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::ops::Range;
use std::sync::Arc;

use compare::{Difference, Doing, Options, Progress, Side, run};
use device::{Edge, Error, ErrorKind, Extent, ExtentKind, Fault, Info, Operation, Outcome, Simple};
use runtime::Context;
use trial::{Fate, TestDevice};

/// Bytes in memory with a map, some of which cannot be read.
#[derive(Clone)]
struct Disk {
    info: Info,
    bytes: Arc<Vec<u8>>,
    /// Ranges that are not data; they are zero.
    holes: Vec<Range<u64>>,
    bad: Option<u64>,
    no_map_at: Option<u64>,
}

impl Disk {
    fn new(bytes: Vec<u8>, holes: Vec<Range<u64>>) -> Self {
        let mut info = Info::new("disk", bytes.len() as u64);
        info.abilities.extents = true;
        Self { info, bytes: Arc::new(bytes), holes, bad: None, no_map_at: None }
    }

    fn edge(self, context: &Context) -> Edge {
        let device = TestDevice::blank(self.info.clone());
        Simple::edge(device.hooked(move |operation| self.answer(operation)), &context.pool)
    }

    fn answer(&self, operation: Operation) -> Fate {
        let meets =
            |at: Option<u64>, start, len| at.is_some_and(|at| (start..start + len).contains(&at));
        match operation {
            Operation::Read { offset, mut buffer } => {
                let len = buffer.len() as u64;
                if meets(self.bad, offset, len) {
                    return failed("read", offset);
                }
                let in_hole = |hole: &Range<u64>| hole.start <= offset && offset + len <= hole.end;
                assert!(!self.holes.iter().any(in_hole), "a hole is read");
                let start = usize::try_from(offset).unwrap();
                let end = start + buffer.len();
                buffer.copy_from_slice(&self.bytes[start..end]);
                Fate::done(Operation::Read { offset, buffer })
            }
            Operation::Resolve { offset, len, .. } if meets(self.no_map_at, offset, len) => {
                failed("map", offset)
            }
            Operation::Resolve { offset, len, .. } => {
                let end = offset + len;
                let hole = self.holes.iter().find(|hole| hole.end > offset);
                let (kind, to) = match hole {
                    Some(hole) if hole.start <= offset => (ExtentKind::Hole, hole.end),
                    Some(hole) => (ExtentKind::Data, hole.start),
                    None => (ExtentKind::Data, end),
                };
                let extent = Extent::new(offset, to.min(end) - offset, kind);
                Fate::Answer(Ok(Outcome::Extents(vec![extent])))
            }
            Operation::Write { offset, .. } => failed("write", offset),
            other => Fate::Pass(other),
        }
    }
}

fn failed(what: &str, at: u64) -> Fate {
    Fate::Answer(Err(Error::new(ErrorKind::Io, Fault::File, what).at(at)))
}

/// Numbers that look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

const SIZE: u64 = 6 << 20;

fn disks(dice: &mut Dice) -> (Disk, Disk) {
    let mut bytes = vec![7; usize::try_from(SIZE).unwrap()];
    let mut holes = [Vec::new(), Vec::new()];
    let mut at = 0;
    while at < SIZE {
        let len = (dice.below(400) + 1) * 4096;
        let range = at..(at + len).min(SIZE);
        let zero = dice.below(2) == 0;
        if zero {
            let (start, end) = (range.start, range.end);
            bytes[usize::try_from(start).unwrap()..usize::try_from(end).unwrap()].fill(0);
            for holes in &mut holes {
                if dice.below(2) == 0 {
                    holes.push(range.clone());
                }
            }
        }
        at = range.end;
    }
    let [a, b] = holes;
    (Disk::new(bytes.clone(), a), Disk::new(bytes, b))
}

fn options(strict: bool) -> Options {
    Options { strict, threads: Some(3) }
}

#[test]
fn the_first_difference_is_reported_whichever_worker_finds_it() {
    let (context, mut dice) = (Context::default(), Dice(42));
    for round in 0..40 {
        let (a, mut b) = disks(&mut dice);
        let mut first = None;
        for _ in 0..dice.below(4) {
            let at = dice.below(SIZE);
            let index = usize::try_from(at).unwrap();
            Arc::make_mut(&mut b.bytes)[index] ^= 0xff;
            // A changed range is no hole any more.
            b.holes.retain(|hole| !hole.contains(&at));
            if b.bytes[index] != a.bytes[index] {
                first = Some(first.map_or(at, |first: u64| first.min(at)));
            }
        }
        let progress = Progress::default();
        let swapped = round % 2 == 0;
        let (a, b) = (a.edge(&context), b.edge(&context));
        let (a, b) = if swapped { (b, a) } else { (a, b) };
        let report = run(&a, &b, &options(false), &progress).unwrap();
        let wanted = first.map(|at| Difference::Content(at - at % 512));
        assert_eq!(report.difference, wanted);
        assert!(report.same_size);
        if wanted.is_none() {
            assert_eq!(progress.now(), (SIZE, SIZE));
        }
    }
}

#[test]
fn what_one_has_beyond_the_other_must_be_zero() {
    let context = Context::default();
    let mut bytes = vec![1; 5000];
    let short = Disk::new(bytes.clone(), Vec::new()).edge(&context);
    bytes.resize(9000, 0);
    let long = Disk::new(bytes.clone(), Vec::new()).edge(&context);
    bytes[8000] = 1;
    let other = Disk::new(bytes, Vec::new()).edge(&context);
    let told = |a: &Edge, b: &Edge, strict| {
        let report = run(a, b, &options(strict), &Progress::default()).unwrap();
        assert!(!report.same_size);
        report.difference
    };
    assert_eq!(told(&short, &long, false), None);
    assert_eq!(told(&long, &short, false), None);
    assert_eq!(told(&short, &long, true), Some(Difference::Size));
    // Sectors count from where the shorter one ends.
    assert_eq!(told(&short, &other, false), Some(Difference::Content(5000 + 2560)));
}

#[test]
fn a_failure_before_a_difference_is_reported_and_one_behind_it_is_not() {
    let context = Context::default();
    let same = vec![3; 8 << 20];
    let mut other = same.clone();
    other[4 << 20] = 0;
    let disk = |bytes: &[u8]| Disk::new(bytes.to_vec(), Vec::new());
    let first = disk(&same).edge(&context);
    for (bad, fails) in [(1 << 20, true), (7 << 20, false)] {
        let second = Disk { bad: Some(bad), ..disk(&other) }.edge(&context);
        let told = run(&first, &second, &options(false), &Progress::default());
        match told {
            Ok(report) => {
                assert!(!fails);
                assert_eq!(report.difference, Some(Difference::Content(4 << 20)));
            }
            Err(failure) => {
                assert!(fails);
                assert_eq!((failure.doing, failure.end), (Doing::Read, Side::Second));
            }
        }
    }
    let second = Disk { no_map_at: Some(0), ..disk(&same) }.edge(&context);
    let failure = run(&first, &second, &options(false), &Progress::default()).unwrap_err();
    assert_eq!((failure.doing, failure.end), (Doing::Map, Side::Second));
}

#[test]
fn where_it_is_to_be_strict_a_hole_is_no_data() {
    let context = Context::default();
    let zeroes = vec![0; 1 << 20];
    let hole = Disk::new(zeroes.clone(), std::iter::once(8192..1 << 20).collect()).edge(&context);
    let data = Disk::new(zeroes, Vec::new()).edge(&context);
    let told =
        |strict| run(&hole, &data, &options(strict), &Progress::default()).unwrap().difference;
    assert_eq!(told(false), None);
    assert_eq!(told(true), Some(Difference::Allocation(8192)));
}
