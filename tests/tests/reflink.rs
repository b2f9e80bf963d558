//! Copies on a filesystem that can share blocks: nothing is copied, and nothing is shared that
//! must not be.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use blackbox::run::{ours, run};
use blackbox::storage::Mounted;
use blackbox::temp::pattern;
use blackbox::{MIB, index};

const SIZE: u64 = 64 * MIB;

fn btrfs() -> Option<Mounted> {
    Mounted::new("btrfs", 512 * MIB)
}

/// Bytes in use on the filesystem, everything written.
fn used(path: &Path) -> u64 {
    assert!(Command::new("sync").arg("-f").arg(path).status().unwrap().success());
    let stat = rustix::fs::statvfs(path).unwrap();
    (stat.f_blocks - stat.f_bfree) * stat.f_frsize
}

#[test]
fn a_copy_shares_the_blocks_of_its_source_until_one_of_them_changes() {
    let Some(fs) = btrfs() else { return };
    let (source, target) = (fs.join("source"), fs.join("target"));
    std::fs::write(&source, pattern(0, index(SIZE))).unwrap();
    let before = used(fs.path());
    run(ours(["copy"]).arg(&source).arg(&target)).succeeded();
    let grown = used(fs.path()).saturating_sub(before);
    assert!(grown < SIZE / 4, "{grown} bytes for a copy that could share all");
    assert!(std::fs::read(&target).unwrap() == pattern(0, index(SIZE)));
    let copy = std::fs::OpenOptions::new().write(true).open(&target).unwrap();
    copy.write_all_at(&[0xaa; 4096], MIB).unwrap();
    assert!(std::fs::read(&source).unwrap() == pattern(0, index(SIZE)));
}

#[test]
fn an_allocated_copy_shares_nothing() {
    let Some(fs) = btrfs() else { return };
    let (source, target) = (fs.join("source"), fs.join("target"));
    std::fs::write(&source, pattern(0, index(SIZE))).unwrap();
    let before = used(fs.path());
    run(ours(["copy", "--allocated"]).arg(&source).arg(&target)).succeeded();
    let grown = used(fs.path()).saturating_sub(before);
    assert!(grown >= SIZE * 9 / 10, "only {grown} bytes for a copy of its own");
    assert!(std::fs::read(&target).unwrap() == pattern(0, index(SIZE)));
}
