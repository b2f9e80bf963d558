//! Files in which short holes lie between data: long reads instead of a search for each hole, and
//! only where a read hole is found again and costs nothing to move.

use std::sync::Arc;

use copy::{Options, Report};
use device::model::Model;
use device::{Extent, ExtentKind, Info, Operation, OperationKind, Outcome, Place};
use trial::{Fate, TestDevice};

use super::support::{edge, run};

const SIZE: u64 = 8 << 20;

/// A tooth of data and its gap, twice this long.
fn is_data(at: u64, tooth: u64) -> bool {
    at % (2 * tooth) < tooth
}

/// Where a disk lies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Lies {
    InFile,
    Near,
    Far,
}

/// A disk of teeth, up to where a hole of the rest begins.
fn comb(tooth: u64, until: u64, lies: Lies) -> Arc<TestDevice> {
    let mut info = Info::new("comb", SIZE);
    info.abilities.extents = true;
    info.abilities.near = lies == Lies::Near;
    let file = std::fs::File::open("/dev/null").unwrap();
    info.flat = (lies == Lies::InFile).then(|| Place::new(Arc::new(file.into()), 0));
    let kind = move |at: u64| match at < until && is_data(at, tooth) {
        true => ExtentKind::Data,
        false => ExtentKind::Hole,
    };
    let device = TestDevice::blank(info).hooked(move |operation| match operation {
        Operation::Read { offset, mut buffer } => {
            for (at, byte) in (offset..).zip(buffer.iter_mut()) {
                *byte = u8::from(kind(at) == ExtentKind::Data);
            }
            Fate::done(Operation::Read { offset, buffer })
        }
        Operation::Resolve { offset, len, max } => {
            let (mut at, mut extents) = (offset, Vec::new());
            while at < offset + len && extents.len() < max {
                let next = if at < until { at + tooth - at % tooth } else { SIZE };
                let len = next.min(offset + len) - at;
                extents.push(Extent::new(at, len, kind(at)));
                at += len;
            }
            Fate::Answer(Ok(Outcome::Extents(extents)))
        }
        other => Fate::Pass(other),
    });
    device.shared()
}

fn copied(source: &Arc<TestDevice>, options: &Options) -> (Report, Vec<u8>) {
    let target = Arc::new(Model::new(usize::try_from(SIZE).unwrap()));
    let options = Options { target_is_zero: true, threads: Some(1), ..options.clone() };
    let report = run(&edge(source.clone()), &edge(target.clone()), &options).unwrap();
    (report, target.bytes())
}

fn bytes_read(source: &TestDevice) -> u64 {
    source.seen_of(OperationKind::Read).iter().map(|read| read.len).sum()
}

#[test]
fn the_gaps_of_a_file_or_a_near_disk_are_read_found_and_left_out_again() {
    for lies in [Lies::InFile, Lies::Near] {
        let source = comb(4096, SIZE, lies);
        let (report, bytes) = copied(&source, &Options::default());
        let is_right = |at| bytes[usize::try_from(at).unwrap()] == u8::from(is_data(at, 4096));
        assert!((0..SIZE).step_by(512).all(is_right));
        assert_eq!((report.copied, report.skipped), (SIZE / 2, SIZE / 2), "zeroes are no data");
        // 2,048 teeth.
        let (reads, maps) =
            (source.count(OperationKind::Read), source.count(OperationKind::Resolve));
        assert!(reads < 200 && maps < 12, "{lies:?}: {reads} reads, {maps} maps");
    }
}

#[test]
fn gaps_are_not_read_where_they_are_moved_or_not_found_or_long() {
    let no_search = Options { sparse: None, ..Options::default() };
    for (source, options) in [
        (comb(4096, SIZE, Lies::Far), Options::default()),
        (comb(4096, SIZE, Lies::InFile), no_search),
        (comb(32 << 10, SIZE, Lies::InFile), Options::default()),
        (comb(32 << 10, SIZE, Lies::Near), Options::default()),
    ] {
        let (report, _) = copied(&source, &options);
        assert_eq!((report.copied, report.skipped), (SIZE / 2, SIZE / 2));
        assert_eq!(bytes_read(&source), SIZE / 2, "{options:?}");
    }
}

#[test]
fn of_a_long_hole_behind_the_teeth_no_more_is_read_than_there_were_teeth() {
    let source = comb(4096, 512 << 10, Lies::InFile);
    let (report, _) = copied(&source, &Options::default());
    assert_eq!((report.copied, report.skipped), (256 << 10, SIZE - (256 << 10)));
    assert!(bytes_read(&source) <= 1 << 20, "{}", bytes_read(&source));
}
