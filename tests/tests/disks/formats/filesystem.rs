//! A file system made of a part of this machine's own files, through every format and back: e2fsck
//! finds nothing to complain of.

use std::path::{Path, PathBuf};

use blackbox::MIB;
use blackbox::peers::peer;
use blackbox::run::{program, run};

use super::disks::differ;
use super::ground::{Ground, ferry, none_failed, sound, text, told};

/// The size of the file system, in bytes.
const SIZE: u64 = 64 * MIB;
/// Bytes of files in it.
const FILES: u64 = 12 * MIB;

/// What it goes through: a format, its options, and whether it is compressed.
const TRIPS: &[(&str, &str, bool)] = &[
    ("raw", "", false),
    ("qcow2", "", false),
    ("qcow2", "cluster_size=4k", true),
    ("qcow2", "compression_type=zstd", true),
    ("qcow2", "extended_l2=on,preallocation=metadata", false),
    ("qcow2", "cluster_size=2M,refcount_bits=1", false),
    ("vmdk", "subformat=monolithicSparse", false),
    ("vmdk", "subformat=monolithicFlat", false),
    ("vmdk", "subformat=streamOptimized", true),
    ("vdi", "", false),
    ("vpc", "force_size=on", false),
    ("vhdx", "", false),
];

/// Copies files of this machine, in the order of their names, until there are enough bytes.
fn gather(to: &Path) {
    let mut left = FILES;
    for from in ["/usr/lib/python3", "/usr/share/perl5", "/usr/share/doc", "/usr/bin"] {
        gather_from(Path::new(from), &to.join(from[1..].replace('/', "-")), &mut left);
    }
}

fn gather_from(from: &Path, to: &Path, left: &mut u64) {
    let Ok(entries) = std::fs::read_dir(from) else { return };
    std::fs::create_dir_all(to).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let (metadata, to) = (path.symlink_metadata().unwrap(), to.join(path.file_name().unwrap()));
        if metadata.is_dir() {
            gather_from(&path, &to, left);
        } else if metadata.is_symlink() {
            std::os::unix::fs::symlink(std::fs::read_link(&path).unwrap(), to).unwrap();
        } else if metadata.is_file() && metadata.len() <= *left {
            std::fs::copy(&path, to).unwrap();
            *left -= metadata.len();
        }
    }
}

#[test]
fn a_file_system_is_clean_after_every_trip() {
    let Some(ground) = Ground::new() else { return };
    let (Some(mke2fs), Some(e2fsck)) = (peer("mke2fs"), peer("e2fsck")) else { return };
    let files = ground.temp.join("files.disk");
    gather(&files);
    let disk = ground.temp.sparse_file("system.disk", SIZE);
    let words = ["-q", "-F", "-t", "ext4", "-d", text(&files), text(&disk)];
    run(&mut program(&mke2fs, words)).succeeded();
    std::fs::remove_dir_all(files).unwrap();
    let mut failures = Vec::new();
    for (format, options, compress) in TRIPS {
        let (image, back) = (ground.path("image"), ground.temp.join("back"));
        let mut words = vec!["convert", "-f", "raw", "-O", format];
        words.extend(if options.is_empty() { vec![] } else { vec!["-o", options] });
        words.extend(compress.then_some("-c"));
        let there = ferry(words.iter().chain(&[text(&disk), &image]));
        let words = ["convert", "-f", format, "--allow-external", "chain", &image, text(&back)];
        let right = [there, ferry(words)].iter().try_for_each(|outcome| {
            sound(outcome)?;
            if outcome.status.success() { Ok(()) } else { Err(told(outcome)) }
        });
        let right = right.and_then(|()| differ(&disk, &back, false)).and_then(|()| {
            let check = run(&mut program(&e2fsck, ["-f", "-n", text(&back)]));
            if check.status.success() { Ok(()) } else { Err(told(&check) + &check.stdout) }
        });
        failures.extend(right.err().map(|e| format!("{format} {options}: {e}")));
        ground.clear();
    }
    none_failed(&failures);
}
