//! What ends it early: a kill, an interruption, a full disk.

use std::fs::File;
use std::os::unix::fs::FileExt;

use blackbox::run::{Job, ours};
use blackbox::storage::Mounted;
use blackbox::temp::pattern;
use blackbox::wait_for;
use rustix::process::Signal;

use super::extents::{all_written, map};
use super::{KINDS, ROOM, ferry, prealloc, text};

const MIB: u64 = 1 << 20;

/// Waits until some of a file is written, but not all.
fn wait_for_some(path: &std::path::Path) {
    wait_for("something is written", || path.exists() && map(path).written >= 3 * MIB);
}

#[test]
fn what_was_killed_reads_as_it_should_and_a_second_run_completes_it() {
    for kind in KINDS {
        let Some(fs) = Mounted::new(kind, ROOM) else { return };
        let disk = fs.join("disk");
        std::fs::write(&disk, pattern(0, 100_000)).unwrap();
        let words = ["prealloc", "--size", "100M", "--rate", "16M", text(&disk)];
        let job = Job::start(&mut ours(words));
        wait_for_some(&disk);
        job.signal(Signal::KILL);
        job.wait();
        let found = map(&disk);
        assert!(found.unwritten > 0 && found.written > 0, "{kind}: {found:?}");
        let check = || {
            let bytes = std::fs::read(&disk).unwrap();
            assert_eq!(bytes.len(), 100 << 20, "{kind}");
            assert!(bytes[..100_000] == pattern(0, 100_000), "{kind}");
            assert!(bytes[100_000..].iter().all(|b| *b == 0), "{kind}");
        };
        check();
        let said = prealloc(&disk, &["--size", "100M"]);
        assert!(said["kept"].as_u64().unwrap() >= 3 * MIB, "{kind}: {said}");
        all_written(&disk);
        check();
    }
}

#[test]
fn an_interruption_says_how_far_it_came_and_ends_with_its_status() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let Some(fs) = Mounted::new("ext4", ROOM) else { return };
        let disk = fs.join("disk");
        let job =
            Job::start(&mut ours(["prealloc", "--size", "100M", "--rate", "16M", text(&disk)]));
        wait_for_some(&disk);
        job.signal(signal);
        let outcome = job.wait();
        assert_eq!(outcome.status.code(), Some(status), "{outcome:?}");
        let line = outcome.failed();
        for said in ["stopped as asked", "of 100 MiB", "the same command completes it"] {
            assert!(line.contains(said), "{line}");
        }
        prealloc(&disk, &["--size", "100M"]);
        all_written(&disk);
    }
}

#[test]
fn without_room_a_new_file_is_removed_and_an_old_one_is_as_it_was() {
    for kind in KINDS {
        let Some(fs) = Mounted::new(kind, ROOM) else { return };
        let (new, old) = (fs.join("new"), fs.join("old"));
        std::fs::write(&old, pattern(0, 3 << 20)).unwrap();
        File::open(&old).unwrap().sync_all().unwrap();
        let before = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&old).unwrap());
        for mode in ["unwritten", "written"] {
            for path in [&new, &old] {
                let outcome = ferry(&["prealloc", "--size", "1G", "--mode", mode, text(path)]);
                assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
                let line = outcome.failed();
                assert!(
                    line.contains("No space left") && line.contains("nothing was zeroed"),
                    "{line}"
                );
            }
            assert!(!new.exists(), "{kind} {mode}");
            assert!(std::fs::read(&old).unwrap() == pattern(0, 3 << 20), "{kind} {mode}");
            let after = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&old).unwrap());
            assert!(after <= before + 16, "{kind} {mode}: {before} {after}");
        }
        // What is free is free: half of the file system can be had.
        prealloc(&new, &["--size", "150M", "--mode", "unwritten"]);
    }
}

#[test]
fn two_at_a_time_exclude_each_other() {
    let Some(fs) = Mounted::new("ext4", ROOM) else { return };
    let disk = fs.join("disk");
    let job = Job::start(&mut ours(["prealloc", "--size", "100M", "--rate", "16M", text(&disk)]));
    wait_for_some(&disk);
    let outcome = ferry(&["prealloc", "--size", "200M", text(&disk)]);
    assert!(outcome.failed().contains("in use by another program"), "{outcome:?}");
    job.signal(Signal::TERM);
    job.wait();
    let file = File::options().write(true).open(&disk).unwrap();
    file.write_all_at(b"x", 0).unwrap();
}
