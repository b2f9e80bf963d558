//! Two ends that are, or may be, one storage: no byte is lost, and nothing is changed that was not
//! read.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use copy::{Ends, Options};
use device::model::Model;
use device::{
    Abilities, Blocking, Edge, Error, ErrorKind, Extent, ExtentKind, Fault, Info, Result,
};

use crate::support::*;

const SIZE: usize = 4 << 20;

/// A disk whose map can be had, and nothing else.
struct Unreadable(Arc<Model>);

impl Blocking for Unreadable {
    fn info(&self) -> &Info {
        self.0.info()
    }
    fn read_at(&self, _: &mut [u8], offset: u64) -> Result<()> {
        Err(Error::new(ErrorKind::Io, Fault::File, "read").on("unreadable").at(offset))
    }
    fn write_at(&self, _: &[u8], offset: u64, _: bool) -> Result<()> {
        panic!("the source is written at {offset}");
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        self.0.resolve(offset, len.min(1 << 20), max, out)
    }
}

/// A path to a disk, with its map or without.
fn path(disk: &Arc<Model>, map: bool, lanes: usize) -> (Edge, Arc<Witness>) {
    let seen = Arc::<Witness>::default();
    let mut watched = Arc::into_inner(Watched::new(disk.clone(), seen.clone(), lanes)).unwrap();
    watched.info.abilities = Abilities { extents: map, ..watched.info.abilities };
    (edge(Arc::new(watched)), seen)
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
        let ends = if seed % 8 < 4 { Ends::Unknown } else { Ends::Same };
        let options = Options {
            ends,
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
fn a_target_that_holds_other_bytes_is_not_the_source_and_is_zeroed_in_advance() {
    for source_map in [true, false] {
        let source = Arc::new(Model::new(SIZE));
        for at in (0..SIZE as u64).step_by(64 << 10) {
            source.write_at(&[7; 16 << 10], at, false).unwrap();
        }
        let counted = |fill_with, ends| {
            let target = Arc::new(Model::new(SIZE));
            if let Some(byte) = fill_with {
                fill(&target, byte);
            } else {
                target.write_at(&source.bytes(), 0, false).unwrap();
            }
            let (from, _) = path(&source, source_map, 0);
            let (to, seen) = path(&target, false, 0);
            let options = Options { ends, test_fast_zero: false, ..Options::default() };
            run(&from, &to, &options).unwrap();
            assert!(target.bytes() == source.bytes());
            seen.zeroes.load(SeqCst)
        };
        assert_eq!(counted(Some(0xee), Ends::Unknown), 1);
        assert_eq!(counted(Some(0xee), Ends::Apart), 1);
        // It may be the source: every hole by itself.
        assert_eq!(counted(None, Ends::Unknown), SIZE / (64 << 10));
        assert_eq!(counted(None, Ends::Apart), 1);
        assert_eq!(counted(Some(0xee), Ends::Same), SIZE / (64 << 10));
    }
}

/// A disk over another: its own bytes in the first blocks, the other's in all that follow.
struct Overlay(Arc<Model>, usize);

impl Blocking for Overlay {
    fn info(&self) -> &Info {
        self.0.info()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read_at(buf, offset)?;
        let own = self.1.saturating_sub(usize::try_from(offset).unwrap()).min(buf.len());
        buf[..own].fill(0x43);
        Ok(())
    }
    fn write_at(&self, _: &[u8], offset: u64, _: bool) -> Result<()> {
        panic!("the source is written at {offset}");
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        let own = (self.1 as u64).saturating_sub(offset);
        if own > 0 || !self.info().abilities.extents {
            let len = if own > 0 { len.min(own) } else { len };
            out.push(Extent::new(offset, len, ExtentKind::Data));
            return Ok(());
        }
        self.0.resolve(offset, len, max, out)
    }
}

#[test]
fn an_overlay_that_is_copied_onto_the_disk_below_it_loses_nothing_of_that() {
    for (own, map, test_fast_zero) in
        [(4096, true, true), (16 << 10, true, false), (1 << 20, true, true), (4096, false, false)]
    {
        let abilities = Abilities { extents: map, ..all_abilities() };
        let disk = Arc::new(Model::with(SIZE, abilities, blocks(1, 4096, 32 << 20)));
        for at in (0..SIZE as u64).step_by(64 << 10) {
            disk.write_at(&[7; 16 << 10], at, false).unwrap();
        }
        let mut expected = disk.bytes();
        expected[..own].fill(0x43);
        let source = edge(Arc::new(Overlay(disk.clone(), own)));
        let options = Options { test_fast_zero, ..Options::default() };
        run(&source, &edge(disk.clone()), &options).unwrap();
        let wrong = disk.bytes().iter().zip(&expected).filter(|(a, b)| a != b).count();
        assert_eq!(wrong, 0, "{own} bytes of its own, map: {map}");
    }
}

#[test]
fn nothing_is_changed_for_a_source_that_cannot_be_read() {
    for (fast_zero, ends) in [(false, Ends::Unknown), (true, Ends::Unknown), (true, Ends::Apart)] {
        let source = Arc::new(Model::new(SIZE));
        for at in [1, 2, 3] {
            source.write_at(&[1; 4096], at << 20, false).unwrap();
        }
        let source = edge(Arc::new(Unreadable(source)));
        let abilities = Abilities { extents: false, fast_zero, ..all_abilities() };
        let target = Arc::new(Model::with(SIZE, abilities, blocks(1, 4096, 32 << 20)));
        fill(&target, 0xee);
        let options = Options { ends, ..Options::default() };
        let failure = run(&source, &edge(target.clone()), &options).unwrap_err();
        assert_eq!(failure.error.kind(), ErrorKind::Io);
        assert!(!failure.report.touched, "{failure}");
        assert!(target.bytes().iter().all(|b| *b == 0xee), "it was changed");
    }
}
