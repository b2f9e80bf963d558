//! Images that this program and QEMU write in turns: each finds what the other wrote, and
//! `qemu-img check` finds nothing wrong, and no leak.
//!
//! `IMAGE_SCRIPTS=N` makes N times as many turns.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use device::{Edge, Error, ErrorKind, ExtentKind, Params, Result, ZeroFlags};
use disk::{External, Image, Named, OpenOptions, Stack};
use formats::{Closed, Opening};
use runtime::{Context, to_usize};
use trial::{PowerCut, TestDice};

use crate::support::{Dice, Place, has_qemu};

/// Bytes of the disks.
pub(crate) const SIZE: u64 = 5 << 20;
const SECTOR: u64 = 512;
pub(crate) const UNMAP: ZeroFlags =
    ZeroFlags { may_unmap: true, written: false, fast_only: false, fua: false };

/// An image, open to be written.
pub(crate) struct Written {
    pub(crate) edge: Edge,
    context: Context,
}

impl Written {
    pub(crate) fn open(place: &Place, name: &str) -> Result<Self> {
        Self::open_as(place, name, Image::of(format_of(name)).unwrap(), true)
    }

    pub(crate) fn open_as(place: &Place, name: &str, image: Image, write: bool) -> Result<Self> {
        let context = Context::default();
        let image = Image { external: External::Chain, ..image };
        let options = OpenOptions { write, ..OpenOptions::default() };
        let stack = Stack::default().over_image(image);
        let opened =
            disk::open(&Named::parse(&place.path(name)).unwrap(), &stack, &options, &context)?;
        Ok(Self { edge: opened.edge, context })
    }

    pub(crate) fn close(self) {
        self.context.control.end();
        let complaints = self.context.control.take_complaints();
        assert!(complaints.is_empty(), "{complaints:?}");
    }
}

/// The format of an image, by its name.
fn format_of(name: &str) -> &str {
    name.rsplit('.').next().unwrap()
}

/// The bytes of the disk as QEMU has them; `how` are options of `qemu-img convert`.
fn bytes_of(place: &Place, name: &str, how: &str) -> Vec<u8> {
    let format = format_of(name);
    place.qemu_img(&format!("convert -f {format} -O raw {how} {name} expected.raw"));
    place.read("expected.raw")
}

fn check(place: &Place, name: &str, what: &str) {
    if format_of(name) == "vpc" {
        // It has none.
        return;
    }
    let out = place.output("qemu-img", &["check", name]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{what}: {text} {errors}");
}

pub(crate) struct Op {
    pub(crate) kind: u64,
    pub(crate) at: u64,
    pub(crate) len: u64,
    pub(crate) byte: u8,
}

pub(crate) fn any_op(dice: &mut Dice) -> Op {
    let at = dice.below_u64(SIZE / SECTOR) * SECTOR;
    let most = [8, 200, 1500][dice.below(3)];
    let len = ((1 + dice.below_u64(most)) * SECTOR).min(SIZE - at);
    Op { kind: dice.below_u64(10), at, len, byte: u8::try_from(1 + dice.below(255)).unwrap() }
}

pub(crate) fn range(op: &Op) -> std::ops::Range<usize> {
    to_usize(op.at)..to_usize(op.at + op.len)
}

fn ours(place: &Place, name: &str, model: &mut [u8], dice: &mut Dice) {
    let image = Written::open(place, name).unwrap();
    for _ in 0..10 {
        let op = any_op(dice);
        let model = &mut model[range(&op)];
        match op.kind {
            0..6 => {
                let data = vec![op.byte; model.len()];
                image.edge.write(&data, op.at, op.byte < 20).unwrap();
                model.fill(op.byte);
            }
            6 | 7 => {
                image.edge.zero(op.at, op.len, UNMAP).unwrap();
                model.fill(0);
            }
            8 => {
                image.edge.trim(op.at, op.len, false).unwrap();
                let mut now = vec![0xaa; model.len()];
                image.edge.read(&mut now, op.at).unwrap();
                assert!(now.iter().zip(&*model).all(|(now, was)| *now == 0 || now == was));
                model.copy_from_slice(&now);
            }
            _ => image.edge.flush().unwrap(),
        }
    }
    let mut now = vec![0xaa; model.len()];
    image.edge.read(&mut now, 0).unwrap();
    assert!(now == model, "{name}: not what was written");
    image.close();
}

fn theirs(place: &Place, name: &str, model: &mut [u8], dice: &mut Dice) {
    let mut commands = Vec::new();
    for _ in 0..10 {
        let Op { kind, at, len, byte } = any_op(dice);
        let range = to_usize(at)..to_usize(at + len);
        match kind {
            0..5 => {
                commands.push(format!("write -P {byte} {at} {len}"));
                model[range].fill(byte);
            }
            5..8 => {
                let unmap = if kind == 5 { "" } else { "-u" };
                commands.push(format!("write -z {unmap} {at} {len}"));
                model[range].fill(0);
            }
            _ => commands.push("flush".to_owned()),
        }
    }
    place.qemu_io(format_of(name), name, &commands);
}

pub(crate) fn turns(place: &Place, name: &str, mut model: Vec<u8>, seed: u64) {
    let many = trial::scripts().map_or(1, |seeds| seeds.end - seeds.start);
    let mut dice = Dice::new(seed);
    for turn in 0..3 * many {
        ours(place, name, &mut model, &mut dice);
        check(place, name, &format!("{name}, turn {turn}"));
        assert!(bytes_of(place, name, "") == model, "{name}, turn {turn}: QEMU reads other bytes");
        theirs(place, name, &mut model, &mut dice);
    }
    ours(place, name, &mut model, &mut dice);
    check(place, name, name);
}

#[test]
fn images_of_all_kinds_are_written_in_turns_with_qemu() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    for (n, options) in (0u64..).zip([
        "compat=1.1",
        "compat=0.10",
        "cluster_size=512",
        "cluster_size=4k,refcount_bits=1",
        "cluster_size=2M",
        "cluster_size=1k,refcount_bits=64",
        "compat=0.10,cluster_size=512",
        "lazy_refcounts=on",
        "preallocation=metadata",
        "cluster_size=16k,preallocation=falloc",
        "extended_l2=on",
        "extended_l2=on,cluster_size=16k",
        "extended_l2=on,preallocation=metadata",
        "data_file=a.raw",
        "data_file=b.raw,data_file_raw=on",
        "data_file=c.raw,extended_l2=on,cluster_size=16k",
    ]) {
        let name = format!("{n}.qcow2");
        place.qemu_img(&format!("create -f qcow2 -o {options} {name} {SIZE}"));
        turns(&place, &name, vec![0; to_usize(SIZE)], n);
        if options.contains("data_file_raw") {
            assert!(place.read("b.raw") == bytes_of(&place, &name, ""), "the data file is a disk");
        }
    }
}

#[test]
fn overlays_packed_images_and_those_with_snapshots_are_written_in_turns_with_qemu() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    let noise = |len: u64| -> Vec<u8> {
        (0..len).map(|at| u8::try_from(((at / 700) ^ (at % 3)) % 251).unwrap()).collect()
    };
    let padded = |mut bytes: Vec<u8>| {
        bytes.resize(to_usize(SIZE), 0);
        bytes
    };
    std::fs::write(place.0.join("base.raw"), noise(SIZE - 3 * 4096)).unwrap();
    for (n, version) in (20u64..).zip(["compat=1.1", "compat=0.10", "extended_l2=on"]) {
        let base = format!("base-{n}.qcow2");
        let cluster = if version.starts_with("extended") { "32k" } else { "4k" };
        place.qemu_img(&format!("convert -f raw -O qcow2 -c -o {version} base.raw {base}"));
        let (middle, over) = (format!("middle-{n}.qcow2"), format!("over-{n}.qcow2"));
        place.qemu_img(&format!("create -f qcow2 -o {version} -b {base} -F qcow2 {middle} {SIZE}"));
        place.qemu_io("qcow2", &middle, &["write -P 7 100k 300k".to_owned()]);
        place.qemu_img(&format!(
            "create -f qcow2 -o {version},cluster_size={cluster} -b {middle} -F qcow2 {over} {SIZE}"
        ));
        let mut model = padded(noise(SIZE - 3 * 4096));
        model[100 << 10..400 << 10].fill(7);
        turns(&place, &over, model, n);
        assert_eq!(
            &bytes_of(&place, &middle, "")[..99 << 10],
            &noise(99 << 10),
            "the backing image"
        );

        // What is packed is written anew.
        let packed = format!("packed-{n}.qcow2");
        std::fs::copy(place.0.join(&base), place.0.join(&packed)).unwrap();
        place.qemu_img(&format!("resize {packed} {SIZE}"));
        turns(&place, &packed, padded(noise(SIZE - 3 * 4096)), n + 100);

        // What a snapshot shares stays as it was.
        let shared = format!("shared-{n}.qcow2");
        std::fs::copy(place.0.join(&over), place.0.join(&shared)).unwrap();
        let before = bytes_of(&place, &shared, "");
        place.qemu_img(&format!("snapshot -c one {shared}"));
        turns(&place, &shared, before.clone(), n + 200);
        let between = bytes_of(&place, &shared, "");
        place.qemu_img(&format!("snapshot -c two {shared}"));
        turns(&place, &shared, between.clone(), n + 300);
        assert!(bytes_of(&place, &shared, "-l one") == before, "the first snapshot");
        assert!(bytes_of(&place, &shared, "-l two") == between, "the second snapshot");
        place.qemu_img(&format!("snapshot -d one {shared}"));
        check(&place, &shared, "without the first snapshot");
    }
}

#[test]
fn two_writers_are_refused_in_both_orders_and_a_reader_is_told() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.qemu_img("create -f qcow2 one.qcow2 1M");
    let open = |write| Written::open_as(&place, "one.qcow2", Image::of("qcow2").unwrap(), write);
    let ours = open(true).unwrap();
    for args in [&["-c", "write 0 512"][..], &["-r", "-c", "read 0 512"]] {
        let mut qemu = Command::new("qemu-io");
        let qemu = qemu.args(["-f", "qcow2"]).args(args).arg("one.qcow2");
        let out = qemu.current_dir(&place.0).output().unwrap();
        let errors = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(errors.contains("lock"), "{args:?}: {errors}");
    }
    let refused = |opened: Result<Written>| opened.map(drop).unwrap_err();
    assert_eq!(refused(open(true)).kind(), ErrorKind::Locked);
    ours.close();
    let mut qemu = Command::new("qemu-io");
    let qemu = qemu.args(["-f", "qcow2", "one.qcow2"]).current_dir(&place.0);
    let mut qemu = qemu.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    qemu.stdin.as_mut().unwrap().write_all(b"write 0 512\n").unwrap();
    let mut said = String::new();
    let mut out = BufReader::new(qemu.stdout.take().unwrap());
    while !said.contains("wrote") {
        said.clear();
        assert!(out.read_line(&mut said).unwrap() > 0, "qemu-io ended");
    }
    assert_eq!(refused(open(true)).kind(), ErrorKind::Locked);
    let told = refused(open(false)).to_string();
    assert!(told.contains("in use by another program"), "{told}");
    drop(qemu.stdin.take());
    qemu.wait().unwrap();
    open(true).unwrap().close();
}

fn patch(path: &Path, at: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

#[test]
fn an_image_that_cannot_be_written_as_it_is_is_refused_and_stays_as_it_is() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    for (n, word) in ["corrupt", "unknown"].into_iter().enumerate() {
        let (name, path) = (format!("{n}.qcow2"), place.0.join(format!("{n}.qcow2")));
        place.qemu_img(&format!("create -f qcow2 {name} 1M"));
        match n {
            0 => patch(&path, 79, &[2]),
            1 => patch(&path, 72, &[1]),
            _ => {}
        }
        let before = std::fs::read(&path).unwrap();
        let error: Error = Written::open(&place, &name).map(drop).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(word) || n == 1, "{text}");
        assert!(error.kind() == ErrorKind::ReadOnly || n == 1, "{text}");
        assert!(std::fs::read(&path).unwrap() == before, "{text}");
    }
    // A format that is guessed is never written.
    let guessed = Written::open_as(&place, "0.qcow2", Image::guessed(), true).map(drop);
    assert!(guessed.unwrap_err().to_string().contains("not guessed"));
}

#[test]
fn an_image_with_lazy_refcounts_that_was_not_closed_is_repaired_and_written() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.qemu_img("create -f qcow2 -o lazy_refcounts=on,cluster_size=512 a.qcow2 1M");
    // It ends without closing the image.
    let commands = ["-f", "qcow2", "-c", "write -P 1 0 512k", "-c", "flush", "-c", "abort"];
    place.output("qemu-io", &[&commands[..], &["a.qcow2"]].concat());
    assert_eq!(place.read("a.qcow2")[79], 1, "it is marked");
    let image = Written::open(&place, "a.qcow2").unwrap();
    image.edge.write(&[2; 4096], 512 << 10, false).unwrap();
    image.close();
    assert_eq!(place.read("a.qcow2")[79], 0);
    check(&place, "a.qcow2", "closed");
    let reads = ["read -P 1 0 512k".to_owned(), "read -P 2 512k 4k".to_owned()];
    place.qemu_io("qcow2", "a.qcow2", &reads);
}

#[test]
fn what_is_not_known_is_cleared_before_the_first_write_and_data_never_go_over_tables() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    // Of the subclusters of an evil entry the last one is there, and the first one is not.
    let all = 1u64 << 31;
    for (options, entry_len, parts) in [("compat=1.1", 8, 0), ("extended_l2=on", 16, all)] {
        refuse_evil(&place, options, entry_len, parts);
    }
}

fn refuse_evil(place: &Place, options: &str, entry_len: usize, parts: u64) {
    place.qemu_img(&format!("create -f qcow2 -o {options} one.qcow2 1M"));
    place.qemu_io("qcow2", "one.qcow2", &["write -P 1 0 512k".to_owned()]);
    let path = place.0.join("one.qcow2");
    patch(&path, 88, &[1, 2, 3]);
    let image = Written::open(place, "one.qcow2").unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[88..96], [0; 8]);
    image.close();
    check(place, "one.qcow2", "closed");
    // The entry of the second cluster leads to tables.
    let bytes = std::fs::read(&path).unwrap();
    let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
    let l1 = number(40);
    let l2 = number(to_usize(l1)) & !(1 << 63);
    for (n, target) in [l1, l2, number(48)].into_iter().enumerate() {
        let mut evil = bytes.clone();
        let at = to_usize(l2) + entry_len;
        evil[at..at + 8].copy_from_slice(&(target | 1 << 63).to_be_bytes());
        if parts != 0 {
            evil[at + 8..at + 16].copy_from_slice(&parts.to_be_bytes());
        }
        std::fs::write(&path, &evil).unwrap();
        let image = Written::open(place, "one.qcow2").unwrap();
        let error = image.edge.write(&[5; 4096], 65536, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{n}: {error}");
        image.edge.write(&[5; 4096], 0, false).unwrap_err();
        image.edge.flush().unwrap();
        evil[79] |= 2;
        assert!(std::fs::read(&path).unwrap() == evil, "{n}: it is only marked");
        image.close();
        assert!(Written::open(place, "one.qcow2").is_err());
    }
}

#[test]
fn what_a_reader_has_a_place_of_is_not_written_over_before_it_is_done() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.qemu_img("create -f qcow2 one.qcow2 1M");
    let image = Written::open(&place, "one.qcow2").unwrap();
    let cluster = 65536usize;
    image.edge.write(&vec![7; cluster], 0, false).unwrap();
    image.edge.flush().unwrap();
    let mut found = Vec::new();
    image.edge.resolve(0, 65536, 1, &mut found).unwrap();
    assert_eq!(found[0].kind, ExtentKind::Data);
    let seen = found.remove(0).place.unwrap();
    let now = || {
        let mut bytes = vec![0; cluster];
        rustix::io::pread(seen.fd(), &mut bytes, seen.offset()).unwrap();
        bytes
    };
    image.edge.trim(0, 65536, false).unwrap();
    for (n, at) in (0..4).map(|n| (n, u64::from(n + 1) * 65536)) {
        image.edge.flush().unwrap();
        image.edge.write(&vec![n + 20; cluster], at, false).unwrap();
        assert!(now() == vec![7; cluster], "it is another cluster's now");
    }
    let length = std::fs::metadata(place.0.join("one.qcow2")).unwrap().len();
    drop((found, now));
    drop(seen);
    // Now its room is used.
    image.edge.flush().unwrap();
    image.edge.write(&vec![99; cluster], 6 * 65536, false).unwrap();
    image.edge.flush().unwrap();
    assert_eq!(std::fs::metadata(place.0.join("one.qcow2")).unwrap().len(), length);
    image.close();
    check(&place, "one.qcow2", "in the end");
}

#[test]
fn what_a_reader_still_has_a_place_of_when_the_image_is_closed_is_no_leak() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.qemu_img("create -f qcow2 one.qcow2 1M");
    let image = Written::open(&place, "one.qcow2").unwrap();
    image.edge.write(&[7; 65536], 0, false).unwrap();
    image.edge.flush().unwrap();
    let mut found = Vec::new();
    image.edge.resolve(0, 65536, 1, &mut found).unwrap();
    let seen = found.remove(0).place.unwrap();
    image.edge.trim(0, 65536, false).unwrap();
    image.close();
    let mut bytes = vec![0; 65536];
    rustix::io::pread(seen.fd(), &mut bytes, seen.offset()).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7), "its room was given away");
    drop(seen);
    check(&place, "one.qcow2", "closed");
}

/// What a bitmap of an image should say of each granule, and what it says.
pub(crate) fn check_bitmap(edge: &Edge, name: &str, expected: &[bool], granule: u64, what: &str) {
    let (mut at, mut found) = (0, Vec::new());
    let context = format!("qemu:dirty-bitmap:{name}");
    while at < SIZE {
        let mut runs = Vec::new();
        edge.status(&context, at, SIZE - at, 7, &mut runs).unwrap();
        for run in runs {
            let end = at + run.len;
            let from = to_usize(at.div_ceil(granule));
            let granules = to_usize(end.div_ceil(granule)) - from;
            found.extend(std::iter::repeat_n(run.value == 1, granules));
            at = end;
        }
    }
    assert!(found == expected, "{what}: {name}");
}

#[test]
fn bitmaps_stay_true_while_their_image_is_written_and_are_in_use_until_it_is_closed() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    let granules = [("fine", 512u64), ("coarse", 65536)];
    for (n, options) in (0u64..).zip(["cluster_size=512", "extended_l2=on", "cluster_size=64k"]) {
        let name = format!("{n}.qcow2");
        place.qemu_img(&format!("create -f qcow2 -o {options} {name} {SIZE}"));
        for (bitmap, granule) in granules {
            place.qemu_img(&format!("bitmap --add -g {granule} {name} {bitmap}"));
        }
        place.qemu_img(&format!("bitmap --add {name} off"));
        place.qemu_img(&format!("bitmap --disable {name} off"));
        let mut expected = granules.map(|(_, granule)| vec![false; to_usize(SIZE / granule)]);
        let mut dice = Dice::new(60 + n);
        for turn in 0..4 {
            let what = format!("{name}, turn {turn}");
            let image = Written::open(&place, &name).unwrap();
            let mut commands = Vec::new();
            for _ in 0..6 {
                let Op { kind, at, len, byte } = any_op(&mut dice);
                match (turn % 2, kind) {
                    (1, 0..8) => commands.push(format!("write -P {byte} {at} {len}")),
                    (1, _) => commands.push(format!("write -z -u {at} {len}")),
                    (_, 0..6) => {
                        image.edge.write(&vec![byte; to_usize(len)], at, false).unwrap();
                    }
                    (_, 6 | 7) => image.edge.zero(at, len, UNMAP).unwrap(),
                    _ => image.edge.trim(at, len, false).unwrap(),
                }
                for ((_, granule), expected) in granules.iter().zip(&mut expected) {
                    expected[to_usize(at / granule)..to_usize((at + len).div_ceil(*granule))]
                        .fill(true);
                }
            }
            if commands.is_empty() {
                for ((bitmap, granule), expected) in granules.iter().zip(&expected) {
                    check_bitmap(&image.edge, bitmap, expected, *granule, &what);
                }
                let info = place.qemu_img(&format!("info -U {name}"));
                assert_eq!(info.matches("in-use").count(), 2, "{what}: {info}");
            }
            image.close();
            if !commands.is_empty() {
                place.qemu_io("qcow2", &name, &commands);
            }
            check(&place, &name, &what);
            let info = place.qemu_img(&format!("info {name}"));
            assert_eq!(info.matches("in-use").count(), 0, "{what}: {info}");
            let read = Written::open_as(&place, &name, Image::of("qcow2").unwrap(), false);
            let read = read.unwrap();
            for ((bitmap, granule), expected) in granules.iter().zip(&expected) {
                check_bitmap(&read.edge, bitmap, expected, *granule, &what);
            }
            let none = vec![false; to_usize(SIZE / 65536)];
            check_bitmap(&read.edge, "off", &none, 65536, &what);
        }
    }
}

/// An image that may lose its power.
fn open_on(disk: &PowerCut, write: bool) -> device::Result<(Edge, Context)> {
    let context = Context::default();
    let (params, format) = (Params::default(), formats::format("qcow2").unwrap());
    let opening = Opening { params: &params, files: &Closed, context: &context };
    let open = if write { format.write.unwrap() } else { format.open };
    let edge = Edge::new(open(disk.edge(), &opening)?, context.pool.clone());
    Ok((edge, context))
}

/// Whether the bitmap `fine` is offered; then it has all that was ever written.
fn check_trusted(disk: &PowerCut, what: &str) -> bool {
    let (edge, _) = open_on(disk, false).unwrap();
    if edge.info().contexts.iter().all(|context| &**context != "qemu:dirty-bitmap:fine") {
        return false;
    }
    let (mut runs, mut bytes) = (Vec::new(), vec![0; 256 << 10]);
    edge.status("qemu:dirty-bitmap:fine", 0, 256 << 10, 9999, &mut runs).unwrap();
    edge.read(&mut bytes, 0).unwrap();
    let mut at = 0;
    for run in runs {
        let range = at..at + to_usize(run.len);
        let is_zero = bytes[range.clone()].iter().all(|byte| *byte == 0);
        assert!(run.value == 1 || is_zero, "{what}: {range:?} was written");
        at = range.end;
    }
    true
}

#[test]
fn whenever_the_power_is_cut_a_bitmap_is_in_use_or_has_all_that_was_written() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.qemu_img("create -f qcow2 -o cluster_size=512 one.qcow2 256k");
    place.qemu_img("bitmap --add -g 512 one.qcow2 fine");
    let disk = PowerCut::new(place.read("one.qcow2"), true);
    let (edge, context) = open_on(&disk, true).unwrap();
    // Nothing is written where that cannot be said.
    disk.fail(0, usize::MAX, ErrorKind::Io);
    edge.write(&[9; 512], 0, false).unwrap_err();
    disk.fail(0, 0, ErrorKind::Io);
    let mut dice = Dice::new(5);
    for n in 0..24u8 {
        let at = dice.below_u64(512 - 8) * SECTOR;
        let len = 1 + dice.below(8);
        edge.write(&vec![n + 1; len * to_usize(SECTOR)], at, false).unwrap();
        if n % 5 == 4 {
            edge.flush().unwrap();
        }
        if n % 8 == 7 {
            // It is saved, and then used again.
            edge.device().finish().unwrap();
        }
    }
    context.control.end();
    let (mut trusted, mut dice) = (0, TestDice(8));
    for step in 0..=disk.steps() {
        let left = disk.after_cut(step, &mut dice);
        trusted += usize::from(check_trusted(&left, &format!("after step {step}")));
    }
    assert!(trusted > 3 && trusted < disk.steps(), "{trusted} of {}", disk.steps());
}

#[test]
fn a_bitmap_that_may_not_be_in_use_any_more_is_marked_again_before_the_next_write() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.qemu_img("create -f qcow2 -o cluster_size=512,preallocation=full one.qcow2 256k");
    place.qemu_img("bitmap --add -g 512 one.qcow2 fine");
    let image = place.read("one.qcow2");
    let (mut dice, mut failed) = (TestDice(9), 0);
    for fails in 0..40 {
        let disk = PowerCut::new(image.clone(), true);
        let (edge, context) = open_on(&disk, true).unwrap();
        edge.write(&[2; 512], 0, false).unwrap();
        disk.fail(fails, 1, ErrorKind::Io);
        let finished = edge.device().finish();
        disk.fail(0, 0, ErrorKind::Io);
        failed += usize::from(finished.is_err());
        let first = disk.steps();
        // All of it has its clusters, so that they are written at once.
        edge.write(&[3; 512], 9 * SECTOR, false).unwrap();
        edge.write(&[3; 512], 200 * SECTOR, false).unwrap();
        for step in first..=disk.steps() {
            for _ in 0..8 {
                let left = disk.after_cut(step, &mut dice);
                check_trusted(&left, &format!("fails {fails}, after step {step}"));
            }
        }
        context.control.end();
        let left = PowerCut::new(disk.bytes(), true);
        assert!(check_trusted(&left, &format!("fails {fails}, closed")), "{fails}: in use");
    }
    assert!(failed > 3, "{failed}");
}

#[test]
fn of_two_bitmaps_with_one_name_none_is_offered_and_the_image_is_not_written() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.qemu_img("create -f qcow2 -o cluster_size=512 one.qcow2 256k");
    for name in ["fine", "find", "other"] {
        place.qemu_img(&format!("bitmap --add one.qcow2 {name}"));
    }
    let mut image = place.read("one.qcow2");
    // The directory is also there as it was before.
    for at in 0..image.len() - 4 {
        if &image[at..at + 4] == b"find" {
            image[at..at + 4].copy_from_slice(b"fine");
        }
    }
    let disk = PowerCut::new(image.clone(), true);
    let (edge, _) = open_on(&disk, false).unwrap();
    let contexts = edge.info().contexts.iter().filter(|name| name.starts_with("qemu:dirty"));
    assert_eq!(contexts.map(|name| &**name).collect::<Vec<_>>(), ["qemu:dirty-bitmap:other"]);
    let said = open_on(&disk, true).unwrap_err();
    assert_eq!(said.kind(), ErrorKind::ReadOnly);
    assert!(said.to_string().contains("`fine` is there twice"), "{said}");
    assert!(disk.bytes() == image, "it was changed");
}
