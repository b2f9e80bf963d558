//! A target that answers late and in any order, and refuses, fails or lies about being fast at
//! any moment: a copy that succeeds is right, and one that fails says all that is not.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use copy::Options;
use device::Blocking as _;
use device::model::Model;
use device::{Abilities, Device, Done, ErrorKind, Info, Operation};
use trial::{Fate, TestDevice};

use crate::support::*;

/// What a target does with zero requests.
#[derive(Clone, Copy, Debug)]
struct Temper {
    /// One in this many fast zeroes is refused; 0: none is.
    refuses_fast: u64,
    /// With which error.
    refusal: ErrorKind,
    /// One in this many plain zeroes is not supported.
    refuses_plain: u64,
    /// The operation of this number fails; 0: none does.
    fails_at: u64,
    /// A zero request takes so long for each MiB.
    slow: Duration,
    longest: u64,
}

/// A late [`TestDevice`] that sees what is in flight together.
struct Hostile {
    late: Arc<TestDevice>,
    count: AtomicU64,
    changing: Changing,
    /// Changes that met.
    met: Mutex<Vec<String>>,
}

/// Ranges that are being changed, and whether they are zeroed.
type Changing = Arc<Mutex<BTreeMap<u64, (Range<u64>, bool)>>>;

impl Hostile {
    fn new(model: Model, temper: Temper, seed: u64) -> Arc<Self> {
        let (model, random) = (Arc::new(model), Mutex::new(Random(seed * 3)));
        let (below, asked) = (model.clone(), AtomicU64::new(0));
        let late = TestDevice::over(model)
            .info_with(|info| info.longest_effect = temper.longest)
            .hooked(move |operation| {
                let fails = asked.fetch_add(1, SeqCst) + 1 == temper.fails_at;
                temper.answer(&below, operation, fails, &random)
            });
        let late = late.late(3).shared();
        let (changing, met) = Default::default();
        Arc::new(Self { late, count: AtomicU64::new(0), changing, met })
    }
}

impl Temper {
    fn answer(
        &self,
        model: &Model,
        operation: Operation,
        fails: bool,
        random: &Mutex<Random>,
    ) -> Fate {
        let one_of = |n: u64| n > 0 && random.lock().unwrap().below(n) == 0;
        if one_of(2) {
            std::thread::yield_now();
        }
        match operation {
            Operation::Zero { flags, .. } if flags.fast_only && one_of(self.refuses_fast) => {
                Fate::fail(self.refusal)
            }
            Operation::Zero { flags, .. } if !flags.fast_only && one_of(self.refuses_plain) => {
                Fate::fail(ErrorKind::Unsupported)
            }
            Operation::Zero { offset, len, mut flags } => {
                flags.fast_only = false;
                let mib = u32::try_from(len >> 20).unwrap();
                std::thread::sleep(self.slow * mib);
                // In two halves, so that something can come between.
                let block = u64::from(model.info().blocks.minimum);
                let half = len / 2 - len / 2 % block;
                if half > 0 {
                    model.zero(offset, half, flags).unwrap();
                    std::thread::yield_now();
                }
                let (offset, len) = (offset + half, len - half);
                if fails {
                    Fate::fail(ErrorKind::Io)
                } else {
                    Fate::Pass(Operation::Zero { offset, len, flags })
                }
            }
            _ if fails => Fate::fail(ErrorKind::Io),
            Operation::Resolve { offset, len, max } => {
                // Few at a time, so that there are more requests.
                Fate::Pass(Operation::Resolve { offset, len: len.min(1 << 20), max: max.min(5) })
            }
            other => Fate::Pass(other),
        }
    }
}

impl Device for Hostile {
    fn info(&self) -> &Info {
        self.late.info()
    }
    fn submit(&self, operation: Operation, done: Done) {
        let number = self.count.fetch_add(1, SeqCst);
        let change = match &operation {
            Operation::Write { offset, data, .. } => Some((*offset, data.len() as u64, false)),
            Operation::Zero { offset, len, .. } => Some((*offset, *len, true)),
            _ => None,
        };
        if let Some((offset, len, zero)) = change {
            let range = offset..offset + len;
            let mut changing = self.changing.lock().unwrap();
            for (other, other_is_zero) in changing.values() {
                let meet = other.start < range.end && range.start < other.end;
                // Two zero requests may overlap; a write and a zero that overlap corrupt each
                // other.
                let meet = meet && !(zero && *other_is_zero);
                if meet {
                    let text = format!("{range:?} meets {other:?}, which is in flight");
                    self.met.lock().unwrap().push(text);
                }
            }
            changing.insert(number, (range, zero));
        }
        let changing = self.changing.clone();
        let ended = move |outcome| {
            changing.lock().unwrap().remove(&number);
            done(outcome);
        };
        self.late.submit(operation, Box::new(ended));
    }
}

/// A target of stale bytes with some holes, if it has a map.
fn target(random: &mut Random, size: usize, grid: u32) -> Model {
    let abilities = Abilities {
        zero: random.below(8) > 0,
        fast_zero: random.below(4) > 0,
        extents: random.below(2) == 0,
        ..all_abilities()
    };
    let model = Model::with(size, abilities, blocks(grid, 4096, random.pick(&[32 << 20, 65536])));
    fill(&model, 0xee);
    if abilities.extents && abilities.zero {
        for _ in 0..random.below(6) {
            let start = random.below(size as u64 / 4096) * 4096;
            let len = (1 + random.below(60)) * 4096;
            let len = len.min(size as u64 - start);
            let flags = device::ZeroFlags { may_unmap: true, ..Default::default() };
            model.zero(start, len, flags).unwrap();
        }
    }
    model
}

#[test]
fn what_a_hostile_target_does_never_leaves_a_stale_byte_that_is_not_reported() {
    let mut random = Random(77);
    let (mut right, mut failed) = (0, 0);
    for round in 0..60 {
        let grid_s = random.pick(&[1u32, 512]);
        let grid_t = random.pick(&[1u32, 512, 4096]);
        let size = usize::try_from(200_000 + random.below(1_500_000)).unwrap();
        let size = size.next_multiple_of(grid_s as usize);
        let longer = random.pick(&[0, 70_000]);
        let target_size = (size + longer).next_multiple_of(grid_t as usize);
        let source = Arc::new(Model::with(size, all_abilities(), blocks(grid_s, 4096, 32 << 20)));
        random_disk(&source, &mut random, u64::from(grid_s));
        let temper = Temper {
            refuses_fast: random.pick(&[0, 0, 1, 2, 5]),
            refusal: random.pick(&[ErrorKind::NotFast, ErrorKind::Unsupported]),
            refuses_plain: random.pick(&[0, 0, 1, 4]),
            fails_at: if random.below(3) == 0 { 1 + random.below(60) } else { 0 },
            slow: Duration::from_millis(random.pick(&[0, 0, 30])),
            longest: random.pick(&[u64::MAX, 1 << 20, 131_072, 65_536]),
        };
        let inner = target(&mut random, target_size, grid_t);
        let before = inner.bytes();
        let target = Hostile::new(inner, temper, round);
        let options = Options {
            requests: Some(random.pick(&[1, 3, 64])),
            request_size: random.pick(&[4096, 65536]),
            threads: Some(random.pick(&[1, 2, 4])),
            sparse: random.pick(&[None, Some(512), Some(4096)]),
            allocated: random.below(4) == 0,
            test_fast_zero: random.below(2) == 0,
            no_extents: random.below(4) == 0,
            ..Options::default()
        };
        let context = format!("round {round}: {options:?}, {temper:?}, grids {grid_s} {grid_t}");
        let lanes = usize::try_from(random.below(3)).unwrap();
        let from = edge(watched(source.clone(), lanes));
        let left = match run(&from, &outside(target.clone()), &options) {
            Ok(report) => {
                right += 1;
                report.left
            }
            Err(failure) => {
                failed += 1;
                assert!(temper.fails_at > 0, "{context}: {failure}");
                if !failure.report.touched {
                    assert!(target.late.model().bytes() == before, "{context}: it was touched");
                }
                failure.report.left
            }
        };
        assert_eq!(*target.met.lock().unwrap(), [""; 0], "{context}");
        let (from, to) = (source.bytes(), target.late.model().bytes());
        for (i, (a, b)) in from.iter().zip(&to).enumerate() {
            let known = left.iter().any(|range| range.contains(&(i as u64)));
            assert!(a == b || known, "{context}: differs at {i}, left {left:?}");
        }
        assert!(to[size..] == before[size..], "{context}: changed beyond the source");
    }
    assert!(right > 20 && failed > 5, "{right} and {failed}");
}
