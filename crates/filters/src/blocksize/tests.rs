//! Whatever a client asks for, only short requests of whole blocks reach the disk.

use std::sync::Arc;

use device::model::Model;
use device::{Abilities, Blocking as _, ErrorKind};
use trial::{Fate, TestDevice};

use super::*;
use crate::kit::tested::{put, simple};
use device::BlockSizes;

#[test]
fn requests_reach_the_device_in_whole_blocks_and_no_longer_than_asked() {
    let blocks = BlockSizes { minimum: 512, preferred: 4096, maximum: 2048 };
    let all = Model::new(1).info().abilities;
    // This model panics on any other request.
    let model = Arc::new(Model::with(10_000, all, blocks));
    // The last 272 bytes do not fill a block.
    let disk =
        put("blocksize", simple(model.clone()), &["minblock=512", "maxdata=2048", "maxlen=4096"])
            .unwrap();
    assert_eq!(disk.info().size, 9728);
    disk.write(&[7; 5000], 100, false).unwrap();
    let mut read = [0; 5200];
    disk.read(&mut read, 0).unwrap();
    assert!(read[..100].iter().chain(&read[5100..]).all(|b| *b == 0));
    assert!(read[100..5100].iter().all(|b| *b == 7));
    disk.zero(0, 9728, ZeroFlags::default()).unwrap();
    disk.trim(0, 9728, true).unwrap();
    let log = model.log();
    let tail = &log[log.len() - 6..];
    assert!(tail[2].starts_with("zero 8192+1536"), "{tail:?}");
    assert!(tail[5].starts_with("trim 8192+1536"), "{tail:?}");
    assert_eq!(model.flushes(), 1);
    assert_eq!(disk.write(&[1], 9728, false).unwrap_err().kind(), ErrorKind::OutOfBounds);
}

#[test]
fn a_fast_zero_in_pieces_is_refused_before_anything_is_changed_or_not_at_all() {
    let all = Model::new(1).info().abilities;
    let flags = ZeroFlags { fast_only: true, ..ZeroFlags::default() };
    let never = Abilities { fast_zero: false, ..all };
    let slow = Arc::new(Model::with(8192, never, BlockSizes::ANY));
    let disk = put("blocksize", simple(slow.clone()), &["maxlen=1024"]).unwrap();
    disk.write(&[1; 8192], 0, false).unwrap();
    assert_eq!(disk.zero(0, 8192, flags).unwrap_err().kind(), ErrorKind::NotFast);
    assert!(slow.bytes().iter().all(|b| *b == 1));

    // Its first part only is zeroed fast.
    let half = TestDevice::over(Model::new(8192)).hooked(|operation| match operation {
        Operation::Zero { offset, len, flags } if flags.fast_only && offset + len > 3000 => {
            Fate::fail(ErrorKind::NotFast)
        }
        other => Fate::Pass(other),
    });
    let half = half.shared();
    let disk = put("blocksize", half.clone(), &["maxlen=1024"]).unwrap();
    disk.write(&[1; 8192], 0, false).unwrap();
    disk.zero(0, 8192, flags).unwrap();
    assert!(half.model().bytes().iter().all(|b| *b == 0));
}

/// The map of a disk of alternating data and holes of ten bytes. It returns at most so many extents
/// at a time, and takes only whole blocks of 64 bytes.
fn pieces(operation: Operation, at_a_time: usize) -> Fate {
    let Operation::Resolve { offset, len, max } = operation else { return Fate::Pass(operation) };
    assert!(offset.is_multiple_of(64) && len.is_multiple_of(64), "{offset}+{len}");
    assert!((1..=512).contains(&len), "{len} bytes");
    let (mut at, end, mut out) = (offset, offset + len, Vec::new());
    for _ in 0..max.min(at_a_time) {
        let next = (at / 10 * 10 + 10).min(end);
        let kind = if (at / 10).is_multiple_of(2) { ExtentKind::Data } else { ExtentKind::Hole };
        if next > at {
            out.push(Extent::new(at, next - at, kind));
        }
        at = next;
    }
    Fate::Answer(Ok(Outcome::Extents(out)))
}

#[test]
fn the_map_is_asked_for_in_whole_blocks_however_little_the_device_tells_at_a_time() {
    for at_a_time in [100, 9, 1] {
        let below = TestDevice::new(1024);
        below.on(move |operation| pieces(operation, at_a_time));
        let disk = put("blocksize", below, &["minblock=64", "maxlen=512"]).unwrap();
        for (offset, max) in (0..1023).flat_map(|offset| [(offset, 1), (offset, 3)]) {
            let mut map = Vec::new();
            disk.resolve(offset, 1024 - offset, max, &mut map).unwrap();
            assert!(map.len() <= max);
            for extent in map {
                // In doubt it is data; what is called a hole is a hole.
                let is_hole = |at: u64| at / 10 % 2 == 1;
                let all = (extent.start..extent.end()).all(is_hole);
                let none = !(extent.start..extent.end()).any(is_hole);
                let hole = extent.kind.reads_zero();
                assert!(if at_a_time == 1 { !hole || all } else { hole == all && hole != none });
            }
        }
    }
}
