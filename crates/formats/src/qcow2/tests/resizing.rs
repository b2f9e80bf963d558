//! Images whose disks get another size: they hold what they held, and zeroes where they grew, and
//! whenever the power is cut or something fails they have the one size or the other.

use device::{Edge, ErrorKind, Params, Result};
use runtime::{Context, WorkPool};
use trial::{PowerCut, TestDice};

use super::super::header::extension;
use super::bitmaps::{change, seen};
use super::laid::{Kind, Laid, Layout};
use super::reading::Backing;
use super::writing::{any_layout, checked, opened, snapshot};
use crate::scripted::{all, scripts};
use crate::{BitmapChange, NewRoom, Opening};

/// Gives the disk in an image another size.
fn resize(disk: &PowerCut, layout: &Layout, size: u64, room: NewRoom) -> Result<()> {
    let context = Context::new(WorkPool::new(1));
    let files = Backing(layout.backing.clone(), false);
    let opening = Opening { params: &Params::default(), files: &files, context: &context };
    (super::super::FORMAT.upkeep.resize.unwrap())(disk.edge(), &opening, &|_| Ok(size), room)
}

pub(super) fn bytes_of(disk: &PowerCut, layout: &Layout) -> Vec<u8> {
    let context = Context::new(WorkPool::new(1));
    let files = Backing(layout.backing.clone(), false);
    let opening = Opening { params: &Params::default(), files: &files, context: &context };
    let open = super::super::FORMAT.open;
    all(&Edge::new(open(disk.edge(), &opening).unwrap(), context.pool.clone()))
}

fn other_size(dice: &mut TestDice, layout: &Layout) -> (u64, NewRoom) {
    let cluster = 1 << layout.cluster_bits;
    let most = [layout.size, layout.size + 3 * cluster, layout.size * 4];
    let most = most[usize::try_from(dice.below(3)).unwrap()];
    let size = 512 * (1 + dice.below(most / 512));
    let room = [NewRoom::None, NewRoom::None, NewRoom::Tables, NewRoom::Written];
    (size, room[usize::try_from(dice.below(4)).unwrap()])
}

pub(super) fn any_image(dice: &mut TestDice) -> (Layout, PowerCut, Vec<u8>) {
    let layout = any_layout(dice);
    let Laid { container: mut image, bytes } = layout.lay();
    if layout.version == 3 && dice.below(2) == 0 {
        snapshot(&mut image, &layout);
    }
    let grows = dice.below(4) != 0;
    if !grows {
        let room = usize::try_from(dice.below(600_000)).unwrap();
        image.resize((image.len() + room).next_multiple_of(1 << layout.cluster_bits), 0x5a);
    }
    (layout, PowerCut::new(image, grows), bytes)
}

#[test]
fn a_disk_keeps_its_bytes_and_grows_by_zeroes_however_often_its_size_changes() {
    for seed in scripts(60) {
        let mut dice = TestDice(6000 + seed);
        let (layout, mut disk, mut bytes) = any_image(&mut dice);
        for step in 0..4 {
            let (size, room) = other_size(&mut dice, &layout);
            match resize(&disk, &layout, size, room) {
                Ok(()) => bytes.resize(usize::try_from(size).unwrap(), 0),
                Err(e) => assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}"),
            }
            let what = format!("seed {seed}, step {step}: {size} {room:?} {layout:?}");
            // Nobody has it open.
            disk = disk.again(true);
            assert!(bytes_of(&disk, &layout) == bytes, "{what}");
            let found = checked(&disk);
            assert_eq!((&found.corruptions[..], found.leaks), (&[][..], 0), "{what}");
        }
    }
}

#[test]
fn whenever_the_power_is_cut_a_disk_has_the_old_size_or_the_new_one() {
    for seed in scripts(20) {
        let mut dice = TestDice(7000 + seed);
        let (layout, disk, bytes) = any_image(&mut dice);
        let (size, room) = other_size(&mut dice, &layout);
        let mut new = bytes.clone();
        new.resize(usize::try_from(size).unwrap(), 0);
        let done = resize(&disk, &layout, size, room);
        for step in 0..=disk.steps() {
            let what = format!("seed {seed}, after step {step} of {}: {size}", disk.steps());
            let left = disk.after_cut(step, &mut dice);
            let now = bytes_of(&left, &layout);
            assert!(now == bytes || now == new, "{what} {room:?} {layout:?}");
            assert_eq!(checked(&left).corruptions, [""; 0], "{what}: {layout:?}");
            if step == disk.steps() {
                assert!(now == if done.is_ok() { &new[..] } else { &bytes[..] }, "{what}");
            }
        }
    }
}

#[test]
fn whichever_write_fails_a_disk_has_the_old_size_or_the_new_one() {
    for seed in scripts(4) {
        let mut fails = 0;
        loop {
            let mut dice = TestDice(8000 + seed);
            let (layout, disk, bytes) = any_image(&mut dice);
            let (size, room) = other_size(&mut dice, &layout);
            let mut new = bytes.clone();
            new.resize(usize::try_from(size).unwrap(), 0);
            let kind = if fails % 2 == 0 { ErrorKind::Io } else { ErrorKind::NoSpace };
            disk.fail(fails, if fails % 3 == 0 { usize::MAX } else { 1 }, kind);
            let done = resize(&disk, &layout, size, room);
            let what = format!("seed {seed}, fails {fails}: {size} {room:?} {layout:?}");
            for left in [disk.bytes(), disk.cut(disk.steps(), &mut dice)] {
                let left = PowerCut::new(left, true);
                let now = bytes_of(&left, &layout);
                assert!(now == new || now == bytes && done.is_err(), "{what}");
                assert_eq!(checked(&left).corruptions, [""; 0], "{what}");
            }
            if fails > disk.steps() {
                break;
            }
            fails += 1;
        }
    }
}

#[test]
fn a_long_l1_table_gets_its_place_where_clusters_are_small_and_refcounts_wide() {
    let layout = Layout {
        version: 3,
        cluster_bits: 9,
        extended: false,
        zstd: false,
        refcount_order: 6,
        size: 64 << 10,
        clusters: vec![Kind::Plain; 100],
        mix: 0,
        backing: None,
    };
    let Laid { container, mut bytes } = layout.lay();
    let disk = PowerCut::new(container, true);
    resize(&disk, &layout, 256 << 20, NewRoom::None).unwrap();
    bytes.resize(256 << 20, 0);
    let disk = disk.again(true);
    assert!(bytes_of(&disk, &layout) == bytes);
    let found = checked(&disk);
    assert_eq!((&found.corruptions[..], found.leaks), (&[][..], 0));
}

#[test]
fn a_disk_that_finds_no_room_to_shrink_has_its_size_and_its_bytes() {
    // What is behind the new end is zero, so a compressed cluster gets a place of its own, and so
    // does a table that a snapshot has, too.
    for (kind, size, is_shared) in
        [(Kind::Packed, (1 << 12) + 512, false), (Kind::Plain, 1 << 12, true)]
    {
        let layout = Layout {
            version: 3,
            cluster_bits: 12,
            extended: false,
            zstd: false,
            refcount_order: 4,
            size: 4 << 12,
            clusters: vec![kind; 4],
            mix: 0,
            backing: None,
        };
        let Laid { container: mut image, bytes } = layout.lay();
        if is_shared {
            snapshot(&mut image, &layout);
        }
        let full = PowerCut::new(image.clone(), false);
        let refused = resize(&full, &layout, size, NewRoom::None).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        assert!(bytes_of(&full, &layout) == bytes);
        assert_eq!((checked(&full).corruption_count, checked(&full).leaks), (0, 0));
        image.resize(image.len() + (4 << 12), 0x5a);
        let disk = PowerCut::new(image, false);
        resize(&disk, &layout, size, NewRoom::None).unwrap();
        assert!(bytes_of(&disk, &layout) == bytes[..usize::try_from(size).unwrap()]);
    }
}

/// A header that says where the bitmaps are.
#[derive(Clone, Copy, Debug)]
struct Form {
    cluster_bits: u32,
    /// Before them is an extension of this kind, with so many bytes.
    before: (u32, usize),
    /// The header does not say how clusters are compressed.
    is_short: bool,
    /// Where the name of the backing image is, if there is one; 0: behind the extensions.
    name_at: Option<usize>,
}

/// An image with two bitmaps, and a header of that form.
fn with_bitmaps(layout: &Layout, form: Form) -> Vec<u8> {
    let mut image = layout.lay().container;
    let mut at = usize::try_from(u32::from_be_bytes(image[100..104].try_into().unwrap())).unwrap();
    let (cluster, (kind, len)) = (1 << layout.cluster_bits, form.before);
    if form.is_short {
        at = 104;
        image[100..104].copy_from_slice(&104_u32.to_be_bytes());
    }
    image[at..cluster].fill(0);
    image[at..at + 4].copy_from_slice(&kind.to_be_bytes());
    image[at + 4..at + 8].copy_from_slice(&u32::try_from(len).unwrap().to_be_bytes());
    if kind != extension::END {
        image[at + 8..at + 8 + len].fill(0xe5);
    }
    if let Some(name_at) = form.name_at {
        let behind = (at + 8 + len + 8).next_multiple_of(8);
        let name_at = if name_at == 0 { behind } else { name_at };
        image[8..16].copy_from_slice(&(name_at as u64).to_be_bytes());
        image[16..20].copy_from_slice(&7_u32.to_be_bytes());
        image[name_at..name_at + 7].copy_from_slice(b"backing");
    }
    for (name, granularity) in [("a", 512), ("b", 4096)] {
        let disk = PowerCut::new(image, true);
        change(&disk, name, &[BitmapChange::Add(Some(granularity))]).unwrap();
        image = disk.bytes();
    }
    image
}

#[test]
fn whatever_stops_it_bitmaps_are_those_of_the_old_size_or_of_the_new_one() {
    // The header has them in its first sector; in one that it is without the names of features; or
    // all extensions have room for a moment behind what there is, in blocks of the cache or across.
    let form =
        |cluster_bits, before, is_short, name_at| Form { cluster_bits, before, is_short, name_at };
    let unknown = 0x1234;
    for form in [
        form(10, (extension::END, 0), false, None),
        form(10, (extension::FEATURE_NAMES, 8 * 48), false, None),
        form(11, (unknown, 500), false, None),
        form(11, (unknown, 500), true, None),
        form(12, (unknown, 383), true, Some(0)),
        form(12, (unknown, 900), false, Some(3000)),
        form(14, (unknown, 3000), false, Some(0)),
        form(14, (unknown, 5000), true, None),
    ] {
        let layout = Layout {
            version: 3,
            cluster_bits: form.cluster_bits,
            extended: false,
            zstd: false,
            refcount_order: 4,
            size: 40 << 10,
            clusters: vec![Kind::Plain; 5],
            mix: 0,
            backing: form.name_at.map(|_| vec![9; 3 << 10]),
        };
        let (mut image, mut dice) = (with_bitmaps(&layout, form), TestDice(11_000));
        // A table of a bitmap is longer for larger disks.
        let many = |unit: u64| unit << ((form.cluster_bits - 10) * 2);
        for size in [3 << 20, 9 << 20, 5 << 20, 2 << 20, 700 << 10].map(many) {
            let disk = PowerCut::new(image, true);
            let (edge, context) = opened(&disk, &layout, true);
            edge.write(&[7; 512], edge.info().size - 1024, false).unwrap();
            context.control.end();
            drop(edge);
            image = disk.bytes();
            let disk = PowerCut::new(image.clone(), true);
            let old = seen(&disk, &layout);
            resize(&disk, &layout, size, NewRoom::None).unwrap();
            let new = seen(&disk.again(true), &layout);
            let what = format!("{form:?}, to {size}");
            let found = checked(&disk);
            assert_eq!((&found.corruptions[..], found.leaks), (&[][..], 0), "{what}");
            for (old, new) in old.iter().zip(&new) {
                assert_eq!((&old.0, old.1, old.2), (&new.0, new.1, new.2), "{what}");
                let is_first = |(was, is): (&(u64, u64), &(u64, u64))| was == is;
                assert!(old.3.iter().zip(&new.3).take(1).all(is_first), "{what}: {new:?}");
            }
            let check = |left: &PowerCut, what: &str| {
                assert_eq!(checked(left).corruptions, [""; 0], "{what}");
                let now = seen(left, &layout);
                assert!(now == old || now == new, "{what}: {now:?}");
                let size = opened(left, &layout, false).0.info().size;
                assert!((now == new) == (size == layout_size(&new)), "{what}: {size}");
                assert_eq!(unknown_of(left), unknown_of(&disk), "{what}");
            };
            for step in 0..=disk.steps() {
                let left = disk.after_cut(step, &mut dice);
                check(&left, &format!("{what}, {step} of {}", disk.steps()));
            }
            for fails in 0..disk.steps() {
                let broken = PowerCut::new(image.clone(), true);
                let kind = if fails % 2 == 0 { ErrorKind::Io } else { ErrorKind::NoSpace };
                broken.fail(fails, 1 + fails % 3, kind);
                let ended = resize(&broken, &layout, size, NewRoom::None);
                broken.fail(0, 0, kind);
                let left = broken.after_cut(broken.steps(), &mut dice);
                check(&left, &format!("{what}, fails {fails}: {ended:?}"));
            }
            image = disk.bytes();
        }
    }
}

/// The extension of the header that nobody knows, if there is one.
fn unknown_of(disk: &PowerCut) -> Option<Vec<u8>> {
    let bytes = disk.bytes();
    let at = usize::try_from(u32::from_be_bytes(bytes[100..104].try_into().unwrap())).unwrap();
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    (number(at) == 0x1234).then(|| bytes[at..at + 8 + number(at + 4) as usize].to_vec())
}

#[test]
fn a_disk_whose_header_cannot_say_two_things_at_once_keeps_its_size_and_its_bitmaps() {
    let layout = Layout {
        version: 3,
        cluster_bits: 10,
        extended: false,
        zstd: false,
        refcount_order: 4,
        size: 40 << 10,
        clusters: vec![Kind::Plain; 5],
        mix: 0,
        backing: None,
    };
    let form = Form { cluster_bits: 10, before: (0x1234, 500), is_short: false, name_at: None };
    let disk = PowerCut::new(with_bitmaps(&layout, form), true);
    let refused = resize(&disk, &layout, 9 << 20, NewRoom::None).unwrap_err();
    assert!(refused.to_string().contains("bitmap --remove"), "{refused}");
    assert_eq!(disk.steps(), 0);
    // Where their tables stay as long as they are, nothing else changes.
    resize(&disk, &layout, 41 << 10, NewRoom::None).unwrap();
    let disk = disk.again(true);
    assert_eq!(seen(&disk, &layout).len(), 2);
    change(&disk, "a", &[BitmapChange::Clear]).unwrap();
    assert_eq!(seen(&disk.again(true), &layout).len(), 2);
}

/// Bytes that bitmaps speak of.
fn layout_size(seen: &[super::bitmaps::Seen]) -> u64 {
    seen.first().map_or(0, |(.., runs)| runs.iter().map(|(len, _)| len).sum())
}
