//! An image that names a file opens nothing of it, whatever is done with the image, with a sandbox
//! and without: strace is the witness. Each kind of reference, names that lead up and out, the
//! rarer kinds of extents, and the parents of images of Microsoft's formats.

use std::fs;
use std::path::PathBuf;

use blackbox::peers::peer;
use blackbox::run::{ours, program, run, text};
use blackbox::temp::{TempDir, pattern};

use super::images::opened_by;

/// An image, and its format.
type Image = (PathBuf, &'static str);

/// Images that name `secret`, or a device.
fn naming(secret: &str, dir: &TempDir) -> Option<Vec<Image>> {
    let mut all = qcow2(&peer("qemu-img")?, secret, dir);
    all.extend(vmdk(secret, dir));
    all.extend([vhdx(secret, dir), vpc(secret, dir)]);
    Some(all)
}

/// Backing images, one of them above all directories, and a data file.
fn qcow2(qemu_img: &PathBuf, secret: &str, dir: &TempDir) -> Vec<Image> {
    let make = |name: &str, words: &[&str]| {
        let path = dir.join(name);
        let create = ["create", "-q", "-f", "qcow2"].iter().chain(words);
        run(program(qemu_img, create).arg(&path).arg("1M")).succeeded();
        (path, "qcow2")
    };
    let relative = format!("{}{secret}", "../".repeat(32));
    let json = format!("json:{{\"driver\":\"raw\",\"file.filename\":\"{secret}\"}}");
    let backing = [("absolute", secret), ("relative", &relative), ("json", &json)];
    let mut all: Vec<_> =
        backing.map(|(name, below)| make(name, &["-u", "-F", "raw", "-b", below])).into();
    // qemu-img makes the file, too.
    let (data, raw) = (format!("{secret}.data"), pattern(0, 1 << 20));
    all.push(make("data", &["-o", &format!("data_file={data},data_file_raw=on")]));
    fs::write(data, raw).unwrap();
    all
}

/// Extents of all kinds, one above all directories, and a parent.
fn vmdk(secret: &str, dir: &TempDir) -> Vec<Image> {
    let up = "../".repeat(32);
    let kinds = [
        ("flat", "monolithicFlat", format!("RW 2048 FLAT \"{secret}\" 0")),
        ("up", "monolithicFlat", format!("RW 2048 FLAT \"{up}{secret}\" 0")),
        ("split", "twoGbMaxExtentSparse", format!("RW 2048 SPARSE \"{secret}\"")),
        ("vmfs", "vmfs", format!("RW 2048 VMFS \"{secret}\"")),
        ("device", "fullDevice", "RW 2048 FLAT \"/dev/zero\" 0".to_owned()),
        ("child", "monolithicSparse", format!("parentFileNameHint=\"{secret}\"\n\nRW 2048 ZERO")),
    ];
    let descriptor = |(name, kind, extent): (&str, &str, String)| {
        let parent = if name == "child" { "87654321" } else { "ffffffff" };
        let text = format!(
            "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID={parent}\ncreateType=\"{kind}\"\n\n# Extent description\n\
             {extent}\n\n# The Disk Data Base\nddb.virtualHWVersion = \"4\"\nddb.geometry.cylinders = \"2\"\n\
             ddb.geometry.heads = \"16\"\nddb.geometry.sectors = \"63\"\nddb.adapterType = \"ide\"\n"
        );
        (dir.file(&format!("{name}.vmdk"), text.as_bytes()), "vmdk")
    };
    kinds.map(descriptor).into()
}

fn made_by_us(dir: &TempDir, name: &str, format: &str) -> PathBuf {
    let image = dir.join(name);
    run(ours(["create", "-q", "-f", format]).arg(&image).arg("1M")).succeeded();
    image
}

fn utf16(text: &str, order: fn(u16) -> [u8; 2]) -> Vec<u8> {
    text.encode_utf16().flat_map(order).collect()
}

fn put(bytes: &mut [u8], at: usize, new: &[u8]) {
    bytes[at..at + new.len()].copy_from_slice(new);
}

/// vhdx: the parent of a differencing image.
fn vhdx(secret: &str, dir: &TempDir) -> Image {
    let path = made_by_us(dir, "parent.vhdx", "vhdx");
    let mut bytes = fs::read(&path).unwrap();
    let metadata = bytes.windows(8).position(|window| window == b"metadata").unwrap();
    let entry = |i: usize| metadata + 32 + 32 * i;
    let number = |bytes: &[u8], at: usize| {
        usize::try_from(u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())).unwrap()
    };
    let parameters = metadata + number(&bytes, entry(0) + 16);
    bytes[parameters + 4] |= 2;
    let count = usize::from(bytes[metadata + 10]);
    bytes[metadata + 10] += 1;
    let (key, value) =
        (utf16("absolute_win32_path", u16::to_le_bytes), utf16(secret, u16::to_le_bytes));
    let short = |n: usize| u16::try_from(n).unwrap().to_le_bytes();
    let long = |n: usize| u32::try_from(n).unwrap().to_le_bytes();
    let mut locator = vec![0; 16];
    locator.extend([short(0), short(1)].concat());
    locator.extend([long(32), long(32 + key.len())].concat());
    locator.extend([short(key.len()), short(value.len())].concat());
    locator.extend([key, value].concat());
    let at = 70_000;
    // The parent locator's GUID: a8d35f2d-b30b-454d-abf7-d3d84834ab0c.
    let guid = [
        0x2d, 0x5f, 0xd3, 0xa8, 0x0b, 0xb3, 0x4d, 0x45, 0xab, 0xf7, 0xd3, 0xd8, 0x48, 0x34, 0xab,
        0x0c,
    ];
    put(&mut bytes, entry(count), &guid);
    put(&mut bytes, entry(count) + 16, &[long(at), long(locator.len()), long(4)].concat());
    put(&mut bytes, metadata + at, &locator);
    fs::write(&path, bytes).unwrap();
    (path, "vhdx")
}

/// vpc: the same.
fn vpc(secret: &str, dir: &TempDir) -> Image {
    let path = made_by_us(dir, "parent.vhd", "vpc");
    let mut bytes = fs::read(&path).unwrap();
    let footer = bytes.len() - 512;
    let header = bytes.windows(8).position(|window| window == b"cxsparse").unwrap();
    put(&mut bytes, header + 64, &utf16(secret, u16::to_be_bytes));
    for (at, len, sum) in [(0, 512, 64), (footer, 512, 64), (header, 1024, 36)] {
        if len == 512 {
            put(&mut bytes, at + 60, &4_u32.to_be_bytes());
        }
        put(&mut bytes, at + sum, &[0; 4]);
        let all: u32 = bytes[at..at + len].iter().map(|byte| u32::from(*byte)).sum();
        put(&mut bytes, at + sum, &(!all).to_be_bytes());
    }
    fs::write(&path, bytes).unwrap();
    (path, "vpc")
}

/// What is done with an image, which `IMAGE` stands for; `OUT` is a file that is not there.
const USES: &[&str] = &[
    "convert -f FORMAT -O raw IMAGE OUT",
    "convert IMAGE OUT",
    "copy -f FORMAT IMAGE OUT",
    "dd -f FORMAT if=IMAGE of=OUT",
    "map -f FORMAT --output=json IMAGE",
    "compare -f FORMAT -F FORMAT IMAGE IMAGE",
    "compare -f FORMAT -F raw IMAGE null:1M",
    "measure -f FORMAT -O qcow2 IMAGE",
    "serve --format FORMAT IMAGE --run true",
    "info -f FORMAT IMAGE",
    "info IMAGE",
    "check -f FORMAT IMAGE",
    "inspect --safe -f FORMAT IMAGE",
];

/// What leads out of an image is said, and refused where it is needed.
#[test]
fn nothing_that_an_image_names_is_opened_by_any_verb() {
    let elsewhere = TempDir::new();
    let secret = elsewhere.file("secret", &pattern(0, 1 << 20));
    let dir = TempDir::new();
    let Some(images) = naming(text(&secret), &dir) else { return };
    let out = dir.join("out");
    for (image, format) in &images {
        let image = text(image);
        for (line, wish) in USES.iter().flat_map(|line| [(line, "off"), (line, "require")]) {
            let wish = format!("--sandbox={wish}");
            let line = line.replacen(' ', &format!(" {wish} "), 1);
            let line = line.replace("FORMAT", format).replace("OUT", text(&out));
            let line = line.replace("IMAGE", image);
            let words: Vec<_> = line.split(' ').collect();
            let Some((opened, outcome)) = opened_by(&words) else { return };
            // The sandbox names devices that every user may open, which opens none.
            let opened: Vec<_> = opened.lines().filter(|call| !call.contains("O_PATH")).collect();
            assert!(opened.iter().any(|call| call.contains(image)), "{outcome:#?}: {opened:#?}");
            let is_named = |text: &str| text.contains("/secret") || text.contains("/dev/zero");
            let named: Vec<_> = opened.iter().filter(|call| is_named(call)).collect();
            assert!(named.is_empty(), "{outcome:#?} opened it: {named:#?}");
            assert!(!out.exists(), "{outcome:#?}");
            match words[0] {
                "info" | "check" => {}
                "inspect" => assert!(is_named(&outcome.stdout), "{outcome:#?}"),
                _ => assert!(!outcome.status.success(), "{outcome:#?}"),
            }
        }
    }
}
