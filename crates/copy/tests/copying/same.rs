//! Two ends that are, or may be, one storage: no byte is lost, and nothing is changed that was not
//! read.

use std::sync::Arc;

use copy::Options;
use device::model::Model;
use device::{Abilities, Blocking as _, Edge, ErrorKind, ExtentKind, Operation, OperationKind};
use trial::{Fate, TestDevice};

use crate::support::*;

const SIZE: usize = 4 << 20;

/// A path to a disk, with its map or without.
fn path(disk: &Arc<Model>, map: bool, lanes: usize) -> (Edge, Arc<TestDevice>) {
    let device = watching(disk.clone(), lanes);
    let device = device.info_with(|info| info.abilities.extents = map).shared();
    (edge(device.clone()), device)
}

#[test]
fn a_disk_copied_onto_itself_keeps_every_byte() {
    for seed in 0..24 {
        let (source_map, target_map) = (seed % 2 == 0, seed % 4 < 2);
        let disk = Arc::new(Model::new(SIZE));
        random_disk(&disk, &mut Random(seed), 1);
        let before = disk.bytes();
        let (source, _) = path(&disk, source_map, usize::from(seed % 3 == 0) * 2);
        let (target, _) = path(&disk, target_map, usize::from(seed % 5 == 0) * 2);
        let options = Options {
            apart: false,
            threads: Some(2),
            request_size: 16 << 10,
            no_extents: seed % 7 == 0,
            sparse: Some(4096).filter(|_| seed % 6 != 0),
            allocated: seed % 11 == 0,
            ..Options::default()
        };
        run(&source, &target, &options).unwrap();
        assert!(disk.bytes() == before, "{seed}: {options:?}");
    }
}

#[test]
fn only_a_target_that_is_known_to_be_apart_is_zeroed_in_advance() {
    for source_map in [true, false] {
        let source = Arc::new(Model::new(SIZE));
        for at in (0..SIZE as u64).step_by(64 << 10) {
            source.write_at(&[7; 16 << 10], at, false).unwrap();
        }
        let counted = |fill_with, apart| {
            let target = Arc::new(Model::new(SIZE));
            if let Some(byte) = fill_with {
                fill(&target, byte);
            } else {
                target.write_at(&source.bytes(), 0, false).unwrap();
            }
            let (from, _) = path(&source, source_map, 0);
            let (to, seen) = path(&target, false, 0);
            let options = Options { apart, test_fast_zero: false, ..Options::default() };
            run(&from, &to, &options).unwrap();
            assert!(target.bytes() == source.bytes());
            seen.count(OperationKind::Zero)
        };
        // It may be the source, or lie below it, whatever it holds: every hole by itself.
        assert_eq!(counted(Some(0xee), false), SIZE / (64 << 10));
        assert_eq!(counted(None, false), SIZE / (64 << 10));
        assert_eq!(counted(Some(0xee), true), 1);
        assert_eq!(counted(None, true), 1);
    }
}

/// What an overlay has in a block.
#[derive(Clone, Copy)]
enum Own {
    Nothing,
    Zeroes,
    Byte(u8),
}

const CLUSTER: usize = 64 << 10;

/// A chain of overlays over a disk.
fn chain(disk: &Arc<Model>, layers: &[Vec<Own>], map: bool) -> Arc<TestDevice> {
    let below = disk.clone();
    let seen: Vec<Own> = (0..SIZE / CLUSTER)
        .map(|i| {
            let own = layers.iter().map(|layer| layer[i]).find(|own| !matches!(own, Own::Nothing));
            own.unwrap_or(Own::Nothing)
        })
        .collect();
    let overlay = TestDevice::over(disk.clone()).hooked(move |operation| match operation {
        Operation::Read { offset, mut buffer } => {
            below.read_at(&mut buffer, offset).unwrap();
            for (at, byte) in (offset as usize..).zip(buffer.iter_mut()) {
                match seen[at / CLUSTER] {
                    Own::Nothing => {}
                    Own::Zeroes => *byte = 0,
                    Own::Byte(own) => *byte = own,
                }
            }
            Fate::done(Operation::Read { offset, buffer })
        }
        Operation::Write { offset, .. } => panic!("the source is written at {offset}"),
        Operation::Resolve { offset, len, max } => {
            let at = offset as usize / CLUSTER;
            let len = len.min(((at + 1) * CLUSTER) as u64 - offset);
            match seen[at] {
                Own::Nothing => Fate::Pass(Operation::Resolve { offset, len, max }),
                Own::Zeroes => told(offset, len, ExtentKind::Zero),
                Own::Byte(_) => told(offset, len, ExtentKind::Data),
            }
        }
        other => Fate::Pass(other),
    });
    overlay.info_with(|info| info.abilities.extents = map).shared()
}

#[test]
fn an_overlay_copied_onto_the_disk_below_it_loses_nothing_of_that_however_much_is_its_own() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let (map, target_map) = (seed % 2 == 0, seed % 4 < 2);
        let abilities = Abilities { extents: target_map, ..all_abilities() };
        let disk = Arc::new(Model::with(SIZE, abilities, blocks(1, 4096, 32 << 20)));
        fill(&disk, 0xee);
        random_disk(&disk, &mut random, 4096);
        let depth = 1 + seed % 3;
        // Almost all blocks, or almost none.
        let nothing = if seed % 3 == 0 { 95 } else { 8 };
        let own = |random: &mut Random| match random.below(100) {
            n if n < nothing => Own::Nothing,
            n if n % 2 == 0 => Own::Zeroes,
            _ => Own::Byte(1 + u8::try_from(random.below(250)).unwrap()),
        };
        let layers: Vec<Vec<Own>> =
            (0..depth).map(|_| (0..SIZE / CLUSTER).map(|_| own(&mut random)).collect()).collect();
        let source = edge(chain(&disk, &layers, map));
        let mut expected = vec![0; SIZE];
        source.read(&mut expected, 0).unwrap();
        let options = Options {
            test_fast_zero: seed % 5 < 2,
            threads: Some(1 + (seed as usize) % 3),
            request_size: 16 << 10,
            ..Options::default()
        };
        run(&source, &edge(disk.clone()), &options).unwrap();
        let wrong = disk.bytes().iter().zip(&expected).filter(|(a, b)| a != b).count();
        assert_eq!(wrong, 0, "{seed}: of a chain of {depth} over it");
    }
}

#[test]
fn nothing_is_changed_for_a_source_that_cannot_be_read() {
    for (fast_zero, apart) in [(false, false), (true, false), (true, true)] {
        let source = Arc::new(Model::new(SIZE));
        for at in [1, 2, 3] {
            source.write_at(&[1; 4096], at << 20, false).unwrap();
        }
        let blind = TestDevice::over(source).hooked(|operation| match operation {
            Operation::Read { .. } => Fate::fail(ErrorKind::Io),
            Operation::Write { offset, .. } => panic!("the source is written at {offset}"),
            Operation::Resolve { offset, len, max } => {
                Fate::Pass(Operation::Resolve { offset, len: len.min(1 << 20), max })
            }
            other => Fate::Pass(other),
        });
        let source = edge(blind.shared());
        let abilities = Abilities { extents: false, fast_zero, ..all_abilities() };
        let target = Arc::new(Model::with(SIZE, abilities, blocks(1, 4096, 32 << 20)));
        fill(&target, 0xee);
        let options = Options { apart, ..Options::default() };
        let failure = run(&source, &edge(target.clone()), &options).unwrap_err();
        assert_eq!(failure.error.kind(), ErrorKind::Io);
        assert!(!failure.report.touched, "{failure}");
        assert!(target.bytes().iter().all(|b| *b == 0xee), "it was changed");
    }
}
