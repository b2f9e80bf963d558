//! Images by qemu-img are read here, and images made here are read by qemu-img.

use crate::support::{Place, all, image, make, map, must, open, open_image, pattern, peer};

/// Formats, their options, and sizes of disks.
const CASES: &[(&str, &[&str])] = &[
    ("vdi", &[]),
    ("vdi", &["static=on"]),
    ("vpc", &[]),
    ("vpc", &["force_size=on"]),
    ("vpc", &["subformat=fixed"]),
    ("vpc", &["subformat=fixed", "force_size=on"]),
    ("vhdx", &[]),
    ("vhdx", &["block_size=1M", "block_state_zero=off"]),
    ("vhdx", &["subformat=fixed", "log_size=2M"]),
];
/// Those that are read only.
const READ_ONLY: &[(&str, &[&str])] = &[
    ("parallels", &[]),
    ("parallels", &["cluster_size=64k"]),
    ("qed", &[]),
    ("qed", &["cluster_size=16k", "table_size=2"]),
    ("qcow", &[]),
];
const SIZES: &[usize] = &[512, 1 << 20, (5 << 20) + 512];

#[test]
fn what_qemu_img_makes_is_read_as_it_is() {
    let place = Place::new();
    let (raw, path) = (place.path("raw"), place.path("image"));
    for (format, options) in CASES.iter().chain(READ_ONLY) {
        for (seed, size) in (1..).zip(SIZES) {
            let mut bytes = pattern(*size, seed);
            std::fs::write(&raw, &bytes).unwrap();
            let options: Vec<_> = options.iter().flat_map(|o| ["-o", o]).collect();
            let words = [&["convert", "-f", "raw", "-O", format][..], &options, &[&raw, &path]];
            if !must("qemu-img", &words.concat()) {
                return;
            }
            for guess in [format, ""] {
                let disk = open(&path, guess).unwrap();
                bytes.resize(usize::try_from(disk.info().size).unwrap(), 0);
                assert!(all(&disk) == bytes, "{format} {options:?} {size}");
                map(&disk, &bytes);
            }
            assert_eq!(
                description(&path, format),
                qemu_info(&path, format),
                "{format} {options:?}"
            );
        }
    }
}

/// Virtual size and cluster size, as we see them.
fn description(path: &str, format: &str) -> (u64, Option<u64>) {
    let container = open(path, "raw").unwrap();
    let context = runtime::Context::default();
    let found = (disk::format(format).unwrap().describe)(&container, &context).unwrap();
    (found.virtual_size, found.cluster_size)
}

fn qemu_info(path: &str, format: &str) -> (u64, Option<u64>) {
    let said = peer("qemu-img", &["info", "-f", format, "--output=json", path]).unwrap().stdout;
    let said = String::from_utf8(said).unwrap();
    let number = |key: &str| {
        let rest = said.split(&format!("\"{key}\": ")).nth(1)?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    (number("virtual-size").unwrap(), number("cluster-size"))
}

#[test]
fn qemu_img_reads_our_images_and_finds_no_error() {
    let place = Place::new();
    let (raw, path) = (place.path("raw"), place.path("image"));
    for (format, options) in CASES {
        for (seed, size) in (1..).zip(SIZES) {
            let bytes = pattern(*size, seed);
            std::fs::write(&raw, &bytes).unwrap();
            make(&path, format, options, &bytes);
            if !must("qemu-img", &["compare", "-f", "raw", "-F", format, &raw, &path]) {
                return;
            }
            // Some formats have no check: 63.
            let check = peer("qemu-img", &["check", "-f", format, &path]).unwrap();
            assert!(matches!(check.status.code(), Some(0 | 63)), "{format} {check:?}");
            let disk = open(&path, format).unwrap();
            let mut bytes = bytes;
            bytes.resize(usize::try_from(disk.info().size).unwrap(), 0);
            assert!(all(&disk) == bytes);
            map(&disk, &bytes);
            assert_eq!(
                description(&path, format),
                qemu_info(&path, format),
                "{format} {options:?}"
            );
            std::fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn what_is_not_in_an_image_is_in_its_backing_image() {
    let place = Place::new();
    let (under, over) = (pattern(3 << 20, 1), pattern(3 << 20, 2));
    let (base, top) = (place.write("base", &under), place.path("top"));
    for format in ["qed", "qcow"] {
        let words = ["create", "-q", "-f", format, "-b", &base, "-F", "raw", &top];
        if !must("qemu-img", &words) {
            return;
        }
        let mut expected = under.clone();
        for at in [0, 1 << 20, (2 << 20) + 4096] {
            let piece = place.write("piece", &over[at..at + 8192]);
            let write = format!("write -s {piece} {at} 8192");
            must("qemu-io", &["-f", format, "-c", &write, &top]);
            expected[at..at + 8192].copy_from_slice(&over[at..at + 8192]);
        }
        assert!(open(&top, format).is_err(), "the user has not allowed it");
        let allowed = disk::Image { external: disk::External::Chain, ..image(format) };
        // The older one does not record its backing image's format.
        if let Ok(disk) = open_image(&top, allowed) {
            assert!(all(&disk) == expected, "{format}");
            map(&disk, &expected);
        } else {
            assert_eq!(format, "qcow");
        }
        std::fs::remove_file(&top).unwrap();
    }
}

#[test]
fn a_format_that_is_not_read_names_a_program_that_reads_it() {
    let place = Place::new();
    let mut bytes = vec![0; 4096];
    bytes[3584..3592].copy_from_slice(b"koly\0\0\0\x04");
    let path = place.write("image", &bytes);
    for format in ["dmg", ""] {
        let error = open(&path, format).unwrap_err().to_string();
        assert!(error.contains("qemu-img convert -f dmg"), "{error}");
    }
}
