//! Images of the format vmdk, from qemu-img and to it. Without qemu-img nothing is shown, unless
//! `REQUIRE_PEERS=1`.

#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use device::{Edge, Extent, Stored};
use disk::{External, Image, Named, OpenOptions, Stack};
use runtime::Context;

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

    /// A raw disk of so many bytes: noise, text, holes and blocks of zeroes that are written.
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

/// Whether qemu-img is there.
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
fn every_kind_that_qemu_makes_is_read() {
    if !has_qemu() {
        return;
    }
    let directory = Directory::new("kinds");
    for size in [9 << 20 | 512, (2 << 30) + (5 << 20)] {
        let raw = directory.disk("raw", size);
        let long = size > 2 << 30;
        for subformat in SUBFORMATS {
            for zeroed in ["on", "off"] {
                let flat = subformat.ends_with("Flat");
                // A long disk is for those that are split.
                if zeroed == "on" && (flat || long) || long && !subformat.starts_with("two") {
                    continue;
                }
                let options = format!("subformat={subformat},zeroed_grain={zeroed}");
                directory.run(&[
                    "qemu-img",
                    "convert",
                    "-O",
                    "vmdk",
                    "-o",
                    &options,
                    "raw",
                    "image.vmdk",
                ]);
                let edge = open(&directory.at("image.vmdk")).unwrap();
                check(&edge, &raw);
                let places = map(&edge).iter().any(|extent| extent.place.is_some());
                assert_eq!(places, subformat != "streamOptimized", "{options}");
            }
        }
    }
}

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
