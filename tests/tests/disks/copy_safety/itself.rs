//! A disk copied onto itself under another name: it keeps its bytes, or the copy is refused.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use blackbox::launch::Server;
use blackbox::peers::peer;
use blackbox::run::{ours, run};
use blackbox::storage::Loop;
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

use super::copy;

/// A sparse disk: 3 MiB of data after every 5 MiB of nothing.
fn disk(temp: &TempDir, name: &str) -> PathBuf {
    let path = temp.sparse_file(name, 48 * MIB);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    for at in (5..48).step_by(8) {
        file.write_all_at(&pattern(at * MIB, index(3 * MIB)), at * MIB).unwrap();
    }
    path
}

/// The bytes on the disk, also when they were written through a loop device.
fn content(path: &Path) -> Vec<u8> {
    assert!(Command::new("sync").arg("-f").arg(path).status().unwrap().success());
    fs::read(path).unwrap()
}

#[test]
fn a_file_and_the_loop_devices_over_it_are_one_disk_in_both_directions() {
    let temp = TempDir::new();
    let file = disk(&temp, "disk");
    let before = content(&file);
    let Some(device) = Loop::over(&file, &[]) else { return };
    let Some(twice) = Loop::over(device.path(), &[]) else { return };
    let Some(another) = Loop::over(&file, &[]) else { return };
    let names = [file.as_path(), device.path(), twice.path(), another.path()];
    for from in names {
        for to in names.into_iter().filter(|to| *to != from) {
            for options in [&[][..], &["--no-extents"], &["--target-is-zero"]] {
                let outcome = copy(options, from, to);
                let line = outcome.failed();
                assert!(line.contains("is the source itself"), "{line}");
                assert!(content(&file) == before, "{} to {}", from.display(), to.display());
            }
        }
    }
}

#[test]
fn a_part_of_a_file_is_not_copied_over_the_whole_nor_back() {
    let temp = TempDir::new();
    let file = disk(&temp, "disk");
    let before = content(&file);
    let Some(part) = Loop::over(&file, &["--offset", "1048576"]) else { return };
    for (from, to) in [(part.path(), file.as_path()), (file.as_path(), part.path())] {
        let outcome = copy(&[], from, to);
        let line = outcome.failed();
        assert!(line.contains("holds bytes of the source"), "{line}");
        assert!(content(&file) == before);
    }
    // Two parts side by side have nothing in common.
    let part = |at| Loop::over(&file, &["--offset", at, "--sizelimit=16M"]);
    let Some(first) = part("0") else { return };
    let Some(second) = part("16777216") else { return };
    copy(&[], first.path(), second.path()).succeeded();
    let after = content(&file);
    assert!(after[index(16 * MIB)..index(32 * MIB)] == before[..index(16 * MIB)]);
    assert!(after[..index(16 * MIB)] == before[..index(16 * MIB)]);
}

#[test]
fn a_partition_is_a_part_of_its_disk_and_of_the_file_below() {
    let temp = TempDir::new();
    let file = disk(&temp, "disk");
    let before = content(&file);
    let Some(addpart) = peer("addpart") else { return };
    let Some(device) = Loop::over(&file, &["--partscan"]) else { return };
    // From 1 MiB on, 32 MiB long.
    let added = Command::new(addpart).arg(device.path()).args(["1", "2048", "65536"]).output();
    let name = device.path().file_name().unwrap().to_str().unwrap();
    let number = fs::read_to_string(format!("/sys/block/{name}/{name}p1/dev"));
    let Some(number) = number.ok().filter(|_| added.is_ok_and(|a| a.status.success())) else {
        return blackbox::peers::skip_environment("loop devices have no partitions here");
    };
    let (major, minor) = number.trim().split_once(':').unwrap();
    let node = temp.join("partition");
    let made = rustix::fs::mknodat(
        rustix::fs::CWD,
        &node,
        rustix::fs::FileType::BlockDevice,
        rustix::fs::Mode::from_raw_mode(0o600),
        rustix::fs::makedev(major.parse().unwrap(), minor.parse().unwrap()),
    );
    if made.is_err() || fs::File::open(&node).is_err() {
        return blackbox::peers::skip_environment("device nodes cannot be made or opened here");
    }
    for (from, to) in [
        (&node, &file),
        (&file, &node),
        (&node, &device.path().to_owned()),
        (&device.path().to_owned(), &node),
    ] {
        let outcome = copy(&[], from, to);
        assert!(outcome.failed().contains("holds bytes of the source"), "{outcome:?}");
        assert!(content(&file) == before);
    }
}

#[test]
fn one_export_copied_onto_itself_keeps_every_byte() {
    let temp = TempDir::new();
    for how in [&[][..], &["--no-mc"], &["--filter=noextents"], &["--no-sr"]] {
        for spelled in ["$uri", "nbd:$uri"] {
            let file = disk(&temp, "disk");
            let before = content(&file);
            let binary = blackbox::peers::diskferry();
            let script = format!("'{}' copy \"$uri\" \"{spelled}\"", binary.display());
            let outcome = run(ours(["serve"]).args(how).arg(&file).args(["--run", &script]));
            outcome.succeeded();
            assert!(content(&file) == before, "{how:?} {spelled}");
        }
    }
}

#[test]
fn two_servers_of_one_file_are_found_out_by_what_they_hold() {
    let Some(nbdkit) = peer("nbdkit") else { return };
    let temp = TempDir::new();
    let file = disk(&temp, "disk");
    let before = content(&file);
    let path = file.to_str().unwrap();
    for filters in [&[][..], &["--filter=noextents"]] {
        let words: Vec<&str> = [filters, &["file", path]].concat();
        let (a, b) = (Server::nbdkit(&nbdkit, &words), Server::nbdkit(&nbdkit, &words));
        run(ours(["copy", &a.uri(""), &b.uri("")]).arg("-q")).succeeded();
        assert!(content(&file) == before, "{filters:?}");
        // A server of the file that is written, and the other way round.
        run(ours(["copy", "-q", &a.uri("")]).arg(&file)).succeeded();
        assert!(content(&file) == before, "{filters:?}: to the file");
        run(ours(["copy", "-q"]).arg(&file).arg(a.uri(""))).succeeded();
        assert!(content(&file) == before, "{filters:?}: from the file");
    }
}
