//! Zeroing in advance: never a stale byte, never a lost one, never more requests than it saves.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use copy::{Options, Report};
use device::model::Model;
use device::{
    Abilities, Blocking, Error, ErrorKind, Extent, ExtentKind, Fault, Info, Result, ZeroFlags,
};

use crate::support::*;

const BLOCK: usize = 16 << 10;

/// A zero request as the target saw it.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Zero {
    range: Range<u64>,
    flags: ZeroFlags,
}

/// The result of the n-th zero request (from 0); `None`: it is done.
type Script = Box<dyn Fn(usize, &Zero) -> Option<ErrorKind> + Send + Sync>;

/// A target that follows a script, and panics when a write meets a zero that is in flight. No
/// `TestDevice`: how long a zero takes, and what comes meanwhile, is what is tested.
struct Target {
    inner: Model,
    info: Info,
    script: Script,
    /// How long a zero request takes, for each block of it and besides.
    takes: (Duration, Duration),
    /// The first zero request ends only when something was written.
    waits_for_a_write: bool,
    zeroes: Mutex<Vec<Zero>>,
    writes: Mutex<Vec<Range<u64>>>,
    under_way: Mutex<HashMap<usize, Range<u64>>>,
}

impl Target {
    /// A target of blocks full of stale bytes, and with no map.
    fn new(blocks: usize) -> Self {
        let abilities = Abilities { extents: false, ..all_abilities() };
        Self::with(blocks * BLOCK, abilities)
    }

    fn with(size: usize, abilities: Abilities) -> Self {
        let inner = Model::with(size, abilities, blocks(1, 4096, 32 << 20));
        fill(&inner, 0xee);
        let info = inner.info().clone();
        Self {
            inner,
            info,
            script: Box::new(|_, _| None),
            takes: (Duration::ZERO, Duration::ZERO),
            waits_for_a_write: false,
            zeroes: Mutex::default(),
            writes: Mutex::default(),
            under_way: Mutex::default(),
        }
    }

    fn zeroes(&self) -> Vec<Zero> {
        self.zeroes.lock().unwrap().clone()
    }

    fn fast(&self) -> Vec<Range<u64>> {
        self.zeroes().into_iter().filter(|z| z.flags.fast_only).map(|z| z.range).collect()
    }

    fn plain(&self) -> Vec<Range<u64>> {
        self.zeroes().into_iter().filter(|z| !z.flags.fast_only).map(|z| z.range).collect()
    }
}

impl Blocking for Target {
    fn info(&self) -> &Info {
        &self.info
    }
    fn read_at(&self, _: &mut [u8], offset: u64) -> Result<()> {
        panic!("the target is read at {offset}");
    }
    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        let range = offset..offset + data.len() as u64;
        for zero in self.under_way.lock().unwrap().values() {
            let meets = zero.start < range.end && range.start < zero.end;
            assert!(!meets, "{range:?} is written while {zero:?} is zeroed");
        }
        self.writes.lock().unwrap().push(range);
        self.inner.write_at(data, offset, fua)
    }
    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        let zero = Zero { range: offset..offset + len, flags };
        let n = {
            let mut zeroes = self.zeroes.lock().unwrap();
            zeroes.push(zero.clone());
            zeroes.len() - 1
        };
        if let Some(kind) = (self.script)(n, &zero) {
            return Err(Error::new(kind, Fault::Peer, "zero"));
        }
        self.under_way.lock().unwrap().insert(n, zero.range.clone());
        let since = std::time::Instant::now();
        while self.waits_for_a_write && n == 0 && self.writes.lock().unwrap().is_empty() {
            std::thread::sleep(Duration::from_millis(1));
            if since.elapsed() > Duration::from_secs(20) {
                return Err(Error::new(ErrorKind::TimedOut, Fault::Peer, "zero"));
            }
        }
        let (block, besides) = self.takes;
        let blocks = u32::try_from(len.div_ceil(BLOCK as u64)).unwrap();
        std::thread::sleep(block * blocks + besides);
        let done = self.inner.zero(offset, len, ZeroFlags { fast_only: false, ..flags });
        self.under_way.lock().unwrap().remove(&n);
        done
    }
    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }
    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        self.inner.resolve(offset, len, max, out)
    }
    /// It answers from a thread of its own, as if from a distance.
    fn waits(&self) -> bool {
        true
    }
}

/// A source of blocks: `d` data, `h` hole, `z` zeroes that its map calls data.
fn source(layout: &str) -> Arc<Model> {
    let model = Model::new(layout.len() * BLOCK);
    for (i, kind) in layout.chars().enumerate() {
        let byte = match kind {
            'd' => u8::try_from(i % 250 + 1).unwrap(),
            'z' => 0,
            _ => continue,
        };
        model.write_at(&vec![byte; BLOCK], (i * BLOCK) as u64, false).unwrap();
    }
    Arc::new(model)
}

/// With the target's claim believed, so that nothing depends on time.
fn options() -> Options {
    Options {
        threads: Some(2),
        request_size: BLOCK as u64,
        test_fast_zero: false,
        apart: true,
        ..Options::default()
    }
}

/// Copies into new targets until `good` is true of one: where time decides, a busy machine
/// can make anything look slow, but not every time.
#[track_caller]
fn one_of_several(
    source: &Arc<Model>,
    make: impl Fn() -> Target,
    good: impl Fn(&Target, &Report) -> bool,
) {
    let tested = Options { test_fast_zero: true, ..options() };
    let mut seen = Vec::new();
    for _ in 0..8 {
        let target = Arc::new(make());
        let report = copied(source, &target, &tested);
        if good(&target, &report) {
            return;
        }
        seen.push(target.zeroes());
    }
    panic!("{seen:?}");
}

/// Copies and compares.
fn copied(source: &Arc<Model>, target: &Arc<Target>, options: &Options) -> Report {
    let report = run(&edge(source.clone()), &edge(target.clone()), options).unwrap();
    let (from, to) = (source.bytes(), target.inner.bytes());
    let differs = from.iter().zip(&to).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{:?}", target.zeroes());
    assert!(to[from.len()..].iter().all(|b| *b == 0xee), "touched beyond the source");
    assert!(report.left.is_empty());
    assert_eq!(report.done(), from.len() as u64);
    assert_eq!(report.copied + report.zeroed + report.skipped, from.len() as u64);
    report
}

/// `n` times data and a hole.
fn striped(n: usize) -> String {
    "dh".repeat(n)
}

fn at(block: usize) -> u64 {
    (block * BLOCK) as u64
}

#[test]
fn many_holes_are_one_request() {
    let source = source(&striped(50));
    // Longer than the source: the rest is not the copy's.
    let target = Arc::new(Target::new(150));
    let report = copied(&source, &target, &options());
    let zeroes = target.zeroes();
    // From the first hole to the last.
    assert_eq!((zeroes.len(), zeroes[0].range.clone()), (1, at(1)..at(100)), "{zeroes:?}");
    assert!(zeroes[0].flags.fast_only && zeroes[0].flags.may_unmap, "{zeroes:?}");
    assert_eq!((report.zeroed, report.copied), (at(50), at(50)));
}

#[test]
fn two_requests_in_a_hole_show_whether_it_is_fast() {
    let source = source(&striped(50));
    one_of_several(
        &source,
        || Target::new(100),
        |target, _| {
            let zeroes = target.fast();
            let [first, second, all] = zeroes.as_slice() else { return false };
            assert!(first.start % at(2) == at(1) && second.end.is_multiple_of(at(2)));
            assert_eq!((second.start, second.end - first.start), (first.end, at(1)));
            // The tested one, which is the first, is done.
            assert_eq!(*all, at(3)..at(100));
            target.plain().is_empty()
        },
    );
}

#[test]
fn no_data_is_written_before_the_sweep_is_over() {
    for layout in [striped(40), "d".to_owned() + &"zd".repeat(300)] {
        let source = source(&layout);
        let mut target = Target::new(layout.len());
        // Each zero takes long, whatever its length; writes would come in between.
        target.takes.1 = Duration::from_millis(40);
        target.info.longest_effect = at(layout.len() / 6);
        let target = Arc::new(target);
        copied(&source, &target, &options());
        assert!(!target.fast().is_empty(), "it was not swept");
    }
}

#[test]
fn one_hole_is_zeroed_by_itself_and_none_not_at_all() {
    for (layout, plain) in [("ddhhhhdddd", 1), ("hhh", 1), ("ddddd", 0)] {
        let source = source(layout);
        let target = Arc::new(Target::new(layout.len()));
        copied(&source, &target, &options());
        assert_eq!((target.plain().len(), target.fast().len()), (plain, 0), "{layout}");
    }
}

#[test]
fn a_sweep_of_many_requests_is_not_made_for_fewer_holes() {
    let source = source(&("d".repeat(10) + &striped(10)));
    let mut target = Target::new(30);
    target.info.longest_effect = at(1);
    let target = Arc::new(target);
    copied(&source, &target, &options());
    assert_eq!((target.plain().len(), target.fast().len()), (10, 0));
}

#[test]
fn after_a_refusal_each_hole_is_zeroed_and_no_sweep_is_tried_again() {
    for kind in [ErrorKind::NotFast, ErrorKind::Unsupported] {
        let source = source(&striped(30));
        let mut target = Target::new(60);
        target.script = Box::new(move |_, zero| zero.flags.fast_only.then_some(kind));
        let target = Arc::new(target);
        copied(&source, &target, &options());
        assert_eq!(target.fast().len(), 1);
        let plain = target.plain();
        assert_eq!(plain.len(), 30);
        assert!(plain.iter().all(|r| r.start % at(2) == at(1) && r.end - r.start == at(1)));
        assert!(target.zeroes().iter().all(|z| z.flags.may_unmap));
    }
}

#[test]
fn a_refusal_has_touched_nothing_and_a_zero_that_failed_may_have() {
    for (kind, touched) in [(ErrorKind::NotFast, false), (ErrorKind::Io, true)] {
        let source = source(&striped(10));
        let source = watched(source, 0);
        // The map is had in a few requests, and the source can be read; then a read fails.
        source.fail_nth(6);
        let mut target = Target::new(20);
        target.script = Box::new(move |_, _| Some(kind));
        let target = Arc::new(target);
        let one = Options { threads: Some(1), requests: Some(1), ..options() };
        let failure = run(&edge(source), &edge(target.clone()), &one).unwrap_err();
        assert_eq!(failure.error.kind(), ErrorKind::Io);
        assert_eq!(failure.report.touched, touched, "{failure}");
        assert_eq!(target.zeroes().len(), 1);
        assert!(target.writes.lock().unwrap().is_empty());
        assert!(!failure.report.left.is_empty());
    }
}

#[test]
fn what_a_sweep_leaves_undone_is_zeroed_hole_by_hole_or_written() {
    // The n-th fast zero is refused; all plain ones are done, or none is.
    for plain_works in [true, false] {
        for kind in [ErrorKind::NotFast, ErrorKind::Unsupported] {
            for refused in 0..7 {
                let source = source(&striped(40));
                let mut target = Target::new(80);
                target.info.longest_effect = at(16);
                target.script = Box::new(move |n, zero| match zero.flags.fast_only {
                    true => (n == refused).then_some(kind),
                    false => (!plain_works).then_some(ErrorKind::Unsupported),
                });
                let target = Arc::new(target);
                copied(&source, &target, &options());
                assert_eq!(target.plain().is_empty(), refused >= 5, "{refused}");
            }
        }
    }
}

#[test]
fn any_other_failure_of_a_sweep_is_the_end_and_names_the_place() {
    for n in 0..5 {
        for kind in [ErrorKind::Io, ErrorKind::NoSpace, ErrorKind::InvalidInput] {
            let source = source(&striped(40));
            let mut target = Target::new(80);
            target.info.longest_effect = at(16);
            target.script = Box::new(move |i, _| (i == n).then_some(kind));
            let target = Arc::new(target);
            let failure = run(&edge(source), &edge(target.clone()), &options()).unwrap_err();
            assert_eq!(failure.error.kind(), kind);
            assert!(failure.error.offset().is_some(), "{failure}");
            assert!(target.writes.lock().unwrap().is_empty());
            assert_eq!(failure.report.left, [0..at(80)]);
        }
    }
}

#[test]
fn a_target_that_only_says_that_it_is_fast_is_found_out_before_it_writes_over_data() {
    let source = source(&"ddddhhhhhhhh".repeat(6));
    let slow = || {
        let mut target = Target::new(12 * 6);
        target.takes.0 = Duration::from_millis(20);
        target
    };
    one_of_several(&source, slow, |target, _| {
        let zeroed: u64 = target.zeroes().iter().map(|z| z.range.end - z.range.start).sum();
        zeroed == at(8 * 6)
    });
}

#[test]
fn while_the_word_is_tested_the_units_around_are_copied() {
    let tested = Options { test_fast_zero: true, ..options() };
    for lies in [true, false] {
        // Ten units; the tested holes are in the sixth.
        let layout = striped(160) + "hhhhdhhhhd" + &striped(155);
        let source = source(&layout);
        let mut target = Target::new(layout.len());
        target.waits_for_a_write = true;
        target.takes.0 = Duration::from_millis(if lies { 30 } else { 0 });
        let target = Arc::new(target);
        copied(&source, &target, &tested);
        let (fast, plain) = (target.fast(), target.plain());
        let swept = fast.iter().filter(|r| r.end - r.start > at(4)).count();
        if lies {
            assert_eq!(swept, 0, "{fast:?}");
        }
        // The copy did not zero what the test has zeroed.
        for zero in &plain {
            let twice = fast.iter().any(|f| f.start < zero.end && zero.start < f.end);
            assert!(!twice, "{zero:?} of {fast:?}");
        }
    }
}

#[test]
fn a_test_that_ends_at_any_time_loses_no_byte_and_leaves_no_stale_one() {
    let mut random = Random(5);
    for round in 0..40 {
        let mut layout = String::new();
        while layout.len() < 300 + usize::try_from(random.below(500)).unwrap() {
            let kind = random.pick(&["d", "h", "z"]);
            layout += &kind.repeat(usize::try_from(1 + random.below(12)).unwrap());
        }
        let source = source(&layout);
        let mut target = Target::new(layout.len());
        target.takes.0 = Duration::from_micros(random.below(3) * 2_000);
        target.takes.1 = Duration::from_millis(random.below(3) * 9);
        target.waits_for_a_write = random.below(3) == 0;
        target.info.longest_effect = random.pick(&[u64::MAX, at(50)]);
        let refused = usize::try_from(random.below(12)).unwrap();
        let refuses = move |n: usize, zero: &Zero| {
            (n == refused && zero.flags.fast_only).then_some(ErrorKind::NotFast)
        };
        target.script = Box::new(refuses);
        let options = Options {
            test_fast_zero: true,
            no_extents: random.below(3) == 0,
            threads: Some(1 + usize::try_from(random.below(3)).unwrap()),
            ..options()
        };
        println!("{round}: {layout} {options:?} {:?}", target.takes);
        // It panics when a write meets a zero that is in flight.
        if target.waits_for_a_write && !layout.contains('d') {
            continue;
        }
        copied(&source, &Arc::new(target), &options);
    }
}

#[test]
fn zeroes_found_in_data_cost_nothing_after_a_sweep() {
    let source = source(&"dzhz".repeat(20));
    let target = Arc::new(Target::new(80));
    let report = copied(&source, &target, &options());
    assert_eq!((target.fast().len(), report.copied, report.zeroed), (1, at(20), at(60)));
    // Nothing was swept but what lies between the first hole and the last.
    assert_eq!(target.plain(), [at(1)..at(2), at(79)..at(80)]);
}

#[test]
fn a_source_without_a_map_is_searched_after_a_sweep() {
    let source = source(&"dzzh".repeat(20));
    let target = Arc::new(Target::new(80));
    let blind = Options { no_extents: true, ..options() };
    let report = copied(&source, &target, &blind);
    assert_eq!((target.plain().len(), target.fast().len()), (0, 1));
    assert_eq!((report.copied, report.zeroed), (at(20), at(60)));
    // Zeroes are not looked for: there will be none.
    let target = Arc::new(Target::new(80));
    copied(&source, &target, &Options { sparse: None, ..blind });
    assert!(target.zeroes().is_empty());
}

#[test]
fn zeroes_in_a_full_source_are_swept_when_there_turn_out_to_be_many() {
    let source = source(&"zd".repeat(600));
    let target = Arc::new(Target::new(1200));
    copied(&source, &target, &options());
    let (fast, plain) = (target.fast().len(), target.plain().len());
    assert!(fast == 1 && plain < 300, "{fast} and {plain} instead of 600");
}

#[test]
fn a_target_known_to_be_zero_is_asked_nothing() {
    let source = source(&striped(30));
    let known = Options { target_is_zero: true, ..options() };
    let target = Target::new(60);
    target.inner.zero(0, at(60), ZeroFlags { may_unmap: true, ..ZeroFlags::default() }).unwrap();
    let target = Arc::new(target);
    let report = copied(&source, &target, &known);
    assert!(target.zeroes().is_empty());
    assert_eq!(report.skipped, at(30));
    // The same from its own map.
    let target = Arc::new(Target::with(60 * BLOCK, all_abilities()));
    target.inner.zero(0, at(60), ZeroFlags { may_unmap: true, ..ZeroFlags::default() }).unwrap();
    let report = copied(&source, &target, &options());
    assert!(target.zeroes().is_empty());
    assert_eq!(report.skipped, at(30));
}

#[test]
fn only_between_the_stale_bytes_of_the_target_is_swept() {
    let source = source(&striped(50));
    let target = Arc::new(Target::with(100 * BLOCK, all_abilities()));
    let unmap = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
    target.inner.zero(0, at(30), unmap).unwrap();
    target.inner.zero(at(70), at(30), unmap).unwrap();
    let report = copied(&source, &target, &options());
    let all = at(31)..at(70);
    assert_eq!((target.fast().first(), target.zeroes().len()), (Some(&all), 1));
    assert_eq!((report.skipped, report.zeroed), (at(30), at(20)));
}

#[test]
fn an_allocated_target_is_swept_without_making_holes() {
    let source = source(&striped(30));
    let target = Arc::new(Target::with(60 * BLOCK, all_abilities()));
    target.inner.zero(0, at(60), ZeroFlags { may_unmap: true, ..ZeroFlags::default() }).unwrap();
    copied(&source, &target, &Options { allocated: true, ..options() });
    assert!(target.zeroes().iter().all(|z| !z.flags.may_unmap), "{:?}", target.zeroes());
    let mut map = Vec::new();
    target.inner.resolve(0, at(60), usize::MAX, &mut map).unwrap();
    assert!(map.iter().all(|e| e.kind == ExtentKind::Data));
}

#[test]
fn it_never_takes_more_requests_or_bytes_than_the_best_of_the_three_ways() {
    let mut random = Random(11);
    for round in 0..150 {
        let mut layout = String::new();
        for _ in 0..=random.below(40) {
            let kind = random.pick(&["d", "h"]);
            layout += &kind.repeat(usize::try_from(1 + random.below(8)).unwrap());
        }
        let blocks = layout.len();
        let source = source(&layout);
        let fast = random.below(3) > 0;
        let refuses = random.below(3) == 0;
        let mut target = Target::new(blocks);
        target.info.abilities.fast_zero = fast;
        if refuses {
            let not_fast = |_, zero: &Zero| zero.flags.fast_only.then_some(ErrorKind::NotFast);
            target.script = Box::new(not_fast);
        }
        let target = Arc::new(target);
        copied(&source, &target, &options());
        // A refused request changes nothing, and there is one at most.
        let refused = if refuses { target.fast().len() } else { 0 };
        assert!(refused <= 1 && (fast || target.fast().is_empty()));
        let zeroes = target.zeroes().len() - refused;
        let writes = target.writes.lock().unwrap().clone();
        let bytes: u64 = writes.iter().map(|w| w.end - w.start).sum();
        let data = layout.bytes().filter(|b| *b == b'd').count();
        let holes = layout.split('d').filter(|run| !run.is_empty()).count();
        // In requests: sweeping, hole by hole, writing.
        let sweep = if fast && !refuses && holes > 0 { data + 1 } else { usize::MAX };
        let best = sweep.min(data + holes).min(blocks);
        let context = format!("round {round}: {layout}, fast {fast}, refuses {refuses}");
        assert_eq!((writes.len(), bytes), (data, at(data)), "{context}");
        assert!(zeroes + writes.len() <= best, "{context}");
    }
}
