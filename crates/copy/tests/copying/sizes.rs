//! Sizes at the edges: nothing, too little, very much.

use std::sync::Arc;

use copy::Options;
use device::model::Model;
use device::{Abilities, ErrorKind, OperationKind};
use trial::TestDevice;

use crate::support::*;

/// Zeroes and requests for the map.
fn requests(device: &TestDevice) -> usize {
    device.count(OperationKind::Zero) + device.count(OperationKind::Resolve)
}

#[test]
fn a_huge_hole_costs_a_handful_of_requests() {
    let mut abilities = all_abilities();
    abilities.extents = false;
    for size in [1 << 40, 1 << 60, i64::MAX.unsigned_abs()] {
        let source = endless(size, all_abilities());
        let target = endless(size, abilities);
        let report =
            run(&edge(source.clone()), &edge(target.clone()), &Options::default()).unwrap();
        assert_eq!(report.zeroed, size);
        assert!(requests(&source) <= 4);
        assert!(requests(&target) <= 4);
        let known = Options { target_is_zero: true, ..Options::default() };
        let target = endless(size, abilities);
        assert_eq!(run(&edge(source), &edge(target.clone()), &known).unwrap().skipped, size);
        assert_eq!(requests(&target), 0);
    }
}

#[test]
fn a_target_that_is_too_small_is_left_alone_and_both_sizes_are_named() {
    let (source, target) = (Arc::new(Model::new(5000)), Arc::new(Model::new(4999)));
    let failure = run(&edge(source), &edge(target.clone()), &Options::default()).unwrap_err();
    let text = failure.to_string();
    assert!(text.contains("5000") && text.contains("4999"), "{text}");
    assert!(!failure.report.touched);
    assert_eq!(failure.report.left, [0..5000]);
    assert!(target.log().is_empty());
}

#[test]
fn a_read_only_target_is_refused_before_anything_is_read() {
    let source = watched(Arc::new(Model::new(5000)), 0);
    let target = Model::with(5000, Abilities::READ, blocks(1, 4096, 65536));
    let failure =
        run(&edge(source.clone()), &edge(Arc::new(target)), &Options::default()).unwrap_err();
    assert_eq!(failure.error.kind(), ErrorKind::ReadOnly);
    assert!(source.asked().is_empty());
}

#[test]
fn an_empty_source_is_copied_at_once() {
    let (source, target) = (Arc::new(Model::new(0)), Arc::new(Model::new(10)));
    let report = run(&edge(source), &edge(target), &Options::default()).unwrap();
    assert_eq!(report.done(), 0);
    assert!(report.left.is_empty());
}
