//! Copies on a filesystem that can share blocks: nothing is copied, and nothing is shared that
//! must not be.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use blackbox::peers::{peer, skip_environment};
use blackbox::run::{ours, run};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

const SIZE: u64 = 64 * MIB;

/// A small btrfs, mounted; unmounted when dropped.
struct Mounted {
    path: PathBuf,
    _temp: TempDir,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.path).status();
    }
}

fn btrfs() -> Option<Mounted> {
    let mkfs = peer("mkfs.btrfs")?;
    let temp = TempDir::new();
    let image = temp.sparse_file("fs", 512 * MIB);
    assert!(Command::new(mkfs).arg("-q").arg(&image).output().unwrap().status.success());
    let path = temp.join("mnt");
    std::fs::create_dir(&path).unwrap();
    let mounted = Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&path).output();
    if !mounted.is_ok_and(|o| o.status.success()) {
        skip_environment("mounting a btrfs on a loop device needs root");
        return None;
    }
    Some(Mounted { path, _temp: temp })
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
    let (source, target) = (fs.path.join("source"), fs.path.join("target"));
    std::fs::write(&source, pattern(0, index(SIZE))).unwrap();
    let before = used(&fs.path);
    run(ours(["copy"]).arg(&source).arg(&target)).succeeded();
    let grown = used(&fs.path).saturating_sub(before);
    assert!(grown < SIZE / 4, "{grown} bytes for a copy that could share all");
    assert!(std::fs::read(&target).unwrap() == pattern(0, index(SIZE)));
    let copy = std::fs::OpenOptions::new().write(true).open(&target).unwrap();
    copy.write_all_at(&[0xaa; 4096], MIB).unwrap();
    assert!(std::fs::read(&source).unwrap() == pattern(0, index(SIZE)));
}

#[test]
fn an_allocated_copy_shares_nothing() {
    let Some(fs) = btrfs() else { return };
    let (source, target) = (fs.path.join("source"), fs.path.join("target"));
    std::fs::write(&source, pattern(0, index(SIZE))).unwrap();
    let before = used(&fs.path);
    run(ours(["copy", "--allocated"]).arg(&source).arg(&target)).succeeded();
    let grown = used(&fs.path).saturating_sub(before);
    assert!(grown >= SIZE * 9 / 10, "only {grown} bytes for a copy of its own");
    assert!(std::fs::read(&target).unwrap() == pattern(0, index(SIZE)));
}
