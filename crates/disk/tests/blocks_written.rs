//! Images of formats with one level of blocks that this program and QEMU write in turns, as
//! `qcow2_written` does.

use std::process::{Command, Stdio};

use device::{Edge, ErrorKind, Params, Result};
use disk::{External, Image, Named, OpenOptions, Stack};
use formats::{Closed, Opening};
use runtime::{Context, to_usize};
use trial::{PowerCut, TestDice};

use crate::qcow2_written::{SIZE, Written, turns};
use crate::support::{Place, all, create, has_qemu, make, must, pattern};

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
    let (edge, context) = opened(&path).unwrap();
    for n in 0..200u64 {
        edge.write(&[u8::try_from(n).unwrap() | 1; 4096], n * APART, false).unwrap();
    }
    edge.flush().unwrap();
    drop(edge);
    context.control.end();
    assert!(context.control.take_complaints().is_empty());
    let (edge, context) = opened(&path).unwrap();
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

fn opened(path: &str) -> Result<(Edge, Context)> {
    let context = Context::default();
    let image = Image { external: External::Chain, ..Image::of("vhdx").unwrap() };
    let options = OpenOptions { write: true, ..OpenOptions::default() };
    let stack = Stack::default().over_image(image);
    let opened = disk::open(&Named::parse(path).unwrap(), &stack, &options, &context)?;
    Ok((opened.edge, context))
}

/// Opens a VHDX image to write it and closes it: its log is replayed, in place.
pub(crate) fn replay(path: &str) -> Vec<u8> {
    let (edge, context) = opened(path).unwrap();
    let bytes = all(&edge);
    drop(edge);
    context.control.end();
    assert!(context.control.take_complaints().is_empty());
    bytes
}

/// A VHDX image that cannot be written: why not. It stays as it was.
pub(crate) fn refused(path: &str) -> String {
    let before = std::fs::read(path).unwrap();
    let error = opened(path).map(drop).unwrap_err().to_string();
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

#[test]
fn two_writers_of_an_image_with_blocks_are_refused() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    for (format, options) in [
        ("vdi", "static=off"),
        ("vpc", "subformat=dynamic"),
        ("vmdk", "subformat=monolithicSparse"),
        ("vmdk", "subformat=twoGbMaxExtentSparse"),
    ] {
        let name = format!("{}.{format}", options.replace('=', "-"));
        place.qemu_img(&format!("create -f {format} -o {options} {name} 1M"));
        let ours = Written::open(&place, &name).unwrap();
        let mut qemu = Command::new("qemu-io");
        let qemu = qemu.args(["-f", format, "-c", "write 0 512", &name]).current_dir(&place.0);
        let out = qemu.stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(errors.contains("lock"), "{name}: {errors}");
        assert_eq!(Written::open(&place, &name).map(drop).unwrap_err().kind(), ErrorKind::Locked);
        ours.close();
        Written::open(&place, &name).unwrap().close();
    }
}
