//! Copies by a list: the target gets its ranges, and what it leaves alone is neither asked for,
//! read nor changed.

use std::ops::Range;
use std::sync::Arc;

use copy::{Cancel, CopyPlan, ListedRange, Options, Progress, RangeFate};
use device::model::Model;
use device::{Abilities, Blocking, ErrorKind, ZeroFlags};
use trial::{Fate, SeenOperation, TestDevice};

use crate::support::*;

/// A disk that tells little of its map at a time.
fn disk(model: Model) -> Arc<TestDevice> {
    let size = model.info().size;
    let device = TestDevice::over(model);
    device.hooked(move |operation| Fate::Pass(few_extents(operation, 1, size))).shared()
}

/// What touched these ranges.
fn met(device: &TestDevice, fences: &[Range<u64>]) -> Vec<String> {
    let meets = |seen: &SeenOperation, fence: &Range<u64>| {
        seen.offset < fence.end && fence.start < seen.end()
    };
    let touching = |seen: &SeenOperation| fences.iter().any(|fence| meets(seen, fence));
    device.seen().iter().filter(|seen| touching(seen)).map(SeenOperation::to_string).collect()
}

fn random_list(random: &mut Random, size: u64, grid: u64) -> Vec<ListedRange> {
    let (mut at, mut list) = (0, Vec::new());
    while at < size {
        let longest = random.pick(&[grid, 20 * grid, 500_000]);
        let end = (at + 1 + random.below(longest)).next_multiple_of(grid).min(size);
        let kind = [RangeFate::Data, RangeFate::Data, RangeFate::Zero, RangeFate::LeftAlone];
        let kind = kind[usize::try_from(random.below(4)).unwrap()];
        // What is left alone may be said or left out.
        if kind != RangeFate::LeftAlone || random.below(2) == 0 {
            list.push(ListedRange { range: at..end, kind });
        }
        at = end;
    }
    list
}

fn by_list(
    source: Arc<impl Blocking>,
    target: Arc<impl Blocking>,
    list: &[ListedRange],
    options: &Options,
) -> std::result::Result<copy::Report, Box<copy::FailedCopy>> {
    let (progress, cancel) = (Progress::default(), Cancel::default());
    let plan = CopyPlan::List(list.to_vec());
    copy::run(&edge(source), &edge(target), &plan, options, &progress, &cancel)
}

#[test]
fn what_a_list_leaves_alone_is_neither_asked_for_nor_read_nor_changed() {
    let mut random = Random(4);
    for round in 0..120 {
        let grid = random.pick(&[1, 512, 4096]);
        let size = usize::try_from(100_000 + random.below(1_500_000)).unwrap();
        let longer = size.next_multiple_of(4096) + 8192;
        let list = random_list(&mut random, size as u64, u64::from(grid));
        let mut expected = vec![None; size];
        let mut alone = vec![size as u64..longer as u64];
        let mut at = 0;
        for listed in &list {
            alone.push(at..listed.range.start);
            at = listed.range.end;
            let range = listed.range.start as usize..at as usize;
            match listed.kind {
                RangeFate::LeftAlone => alone.push(listed.range.clone()),
                kind => expected[range].fill(Some(kind)),
            }
        }
        alone.push(at..size as u64);
        // The target's last block may lie half behind the source.
        alone[0].start = alone[0].start.next_multiple_of(u64::from(grid));
        alone.retain(|r| !r.is_empty());
        let source =
            Model::with(size.next_multiple_of(1), all_abilities(), blocks(1, 4096, 32 << 20));
        random_disk(&source, &mut random, 1);
        // It advertises fast zeroes: it would be swept.
        let abilities = Abilities { extents: random.below(2) == 0, ..all_abilities() };
        let target = Model::with(longer, abilities, blocks(grid, 4096, 1 << 20));
        fill(&target, 0xee);
        let unmap = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
        target.zero(4096 * 3, 4096 * 10, unmap).unwrap();
        let before = target.bytes();
        let source_fences: Vec<_> =
            alone.iter().filter(|r| r.start < size as u64).cloned().collect();
        let (source, target) = (disk(source), disk(target));
        let options = Options {
            threads: Some(1 + usize::try_from(random.below(3)).unwrap()),
            request_size: 16 << 10,
            test_fast_zero: random.below(2) == 0,
            apart: random.below(2) == 0,
            no_extents: random.below(4) == 0,
            sparse: Some(4096).filter(|_| random.below(4) > 0),
            allocated: random.below(4) == 0,
            skip_zeroes: random.below(2) == 0,
            ..Options::default()
        };
        let context = format!("round {round}: {list:?} {options:?}");
        let report = by_list(source.clone(), target.clone(), &list, &options)
            .unwrap_or_else(|e| panic!("{context}: {e}"));
        assert_eq!(met(&source, &source_fences), [""; 0], "{context}");
        assert_eq!(met(&target, &alone), [""; 0], "{context}");
        let (from, to) = (source.model().bytes(), target.model().bytes());
        for (i, kind) in expected.iter().enumerate() {
            let wanted = match kind {
                Some(RangeFate::Data) => from[i],
                Some(_) => 0,
                None => before[i],
            };
            assert!(to[i] == wanted, "{context}: byte {i} of {kind:?}");
        }
        assert!(to[size..] == before[size..], "{context}: beyond the source");
        let total = expected.iter().flatten().count() as u64;
        assert_eq!((report.total, report.done()), (total, total), "{context}");
    }
}

#[test]
fn what_a_failed_copy_by_a_list_has_left_does_not_include_what_is_left_alone() {
    let source = Arc::new(Model::new(4 << 20));
    fill(&source, 7);
    let source = watched(source, 0);
    source.fail_nth(20);
    let target = Arc::new(Model::new(4 << 20));
    let data =
        |start: u64| ListedRange { range: start << 20..(start + 1) << 20, kind: RangeFate::Data };
    let list = [data(0), data(3)];
    let options =
        Options { threads: Some(1), request_size: 65536, apart: true, ..Options::default() };
    let failure = by_list(source, target, &list, &options).unwrap_err();
    assert_eq!(failure.report.left, [3 << 20..4 << 20], "{failure}");
    assert_eq!(failure.report.total, 2 << 20);
}

#[test]
fn an_invalid_list_is_refused_and_nothing_is_touched() {
    let listed = |range: Range<u64>| ListedRange { range, kind: RangeFate::Data };
    let zero = Options { target_is_zero: true, ..Options::default() };
    for (list, options) in [
        (vec![listed(4096..8192), listed(0..4096)], Options::default()),
        (vec![listed(100..4096)], Options::default()),
        (vec![listed(0..1 << 21)], Options::default()),
        (vec![listed(0..4096)], zero),
    ] {
        let source = Arc::new(Model::new(1 << 20));
        let target = Arc::new(Model::with(1 << 20, all_abilities(), blocks(512, 4096, 65536)));
        let failure = by_list(source, target.clone(), &list, &options).unwrap_err();
        assert_eq!(failure.error.kind(), ErrorKind::InvalidInput);
        assert!(!failure.report.touched && target.log().is_empty());
    }
}

#[test]
fn an_empty_list_copies_nothing() {
    let target = Arc::new(Model::new(1 << 20));
    fill(&target, 1);
    let report = by_list(Arc::new(Model::new(1 << 20)), target.clone(), &[], &Options::default());
    assert_eq!(report.unwrap().done(), 0);
    assert!(target.bytes().iter().all(|b| *b == 1));
}
