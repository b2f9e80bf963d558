//! `diskferry resize` as a program: what it resizes, and what it refuses and leaves as it was.

use std::path::PathBuf;
use std::process::{Command, Output};

/// A file of its own for one test, removed with it.
struct Disk(PathBuf);

impl Disk {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("diskferry-resize-{name}-{}", std::process::id())))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.0).unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_diskferry")).args(args).output().unwrap()
}

#[test]
fn an_image_that_is_a_raw_disk_with_a_footer_is_refused_and_left_as_it_was() {
    let disk = Disk::new("fixed");
    let made = run(&["create", "-f", "vpc", "-o", "subformat=fixed", disk.path(), "1M"]);
    assert!(made.status.success(), "{made:?}");
    let before = disk.bytes();
    assert_eq!(&before[before.len() - 512..][..8], b"conectix");
    for words in [&["+1M"][..], &["--shrink", "512K"], &["--preallocation=full", "2M"]] {
        let refused = run(&[&["resize", disk.path()], words].concat());
        let line = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
        let wanted = format!("{}: looks like a VHD image", disk.path());
        assert!(line.contains(&wanted) && line.contains("-f raw"), "{line}");
        assert_eq!(disk.bytes(), before);
    }
}

#[test]
fn a_file_whose_format_is_named_raw_is_resized_whatever_is_in_it() {
    let disk = Disk::new("named");
    let mut bytes = vec![7; 8192];
    bytes[8192 - 512..][..8].copy_from_slice(b"conectix");
    std::fs::write(&disk.0, &bytes).unwrap();
    let done = run(&["resize", "-f", "raw", "-q", disk.path(), "+4K"]);
    assert!(done.status.success(), "{done:?}");
    bytes.resize(12288, 0);
    assert_eq!(disk.bytes(), bytes);
}
