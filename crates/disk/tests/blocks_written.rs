//! Images of formats with one level of blocks that this program and QEMU write in turns, as
//! `qcow2_written` does.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use device::{Edge, ErrorKind, Params, Result, ZeroFlags};
use disk::{External, Image, Named, OpenOptions, Stack};
use formats::{Closed, Opening};
use runtime::{Context, to_usize};
use trial::{PowerCut, TestDice};

use crate::qcow2_written::{SIZE, Written, turns};
use crate::support::{Dice, Place, all, create, has_qemu, make, must, pattern, when_unlocked};

#[test]
fn images_with_blocks_are_written_in_turns_with_qemu() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    for (n, (format, options)) in (700u64..).zip([
        ("vdi", "static=off"),
        ("vdi", "static=on"),
        ("vpc", "subformat=dynamic,force_size=on"),
        ("vpc", "subformat=fixed,force_size=on"),
        ("vhdx", "block_size=1M"),
        ("vhdx", "block_size=2M,block_state_zero=off,log_size=2M"),
        ("vhdx", "subformat=fixed"),
        ("vmdk", "subformat=monolithicSparse"),
        ("vmdk", "subformat=monolithicFlat"),
        ("vmdk", "subformat=twoGbMaxExtentSparse"),
        ("vmdk", "subformat=twoGbMaxExtentFlat"),
        ("vmdk", "subformat=monolithicSparse,zeroed_grain=on"),
    ]) {
        let name = format!("{n}.{format}");
        place.qemu_img(&format!("create -f {format} -o {options} {name} {SIZE}"));
        turns(&place, &name, vec![0; to_usize(SIZE)], n);
    }
}

/// A VHDX image on a disk, to be written or read.
fn vhdx(disk: &PowerCut, write: bool) -> (Edge, Context) {
    let context = Context::default();
    let (params, format) = (Params::default(), formats::format("vhdx").unwrap());
    let opening = Opening { params: &params, files: &Closed, context: &context };
    let open = if write { format.write.unwrap() } else { format.open };
    let edge = Edge::new(open(disk.edge(), &opening).unwrap(), context.pool.clone());
    (edge, context)
}

#[test]
fn qemu_replays_the_log_of_a_vhdx_image_whose_power_was_cut() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    make(&place.path("new.vhdx"), "vhdx", &["block_size=1M"], &pattern(3 << 20, 4)[..2 << 20]);
    place.qemu_img("create -f vhdx -o block_size=1M empty.vhdx 3M");
    let (mut dice, mut replayed) = (TestDice(7), 0);
    for name in ["new.vhdx", "empty.vhdx"] {
        let disk = PowerCut::new(place.read(name), true);
        let (edge, context) = vhdx(&disk, true);
        for n in 0..6u8 {
            let at = dice.below(edge.info().size / 4096) * 4096;
            edge.write(&[n + 1; 4096], at, false).unwrap();
            if n % 2 == 1 {
                edge.flush().unwrap();
            }
        }
        for step in 0..=disk.steps() {
            let left = disk.cut(step, &mut dice);
            let format = formats::format("vhdx").unwrap();
            let (read, _) = vhdx(&PowerCut::new(left.clone(), true), false);
            let says = (format.describe)(&PowerCut::new(left.clone(), true).edge(), &context);
            if !says.unwrap().dirty {
                continue;
            }
            replayed += 1;
            let path = place.write("left.vhdx", &left);
            let raw = place.write("expected.raw", &all(&read));
            // It replays what it opens to write.
            place.qemu_io("vhdx", "left.vhdx", &["quit"]);
            must("qemu-img", &["check", "-f", "vhdx", &path]);
            must("qemu-img", &["compare", "-f", "raw", "-F", "vhdx", &raw, &path]);
        }
        context.control.end();
    }
    assert!(replayed > 5, "{replayed}");
}

#[test]
fn a_table_may_change_in_more_places_than_an_entry_of_the_log_has_room_for() {
    const APART: u64 = 512 << 20;
    let place = Place::new();
    let path = place.path("one.vhdx");
    create_image_of(&path, 300 * APART);
    let (edge, context) = when_unlocked(|| opened(&path, "vhdx", true)).unwrap();
    for n in 0..200u64 {
        edge.write(&[u8::try_from(n).unwrap() | 1; 4096], n * APART, false).unwrap();
    }
    edge.flush().unwrap();
    drop(edge);
    context.control.end();
    assert!(context.control.take_complaints().is_empty());
    let (edge, context) = when_unlocked(|| opened(&path, "vhdx", true)).unwrap();
    for n in 0..300u64 {
        let mut now = [0xaa; 8192];
        edge.read(&mut now, n * APART).unwrap();
        let byte = if n < 200 { u8::try_from(n).unwrap() | 1 } else { 0 };
        assert!(now[..4096].iter().all(|b| *b == byte), "block {n}");
        assert!(now[4096..].iter().all(|b| *b == 0), "behind block {n}");
    }
    drop(edge);
    context.control.end();
    must("qemu-img", &["check", "-f", "vhdx", &path]);
}

fn create_image_of(path: &str, size: u64) {
    let created = create(path, "vhdx", &["block_size=1M"], size).unwrap();
    created.edge.device().finish().unwrap();
    created.made.unwrap().keep();
}

/// An image with all that it names, to be written or read.
fn opened(path: &str, format: &str, write: bool) -> Result<(Edge, Context)> {
    let context = Context::default();
    let image = Image { external: External::Chain, ..Image::of(format).unwrap() };
    let options = OpenOptions { write, ..OpenOptions::default() };
    let stack = Stack::default().over_image(image);
    let opened = disk::open(&Named::parse(path).unwrap(), &stack, &options, &context)?;
    Ok((opened.edge, context))
}

/// Opens a VHDX image to write it and closes it: its log is replayed, in place.
pub(crate) fn replay(path: &str) -> Vec<u8> {
    let (edge, context) = when_unlocked(|| opened(path, "vhdx", true)).unwrap();
    let bytes = all(&edge);
    drop(edge);
    context.control.end();
    assert!(context.control.take_complaints().is_empty());
    bytes
}

/// Writes into a differencing image that has these bytes, within blocks, over their ends, and where
/// it has only some of the sectors.
pub(crate) fn write_over_parent(path: &str, format: &str, bytes: &mut [u8]) {
    let (edge, context) = when_unlocked(|| opened(path, format, true)).unwrap();
    let (mut dice, size) = (Dice::new(9), bytes.len());
    for n in 1..60u8 {
        let at = dice.below(size);
        let most = [700, 5000, 400_000][dice.below(3)];
        let len = (1 + dice.below(most)).min(size - at);
        if n % 8 == 0 {
            edge.flush().unwrap();
        }
        let byte = if n % 5 == 0 { 0 } else { n };
        if byte == 0 {
            edge.zero(at as u64, len as u64, ZeroFlags::default()).unwrap();
        } else {
            edge.write(&vec![byte; len], at as u64, false).unwrap();
        }
        bytes[at..at + len].fill(byte);
    }
    assert!(all(&edge) == bytes, "{format}");
    drop(edge);
    context.control.end();
    assert!(context.control.take_complaints().is_empty());
    let (edge, _context) = when_unlocked(|| opened(path, format, false)).unwrap();
    assert!(all(&edge) == bytes, "{format}: closed");
}

/// A VHDX image that cannot be written: why not. It stays as it was.
pub(crate) fn refused(path: &str) -> String {
    let before = std::fs::read(path).unwrap();
    let error = opened(path, "vhdx", true).map(drop).unwrap_err().to_string();
    assert!(std::fs::read(path).unwrap() == before, "{error}");
    error
}

#[test]
fn an_overlay_over_a_vmdk_is_written_in_turns_with_qemu_and_its_parent_stays() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.qemu_img(&format!("create -f vmdk base.vmdk {SIZE}"));
    place.qemu_io("vmdk", "base.vmdk", &["write -P 7 100k 3M".to_owned()]);
    place.qemu_img("create -f vmdk -b base.vmdk -F vmdk over.vmdk");
    let mut model = vec![0; to_usize(SIZE)];
    model[100 << 10..(100 << 10) + (3 << 20)].fill(7);
    let before = place.read("base.vmdk");
    turns(&place, "over.vmdk", model, 800);
    assert!(place.read("base.vmdk") == before, "the parent was changed");
}

/// A qemu-io that has an image open to write it, until its input ends.
fn qemu_holds(place: &Place, format: &str, name: &str) -> Child {
    let mut qemu = Command::new("qemu-io");
    let qemu = qemu.args(["-f", format, name]).current_dir(&place.0);
    let mut qemu = qemu.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    qemu.stdin.as_mut().unwrap().write_all(b"write 0 512\n").unwrap();
    let mut said = String::new();
    let mut out = BufReader::new(qemu.stdout.as_mut().unwrap());
    while !said.contains("wrote") {
        said.clear();
        assert!(out.read_line(&mut said).unwrap() > 0, "{name}: qemu-io ended");
    }
    qemu
}

#[test]
fn two_writers_of_an_image_with_blocks_are_refused_in_both_orders_and_a_reader_is_told() {
    if !has_qemu() {
        return;
    }
    for (format, options) in [
        ("vdi", "static=off"),
        ("vpc", "subformat=dynamic"),
        ("vpc", "subformat=fixed"),
        ("vhdx", "subformat=dynamic"),
        ("vmdk", "subformat=monolithicSparse"),
        ("vmdk", "subformat=monolithicFlat"),
        ("vmdk", "subformat=twoGbMaxExtentSparse"),
        ("vmdk", "subformat=twoGbMaxExtentFlat"),
    ] {
        let (place, name) = (Place::new(), format!("image.{format}"));
        place.qemu_img(&format!("create -f {format} -o {options} {name} 1M"));
        let ours = Written::open(&place, &name).unwrap();
        // Each file that it consists of, for a writer of it as it is, too.
        let mut files: Vec<_> = std::fs::read_dir(&place.0)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .map(|file| ("raw", file))
            .collect();
        files.push((format, name.clone()));
        for (format, file) in &files {
            for args in [&["-c", "write 0 512"][..], &["-r", "-c", "read 0 512"]] {
                // QEMU lets others write to what it reads as it is.
                if *format == "raw" && args.contains(&"-r") {
                    continue;
                }
                let mut qemu = Command::new("qemu-io");
                let qemu = qemu.args(["-f", format]).args(args).arg(file).current_dir(&place.0);
                let out = qemu.stdin(Stdio::null()).output().unwrap();
                let errors = String::from_utf8_lossy(&out.stderr).into_owned();
                assert!(errors.contains("lock"), "{file} as {format}: {args:?}: {errors}");
            }
        }
        let refused = |write| opened(&place.path(&name), format, write).map(drop).unwrap_err();
        assert_eq!(refused(true).kind(), ErrorKind::Locked, "{name}");
        ours.close();
        let mut qemu = qemu_holds(&place, format, &name);
        assert_eq!(refused(true).kind(), ErrorKind::Locked, "{name}");
        let told = refused(false).to_string();
        assert!(told.contains("in use by another program"), "{name}: {told}");
        drop(qemu.stdin.take());
        qemu.wait().unwrap();
        Written::open(&place, &name).unwrap().close();
    }
}

#[test]
fn an_image_of_which_an_extent_is_missing_or_not_whole_is_not_written() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    for options in ["subformat=twoGbMaxExtentSparse", "subformat=twoGbMaxExtentFlat"] {
        let name = format!("{}.vmdk", options.replace('=', "-"));
        place.qemu_img(&format!("create -f vmdk -o {options} {name} 3G"));
        let kind = if options.ends_with("Sparse") { "s" } else { "f" };
        let second = name.replace(".vmdk", &format!("-{kind}002.vmdk"));
        let first = name.replace(".vmdk", &format!("-{kind}001.vmdk"));
        let away = place.0.join("away");
        let before = (place.read(&name), std::fs::metadata(place.0.join(&first)).unwrap().len());
        std::fs::rename(place.0.join(&second), &away).unwrap();
        let gone = Written::open(&place, &name).map(drop).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
        std::fs::rename(&away, place.0.join(&second)).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(place.0.join(&second)).unwrap();
        file.set_len(1000).unwrap();
        let short = Written::open(&place, &name).map(drop).unwrap_err();
        assert_eq!(short.kind(), ErrorKind::Corrupt, "{short}");
        let after = (place.read(&name), std::fs::metadata(place.0.join(&first)).unwrap().len());
        assert!(before == after, "{name}: it was changed");
    }
}
