//! Maps that cost more than they save: counted below the copier, with a slow device.

use std::sync::Arc;
use std::time::Duration;

use copy::Options;
use device::model::Model;
use device::{ExtentKind, Info, Operation, OperationKind};
use trial::{Fate, TestDevice};

use super::support::{all_abilities, edge, endless, run, told};

/// A disk whose map takes a while for each answer, which is of few bytes. What `kind` calls data is
/// ones.
fn slow(size: u64, takes: Duration, tells: u64, kind: fn(u64) -> ExtentKind) -> Arc<TestDevice> {
    let mut info = Info::new("slow", size);
    info.abilities.extents = true;
    let device = TestDevice::blank(info).hooked(move |operation| match operation {
        Operation::Read { offset, mut buffer } => {
            for (i, byte) in buffer.iter_mut().enumerate().step_by(4096) {
                *byte = u8::from(!kind(offset + i as u64).reads_zero());
            }
            Fate::done(Operation::Read { offset, buffer })
        }
        Operation::Resolve { offset, len, .. } => {
            std::thread::sleep(takes);
            told(offset, len.min(tells - offset % tells), kind(offset))
        }
        other => Fate::Pass(other),
    });
    device.shared()
}

fn maps(device: &TestDevice) -> usize {
    device.count(OperationKind::Resolve)
}

fn reads_holes(device: &TestDevice, kind: fn(u64) -> ExtentKind) -> bool {
    let is_hole = |at: u64| kind(at).reads_zero();
    let reads = device.seen_of(OperationKind::Read);
    reads.iter().any(|read| (read.offset..read.end()).step_by(4096).any(is_hole))
}

#[test]
fn a_slow_map_without_holes_is_asked_no_more() {
    // 1024 answers of 5 ms each, if all are asked for.
    let source = slow(64 << 20, Duration::from_millis(5), 64 << 10, |_| ExtentKind::Data);
    let target = Arc::new(Model::new(64 << 20));
    let report = run(&edge(source.clone()), &edge(target.clone()), &Options::default()).unwrap();
    assert_eq!(report.total, 64 << 20);
    assert!(maps(&source) < 40, "{}", maps(&source));
    assert!(target.bytes().iter().step_by(4096).all(|byte| *byte == 1));
}

#[test]
fn short_holes_of_a_slow_map_are_found_in_the_data() {
    let kind = |at: u64| if at >> 16 & 1 == 0 { ExtentKind::Hole } else { ExtentKind::Data };
    let source = slow(64 << 20, Duration::from_millis(5), 64 << 10, kind);
    let target = Arc::new(Model::new(64 << 20));
    let options = Options { target_is_zero: true, ..Options::default() };
    let report = run(&edge(source.clone()), &edge(target.clone()), &options).unwrap();
    assert!(maps(&source) < 100, "{}", maps(&source));
    assert_eq!(report.copied, 32 << 20, "zeroes in data are no data");
    for (i, byte) in target.bytes().iter().enumerate().step_by(4096) {
        assert_eq!(*byte, u8::from(!kind(i as u64).reads_zero()));
    }
}

#[test]
fn long_holes_of_a_slow_map_are_never_read() {
    let source = slow(1 << 37, Duration::from_millis(2), 1 << 30, |_| ExtentKind::Hole);
    let target = endless(1 << 37, all_abilities());
    let options = Options { target_is_zero: true, ..Options::default() };
    let report = run(&edge(source.clone()), &edge(target), &options).unwrap();
    assert_eq!((report.skipped, report.copied), (1 << 37, 0));
    assert_eq!(source.count(OperationKind::Read), 0);
    assert_eq!(maps(&source), 128);
}

#[test]
fn a_map_that_answers_at_once_is_asked_to_the_end() {
    let kind = |at: u64| if at >> 16 & 1 == 0 { ExtentKind::Hole } else { ExtentKind::Data };
    let source = slow(8 << 20, Duration::ZERO, 64 << 10, kind);
    let target = Arc::new(Model::new(8 << 20));
    run(&edge(source.clone()), &edge(target), &Options::default()).unwrap();
    assert_eq!(maps(&source), 128);
    assert!(!reads_holes(&source, kind));
}

#[test]
fn where_all_is_to_be_allocated_no_map_is_asked_for() {
    let source = slow(8 << 20, Duration::ZERO, 64 << 10, |_| ExtentKind::Hole);
    let target = TestDevice::over(Model::new(8 << 20)).shared();
    let options = Options { sparse: None, allocated: true, no_extents: true, ..Options::default() };
    run(&edge(source.clone()), &edge(target.clone()), &options).unwrap();
    assert_eq!(maps(&source), 0);
    assert_eq!(maps(&target), 0);
    assert!(source.count(OperationKind::Read) > 0, "all is read");
}
