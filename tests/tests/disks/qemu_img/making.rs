//! `create`, `dd` and the options of targets.

use std::os::unix::fs::MetadataExt;

use blackbox::peers::peer;
use blackbox::run::{measured, ours, program, run, text};
use blackbox::storage::Mounted;
use blackbox::temp::{TempDir, pattern};

use super::ferry;

#[test]
fn a_raw_disk_is_made_as_large_as_it_is_to_be_and_empty() {
    let temp = TempDir::new();
    let disk = temp.join("disk");
    let outcome = ferry(["create", text(&disk), "1M"]);
    assert_eq!(
        outcome.succeeded(),
        format!("Formatting '{}', fmt=raw size=1048576\n", text(&disk))
    );
    let found = std::fs::metadata(&disk).unwrap();
    assert_eq!((found.len(), found.blocks()), (1 << 20, 0));
    // What was there is there no more.
    std::fs::write(&disk, pattern(0, 2 << 20)).unwrap();
    assert_eq!(ferry(["create", "-q", "-f", "raw", text(&disk), "1M"]).succeeded(), "");
    assert!(std::fs::read(&disk).unwrap() == vec![0; 1 << 20]);
    for (how, blocks) in [("off", 0), ("falloc", 2048), ("full", 2048)] {
        let disk = temp.join(how);
        let option = format!("preallocation={how}");
        ferry(["create", "-o", &option, text(&disk), "1M"]).succeeded();
        assert!(std::fs::read(&disk).unwrap() == vec![0; 1 << 20]);
        assert!(std::fs::metadata(&disk).unwrap().blocks() >= blocks, "{how}");
    }
    ferry(["create", "-q", "-o", "size=3M", text(&disk)]).succeeded();
    assert_eq!(std::fs::metadata(&disk).unwrap().len(), 3 << 20);
}

#[test]
fn formats_and_their_options_are_listed() {
    assert!(ferry(["create", "-o", "help"]).succeeded().contains("preallocation="));
    for words in [["create", "-f", "help"], ["convert", "-O", "help"]] {
        assert!(ferry(words).succeeded().contains("  qcow2 "), "{words:?}");
    }
    let told = ferry(["convert", "-O", "qcow2", "-o", "help"]);
    assert!(told.succeeded().starts_with("Supported qcow2 options:\n"));
    assert!(told.stdout.contains("  cluster_size=<SIZE>"), "{told:#?}");
}

#[test]
fn a_disk_without_room_makes_nothing() {
    let Some(room) = Mounted::new("tmpfs", blackbox::MIB) else { return };
    let temp = TempDir::new();
    let from = temp.file("from", &pattern(0, 4 << 20));
    let to = room.join("to");
    let converted = ferry(["convert", text(&from), text(&to)]);
    let created = ferry(["create", "-q", "-o", "preallocation=full", text(&to), "4M"]);
    let part = ferry(["dd", &format!("if={}", text(&from)), &format!("of={}", text(&to))]);
    let left: Vec<_> = std::fs::read_dir(room.path()).unwrap().collect();
    let left = format!("{left:?}");
    for outcome in [converted, created, part] {
        assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
        assert!(outcome.failed().contains("No space left"), "{outcome:#?}");
    }
    assert_eq!(left, "[]", "nothing is left of it");
}

#[test]
fn dd_copies_blocks_behind_others() {
    let temp = TempDir::new();
    let bytes = pattern(0, 100_000);
    let from = temp.file("from", &bytes);
    let to = temp.join("to");
    let (source, target) = (format!("if={}", text(&from)), format!("of={}", text(&to)));
    for (words, range) in [
        (&[][..], 0..100_000),
        (&["bs=1k", "count=3"], 0..3072),
        (&["bs=1000", "skip=7"], 7000..100_000),
        (&["skip=2", "count=5"], 1024..3584),
        (&["bs=64k", "skip=1", "count=9"], 65_536..100_000),
        (&["bs=1M", "skip=1"], 0..0),
        (&["count=0"], 0..0),
    ] {
        let words = [&["dd", "-f", "raw", "-O", "raw", &source, &target], words].concat();
        ferry(&words).succeeded();
        assert!(std::fs::read(&to).unwrap() == bytes[range.clone()], "{words:?}: {range:?}");
    }
}

#[test]
fn a_verdict_says_what_an_image_is_and_why_it_is_not_safe() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let secret = temp.file("secret", &pattern(0, 1 << 20));
    let raw = temp.file("disk.raw", &pattern(0, 1 << 20));
    let verdict = |words: &[&str], safe: bool| {
        let outcome = ferry([&["inspect", "--safe"], words].concat());
        assert_eq!(outcome.status.code(), Some(i32::from(!safe)), "{outcome:#?}");
        let value: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(value["safe"], safe, "{outcome:#?}");
        value
    };
    assert_eq!(verdict(&[text(&raw)], true)["format"], "raw");
    let make = |name: &str, words: &[&str]| {
        let path = temp.join(name);
        let words = [&["create", "-q", "-f", "qcow2"], words, &[text(&path), "1M"]].concat();
        run(&mut program(&qemu_img, words)).succeeded();
        path
    };
    let plain = make("plain", &[]);
    assert_eq!(verdict(&[text(&plain)], true)["virtual-size"], 1 << 20);
    assert_eq!(verdict(&["-f", "qcow2", text(&plain)], true)["format"], "qcow2");
    verdict(&["-f", "raw", text(&plain)], false);
    verdict(&["-f", "qcow2", text(&raw)], false);
    let over = make("over", &["-b", text(&secret), "-F", "raw"]);
    let data = make("data", &["-o", &format!("data_file={}.data,data_file_raw=on", text(&secret))]);
    for image in [&over, &data] {
        let said = verdict(&[text(image)], false);
        assert!(said["reasons"][0].as_str().unwrap().contains("secret"), "{said}");
    }
    let luks = temp.file("luks", &[b"LUKS\xba\xbe".as_slice(), &[0; 4096]].concat());
    verdict(&[text(&luks)], false);
    verdict(&["/nonexistent/disk"], false);
    // The option is accepted, and does nothing more.
    let without = ferry(["inspect", text(&raw)]);
    assert_eq!(without.succeeded(), ferry(["inspect", "--safe", text(&raw)]).succeeded());
}

#[test]
fn hostile_images_get_a_verdict_within_the_limits() {
    let temp = TempDir::new();
    // A header of the newest kind, then all bits set: lengths, counts and offsets beyond all
    // measure.
    for version in [2, 3] {
        for fill in [0xff_u8, 0x7f, 0x01, 0x00] {
            let mut bytes = vec![fill; 4 << 20];
            bytes[..8].copy_from_slice(&[b'Q', b'F', b'I', 0xfb, 0, 0, 0, version]);
            let image = temp.file("image", &bytes);
            let outcome = measured(&ours(["inspect", "--safe", text(&image)]));
            assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
            outcome.fits_in(64 << 20);
            let value: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
            assert!(!value["reasons"].as_array().unwrap().is_empty(), "{value}");
        }
    }
}

#[test]
fn a_vhdx_of_no_bytes_is_one_for_qemu_too() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    let image = temp.join("image");
    for options in ["subformat=dynamic", "block_size=1M", "subformat=fixed"] {
        ferry(["create", "-q", "-f", "vhdx", "-o", options, text(&image), "0"]).succeeded();
        let info = run(&mut program(&qemu_img, ["info", "-f", "vhdx", text(&image)]));
        assert!(info.succeeded().contains("virtual size: 0 B"), "{info:#?}");
        std::fs::remove_file(&image).unwrap();
    }
}
