//! Snapshots and bitmaps of images that this program and QEMU change in turns: `qemu-img check`
//! finds nothing after any of it, and the disk and all snapshots hold their bytes.
//!
//! `IMAGE_SCRIPTS=N` makes N times as many turns.

use device::{Params, Result};
use disk::{BitmapChange, Image, Named, OpenOptions, SnapshotChange};
use formats::{Closed, NewRoom, Opening};
use runtime::{Context, to_usize};
use trial::{PowerCut, TestDice};

use crate::qcow2_written::{self as written, Op, UNMAP, Written, any_op, check_bitmap, range};
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

fn change_bitmap(
    place: &Place,
    image: &str,
    name: &str,
    changes: &[BitmapChange<'_>],
) -> Result<()> {
    let (context, disk) = (Context::default(), Named::parse(&place.path(image)).unwrap());
    let (image, options) = (Image::of("qcow2").unwrap(), OpenOptions::default());
    let kept = when_unlocked(|| disk::keep(&disk, &image, &options, &context))?;
    kept.change("bitmaps", kept.format.upkeep.bitmap, |run, container, opening| {
        run(container, opening, name, changes)
    })
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
            let changed = change_bitmap(&place, "image", name, changes);
            changed.unwrap_or_else(|e| panic!("{what}: {e}"));
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

/// A bitmap as it should be.
struct Tracking {
    name: &'static str,
    granule: u64,
    enabled: bool,
    set: Vec<bool>,
}

/// An image with bitmaps, changed by a random script.
struct Tracked {
    place: Place,
    dice: Dice,
    cluster: u64,
    bytes: Vec<u8>,
    bitmaps: Vec<Tracking>,
    /// What was done, as the words of a message.
    done: String,
}

const TRACKED: &str = "image.qcow2";

impl Tracking {
    fn new(name: &'static str, granule: u64) -> Self {
        let set = vec![false; to_usize(written::SIZE.div_ceil(granule))];
        Self { name, granule, enabled: true, set }
    }

    fn mark(&mut self, at: u64, len: u64) {
        let end = (at + len).min(written::SIZE).div_ceil(self.granule);
        self.set[to_usize(at / self.granule)..to_usize(end)].fill(true);
    }

    /// What is set in it, as offsets and lengths.
    fn marked(&self) -> Vec<(u64, u64)> {
        let places = (0..).step_by(to_usize(self.granule)).zip(&self.set);
        places.filter(|(_, set)| **set).map(|(at, _)| (at, self.granule)).collect()
    }
}

impl Tracked {
    fn change(&mut self) {
        let name = ["a", "b", "c", "d", "a name that is longer"][self.dice.below(5)];
        let at = self.bitmaps.iter().position(|bitmap| bitmap.name == name);
        let is_ours = self.dice.below(2) == 0;
        let (mut changes, mut words) = (Vec::new(), Vec::new());
        if at.is_none() {
            let granule = [None, Some(512), Some(4096), Some(1 << 20)][self.dice.below(4)];
            changes.push(BitmapChange::Add(granule));
            words.push("--add".to_owned());
            words.extend(granule.iter().flat_map(|bytes| ["-g".to_owned(), bytes.to_string()]));
            let usual = self.cluster.clamp(4096, 1 << 16);
            self.bitmaps.push(Tracking::new(name, granule.unwrap_or(usual)));
        }
        let at = at.unwrap_or(self.bitmaps.len() - 1);
        // A new one is often changed in the same breath, and another one always.
        let (from, kind) = (self.dice.below(self.bitmaps.len()), self.dice.below(7));
        match kind {
            0 | 1 if from != at => {
                let Tracking { name: source, .. } = self.bitmaps[from];
                changes.push(BitmapChange::Merge(source, None));
                words.extend(["--merge".to_owned(), source.to_owned()]);
                for (start, len) in self.bitmaps[from].marked() {
                    self.bitmaps[at].mark(start, len);
                }
            }
            2 => {
                changes.push(BitmapChange::Clear);
                words.push("--clear".to_owned());
                self.bitmaps[at].set.fill(false);
            }
            3 if changes.is_empty() => {
                changes.push(BitmapChange::Remove);
                words.push("--remove".to_owned());
                self.bitmaps.remove(at);
            }
            _ => {
                let enabled = self.dice.below(3) != 0;
                let (change, word) = match enabled {
                    true => (BitmapChange::Enable, "--enable"),
                    false => (BitmapChange::Disable, "--disable"),
                };
                changes.push(change);
                words.push(word.to_owned());
                self.bitmaps[at].enabled = enabled;
            }
        }
        self.done = format!("ours: {is_ours}, {words:?} {name}");
        if is_ours {
            change_bitmap(&self.place, TRACKED, name, &changes).unwrap();
        } else {
            let words = words.iter().map(|word| &**word).chain([TRACKED, name]);
            self.place.run("qemu-img", &[&["bitmap"], &*words.collect::<Vec<_>>()].concat());
        }
    }

    fn write(&mut self) {
        let is_ours = self.dice.below(2) == 0;
        let image = is_ours.then(|| self.open(true));
        let (mut commands, mut marks) = (Vec::new(), Vec::new());
        for _ in 0..=self.dice.below(4) {
            let op = any_op(&mut self.dice);
            let Op { kind, at, len, byte } = op;
            let bytes = &mut self.bytes[range(&op)];
            let is_zero = (6..9).contains(&kind);
            match (&image, kind) {
                (Some(image), 0..6) => {
                    image.edge.write(&vec![byte; to_usize(len)], at, byte < 20).unwrap();
                }
                (Some(image), 6..9) => image.edge.zero(at, len, UNMAP).unwrap(),
                (Some(image), _) => image.edge.flush().unwrap(),
                (None, 0..6) => commands.push(format!("write -P {byte} {at} {len}")),
                (None, 6..9) => commands.push(format!("write -z -u {at} {len}")),
                (None, _) => commands.push("flush".to_owned()),
            }
            if kind < 9 {
                bytes.fill(if is_zero { 0 } else { byte });
                marks.push((at, len));
            }
        }
        match image {
            Some(image) => image.close(),
            None => self.place.qemu_io("qcow2", TRACKED, &commands),
        }
        self.done = format!("ours: {is_ours}, {marks:?} written");
        for bitmap in self.bitmaps.iter_mut().filter(|bitmap| bitmap.enabled) {
            marks.iter().for_each(|(at, len)| bitmap.mark(*at, *len));
        }
    }

    /// A server of QEMU may be about to end.
    fn open(&self, write: bool) -> Written {
        let image = || Image::of("qcow2").unwrap();
        when_unlocked(|| Written::open_as(&self.place, TRACKED, image(), write)).unwrap()
    }

    /// As we see it.
    fn check_ours(&self, what: &str) {
        let image = self.open(false);
        // QEMU does not offer bitmaps that it may not trust, and nor do we.
        assert_eq!(image.edge.info().contexts.len(), 1 + self.bitmaps.len(), "{what}");
        for Tracking { name, set, granule, .. } in &self.bitmaps {
            check_bitmap(&image.edge, name, set, *granule, what);
        }
        let mut bytes = vec![0xaa; self.bytes.len()];
        image.edge.read(&mut bytes, 0).unwrap();
        assert!(bytes == self.bytes, "{what}: other bytes");
        image.close();
    }

    /// As QEMU sees it: sound, with these bytes, bitmaps and flags, and what is set in one of them.
    fn check_theirs(&mut self, what: &str) {
        self.place.qemu_img(&format!("check -q {TRACKED}"));
        self.place.qemu_img(&format!("convert -f qcow2 -O raw {TRACKED} expected.raw"));
        assert!(self.place.read("expected.raw") == self.bytes, "{what}: QEMU reads other bytes");
        let told = self.place.qemu_img(&format!("info --output=json {TRACKED}"));
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        let none = Vec::new();
        let told = told["format-specific"]["data"]["bitmaps"].as_array().unwrap_or(&none);
        assert_eq!(told.len(), self.bitmaps.len(), "{what}: {told:?}");
        for bitmap in &self.bitmaps {
            let found = told.iter().find(|found| found["name"] == bitmap.name).unwrap();
            let flags: &[&str] = if bitmap.enabled { &["auto"] } else { &[] };
            assert_eq!(found["flags"], serde_json::json!(flags), "{what}: {found}");
            assert_eq!(found["granularity"], bitmap.granule, "{what}: {found}");
        }
        if self.bitmaps.is_empty() {
            return;
        }
        let which = self.dice.below(self.bitmaps.len());
        let (Tracking { name, granule, set, .. }, socket) =
            (&self.bitmaps[which], self.place.path("socket"));
        let words = ["--fork", "-r", "-f", "qcow2", "-k", &socket, "-B", name, TRACKED];
        self.place.run("qemu-nbd", &words);
        let node = format!(
            "driver=nbd,server.type=unix,server.path={socket},x-dirty-bitmap=qemu:dirty-bitmap:{name}"
        );
        let map = self.place.run("qemu-img", &["map", "--output=json", "--image-opts", &node]);
        let map: serde_json::Value = serde_json::from_str(&map).unwrap();
        let mut found = vec![false; set.len()];
        // What is dirty is told as what is no data.
        for run in map.as_array().unwrap().iter().filter(|run| run["data"] == false) {
            let [start, len] = ["start", "length"].map(|key| run[key].as_u64().unwrap());
            found[to_usize(start / granule)..to_usize((start + len).div_ceil(*granule))].fill(true);
        }
        assert!(found == *set, "{what}: {name}, as QEMU has it");
    }
}

/// Each step is one of this program or of QEMU, and every tenth one is looked at by QEMU.
#[test]
fn bitmaps_that_are_changed_and_written_in_turns_with_qemu_hold_what_was_written() {
    if !has_qemu() {
        return;
    }
    for seed in trial::scripts().unwrap_or(0..1) {
        for (options, cluster) in [
            ("compat=1.1", 1 << 16),
            ("cluster_size=512,refcount_bits=8", 512),
            ("extended_l2=on", 1 << 16),
            ("cluster_size=4k,lazy_refcounts=on", 4096),
        ] {
            let (place, size) = (Place::new(), written::SIZE);
            place.qemu_img(&format!("create -q -f qcow2 -o {options} {TRACKED} {size}"));
            let mut image = Tracked {
                place,
                dice: Dice::new(700 + seed),
                cluster,
                bytes: vec![0; to_usize(size)],
                bitmaps: Vec::new(),
                done: String::new(),
            };
            for step in 1..=40 {
                match image.dice.below(2) {
                    0 => image.change(),
                    _ => image.write(),
                }
                let what = format!("{options}, seed {seed}, step {step}: {}", image.done);
                image.check_ours(&what);
                if step % 10 == 0 {
                    image.check_theirs(&what);
                }
            }
        }
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
