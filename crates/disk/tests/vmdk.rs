//! Images of the format vmdk, from qemu-img and to it. Without qemu-img the tests are skipped,
//! unless `REQUIRE_PEERS=1`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use device::{Edge, Extent, Params, Stored};
use disk::{Creation, External, Holds, Image, Named, OpenOptions, Stack};
use runtime::Context;
use serde_json::Value;

/// A directory of its own, removed in the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let name = format!("diskferry-vmdk-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn at(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// A raw disk of this many bytes: noise, text, holes and blocks of zeroes that are written.
    fn disk(&self, name: &str, size: u64) -> String {
        let path = self.at(name);
        let file = File::create(&path).unwrap();
        file.set_len(size).unwrap();
        let mut seed = 0x9e37_79b9_7f4a_7c15u64 ^ size;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        for piece in 0..60u64 {
            let at = match piece {
                0 => 0,
                1 => size - size.min(70_000),
                _ => random() % size,
            };
            let len = (random() % 200_000).min(size - at);
            let len = usize::try_from(len).unwrap();
            let bytes: Vec<u8> = match piece % 4 {
                0 | 1 => (0..len).map(|_| random().to_le_bytes()[3]).collect(),
                2 => (0..len).map(|i| b"the quick brown fox "[i % 20]).collect(),
                _ => vec![0; len],
            };
            file.write_all_at(&bytes, at).unwrap();
        }
        path
    }

    fn run(&self, words: &[&str]) -> Output {
        let (program, words) = words.split_first().unwrap();
        let output = Command::new(program).args(words).current_dir(&self.0).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {words:?}: {said}");
        output
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether qemu-img is installed.
fn has_qemu() -> bool {
    let there = Command::new("qemu-img").arg("--version").output().is_ok();
    assert!(there || std::env::var_os("REQUIRE_PEERS").is_none(), "no qemu-img");
    there
}

fn image(external: External) -> Stack {
    Stack::default().over_image(Image { external, ..Image::of("vmdk").unwrap() })
}

fn open(path: &str) -> device::Result<Edge> {
    let beneath = Path::new(path).parent().unwrap().to_owned();
    open_with(path, External::Beneath(beneath))
}

fn open_with(path: &str, external: External) -> device::Result<Edge> {
    let (named, options) = (Named::parse(path).unwrap(), OpenOptions::read_only());
    let opened = disk::open(&named, &image(external), &options, &Context::default())?;
    assert!(opened.format.is_some_and(|format| format.word == "vmdk"));
    Ok(opened.edge)
}

fn map(edge: &Edge) -> Vec<Extent> {
    let (mut all, mut at, size) = (Vec::new(), 0, edge.info().size);
    while at < size {
        edge.resolve(at, size - at, 7, &mut all).unwrap();
        at = all.last().unwrap().end();
    }
    all
}

/// Whether a sparse file has data in a range.
fn has_data(raw: &File, at: u64, len: u64) -> bool {
    rustix::fs::seek(raw, rustix::fs::SeekFrom::Data(at)).is_ok_and(|data| data < at + len)
}

/// The disk is what the raw file holds: read in long pieces, in short ones, and by its map.
fn check(edge: &Edge, raw: &str) {
    let raw = File::open(raw).unwrap();
    assert_eq!(edge.info().size, raw.metadata().unwrap().len());
    let bytes = |at: u64, len: usize| {
        let mut bytes = vec![0; len];
        raw.read_exact_at(&mut bytes, at).unwrap();
        bytes
    };
    let mut last = 0;
    for extent in map(edge) {
        assert_eq!(extent.start, last);
        last = extent.end();
        let mut at = extent.start;
        while at < last {
            let len = usize::try_from((last - at).min(3 << 20)).unwrap();
            if extent.kind.reads_zero() && len == 3 << 20 && !has_data(&raw, at, len as u64) {
                at += len as u64;
                continue;
            }
            let wanted = bytes(at, len);
            if extent.kind.reads_zero() {
                assert!(wanted.iter().all(|b| *b == 0), "data in a hole at {at}");
            } else {
                let mut read = vec![0xaa; len];
                edge.read(&mut read, at).unwrap();
                assert!(read == wanted, "at {at}, {len} bytes");
            }
            if let Some(place) = &extent.place {
                let mut there = vec![0; len];
                let offset = place.advanced(at - extent.start).offset();
                rustix::io::pread(place.fd(), &mut there, offset).unwrap();
                assert!(there == wanted, "the place at {at}");
            }
            at += len as u64;
        }
    }
    let size = edge.info().size;
    for n in 0..300u64 {
        let at = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % size;
        let len = usize::try_from((1 + n * 977 % 9000).min(size - at)).unwrap();
        let mut read = vec![0xbb; len];
        edge.read(&mut read, at).unwrap();
        assert!(read == bytes(at, len), "at {at}, {len} bytes");
    }
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
    let directory = Directory::new("chain");
    directory.disk("raw", 20 << 20);
    directory.run(&["qemu-img", "convert", "-O", "vmdk", "raw", "base.vmdk"]);
    let child = ["qemu-img", "create", "-q", "-f", "vmdk", "-F", "vmdk", "-o", "zeroed_grain=on"];
    directory.run(&[&child[..], &["-b", "base.vmdk", "mid.vmdk"]].concat());
    let write = ["qemu-io", "-f", "vmdk", "-c", "write -P 7 1M 300k", "-c", "write -z 3M 1M"];
    directory.run(&[&write[..], &["mid.vmdk"]].concat());
    directory.run(&[&child[..], &["-b", "mid.vmdk", "top.vmdk"]].concat());
    directory.run(&["qemu-io", "-f", "vmdk", "-c", "write -P 9 1100k 4k", "top.vmdk"]);
    directory.run(&["qemu-img", "convert", "-O", "raw", "top.vmdk", "all"]);
    let edge = open(&directory.at("top.vmdk")).unwrap();
    check(&edge, &directory.at("all"));
    let depths: std::collections::BTreeSet<_> = map(&edge).iter().map(|e| e.depth).collect();
    assert_eq!(depths.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
    let refused = open_with(&directory.at("top.vmdk"), External::Nothing).unwrap_err();
    assert!(refused.to_string().contains("allow-external"), "{refused}");
    // A write to the parent gives it another number.
    drop(edge);
    directory.run(&["qemu-io", "-f", "vmdk", "-c", "write 0 4k", "base.vmdk"]);
    let changed = open(&directory.at("top.vmdk")).unwrap_err();
    assert!(changed.to_string().contains("was changed since"), "{changed}");
}

#[test]
fn what_is_compressed_has_a_home_and_no_place() {
    if !has_qemu() {
        return;
    }
    let directory = Directory::new("home");
    directory.disk("raw", 4 << 20);
    let options = "subformat=streamOptimized";
    directory.run(&["qemu-img", "convert", "-O", "vmdk", "-o", options, "raw", "image.vmdk"]);
    let edge = open(&directory.at("image.vmdk")).unwrap();
    for extent in map(&edge).iter().filter(|extent| !extent.kind.reads_zero()) {
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
    let external = External::Beneath(Path::new(to).parent().unwrap().to_owned());
    let options = Params::parse(options.iter().copied()).unwrap();
    let image = Image { external, options, ..Image::of("vmdk").unwrap() };
    image.check()?;
    let size = source.edge.info().size;
    let creation = Creation {
        size,
        grows: false,
        upwards: false,
        appears: false,
        whole: true,
        write_back: false,
        options: OpenOptions::read_write(),
    };
    let target = Named::parse(to).unwrap();
    let created = disk::create(&target, &Stack::default().over_image(image), &creation, &context)?;
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

fn equal(directory: &Directory, image: &str) {
    directory.run(&["qemu-img", "compare", "-f", "raw", "-F", "vmdk", "raw", image]);
    check(&open(&directory.at(image)).unwrap(), &directory.at("raw"));
}

#[test]
fn a_new_child_holds_what_was_copied_whatever_its_parent_has() {
    if !has_qemu() {
        return;
    }
    let directory = Directory::new("child");
    let raw = directory.disk("raw", 12 << 20);
    directory.run(&["qemu-img", "create", "-q", "-f", "vmdk", "base.vmdk", "12M"]);
    directory.run(&["qemu-io", "-f", "vmdk", "-c", "write -P 5 0 12M", "base.vmdk"]);
    for zeroed in ["zeroed_grain=on", "zeroed_grain=off"] {
        let options = ["backing_file=base.vmdk", zeroed];
        make(&raw, &directory.at("child.vmdk"), &options, &copy::Options::default()).unwrap();
        equal(&directory, "child.vmdk");
    }
}

/// A reader of streams, from VMware's "Virtual Disk Format 5.0" alone: from the first byte to the
/// last, by the markers; then by the directory in the footer, which must lead to the same, and by
/// the one that the header has, if it has one.
fn read_stream(bytes: &[u8]) -> Vec<u8> {
    const SECTOR: usize = 512;
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let sectors = |n: u64| usize::try_from(n).unwrap() * SECTOR;
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
    let mut tables = vec![0; usize::try_from(capacity.div_ceil(65536)).unwrap()];
    let (mut grains, mut last, mut found) = (vec![0u32; 512], None, None);
    let mut places = vec![0u32; tables.len() * 512];
    let mut at = sectors(u64_at(64));
    loop {
        let (value, size) = (u64_at(at), u32_at(at + 8));
        if size > 0 {
            assert!(last < Some(value) && value % 128 == 0 && value < capacity, "grain {value}");
            last = Some(value);
            let packed = &bytes[at + 12..at + 12 + usize::try_from(size).unwrap()];
            let mut grain = vec![0; 65536];
            let mut unpacker = libdeflater::Decompressor::new();
            assert_eq!(unpacker.zlib_decompress(packed, &mut grain).unwrap(), 65536);
            let start = sectors(value);
            let n = disk.len().min(start + 65536) - start;
            disk[start..start + n].copy_from_slice(&grain[..n]);
            grains[usize::try_from(value / 128 % 512).unwrap()] =
                u32::try_from(at / SECTOR).unwrap();
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
                let table = usize::try_from(last.unwrap() / 65536).unwrap();
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
                assert_eq!((again, usize::try_from(directory).ok()), (capacity, found));
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
    let directory = Directory::new("stream");
    for (size, threads) in [(512, 1), (65_536, 1), (33 << 20, 4), (32 << 20, 3), (100 << 20, 4)] {
        let raw = directory.disk("raw", size);
        let copying = copy::Options {
            threads: Some(threads),
            requests: Some(1 + threads * 3),
            request_size: 64 << 10,
            ..copy::Options::default()
        };
        let options = ["subformat=streamOptimized", "compression_level=1"];
        make(&raw, &directory.at("file.vmdk"), &options, &copying).unwrap();
        let image = std::fs::read(directory.at("file.vmdk")).unwrap();
        assert_ne!(image[56..64], [0xff; 8], "the directory is in front");
        assert!(read_stream(&image) == std::fs::read(&raw).unwrap(), "{size} bytes");
        check(&open(&directory.at("file.vmdk")).unwrap(), &raw);
        let pipe = directory.at("pipe.vmdk");
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
        std::fs::write(directory.at("stream.vmdk"), &image).unwrap();
        check(&open(&directory.at("stream.vmdk")).unwrap(), &raw);
        // One that was not written to its end is none.
        std::fs::write(directory.at("cut.vmdk"), &image[..image.len() - 512]).unwrap();
        let refused = open(&directory.at("cut.vmdk")).unwrap_err();
        assert!(refused.to_string().contains("not written to its end"), "{refused}");
    }
}

/// QEMU adds grains behind the end and their places to the tables that it finds.
#[test]
fn qemu_writes_into_a_stream_in_place() {
    if !has_qemu() {
        return;
    }
    let directory = Directory::new("in-place");
    let raw = directory.disk("raw", 100 << 20);
    let (empty, half) = (directory.at("empty"), directory.at("half"));
    std::fs::File::create(&empty).unwrap().set_len(100 << 20).unwrap();
    let mut bytes = std::fs::read(&raw).unwrap();
    bytes[40 << 20..].fill(0);
    std::fs::write(&half, &bytes).unwrap();
    let options = ["subformat=streamOptimized"];
    let to = directory.at("image.vmdk");
    make(&empty, &to, &options, &copy::Options::default()).unwrap();
    directory.run(&["qemu-img", "convert", "-n", "-c", "-f", "raw", "-O", "vmdk", &raw, &to]);
    directory.run(&["qemu-img", "check", "-q", "-f", "vmdk", &to]);
    directory.run(&["qemu-img", "compare", "-q", "-f", "raw", "-F", "vmdk", &raw, &to]);
    check(&open(&to).unwrap(), &raw);
    std::fs::remove_file(&to).unwrap();
    // Grains that are there stay as they are.
    make(&half, &to, &options, &copy::Options::default()).unwrap();
    for at in (40..100).step_by(7) {
        let write = format!("write -q -c -P {at} {at}M 64k");
        directory.run(&["qemu-io", "-f", "vmdk", "-c", &write, &to]);
        bytes[at << 20..][..64 << 10].fill(u8::try_from(at).unwrap());
    }
    std::fs::write(&half, &bytes).unwrap();
    directory.run(&["qemu-img", "check", "-q", "-f", "vmdk", &to]);
    directory.run(&["qemu-img", "compare", "-q", "-f", "raw", "-F", "vmdk", &half, &to]);
    check(&open(&to).unwrap(), &half);
}

#[test]
fn an_image_is_described_as_qemu_img_does() {
    if !has_qemu() {
        return;
    }
    let directory = Directory::new("info");
    for subformat in SUBFORMATS {
        let options = format!("subformat={subformat}");
        directory.run(&["qemu-img", "create", "-q", "-f", "vmdk", "-o", &options, "a.vmdk", "3M"]);
        let path = directory.at("a.vmdk");
        let told = directory.run(&["qemu-img", "info", "--output=json", &path]).stdout;
        let mut told: Value = serde_json::from_slice(&told).unwrap();
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
            extent["filename"] = directory.0.join(file).to_str().unwrap().into();
        }
        if subformat == "twoGbMaxExtentSparse" {
            theirs["extents"][0].as_object_mut().unwrap().remove("cluster-size");
        }
        assert_eq!(specific, *theirs, "{subformat}");
    }
}
