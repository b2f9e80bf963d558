//! Images of the format vmdk, from qemu-img and to it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use device::{Edge, Stored};
use disk::{External, Holds, Image, Named, OpenOptions, Stack};
use runtime::{Context, to_usize};
use serde_json::Value;

use crate::support::{
    Dice, Place, check_bytes, check_map, create_image, has_qemu, image, open_image, pattern,
    whole_map,
};

/// A raw disk of this many bytes: noise, text, holes and blocks of zeroes that are written.
fn disk_of(place: &Place, name: &str, size: u64) -> String {
    let path = place.path(name);
    let file = File::create(&path).unwrap();
    file.set_len(size).unwrap();
    let mut dice = Dice::new(size);
    for piece in 0..60u64 {
        let at = match piece {
            0 => 0,
            1 => size - size.min(70_000),
            _ => dice.below_u64(size),
        };
        let len = to_usize(dice.below_u64(200_000).min(size - at));
        let bytes: Vec<u8> = match piece % 4 {
            0 | 1 => dice.noise(len),
            2 => (0..len).map(|i| b"the quick brown fox "[i % 20]).collect(),
            _ => vec![0; len],
        };
        file.write_all_at(&bytes, at).unwrap();
    }
    path
}

/// The image that names others only beneath its own directory.
fn beneath(path: &str) -> Image {
    let external = External::Beneath(Path::new(path).parent().unwrap().to_owned());
    Image { external, ..image("vmdk") }
}

fn open(path: &str) -> device::Result<Edge> {
    open_image(path, beneath(path))
}

/// The disk is what the raw file holds, and its map is true.
fn check(edge: &Edge, raw: &str) {
    let expected = std::fs::read(raw).unwrap();
    check_bytes(edge, &expected, raw);
    check_map(&whole_map(edge, 7), &expected);
}

const SUBFORMATS: [&str; 5] = [
    "monolithicSparse",
    "monolithicFlat",
    "twoGbMaxExtentSparse",
    "twoGbMaxExtentFlat",
    "streamOptimized",
];

#[test]
fn a_child_reads_through_its_parents_unless_they_were_changed() {
    if !has_qemu() {
        return;
    }
    let place = Place::on_disk();
    disk_of(&place, "raw", 20 << 20);
    place.qemu_img("convert -O vmdk raw base.vmdk");
    let child = "create -q -f vmdk -F vmdk -o zeroed_grain=on";
    place.qemu_img(&format!("{child} -b base.vmdk mid.vmdk"));
    place.qemu_io("vmdk", "mid.vmdk", &["write -P 7 1M 300k", "write -z 3M 1M"]);
    place.qemu_img(&format!("{child} -b mid.vmdk top.vmdk"));
    place.qemu_io("vmdk", "top.vmdk", &["write -P 9 1100k 4k"]);
    place.qemu_img("convert -O raw top.vmdk all");
    let edge = open(&place.path("top.vmdk")).unwrap();
    check(&edge, &place.path("all"));
    let depths: std::collections::BTreeSet<_> =
        whole_map(&edge, 7).iter().map(|e| e.depth).collect();
    assert_eq!(depths.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
    let refused = open_image(place.path("top.vmdk"), image("vmdk")).unwrap_err();
    assert!(refused.to_string().contains("allow-external"), "{refused}");
    // A write to the parent gives it another number.
    drop(edge);
    place.qemu_io("vmdk", "base.vmdk", &["write 0 4k"]);
    let changed = open(&place.path("top.vmdk")).unwrap_err();
    assert!(changed.to_string().contains("was changed since"), "{changed}");
}

#[test]
fn what_is_compressed_has_a_home_and_no_place() {
    if !has_qemu() {
        return;
    }
    let place = Place::on_disk();
    disk_of(&place, "raw", 4 << 20);
    place.qemu_img("convert -O vmdk -o subformat=streamOptimized raw image.vmdk");
    let edge = open(&place.path("image.vmdk")).unwrap();
    for extent in whole_map(&edge, 7).iter().filter(|extent| !extent.kind.reads_zero()) {
        assert!(extent.place.is_none());
        let home = extent.home.unwrap();
        assert!(matches!(home.stored, Stored::Packed { len } if len > 0), "{home:?}");
    }
}

/// Copies a raw file into a new image, as a whole, and returns the report.
fn make(raw: &str, to: &str, options: &[&str], copying: &copy::Options) -> device::Result<()> {
    let context = Context::default();
    let source = disk::open(
        &Named::parse(&format!("file:{raw}")).unwrap(),
        &Stack::default(),
        &OpenOptions::read_only(),
        &context,
    )?;
    let created = create_image(to, beneath(to), options, source.edge.info().size)?;
    let copying = copy::Options {
        target_is_zero: created.holds == Holds::Zeroes,
        apart: true,
        flush: copy::Flush::Never,
        ..copying.clone()
    };
    let (progress, cancel) = (copy::Progress::default(), copy::Cancel::default());
    let plan = copy::CopyPlan::Map;
    copy::run(&source.edge, &created.edge, &plan, &copying, &progress, &cancel)
        .map_err(|failure| failure.error)?;
    created.made.iter().for_each(|made| made.keep());
    Ok(())
}

fn equal(place: &Place, image: &str) {
    place.qemu_img(&format!("compare -f raw -F vmdk raw {image}"));
    check(&open(&place.path(image)).unwrap(), &place.path("raw"));
}

#[test]
fn a_new_child_holds_what_was_copied_whatever_its_parent_has() {
    if !has_qemu() {
        return;
    }
    let place = Place::on_disk();
    let raw = disk_of(&place, "raw", 12 << 20);
    place.qemu_img("create -q -f vmdk base.vmdk 12M");
    place.qemu_io("vmdk", "base.vmdk", &["write -P 5 0 12M"]);
    for zeroed in ["zeroed_grain=on", "zeroed_grain=off"] {
        let options = ["backing_file=base.vmdk", zeroed];
        make(&raw, &place.path("child.vmdk"), &options, &copy::Options::default()).unwrap();
        equal(&place, "child.vmdk");
    }
}

/// A reader of streams, from VMware's "Virtual Disk Format 5.0" alone: from the first byte to the
/// last, by the markers; then by the directory in the footer, which must lead to the same, and by
/// the one that the header has, if it has one.
fn read_stream(bytes: &[u8]) -> Vec<u8> {
    const SECTOR: usize = 512;
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let sectors = |n: u64| to_usize(n) * SECTOR;
    let header = |at: usize| {
        assert_eq!((&bytes[at..at + 4], u32_at(at + 4)), (&b"KDMV"[..], 3));
        // Newlines are checked, grains are compressed, and there are markers.
        assert_eq!(u32_at(at + 8) & 0x3_0001, 0x3_0001);
        assert_eq!((u64_at(at + 20), u32_at(at + 44)), (128, 512));
        assert_eq!(&bytes[at + 72..at + 79], b"\0\n \r\n\x01\0");
        (u64_at(at + 12), u64_at(at + 56))
    };
    let (capacity, first) = header(0);
    let (at, len) = (sectors(u64_at(28)), sectors(u64_at(36)));
    let descriptor = bytes[at..at + len].split(|b| *b == 0).next().unwrap();
    let descriptor = std::str::from_utf8(descriptor).unwrap();
    assert!(descriptor.contains("createType=\"streamOptimized\""));
    assert!(descriptor.contains(&format!("\nRW {capacity} SPARSE \"")));
    assert!(descriptor.contains("\nddb.adapterType = "));

    let mut disk = vec![0; sectors(capacity)];
    let mut tables = vec![0; to_usize(capacity.div_ceil(65536))];
    let (mut grains, mut last, mut found) = (vec![0u32; 512], None, None);
    let mut places = vec![0u32; tables.len() * 512];
    let mut at = sectors(u64_at(64));
    loop {
        let (value, size) = (u64_at(at), u32_at(at + 8));
        if size > 0 {
            assert!(last < Some(value) && value % 128 == 0 && value < capacity, "grain {value}");
            last = Some(value);
            let packed = &bytes[at + 12..at + 12 + size as usize];
            let mut grain = vec![0; 65536];
            let mut unpacker = libdeflater::Decompressor::new();
            assert_eq!(unpacker.zlib_decompress(packed, &mut grain).unwrap(), 65536);
            let start = sectors(value);
            let n = disk.len().min(start + 65536) - start;
            disk[start..start + n].copy_from_slice(&grain[..n]);
            grains[to_usize(value / 128 % 512)] = u32::try_from(at / SECTOR).unwrap();
            at += (12 + packed.len()).next_multiple_of(SECTOR);
            continue;
        }
        let kind = u32_at(at + 12);
        assert!(bytes[at + 16..at + SECTOR].iter().all(|b| *b == 0));
        at += SECTOR;
        match kind {
            1 => {
                assert_eq!(value, 4);
                let there: Vec<u32> = (0..512).map(|i| u32_at(at + i * 4)).collect();
                assert_eq!(there, grains, "a table has the grains in front of it");
                let table = to_usize(last.unwrap() / 65536);
                places[table * 512..][..512].copy_from_slice(&grains);
                grains.fill(0);
                tables[table] = u32::try_from(at / SECTOR).unwrap();
                at += sectors(value);
            }
            2 => {
                assert_eq!(value, (tables.len() as u64 * 4).div_ceil(512));
                let there: Vec<u32> = (0..tables.len()).map(|i| u32_at(at + i * 4)).collect();
                assert_eq!(there, tables, "the directory has all tables");
                assert!(grains.iter().all(|grain| *grain == 0));
                found = Some(at / SECTOR);
                at += sectors(value);
            }
            3 => {
                assert_eq!(value, 1);
                let (again, directory) = header(at);
                assert_eq!((again, Some(to_usize(directory))), (capacity, found));
                at += SECTOR;
                assert!(bytes[at..].iter().all(|b| *b == 0) && bytes.len() == at + SECTOR);
                if first == u64::MAX {
                    return disk;
                }
                // A program that writes in place finds room for every grain, before the first of
                // them.
                let all: Vec<u32> = (0..tables.len())
                    .map(|i| u32_at(sectors(first) + i * 4))
                    .inspect(|table| assert!(u64::from(*table) + 4 <= u64_at(64)))
                    .flat_map(|table| (0..512).map(move |i| (table, i)))
                    .map(|(table, i)| u32_at(sectors(table.into()) + i * 4))
                    .collect();
                assert!(all == places, "the tables in front have what those behind have");
                return disk;
            }
            _ => panic!("a marker of the kind {kind} at {at}"),
        }
    }
}

#[test]
fn a_stream_is_what_the_specification_says_in_whatever_order_it_was_brought() {
    let place = Place::on_disk();
    for (size, threads) in [(512, 1), (65_536, 1), (33 << 20, 4), (32 << 20, 3), (100 << 20, 4)] {
        let raw = disk_of(&place, "raw", size);
        let copying = copy::Options {
            threads: Some(threads),
            requests: Some(1 + threads * 3),
            request_size: 64 << 10,
            ..copy::Options::default()
        };
        let options = ["subformat=streamOptimized", "compression_level=1"];
        make(&raw, &place.path("file.vmdk"), &options, &copying).unwrap();
        let image = place.read("file.vmdk");
        assert_ne!(image[56..64], [0xff; 8], "the directory is in front");
        assert!(read_stream(&image) == std::fs::read(&raw).unwrap(), "{size} bytes");
        check(&open(&place.path("file.vmdk")).unwrap(), &raw);
        let pipe = place.path("pipe.vmdk");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = {
            let pipe = pipe.clone();
            std::thread::spawn(move || std::fs::read(pipe).unwrap())
        };
        make(&raw, &pipe, &options, &copying).unwrap();
        let image = reader.join().unwrap();
        std::fs::remove_file(&pipe).unwrap();
        assert_eq!(image[56..64], [0xff; 8], "the directory is in the footer");
        assert!(read_stream(&image) == std::fs::read(&raw).unwrap(), "{size} bytes");
        check(&open(&place.write("stream.vmdk", &image)).unwrap(), &raw);
        // One that was not written to its end is none.
        let refused = open(&place.write("cut.vmdk", &image[..image.len() - 512])).unwrap_err();
        assert!(refused.to_string().contains("not written to its end"), "{refused}");
    }
}

/// QEMU adds grains behind the end and their places to the tables that it finds.
#[test]
fn qemu_writes_into_a_stream_in_place() {
    if !has_qemu() {
        return;
    }
    let place = Place::on_disk();
    let raw = disk_of(&place, "raw", 100 << 20);
    let (empty, half) = (place.path("empty"), place.path("half"));
    File::create(&empty).unwrap().set_len(100 << 20).unwrap();
    let mut bytes = std::fs::read(&raw).unwrap();
    bytes[40 << 20..].fill(0);
    std::fs::write(&half, &bytes).unwrap();
    let options = ["subformat=streamOptimized"];
    let to = place.path("image.vmdk");
    make(&empty, &to, &options, &copy::Options::default()).unwrap();
    let is_sound = |raw: &str| {
        place.qemu_img("check -q -f vmdk image.vmdk");
        place.qemu_img(&format!("compare -q -f raw -F vmdk {raw} image.vmdk"));
    };
    place.qemu_img("convert -n -c -f raw -O vmdk raw image.vmdk");
    is_sound("raw");
    check(&open(&to).unwrap(), &raw);
    std::fs::remove_file(&to).unwrap();
    // Grains that are there stay as they are.
    make(&half, &to, &options, &copy::Options::default()).unwrap();
    for at in (40..100).step_by(7) {
        place.qemu_io("vmdk", "image.vmdk", &[format!("write -q -c -P {at} {at}M 64k")]);
        bytes[at << 20..][..64 << 10].fill(u8::try_from(at).unwrap());
    }
    std::fs::write(&half, &bytes).unwrap();
    is_sound("half");
    check(&open(&to).unwrap(), &half);
}

#[test]
fn an_image_is_described_as_qemu_img_does() {
    if !has_qemu() {
        return;
    }
    let place = Place::on_disk();
    for subformat in SUBFORMATS {
        place.qemu_img(&format!("create -q -f vmdk -o subformat={subformat} a.vmdk 3M"));
        let path = place.path("a.vmdk");
        let told = place.qemu_img(&format!("info --output=json {path}"));
        let mut told: Value = serde_json::from_str(&told).unwrap();
        let container = Named::parse(&format!("file:{path}")).unwrap();
        let (options, context) = (OpenOptions::read_only(), Context::default());
        let opened = disk::open(&container, &Stack::default(), &options, &context).unwrap();
        let format = formats::format("vmdk").unwrap();
        let ours = (format.describe)(&opened.container, &context).unwrap();
        assert_eq!(Some(ours.virtual_size), told["virtual-size"].as_u64());
        let mut specific = Value::Object(ours.specific);
        let theirs = &mut told["format-specific"]["data"];
        // Files that are only named are not opened: their contents are not known.
        for extent in specific["extents"].as_array_mut().unwrap() {
            let file = extent["filename"].as_str().unwrap().to_owned();
            extent["filename"] = place.0.join(file).to_str().unwrap().into();
        }
        if subformat == "twoGbMaxExtentSparse" {
            theirs["extents"][0].as_object_mut().unwrap().remove("cluster-size");
        }
        assert_eq!(specific, *theirs, "{subformat}");
    }
}

#[test]
fn what_lies_over_the_seam_of_two_extents_is_in_both() {
    let place = Place::on_disk();
    let (seam, piece) = (2u64 << 30, 3 << 20);
    for subformat in ["twoGbMaxExtentSparse", "twoGbMaxExtentFlat"] {
        let path = place.path(&format!("{subformat}.vmdk"));
        let options = [&*format!("subformat={subformat}")];
        let made = create_image(&path, beneath(&path), &options, seam + (1 << 30)).unwrap();
        let start = seam - (1 << 20);
        let bytes = pattern(piece, 5);
        made.edge.write(&bytes, start, false).unwrap();
        made.edge.device().finish().unwrap();
        made.made.unwrap().keep();
        drop(made.edge);
        let edge = open(&path).unwrap();
        let mut found = vec![0; piece + (1 << 20)];
        edge.read(&mut found, start).unwrap();
        assert!(found[..piece] == bytes && found[piece..].iter().all(|b| *b == 0), "{subformat}");
        if has_qemu() {
            place.qemu_img(&format!("check -q -f vmdk {subformat}.vmdk"));
        }
    }
}
