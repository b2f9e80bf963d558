//! Snapshots that are made, applied and deleted: the disk and all of them hold their bytes, and
//! whenever the power is cut or something fails they are what they were or what they were to be.
//!
//! `IMAGE_SCRIPTS=N` tries so many random scripts instead of a few.

use device::{Edge, ErrorKind, Params, ZeroFlags};
use runtime::{Context, WorkPool};
use trial::{PowerCut, TestDice};

use super::super::header::Header;
use super::super::{FORMAT, SNAPSHOT, snapshot};
use super::laid::{Kind, Laid, Layout};
use super::reading::Backing;
use super::writing::{any_layout, checked, opened};
use crate::scripted::{all, scripts};
use crate::{Findings, Opening, SnapshotChange};

/// An image and what it holds.
#[derive(Clone)]
struct Holding {
    layout: Layout,
    image: Vec<u8>,
    bytes: Vec<u8>,
    /// Their names, and their bytes.
    snapshots: Vec<(String, Vec<u8>)>,
}

/// A change, with the name or number that it is of.
#[derive(Clone, Debug)]
enum Step {
    Create(String),
    Apply(usize),
    Delete(usize),
}

fn change(disk: &PowerCut, change: SnapshotChange<'_>) -> device::Result<()> {
    let context = Context::new(WorkPool::new(1));
    let (params, files) = (Params::default(), crate::Closed);
    let opening = Opening { params: &params, files: &files, context: &context };
    (FORMAT.upkeep.snapshot.unwrap())(disk.edge(), &opening, change)
}

/// Its flags of single references may be wrong after a power failure, until they are set again.
fn without_flags(found: Findings) -> Vec<String> {
    let is_flag = |line: &String| {
        line.contains("other entries refer") || line.contains("no other entry refers")
    };
    found.corruptions.into_iter().filter(|line| !is_flag(line)).collect()
}

fn bytes_of(disk: &PowerCut, layout: &Layout, id: &str) -> Vec<u8> {
    let context = Context::new(WorkPool::new(1));
    let files = Backing(layout.backing.clone(), false);
    let mut params = Params::default();
    params.set(SNAPSHOT, &format!("snapshot.id={id}")).unwrap();
    let opening = Opening { params: &params, files: &files, context: &context };
    all(&Edge::new((FORMAT.open)(disk.edge(), &opening).unwrap(), context.pool.clone()))
}

/// The names of the snapshots, and their bytes.
fn snapshots_of(disk: &PowerCut, layout: &Layout) -> Vec<(String, Vec<u8>)> {
    let container = disk.edge();
    let (found, _) = snapshot::read(&container, &Header::read(&container).unwrap()).unwrap();
    let found = found.into_iter().map(|snapshot| snapshot.known);
    found.map(|known| (known.name, bytes_of(disk, layout, &known.id))).collect()
}

impl Holding {
    fn new(dice: &mut TestDice) -> Self {
        let mut layout = any_layout(dice);
        // So many refer to one that it can be counted.
        layout.refcount_order = layout.refcount_order.max(4);
        let Laid { container: image, bytes } = layout.lay();
        Self { layout, image, bytes, snapshots: Vec::new() }
    }

    /// Writes into the disk; returns what is in it then.
    fn write(&mut self, dice: &mut TestDice) {
        let disk = PowerCut::new(self.image.clone(), true);
        let (edge, context) = opened(&disk, &self.layout, true);
        let sectors = self.bytes.len() as u64 / 512;
        for _ in 0..1 + dice.below(6) {
            let at = dice.below(sectors);
            let most = [4, 40, sectors][usize::try_from(dice.below(3)).unwrap()];
            let len = 1 + dice.below(most.min(sectors - at));
            let byte = if dice.below(4) == 0 { 0 } else { u8::try_from(dice.below(256)).unwrap() };
            let (from, len) =
                (usize::try_from(at).unwrap() * 512, usize::try_from(len).unwrap() * 512);
            let zero = ZeroFlags { may_unmap: true, ..ZeroFlags::default() };
            match byte {
                0 => edge.zero(from as u64, len as u64, zero).unwrap(),
                _ => edge.write(&vec![byte; len], from as u64, false).unwrap(),
            }
            self.bytes[from..from + len].fill(byte);
        }
        assert!(all(&edge) == self.bytes);
        context.control.end();
        assert!(context.control.take_complaints().is_empty());
        self.image = disk.bytes();
    }

    fn any_step(&self, dice: &mut TestDice) -> Step {
        let count = self.snapshots.len() as u64;
        let kind = if count == 0 { 0 } else { dice.below(4) };
        match kind {
            0 | 1 if count < 6 => Step::Create(format!("of {}", dice.below(1000))),
            2 => Step::Apply(usize::try_from(dice.below(count)).unwrap()),
            _ => Step::Delete(usize::try_from(dice.below(count)).unwrap()),
        }
    }

    /// What it is to hold after a step.
    fn after(&self, step: &Step) -> Self {
        let mut after = self.clone();
        match step {
            Step::Create(name) => after.snapshots.push((name.clone(), self.bytes.clone())),
            Step::Apply(n) => after.bytes.clone_from(&self.first_of(*n).1),
            Step::Delete(n) => {
                let name = &self.snapshots[*n].0;
                let at = self.snapshots.iter().position(|(known, _)| known == name).unwrap();
                after.snapshots.remove(at);
            }
        }
        after
    }

    /// The first with the name of this one.
    fn first_of(&self, n: usize) -> &(String, Vec<u8>) {
        self.snapshots.iter().find(|(name, _)| *name == self.snapshots[n].0).unwrap()
    }

    fn run(&self, step: &Step, disk: &PowerCut) -> device::Result<()> {
        change(
            disk,
            match step {
                Step::Create(name) => SnapshotChange::Create(name),
                Step::Apply(n) => SnapshotChange::Apply(&self.snapshots[*n].0),
                Step::Delete(n) => SnapshotChange::Delete(&self.snapshots[*n].0),
            },
        )
    }

    fn is_in(&self, disk: &PowerCut) -> bool {
        all(&opened(disk, &self.layout, false).0) == self.bytes
            && snapshots_of(disk, &self.layout) == self.snapshots
    }

    /// Refuses what is left of it, if that is neither of these, or harms a snapshot when it is
    /// written.
    fn check_left(left: &PowerCut, may_be: [&Self; 2], dice: &mut TestDice, what: &str) {
        assert_eq!(without_flags(checked(left)), [""; 0], "{what}");
        let found = may_be.into_iter().find(|one| one.is_in(left));
        let mut found = found.unwrap_or_else(|| panic!("{what}: neither")).clone();
        found.image = left.bytes();
        found.write(dice);
        let now = PowerCut::new(found.image.clone(), true);
        assert!(found.is_in(&now), "{what}: not what was written then");
        assert_eq!(without_flags(checked(&now)), [""; 0], "{what}");
    }
}

#[test]
fn snapshots_and_the_disk_hold_their_bytes_and_nothing_leaks() {
    for seed in scripts(12) {
        let mut dice = TestDice(6000 + seed);
        let mut image = Holding::new(&mut dice);
        for n in 0..14 {
            let step = image.any_step(&mut dice);
            let disk = PowerCut::new(image.image.clone(), dice.below(8) != 0 || n < 2);
            let what = format!("seed {seed}, step {n}: {step:?} {:?}", image.layout);
            match image.run(&step, &disk) {
                Err(e) if e.kind() == ErrorKind::NoSpace => {}
                result => {
                    result.unwrap_or_else(|e| panic!("{what}: {e}"));
                    image = image.after(&step);
                }
            }
            let found = checked(&disk);
            assert_eq!((&found.corruptions[..], found.leaks), (&[][..], 0), "{what}");
            image.image = disk.bytes();
            assert!(image.is_in(&disk.again(true)), "{what}");
            image.write(&mut dice);
        }
    }
}

#[test]
fn whenever_the_power_is_cut_there_is_what_was_or_what_was_to_be() {
    for seed in scripts(3) {
        let mut dice = TestDice(7000 + seed);
        let mut image = Holding::new(&mut dice);
        for n in 0..7 {
            let step = image.any_step(&mut dice);
            let disk = PowerCut::new(image.image.clone(), true);
            image.run(&step, &disk).unwrap();
            let after = image.after(&step);
            for steps in 0..=disk.steps() {
                let what = format!("seed {seed}, {step:?} ({n}), {steps} of {}", disk.steps());
                let left = disk.after_cut(steps, &mut dice);
                Holding::check_left(&left, [&image, &after], &mut dice, &what);
            }
            let left = disk.after_cut(disk.steps(), &mut dice);
            assert!(after.is_in(&left), "seed {seed}, {step:?} ({n}): it was done");
            image = after;
            image.image = disk.bytes();
            image.write(&mut dice);
        }
    }
}

#[test]
fn whatever_fails_there_is_what_was_or_what_was_to_be() {
    for seed in scripts(2) {
        let mut dice = TestDice(8000 + seed);
        let mut image = Holding::new(&mut dice);
        for n in 0..5 {
            let step = image.any_step(&mut dice);
            let after = image.after(&step);
            let mut fails = 0;
            let done = loop {
                let disk = PowerCut::new(image.image.clone(), true);
                let kind = if fails % 2 == 0 { ErrorKind::Io } else { ErrorKind::NoSpace };
                disk.fail(fails, [1, usize::MAX][fails % 3 / 2], kind);
                let result = image.run(&step, &disk);
                disk.fail(0, 0, kind);
                let what = format!("seed {seed}, {step:?} ({n}), fails {fails}: {result:?}");
                let now = disk.again(true);
                let left = disk.after_cut(disk.steps(), &mut dice);
                Holding::check_left(&now, [&image, &after], &mut dice, &what);
                Holding::check_left(&left, [&image, &after], &mut dice, &what);
                if result.is_ok() {
                    assert!(after.is_in(&left), "{what}: it was done");
                }
                fails += 1;
                if fails > disk.steps() + 1 {
                    assert!(result.is_ok(), "{what}");
                    break disk;
                }
            };
            image = after;
            image.image = done.bytes();
            image.write(&mut dice);
        }
    }
}

#[test]
fn what_cannot_be_counted_is_refused_before_anything_is_changed() {
    for order in 0..3 {
        let layout = Layout {
            version: 3,
            cluster_bits: 12,
            extended: false,
            zstd: false,
            refcount_order: order,
            size: 9 << 12,
            clusters: vec![Kind::Plain; 4],
            mix: 1,
            backing: None,
        };
        let Laid { container, bytes } = layout.lay();
        let mut image = container;
        // Each of them refers to all clusters once more.
        let room = (1 << (1 << order)) - 2;
        for n in 0..room {
            let disk = PowerCut::new(image, true);
            change(&disk, SnapshotChange::Create(&format!("{n}"))).unwrap();
            image = disk.bytes();
        }
        let disk = PowerCut::new(image.clone(), true);
        let refused = change(&disk, SnapshotChange::Create("one too many"));
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Limit, "{refused}");
        assert_eq!(disk.steps(), 0);
        assert!(all(&opened(&disk, &layout, false).0) == bytes);
    }
}

#[test]
fn what_is_not_there_or_broken_is_refused_before_anything_is_changed() {
    let mut dice = TestDice(1);
    let image = loop {
        let image = Holding::new(&mut dice);
        if image.layout.clusters.contains(&Kind::Plain) && !image.layout.extended {
            break image;
        }
    };
    let disk = PowerCut::new(image.image.clone(), true);
    for refused in [
        SnapshotChange::Apply("1"),
        SnapshotChange::Delete("1"),
        SnapshotChange::Create(&"n".repeat(256)),
    ] {
        assert!(change(&disk, refused).is_err(), "{refused:?}");
        assert!(disk.steps() == 0);
    }
    change(&disk, SnapshotChange::Create(&"n".repeat(255))).unwrap();
    change(&disk.again(true), SnapshotChange::Delete("1")).unwrap_err();
    // A cluster that nobody counts.
    let mut broken = image.image;
    let table = usize::try_from(super::writing::number(&broken, 48)).unwrap();
    let block = usize::try_from(super::writing::number(&broken, table)).unwrap();
    let last = broken.len() / (1 << image.layout.cluster_bits) - 1;
    super::super::refcounts::set_refcount(
        &mut broken[block..],
        last as u64,
        image.layout.refcount_order,
        0,
    );
    let disk = PowerCut::new(broken, true);
    assert!(
        change(&disk, SnapshotChange::Create("x")).is_err_and(|e| e.kind() == ErrorKind::Corrupt)
    );
    assert_eq!(disk.steps(), 0);
}
