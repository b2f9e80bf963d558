//! What was acknowledged is done, and durable where that was asked for: in random stacks, over a
//! disk that knows which bytes would survive a power failure, with failures at random places.

use std::sync::{Arc, Mutex};

use device::model::Model;
use device::{Abilities, BlockSizes, Blocking as _, Edge, ErrorKind, Result, run_blocking};
use proptest::prelude::*;
use trial::{Fate, Op, SIZE, TestDevice, lying, op};

use crate::stacks::bottoms::{Guard, WAITS, Wait, waiting};
use crate::stacks::{SHAPES, over};

/// A disk with a cache that a power failure loses.
pub(crate) struct Volatile {
    pub(crate) device: Arc<TestDevice>,
    /// What would be left.
    lasting: Arc<Mutex<Vec<u8>>>,
}

impl Volatile {
    /// Several kinds: one that can do everything, and some that cannot.
    pub(crate) fn new(kind: usize) -> Self {
        let all = Model::new(SIZE).info().abilities;
        let blocks = BlockSizes { minimum: 512, preferred: 4096, maximum: 8192 };
        let model = Arc::new(match kind {
            0 => Model::new(SIZE),
            1 => Model::with(SIZE, Abilities { fua: false, ..all }, BlockSizes::ANY),
            2 => Model::with(
                SIZE,
                Abilities { fua: false, zero: false, fast_zero: false, ..all },
                blocks,
            ),
            _ => Model::with(SIZE, Abilities { zero: false, fast_zero: false, ..all }, blocks),
        });
        let lasting = Arc::new(Mutex::new(vec![0; SIZE]));
        let (disk, left) = (model.clone(), lasting.clone());
        let device = TestDevice::over(model).hooked(move |operation| {
            let at = |n| usize::try_from(n).unwrap();
            let covers = match operation.range() {
                None => 0..SIZE,
                Some((offset, len)) if operation.fua() => at(offset)..at(offset + len),
                Some(_) => 0..0,
            };
            let outcome = run_blocking(&*disk, operation);
            if outcome.is_ok() && !covers.is_empty() {
                left.lock().unwrap()[covers.clone()].copy_from_slice(&disk.bytes()[covers]);
            }
            Fate::Answer(outcome)
        });
        Self { device: device.shared(), lasting }
    }

    pub(crate) fn lasting(&self) -> Vec<u8> {
        self.lasting.lock().unwrap().clone()
    }
}

/// Failures of each kind now and then; the seed is added.
const FAILING: &[&str] =
    &["error-rate=15%", "error-flush-rate=15%", "error-pread-rate=5%", "error-extents-rate=5%"];

/// What is known of a byte.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Byte {
    /// An operation on it failed: it may be anything.
    Any,
    /// What the disk holds, whether or not it would last.
    Is(u8),
}

pub(crate) fn knows(shape: usize) -> bool {
    // Those that keep what is written to themselves, by design.
    let (word, words) = SHAPES[shape];
    word != "cow" && !words.contains(&"cache=unsafe")
}

struct Trial {
    disk: Edge,
    bottom: Arc<Volatile>,
    known: Vec<Byte>,
}

impl Trial {
    /// The bytes of a range as the disk shows them, unless it fails.
    fn read(&self, offset: usize, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0xaa; len];
        self.disk.read(&mut bytes, offset as u64).ok().map(|()| bytes)
    }

    fn set(&mut self, offset: usize, bytes: impl IntoIterator<Item = Byte>) {
        for (slot, byte) in self.known[offset..].iter_mut().zip(bytes) {
            *slot = byte;
        }
    }

    fn check(
        &self,
        offset: usize,
        bytes: &[u8],
        what: &str,
    ) -> std::result::Result<(), TestCaseError> {
        for (i, byte) in bytes.iter().enumerate() {
            let known = self.known[offset + i];
            prop_assert!(
                known == Byte::Any || known == Byte::Is(*byte),
                "{}: byte {} is {} and should be {:?}",
                what,
                offset + i,
                byte,
                known
            );
        }
        Ok(())
    }

    fn ended(
        &mut self,
        op: &Op,
        (offset, len, fua): (usize, usize, bool),
        result: Result<()>,
        becomes: Vec<Byte>,
    ) -> std::result::Result<(), TestCaseError> {
        match result {
            // Nothing was changed.
            Err(e) if e.kind() == ErrorKind::NotFast => {}
            Err(_) => self.set(offset, std::iter::repeat_n(Byte::Any, len)),
            Ok(()) => {
                self.set(offset, becomes);
                if fua {
                    let lasting = self.bottom.lasting();
                    self.check(offset, &lasting[offset..offset + len], &format!("lasting {op:?}"))?;
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, op: &Op) -> std::result::Result<(), TestCaseError> {
        match *op {
            Op::Write(o, l, b, fua) => {
                let result = self.disk.write(&vec![b; l], o as u64, fua);
                self.ended(op, (o, l, fua), result, vec![Byte::Is(b); l])?;
            }
            Op::Zero(o, l, flags) => {
                let result = self.disk.zero(o as u64, l as u64, flags);
                self.ended(op, (o, l, flags.fua), result, vec![Byte::Is(0); l])?;
            }
            Op::Trim(o, l, fua) => {
                let result = self.disk.trim(o as u64, l as u64, fua);
                // A hint: what it left, each byte zero or what it was.
                let after = self.read(o, l);
                let becomes = (0..l).map(|i| match (self.known[o + i], &after) {
                    (Byte::Is(was), Some(after)) if [0, was].contains(&after[i]) => {
                        Byte::Is(after[i])
                    }
                    (Byte::Is(was), Some(after)) => {
                        panic!("trimmed: {} was {was} and is {}", o + i, after[i])
                    }
                    _ => Byte::Any,
                });
                let becomes = becomes.collect();
                // What is left of what is no longer needed is not defined.
                self.ended(op, (o, l, false), result, becomes)?;
            }
            Op::Flush => {
                if self.disk.flush().is_ok() {
                    self.check(0, &self.bottom.lasting(), "lasting after a flush")?;
                }
            }
            Op::Resolve(o, l, max) => {
                let mut map = Vec::new();
                if self.disk.resolve(o as u64, l as u64, max, &mut map).is_ok() {
                    for extent in map.iter().filter(|e| e.kind.reads_zero()) {
                        let at = usize::try_from(extent.start).unwrap();
                        let len = usize::try_from(extent.len).unwrap();
                        self.check(at, &vec![0; len], "in a hole")?;
                    }
                }
            }
            Op::Status(..) => {}
            Op::Take(o, l, b, share_only) => {
                match self.disk.take(o as u64, l as u64, lying(b, l), share_only) {
                    Ok(taken) => {
                        let taken = usize::try_from(taken).unwrap();
                        self.set(o, vec![Byte::Is(b); taken]);
                    }
                    Err(_) => self.set(o, vec![Byte::Any; l]),
                }
            }
        }
        if let Some(bytes) = self.read(0, SIZE) {
            self.check(0, &bytes, &format!("after {op:?}"))?;
        }
        Ok(())
    }
}

fn trial(
    stack: &[(&str, &[&str])],
    kind: usize,
    wait: Wait,
    ops: &[Op],
) -> std::result::Result<(), TestCaseError> {
    let _guard = Guard::new();
    let bottom = Arc::new(Volatile::new(kind));
    let disk = over(stack, |pool| waiting(bottom.device.clone(), wait, pool));
    let mut trial = Trial { disk, bottom, known: vec![Byte::Is(0); SIZE] };
    for op in ops {
        trial.run(op)?;
    }
    Ok(())
}

fn shapes(stack: &[usize]) -> Vec<(&'static str, &'static [&'static str])> {
    stack.iter().filter(|shape| knows(**shape)).map(|shape| SHAPES[*shape]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn what_is_durable_lasts_through_every_filter_alone(ops in prop::collection::vec(op(), 1..12), kind in 0..4usize) {
        for (shape, words) in SHAPES.iter().enumerate() {
            for wait in WAITS {
                trial(&shapes(&[shape]), kind, wait, &ops)
                    .map_err(|e| TestCaseError::fail(format!("{words:?} {wait:?}: {e}")))?;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_durable_lasts_through_random_stacks(
        ops in prop::collection::vec(op(), 1..16),
        stack in prop::collection::vec(0..SHAPES.len(), 2..6),
        kind in 0..4usize,
        wait in prop::sample::select(&WAITS),
    ) {
        trial(&shapes(&stack), kind, wait, &ops)?;
    }

    /// A failed operation may leave its own range undefined, never another; none that was
    /// acknowledged is lost.
    #[test]
    fn failures_anywhere_in_a_stack_harm_only_what_failed(
        ops in prop::collection::vec(op(), 1..24),
        stack in prop::collection::vec(0..SHAPES.len(), 1..5),
        places in prop::collection::vec((0..6usize, 1u64..1_000_000), 1..3),
        kind in 0..4usize,
        wait in prop::sample::select(&WAITS),
    ) {
        let mut stack = shapes(&stack);
        let seeds: Vec<String> = places.iter().map(|(_, seed)| format!("error-seed={seed}")).collect();
        let words: Vec<Vec<&str>> =
            seeds.iter().map(|seed| FAILING.iter().copied().chain([seed.as_str()]).collect()).collect();
        for ((at, _), words) in places.iter().zip(&words) {
            stack.insert((*at).min(stack.len()), ("error", words));
        }
        trial(&stack, kind, wait, &ops)?;
    }
}
