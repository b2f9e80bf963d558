//! Snapshots and bitmaps of images that this program and QEMU change in turns: `qemu-img check`
//! finds nothing after any of it, and the disk and all snapshots hold their bytes.
//!
//! `IMAGE_SCRIPTS=N` makes N times as many turns.

use device::{Params, Result};
use disk::{BitmapChange, Image, Named, OpenOptions, SnapshotChange};
use formats::{Closed, NewRoom, Opening};
use runtime::{Context, to_usize};
use trial::{PowerCut, TestDice};

use crate::support::{Dice, Place, has_qemu, when_unlocked};

/// Bytes of the disks.
const SIZE: u64 = 3 << 20;

fn change(place: &Place, change: SnapshotChange<'_>) -> Result<()> {
    let (context, image) = (Context::default(), Image::of("qcow2").unwrap());
    let disk = Named::parse(&place.path("image")).unwrap();
    let options = OpenOptions::default();
    let kept = when_unlocked(|| disk::keep(&disk, &image, &options, &context))?;
    kept.change("snapshots", kept.format.upkeep.snapshot, |run, container, opening| {
        run(container, opening, change)
    })
}

fn check(place: &Place, what: &str) {
    let out = place.output("qemu-img", &["check", "image"]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{what}: {text} {errors}");
}

fn bytes_of(place: &Place, how: &str) -> Vec<u8> {
    place.qemu_img(&format!("convert -f qcow2 -O raw {how} image expected.raw"));
    place.read("expected.raw")
}

fn write(place: &Place, model: &mut [u8], dice: &mut Dice) {
    let mut commands = Vec::new();
    for _ in 0..4 {
        let at = dice.below_u64(SIZE / 512) * 512;
        let len = (1 + dice.below_u64(600)) * 512;
        let len = len.min(SIZE - at);
        let byte = u8::try_from(1 + dice.below(255)).unwrap();
        let range = &mut model[to_usize(at)..to_usize(at + len)];
        if dice.below(4) == 0 {
            commands.push(format!("write -z -u {at} {len}"));
            range.fill(0);
        } else {
            commands.push(format!("write -P {byte} {at} {len}"));
            range.fill(byte);
        }
    }
    place.qemu_io("qcow2", "image", &commands);
}

#[test]
fn snapshots_are_changed_in_turns_with_qemu() {
    if !has_qemu() {
        return;
    }
    let many = trial::scripts().map_or(1, |seeds| seeds.end - seeds.start);
    for (seed, options) in (1..).zip([
        "compat=1.1",
        "compat=0.10,cluster_size=4k",
        "extended_l2=on,refcount_bits=64",
        "cluster_size=512,refcount_bits=8",
        "cluster_size=2M",
    ]) {
        let (place, mut dice) = (Place::new(), Dice::new(seed));
        place.qemu_img(&format!("create -q -f qcow2 -o {options} image {SIZE}"));
        let mut model = vec![0; to_usize(SIZE)];
        let mut snapshots: Vec<(String, Vec<u8>)> = Vec::new();
        for turn in 0..12 * many {
            write(&place, &mut model, &mut dice);
            let is_ours = dice.below(3) != 0;
            let which = if snapshots.is_empty() { 0 } else { dice.below(snapshots.len()) };
            let kind = if snapshots.is_empty() { 0 } else { dice.below(4) };
            let (word, name) = match kind {
                0 | 1 if snapshots.len() < 5 => ("-c", format!("n{turn}")),
                2 => ("-a", snapshots[which].0.clone()),
                _ => ("-d", snapshots[which].0.clone()),
            };
            let wanted = match word {
                "-c" => SnapshotChange::Create(&name),
                "-a" => SnapshotChange::Apply(&name),
                _ => SnapshotChange::Delete(&name),
            };
            if is_ours {
                change(&place, wanted).unwrap();
            } else {
                place.qemu_img(&format!("snapshot {word} {name} image"));
            }
            match word {
                "-c" => snapshots.push((name.clone(), model.clone())),
                "-a" => model.clone_from(&snapshots[which].1),
                _ => drop(snapshots.remove(which)),
            }
            let what = format!("{options}, turn {turn}: {word} {name}, ours: {is_ours}");
            check(&place, &what);
            assert!(bytes_of(&place, "") == model, "{what}");
            for (name, bytes) in &snapshots {
                let how = format!("-l snapshot.name={name}");
                assert!(bytes_of(&place, &how) == *bytes, "{what}: {name}");
            }
        }
    }
}

#[test]
fn a_snapshot_of_another_size_is_applied_and_one_below_bitmaps_is_not() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.qemu_img(&format!("create -q -f qcow2 image {SIZE}"));
    place.qemu_io("qcow2", "image", &["write -P 7 0 1M"]);
    change(&place, SnapshotChange::Create("small")).unwrap();
    place.qemu_img("resize -q image 2G");
    place.qemu_io("qcow2", "image", &["write -P 8 1G 1M"]);
    change(&place, SnapshotChange::Apply("small")).unwrap();
    check(&place, "another size");
    let mut wanted = vec![7; 1 << 20];
    wanted.resize(to_usize(SIZE), 0);
    assert!(bytes_of(&place, "") == wanted);
    place.qemu_img("bitmap --add image b");
    assert!(change(&place, SnapshotChange::Apply("small")).is_err());
    change(&place, SnapshotChange::Delete("small")).unwrap();
    check(&place, "with a bitmap");
}

/// What `qemu-img info` says of the bitmaps.
fn bitmaps(place: &Place, name: &str) -> String {
    let text = place.qemu_img(&format!("info --output=json {name}"));
    let from = text.find("\"bitmaps\"").unwrap_or(text.len());
    text[from..].split("\"refcount-bits\"").next().unwrap().to_owned()
}

#[test]
fn bitmaps_are_changed_as_qemu_changes_them() {
    if !has_qemu() {
        return;
    }
    for options in ["compat=1.1", "cluster_size=512", "backing_file=below,backing_fmt=raw"] {
        let place = Place::new();
        place.write("below", &[0; 512]);
        place.qemu_img(&format!("create -q -f qcow2 -o {options} image {SIZE}"));
        place.write("theirs", &place.read("image"));
        let add = BitmapChange::Add;
        for (name, words, changes) in [
            ("a", "--add", &[add(None)][..]),
            ("b", "--add -g 512 --disable", &[add(Some(512)), BitmapChange::Disable]),
            ("c", "--add -g 2G", &[add(Some(1 << 31))]),
            ("b", "--merge a", &[BitmapChange::Merge("a", None)]),
            ("a", "--clear --disable", &[BitmapChange::Clear, BitmapChange::Disable]),
            ("b", "--enable", &[BitmapChange::Enable]),
            ("c", "--merge b --remove", &[BitmapChange::Merge("b", None), BitmapChange::Remove]),
            ("b", "--remove --add", &[BitmapChange::Remove, add(None)]),
            ("a", "--remove", &[BitmapChange::Remove]),
            ("b", "--remove", &[BitmapChange::Remove]),
        ] {
            let what = format!("{options}: {words} {name}");
            let (context, image) = (Context::default(), Image::of("qcow2").unwrap());
            let disk = Named::parse(&place.path("image")).unwrap();
            let options = OpenOptions::default();
            let kept = when_unlocked(|| disk::keep(&disk, &image, &options, &context)).unwrap();
            let run = kept.change("bitmaps", kept.format.upkeep.bitmap, |run, at, opening| {
                run(at, opening, name, changes)
            });
            run.unwrap_or_else(|e| panic!("{what}: {e}"));
            drop(kept);
            place.qemu_img(&format!("bitmap {words} theirs {name}"));
            assert_eq!(bitmaps(&place, "image"), bitmaps(&place, "theirs"), "{what}");
            check(&place, &what);
            for image in ["image", "theirs"] {
                place.qemu_io("qcow2", image, &["write -P 3 1M 70k"]);
            }
        }
        assert!(bytes_of(&place, "")[1 << 20..(1 << 20) + 512] == [3; 512], "{options}");
    }
}

#[test]
fn qemu_finds_the_bitmaps_of_a_long_header_whenever_a_resize_is_stopped() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.qemu_img("create -q -f qcow2 -o cluster_size=4k image 1M");
    place.qemu_img("bitmap --add -g 512 image x");
    let mut image = place.read("image");
    let length = |image: &[u8]| {
        let field = image[100..104].try_into().unwrap();
        to_usize(u32::from_be_bytes(field).into())
    };
    // Before its extensions is one that nobody knows.
    let at = length(&image);
    image.copy_within(at..at + 1024, at + 512);
    image[at..at + 512].fill(0xe5);
    image[at..at + 8].copy_from_slice(&[0x12, 0x34, 0x56, 0x78, 0, 0, 1, 248]);
    let disk = PowerCut::new(image, true);
    let (context, params) = (Context::default(), Params::default());
    let opening = Opening { params: &params, files: &Closed, context: &context };
    let resize = formats::format("qcow2").unwrap().upkeep.resize.unwrap();
    resize(disk.edge(), &opening, &|_| Ok(64 << 20), NewRoom::None).unwrap();
    let (mut dice, mut lengths) = (TestDice(1), Vec::new());
    for step in 0..=disk.steps() {
        let left = disk.cut(step, &mut dice);
        lengths.push(length(&left));
        place.write("image", &left);
        let told = place.output("qemu-img", &["info", "--output=json", "image"]).stdout;
        let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
        let bitmaps = &told["format-specific"]["data"]["bitmaps"];
        assert_eq!(bitmaps[0]["name"], "x", "after step {step}: {told}");
        // With the disk it loads them, of the size that they have to be.
        place.qemu_io("qcow2", "image", &["read -P 0 0 64k".to_owned()]);
        let found = place.output("qemu-img", &["check", "image"]);
        assert!([Some(0), Some(3)].contains(&found.status.code()), "after step {step}: {found:?}");
    }
    assert!(lengths.iter().any(|length| *length > at) && lengths.last() == Some(&at));
}
