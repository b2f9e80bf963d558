//! The target has the bytes of the source, with every option and on every kind of device.

use std::sync::Arc;

use copy::{Flush, Options, Reflink};
use device::Blocking as _;
use device::model::Model;
use device::{Abilities, ExtentKind, OperationKind};

use crate::support::*;

const SIZE: usize = 1_900_001;

fn options(random: &mut Random) -> Options {
    Options {
        requests: Some(random.pick(&[1, 2, 16, 64])),
        request_size: random.pick(&[4096, 65536, 256 << 10, 4 << 20]),
        bulk: true,
        threads: Some(random.pick(&[1, 2, 4])),
        sparse: random.pick(&[None, Some(512), Some(4096), Some(65536)]),
        allocated: random.below(4) == 0,
        target_is_zero: random.below(3) == 0,
        check_zero: false,
        wipe: random.below(8) == 0,
        reflink: random.pick(&[Reflink::Auto, Reflink::Never]),
        skip_zeroes: random.below(2) == 0,
        test_fast_zero: random.below(2) == 0,
        flush: random.pick(&[Flush::Never, Flush::WhereItCan, Flush::Must]),
        apart: random.below(3) == 0,
        no_extents: random.below(4) == 0,
        queue_size: Some(random.pick(&[1, 100_000, 16 << 20])),
        anew: None,
        durably: None,
        witness: None,
        written: random.below(4) == 0,
    }
}

#[test]
fn the_target_has_the_bytes_of_the_source_whatever_the_options_and_devices_are() {
    let mut random = Random(42);
    for round in 0..60 {
        let grid_s = random.pick(&[1, 1, 512, 4096]);
        let grid_t = random.pick(&[1, 1, 512, 4096]);
        let max = random.pick(&[32 << 20, 65536]);
        let grid = u64::from(grid_s.max(grid_t));
        // The source ends on its own blocks or is cut off in the middle of the target's.
        let size = if grid_s == 1 { SIZE } else { SIZE.next_multiple_of(grid_s as usize) };
        let longer = if random.below(2) == 0 { 0 } else { 50_000 };
        let target_size = (size + longer).next_multiple_of(grid_t as usize);
        let mut abilities = all_abilities();
        abilities.zero = random.below(3) > 0;
        abilities.extents = random.below(2) == 0;
        let source = Arc::new(Model::with(size, all_abilities(), blocks(grid_s, 4096, 32 << 20)));
        let target = Arc::new(Model::with(target_size, abilities, blocks(grid_t, 4096, max)));
        random_disk(&source, &mut random, u64::from(grid_s));
        let (seen, witness) = Notes::of(size);
        let options = Options { witness, ..options(&mut random) };
        // Stale bytes everywhere, unless the options say that there are none.
        if !options.target_is_zero {
            fill(&target, 0xee);
            if abilities.extents && random.below(2) == 0 {
                let flags = device::ZeroFlags { may_unmap: true, ..Default::default() };
                if abilities.zero {
                    target.zero(4096 * 100, 4096 * 300, flags).unwrap();
                }
            }
        }
        let before = target.bytes();
        let lanes = |random: &mut Random| usize::try_from(random.below(3)).unwrap();
        let from = watched(source.clone(), lanes(&mut random));
        let to = watched(target.clone(), lanes(&mut random));
        let (s, t) = (edge(from.clone()), edge(to.clone()));
        let context = format!("round {round}: {options:?}, grids {grid_s} {grid_t}, {abilities:?}");
        let report = run(&s, &t, &options).unwrap_or_else(|e| panic!("{context}: {e}"));
        let (a, b) = (source.bytes(), target.bytes());
        if let Some(at) = a.iter().zip(&b).position(|(a, b)| a != b) {
            panic!("{context}: differs at {at}");
        }
        assert_eq!(b[size..], before[size..], "{context}: beyond the source");
        seen.check(&a, &context);
        assert!(report.left.is_empty(), "{context}");
        assert_eq!(report.done(), size as u64, "{context}");
        assert_eq!(report.copied + report.zeroed + report.skipped, size as u64, "{context}");
        if grid == 1 && !options.no_extents {
            assert_eq!(holes_read(&from), 0, "{context}: a hole was read");
        }
        let flushed = to.count(OperationKind::Flush) > 0;
        assert_eq!(flushed, options.flush != Flush::Never, "{context}");
        if options.allocated {
            let mut map = Vec::new();
            target.resolve(0, size as u64, usize::MAX, &mut map).unwrap();
            assert!(map.iter().all(|e| e.kind == ExtentKind::Data), "{context}: holes");
        }
    }
}

#[test]
fn nothing_is_written_or_asked_where_the_target_is_known_to_be_zero() {
    let source = Arc::new(Model::new(SIZE));
    source.write_at(&[1; 5000], 1_000_000, false).unwrap();
    source.write_at(&[0; 300_000], 1_500_000, false).unwrap();
    let target = Arc::new(Model::new(SIZE));
    let seen = watched(target.clone(), 0);
    let t = edge(seen.clone());
    let options = Options { target_is_zero: true, ..Options::default() };
    let report = run(&edge(source.clone()), &t, &options).unwrap();
    assert_eq!(source.bytes(), target.bytes());
    assert_eq!((seen.count(OperationKind::Zero), seen.count(OperationKind::Resolve)), (0, 0));
    assert_eq!(seen.asked(), ["write 1000000+5000", "flush"]);
    assert_eq!((report.copied, report.zeroed), (5000, 0));
}

#[test]
fn only_what_the_targets_own_map_calls_zero_is_skipped() {
    let source = Arc::new(Model::new(1 << 20));
    let target = Arc::new(Model::new(1 << 20));
    target.write_at(&[0xee; 100_000], 300_000, false).unwrap();
    let seen = watched(target.clone(), 0);
    let t = edge(seen.clone());
    let report = run(&edge(source), &t, &Options::default()).unwrap();
    assert_eq!(target.bytes(), vec![0; 1 << 20]);
    assert_eq!(seen.count(OperationKind::Write), 0);
    assert_eq!(report.zeroed, 100_000);
    assert_eq!(report.skipped, (1 << 20) - 100_000);
}

#[test]
fn adjoining_zeroes_are_one_request_whether_found_or_known() {
    let source = Arc::new(Model::new(4 << 20));
    source.write_at(&vec![0; 2 << 20], 1 << 20, false).unwrap();
    source.write_at(&[7], (4 << 20) - 1, false).unwrap();
    let abilities = Abilities { extents: false, ..all_abilities() };
    let target = Arc::new(Model::with(4 << 20, abilities, blocks(1, 4096, 32 << 20)));
    fill(&target, 0xee);
    let seen = watched(target.clone(), 0);
    let t = edge(seen.clone());
    let options = Options { threads: Some(1), ..Options::default() };
    run(&edge(source.clone()), &t, &options).unwrap();
    assert_eq!(source.bytes(), target.bytes());
    assert_eq!(seen.count(OperationKind::Zero), 1, "{:?}", target.log());
}

#[test]
fn a_target_that_drops_bytes_gets_no_search_for_zeroes() {
    let source = Arc::new(Model::new(1 << 20));
    source.write_at(&[0; 1 << 20], 0, false).unwrap();
    let abilities = Abilities { discards: true, ..all_abilities() };
    let target = Arc::new(Model::with(1 << 20, abilities, blocks(1, 4096, 32 << 20)));
    let seen = watched(target, 0);
    let t = edge(seen.clone());
    let report = run(&edge(source), &t, &Options::default()).unwrap();
    assert_eq!(report.copied, 1 << 20);
    assert_eq!(seen.count(OperationKind::Zero), 0);
}
