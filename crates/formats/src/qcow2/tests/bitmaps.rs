//! Dirty bitmaps that are added, removed and changed by a verb: whenever the power is cut or
//! something fails, the image is sound, and they are what they were or what they were to be.

use device::{Edge, ErrorKind, Params};
use runtime::{Context, WorkPool};
use trial::{PowerCut, TestDice};

use super::super::header::Header;
use super::super::{FORMAT, bitmap};
use super::laid::{Kind, Laid, Layout};
use super::writing::{checked, opened};
use crate::scripted::{all, scripts};
use crate::{BitmapChange, Opening};

pub(super) fn change(
    disk: &PowerCut,
    name: &str,
    changes: &[BitmapChange<'_>],
) -> device::Result<()> {
    let context = Context::new(WorkPool::new(1));
    let (params, files) = (Params::default(), crate::Closed);
    let opening = Opening { params: &params, files: &files, context: &context };
    (FORMAT.upkeep.bitmap.unwrap())(disk.edge(), &opening, name, changes)
}

/// A bitmap: its name, flags and granularity, and the runs in it.
pub(super) type Seen = (String, u32, u8, Vec<(u64, u64)>);

pub(super) fn seen(disk: &PowerCut, layout: &Layout) -> Vec<Seen> {
    let container = disk.edge();
    let found = bitmap::read(&container, &Header::read(&container).unwrap()).unwrap();
    let (edge, _context) = opened(disk, layout, false);
    let runs = |name: &str| {
        let context = format!("qemu:dirty-bitmap:{name}");
        runs_of(&edge, &context)
    };
    let seen = found.into_iter();
    seen.map(|b| (b.name.clone(), b.flags, b.granularity_bits, runs(&b.name))).collect()
}

fn runs_of(edge: &Edge, name: &str) -> Vec<(u64, u64)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < edge.info().size {
        let mut runs = Vec::new();
        edge.status(name, at, edge.info().size - at, 1024, &mut runs).unwrap();
        at += runs.iter().map(|run| run.len).sum::<u64>();
        found.extend(runs.into_iter().map(|run| (run.len, run.value)));
    }
    found
}

fn any_changes(dice: &mut TestDice, known: &[Seen]) -> (String, Vec<BitmapChange<'static>>) {
    let names = ["a", "b", "c"];
    let name = names[usize::try_from(dice.below(3)).unwrap()];
    let has = |name: &str| known.iter().any(|(known, ..)| known == name);
    if !has(name) {
        let granularity = [None, Some(512), Some(4096), Some(1 << 31)];
        let granularity = granularity[usize::try_from(dice.below(4)).unwrap()];
        return (name.into(), vec![BitmapChange::Add(granularity)]);
    }
    let other = names[usize::try_from(dice.below(3)).unwrap()];
    let mut changes = Vec::new();
    for _ in 0..1 + dice.below(2) {
        changes.push(match dice.below(6) {
            0 if changes.is_empty() => return (name.into(), vec![BitmapChange::Remove]),
            1 => BitmapChange::Clear,
            2 => BitmapChange::Disable,
            _ if has(other) && dice.below(2) == 0 => BitmapChange::Merge(other, None),
            _ => BitmapChange::Enable,
        });
    }
    (name.into(), changes)
}

#[test]
fn whatever_stops_a_change_of_bitmaps_they_are_as_before_or_after() {
    for seed in scripts(2) {
        let mut dice = TestDice(9000 + seed);
        let cluster_bits = 9 + 3 * u32::try_from(dice.below(2)).unwrap();
        let mut layout = Layout {
            version: 3,
            cluster_bits,
            extended: false,
            zstd: false,
            refcount_order: 4,
            size: 40 << cluster_bits,
            clusters: vec![Kind::Plain; 5],
            mix: 3,
            backing: None,
        };
        layout.backing = (seed % 2 == 1).then(|| vec![9; 3 << cluster_bits]);
        let Laid { container: mut image, mut bytes } = layout.lay();
        for n in 0..12 {
            // Those that are enabled get something to say.
            let disk = PowerCut::new(image, true);
            let (edge, context) = opened(&disk, &layout, true);
            let at = dice.below(40) << cluster_bits;
            edge.write(&[7; 512], at, false).unwrap();
            bytes[usize::try_from(at).unwrap()..][..512].fill(7);
            context.control.end();
            drop(edge);
            image = disk.bytes();
            let before = seen(&PowerCut::new(image.clone(), true), &layout);
            let (name, changes) = any_changes(&mut dice, &before);
            let disk = PowerCut::new(image.clone(), true);
            let what = format!("seed {seed}, {n}: {name} {changes:?}");
            change(&disk, &name, &changes).unwrap_or_else(|e| panic!("{what}: {e}"));
            let after = seen(&disk.again(true), &layout);
            let found = checked(&disk);
            assert_eq!((&found.corruptions[..], found.leaks), (&[][..], 0), "{what}");
            let check = |left: &PowerCut, what: &str| {
                assert_eq!(checked(left).corruptions, [""; 0], "{what}");
                assert!(all(&opened(left, &layout, false).0) == bytes, "{what}: the disk");
                let now = seen(left, &layout);
                assert!(now == before || now == after, "{what}: {now:?}");
                now == after
            };
            for steps in 0..=disk.steps() {
                let left = disk.after_cut(steps, &mut dice);
                check(&left, &format!("{what}, {steps} of {}", disk.steps()));
            }
            for fails in 0..disk.steps() {
                let broken = PowerCut::new(image.clone(), true);
                let kind = if fails % 2 == 0 { ErrorKind::Io } else { ErrorKind::NoSpace };
                broken.fail(fails, 1 + fails % 3, kind);
                let result = change(&broken, &name, &changes);
                broken.fail(0, 0, kind);
                let left = broken.after_cut(broken.steps(), &mut dice);
                let is_done = check(&left, &format!("{what}, fails {fails}: {result:?}"));
                assert!(is_done || result.is_err() || before == after, "{what}, fails {fails}");
            }
            image = disk.bytes();
        }
    }
}
