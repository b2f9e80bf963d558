//! Images of qemu-img's are read, and ours are read by it.

use crate::support::{Place, all, make, map, must, open, pattern, peer};

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
const SIZES: &[usize] = &[512, 1 << 20, (5 << 20) + 512];

#[test]
fn what_qemu_img_makes_is_read_as_it_is() {
    let place = Place::new();
    let (raw, path) = (place.path("raw"), place.path("image"));
    for (format, options) in CASES {
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
fn what_we_make_is_read_by_qemu_img_and_found_sound() {
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
