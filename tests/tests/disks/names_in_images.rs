//! An image that names a file of the system opens nothing of it, whatever is done with the image,
//! with a sandbox and without: strace is the witness. These are the names that lead up and out, the
//! rarer kinds of extents, and the parents of images of Microsoft's formats.

use std::path::PathBuf;

use blackbox::peers::{diskferry, peer};
use blackbox::run::{ours, program, run};
use blackbox::temp::TempDir;

/// What is named.
const SECRET: &str = "/etc/passwd";

/// An image, and its format.
type Image = (PathBuf, &'static str);

/// qcow2: a backing image above all directories.
fn qcow2(dir: &TempDir, qemu_img: &PathBuf) -> Image {
    let image = dir.join("relative.qcow2");
    let backing = format!("{}{SECRET}", "../".repeat(32));
    let create = ["create", "-q", "-f", "qcow2", "-u", "-F", "raw", "-b", &backing];
    run(program(qemu_img, create).arg(&image).arg("1M")).succeeded();
    (image, "qcow2")
}

/// vmdk: extents of other kinds, and one above all directories.
fn vmdk(dir: &TempDir) -> Vec<Image> {
    let descriptor = |name: &str, kind: &str, extent: &str| {
        let text = format!(
            "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType=\"{kind}\"\n\n# Extent description\n\
             {extent}\n\n# The Disk Data Base\nddb.virtualHWVersion = \"4\"\nddb.geometry.cylinders = \"2\"\n\
             ddb.geometry.heads = \"16\"\nddb.geometry.sectors = \"63\"\nddb.adapterType = \"ide\"\n"
        );
        (dir.file(name, text.as_bytes()), "vmdk")
    };
    let relative = format!("RW 2048 FLAT \"{}{SECRET}\" 0", "../".repeat(32));
    let sparse = format!("RW 2048 SPARSE \"{SECRET}\"");
    let vmfs = format!("RW 2048 VMFS \"{SECRET}\"");
    let device = "RW 2048 FLAT \"/dev/zero\" 0";
    vec![
        descriptor("relative.vmdk", "monolithicFlat", &relative),
        descriptor("split.vmdk", "twoGbMaxExtentSparse", &sparse),
        descriptor("vmfs.vmdk", "vmfs", &vmfs),
        descriptor("device.vmdk", "fullDevice", device),
    ]
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
fn vhdx(dir: &TempDir) -> Image {
    let path = made_by_us(dir, "parent.vhdx", "vhdx");
    let mut bytes = std::fs::read(&path).unwrap();
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
        (utf16("absolute_win32_path", u16::to_le_bytes), utf16(SECRET, u16::to_le_bytes));
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
    std::fs::write(&path, bytes).unwrap();
    (path, "vhdx")
}

/// vpc: the same.
fn vpc(dir: &TempDir) -> Image {
    let path = made_by_us(dir, "parent.vhd", "vpc");
    let mut bytes = std::fs::read(&path).unwrap();
    let footer = bytes.len() - 512;
    let header = bytes.windows(8).position(|window| window == b"cxsparse").unwrap();
    put(&mut bytes, header + 64, &utf16(SECRET, u16::to_be_bytes));
    for (at, len, sum) in [(0, 512, 64), (footer, 512, 64), (header, 1024, 36)] {
        if len == 512 {
            put(&mut bytes, at + 60, &4_u32.to_be_bytes());
        }
        put(&mut bytes, at + sum, &[0; 4]);
        let all: u32 = bytes[at..at + len].iter().map(|byte| u32::from(*byte)).sum();
        put(&mut bytes, at + sum, &(!all).to_be_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    (path, "vpc")
}

/// What is done with an image: words before and after its name.
fn uses<'a>(format: &'a str, out: &'a str) -> Vec<(Vec<&'a str>, Vec<&'a str>)> {
    vec![
        (vec!["info", "-f", format], vec![]),
        (vec!["inspect", "--safe", "-f", format], vec![]),
        (vec!["check", "-f", format], vec![]),
        (vec!["map", "--output=json", "-f", format], vec![]),
        (vec!["measure", "-O", "qcow2", "-f", format], vec![]),
        (vec!["convert", "-f", format, "-O", "raw"], vec![out]),
        (vec!["convert", "-O", "raw"], vec![out]),
        (vec!["copy", "-f", format], vec![out]),
        (vec!["compare", "-f", format, "-F", "raw"], vec!["null:1M"]),
        (vec!["serve", "--format", format], vec!["--run", "true"]),
    ]
}

#[test]
fn what_an_image_names_is_opened_by_no_verb_with_and_without_a_sandbox() {
    let (Some(qemu_img), Some(strace)) = (peer("qemu-img"), peer("strace")) else { return };
    let dir = TempDir::new();
    let mut images = vmdk(&dir);
    images.extend([qcow2(&dir, &qemu_img), vhdx(&dir), vpc(&dir)]);
    let (trace, out) = (dir.join("trace"), dir.join("out"));
    let out = out.to_str().unwrap();
    for (image, format) in &images {
        let mut refusals = 0;
        for ((before, after), wish) in uses(format, out).into_iter().flat_map(|used| {
            ["--sandbox=off", "--sandbox=require"].map(|wish| (used.clone(), wish))
        }) {
            let mut traced =
                program(&strace, ["-f", "-e", "trace=openat,openat2,open,creat", "-o"]);
            traced.arg(&trace).arg(diskferry()).arg(before[0]).arg(wish).args(&before[1..]);
            let done = run(traced.arg(image).args(&after));
            refusals += usize::from(!done.status.success());
            assert!(!done.stderr.contains("panicked"), "{done:?}");
            let calls = std::fs::read_to_string(&trace).unwrap();
            // The sandbox names devices that every user may open, which opens none.
            let calls: Vec<_> = calls.lines().filter(|line| !line.contains("O_PATH")).collect();
            let calls = calls.join("\n");
            assert!(calls.contains(image.to_str().unwrap()), "{calls}");
            for named in [SECRET, "/dev/zero"] {
                assert!(!calls.contains(named), "{done:?}\n{calls}");
            }
            let _ = std::fs::remove_file(out);
        }
        // What cannot be had without it is refused: else this test would prove nothing.
        assert!(refusals >= 6, "{}: {refusals}", image.display());
    }
}

#[test]
fn what_an_image_names_is_reported_and_not_opened() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let dir = TempDir::new();
    let others = [qcow2(&dir, &qemu_img), vhdx(&dir), vpc(&dir)];
    for (image, format) in vmdk(&dir).into_iter().chain(others) {
        let verdict = run(ours(["inspect", "--safe", "-f", format]).arg(&image));
        assert_eq!(verdict.status.code(), Some(1), "{verdict:?}");
        let told = verdict.stdout.contains(SECRET) || verdict.stdout.contains("/dev/zero");
        assert!(told, "{verdict:?}");
    }
}
