//! A file that is there is written over: it is not emptied first, and nothing of the old remains.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use blackbox::fake::{Script, Step};
use blackbox::nbd::cmd;
use blackbox::run::{ours, run};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

use super::copy;

/// Data, a hole, zeroes that are written out, data, and a hole; of an odd length.
fn source(temp: &TempDir) -> PathBuf {
    let path = temp.sparse_file("source", 24 * MIB + 4097);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&pattern(0, index(3 * MIB)), 0).unwrap();
    file.write_all_at(&vec![0; index(2 * MIB)], 8 * MIB).unwrap();
    file.write_all_at(&pattern(10 * MIB, index(MIB) + 100), 10 * MIB).unwrap();
    path
}

/// Where the tests run, and a file system in memory: holes are made differently.
fn places() -> Vec<TempDir> {
    let memory = Path::new("/dev/shm");
    let mut all = vec![TempDir::new()];
    all.extend(memory.is_dir().then(|| TempDir::below(memory)));
    all
}

#[test]
fn nothing_of_an_old_file_remains_whether_it_was_longer_or_shorter() {
    for temp in places() {
        let source = source(&temp);
        let content = fs::read(&source).unwrap();
        for old in [0, 1, 4096, 5 * MIB + 3, 24 * MIB + 4097, 40 * MIB + 11] {
            for options in [
                &[][..],
                &["--target-is-zero"],
                &["--allocated"],
                &["--no-extents"],
                &["--sparse=0"],
                &["--no-flush"],
            ] {
                let target = temp.file("target", &vec![0xd1; index(old)]);
                let (inode, link) = (fs::metadata(&target).unwrap().ino(), temp.join("link"));
                fs::hard_link(&target, &link).unwrap();
                copy(options, &source, &target).succeeded();
                assert!(fs::read(&link).unwrap() == content, "{old} bytes before, {options:?}");
                assert_eq!(fs::metadata(&target).unwrap().ino(), inode);
                fs::remove_file(&link).unwrap();
                fs::remove_file(&target).unwrap();
            }
        }
    }
}

#[test]
fn what_was_data_becomes_a_hole_where_the_source_has_one() {
    for temp in places() {
        let source = source(&temp);
        let target = temp.file("target", &vec![0xd1; index(30 * MIB)]);
        copy(&[], &source, &target).succeeded();
        // 4 MiB and some of data.
        let blocks = fs::metadata(&target).unwrap().blocks() * 512;
        assert!(blocks < 6 * MIB, "{blocks} bytes are allocated");
    }
}

#[test]
fn a_source_that_cannot_be_read_leaves_the_file_as_it_was() {
    let temp = TempDir::new();
    let fake = Script::new(16 * MIB)
        .on_request(
            |_, request, _| {
                if request.command == cmd::READ { Step::Close } else { Step::Honest }
            },
        )
        .start();
    for len in [1000, index(20 * MIB)] {
        let old = vec![0xd1; len];
        let target = temp.file("target", &old);
        let outcome = run(ours(["copy", &fake.uri("")]).arg(&target));
        let line = outcome.failed();
        assert!(line.contains("was not written"), "{line}");
        assert!(fs::read(&target).unwrap() == old, "it was changed");
    }
}

#[test]
fn a_copy_that_fails_midway_says_that_the_file_is_incomplete() {
    let temp = TempDir::new();
    let fake = Script::new(16 * MIB)
        .on_request(|_, request, _| {
            let late = request.command == cmd::READ && request.offset >= 8 * MIB;
            if late { Step::Close } else { Step::Honest }
        })
        .start();
    let target = temp.file("target", &vec![0xd1; index(20 * MIB)]);
    let outcome = run(ours(["copy", &fake.uri("")]).arg(&target));
    let line = outcome.failed();
    assert!(line.contains("is incomplete"), "{line}");
    // It was there before: it stays, and what no byte was written over is the old.
    let after = fs::read(&target).unwrap();
    assert_eq!(after.len(), index(20 * MIB));
    assert!(after[index(16 * MIB)..].iter().all(|b| *b == 0xd1));
}
