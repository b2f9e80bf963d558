//! Copies from file to file: shared where the file system can, all at once where nothing else was
//! asked for, and copied where either may not be.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use blackbox::launch::allocated;
use blackbox::peers::{peer, strace};
use blackbox::run::{ours, run};
use blackbox::storage::Mounted;
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

use super::{DATA, SIZE, answers, source, text};
use crate::tracing::traced;

const CALLS: [&str; 2] =
    ["-e", "trace=ioctl,pwrite64,copy_file_range,fsync,fdatasync,read,pread64,preadv2"];

/// How many requests to share blocks succeeded.
fn clones(trace: &str) -> usize {
    trace.lines().filter(|l| l.contains("FICLONE") && l.contains(" = 0")).count()
}

/// A file system, and a source on it.
fn on(kind: &str) -> Option<(Mounted, TempDir)> {
    let fs = Mounted::new(kind, 512 * MIB)?;
    let temp = TempDir::below(fs.path());
    Some((fs, temp))
}

#[test]
fn a_whole_file_is_shared_by_one_request_and_is_durable() {
    for kind in ["xfs", "btrfs"] {
        for end in [0, 1, 4095] {
            let Some((_fs, temp)) = on(kind) else { continue };
            let source = source(&temp);
            // One that ends inside a block.
            let file = fs::OpenOptions::new().write(true).open(&source).unwrap();
            file.set_len(SIZE - end).unwrap();
            drop(file);
            let target = temp.join("target");
            let words = ["copy", "--reflink=always", text(&source), text(&target)];
            let Some((outcome, trace)) = traced(&CALLS, words) else { return };
            outcome.succeeded();
            assert_eq!((clones(&trace), answers(&trace, "pwrite64").0), (1, 0), "{kind}: {trace}");
            assert_eq!(answers(&trace, "copy_file_range").0, 0, "{kind}");
            // It gets its name when it is durable.
            let nameless = |l: &&str| l.contains("fdatasync(") && l.contains(">(deleted)");
            let synced = trace.lines().filter(nameless);
            assert_eq!(synced.count(), 1, "{kind}: {trace}");
            assert!(fs::read(&target).unwrap() == fs::read(&source).unwrap(), "{kind}");
            // Holes are kept.
            assert!(allocated(&target) <= DATA + MIB, "{kind}: {}", allocated(&target));
        }
    }
}

#[test]
fn sharing_is_what_a_copy_does_without_being_asked() {
    let Some((_fs, temp)) = on("xfs") else { return };
    let source = source(&temp);
    let target = temp.join("target");
    let Some((outcome, trace)) = traced(&CALLS, ["copy", text(&source), text(&target)]) else {
        return;
    };
    outcome.succeeded();
    assert_eq!((clones(&trace), answers(&trace, "pwrite64").0), (1, 0), "{trace}");
    assert!(fs::read(&target).unwrap() == fs::read(&source).unwrap());
}

/// Copies with these options, and returns how often blocks were shared.
fn shared(temp: &TempDir, options: &[&str], prepare: impl Fn(&Path)) -> usize {
    let source = source(temp);
    let target = temp.join("target");
    prepare(&target);
    let words = ["copy"].iter().chain(options).copied();
    let words: Vec<&str> = words.chain([text(&source), text(&target)]).collect();
    let (outcome, trace) = traced(&CALLS, &words).unwrap();
    outcome.succeeded();
    assert!(fs::read(&target).unwrap() == fs::read(&source).unwrap(), "{options:?}");
    fs::remove_file(&target).unwrap();
    // The other request that shares, where it can.
    clones(&trace) + index(answers(&trace, "copy_file_range").0)
}

#[test]
fn nothing_is_shared_where_something_else_was_asked_for() {
    if strace().is_none() {
        return;
    }
    let Some((_fs, temp)) = on("xfs") else { return };
    for options in [
        &["--reflink=never"][..],
        &["--allocated"],
        &["--wipe"],
        &["--source-filter=log?logfile=/dev/null"],
        &["--target-filter=log?logfile=/dev/null"],
    ] {
        assert_eq!(shared(&temp, options, |_| {}), 0, "{options:?}");
    }
}

#[test]
fn a_file_that_is_there_is_written_over_and_no_byte_of_it_is_left() {
    if strace().is_none() {
        return;
    }
    let Some((_fs, temp)) = on("xfs") else { return };
    for len in [1, SIZE / 2 + 7, SIZE, SIZE + 100_001] {
        let old = vec![0xd1; usize::try_from(len).unwrap()];
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        let before = std::cell::Cell::new(0);
        let prepare = |path: &Path| {
            fs::write(path, &old).unwrap();
            before.set(inode(path));
        };
        // Stretch by stretch, as ever.
        shared(&temp, &[], prepare);
    }
}

#[test]
fn a_copy_that_must_share_fails_where_it_cannot_and_leaves_nothing() {
    let temp = TempDir::new();
    let other = source(&temp);
    for kind in ["ext4", "tmpfs"] {
        let Some((_fs, temp)) = on(kind) else { continue };
        let source = source(&temp);
        for from in [&source, &other] {
            let target = temp.join("target");
            let outcome = run(ours(["copy", "--reflink=always"]).arg(from).arg(&target));
            assert_eq!(outcome.status.code(), Some(1), "{kind}");
            assert!(outcome.failed().contains("share all blocks"), "{}", outcome.stderr);
            assert!(!target.exists(), "{kind}");
            // Otherwise it is copied.
            run(ours(["copy", "--reflink=auto"]).arg(from).arg(&target)).succeeded();
            assert!(fs::read(&target).unwrap() == fs::read(from).unwrap(), "{kind}");
            assert!(allocated(&target) <= DATA + MIB, "{kind}: holes are kept");
            fs::remove_file(&target).unwrap();
        }
    }
}

#[test]
fn a_part_of_a_file_or_another_file_system_is_not_shared_as_a_whole() {
    let Some((_fs, temp)) = on("btrfs") else { return };
    let source = source(&temp);
    let target = temp.join("target");
    for filter in ["offset?offset=4096", "truncate?truncate=1M", "offset?offset=1"] {
        let filter = format!("--source-filter={filter}");
        let words = ["copy", "--reflink=always", &filter, text(&source), text(&target)];
        let outcome = run(&mut ours(words));
        // All that is seen may be shared, if it is all that there is of a file.
        if outcome.status.success() {
            assert!(filter.contains("truncate"), "{filter}");
            let whole = fs::read(&source).unwrap();
            assert!(fs::read(&target).unwrap() == whole[..1 << 20], "{filter}");
            fs::remove_file(&target).unwrap();
        } else {
            assert!(!target.exists(), "{filter}");
        }
    }
    let elsewhere = TempDir::new();
    let target = elsewhere.join("target");
    let outcome = run(ours(["copy", "--reflink=always"]).arg(&source).arg(&target));
    assert!(outcome.failed().contains("share all blocks") && !target.exists());
}

#[test]
fn what_the_source_was_written_last_is_in_a_shared_copy() {
    let Some((_fs, temp)) = on("xfs") else { return };
    let path = source(&temp);
    // Not synced: still only in the page cache.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&pattern(5, 300_000), 123_456).unwrap();
    let target = temp.join("target");
    run(ours(["copy", "--reflink=always"]).arg(&path).arg(&target)).succeeded();
    let before = fs::read(&target).unwrap();
    assert!(before == fs::read(&path).unwrap());
    // And what is written later is not.
    file.write_all_at(&[0xaa; 4096], 0).unwrap();
    assert!(fs::read(&target).unwrap() == before);
}

/// The runs of data of an image that lie in a row, by qemu-img.
fn runs(image: &Path) -> usize {
    let mut command = std::process::Command::new("qemu-img");
    let told = run(command.args(["map", "--output=json", "-f", "qcow2"]).arg(image));
    told.succeeded().matches("\"data\": true").count()
}

#[test]
fn an_uncompressed_image_is_cloned_run_by_run_whichever_way() {
    let (Some(_), Some(_)) = (peer("qemu-img"), strace()) else { return };
    for kind in ["xfs", "btrfs"] {
        let Some(mounted) = Mounted::new(kind, 1024 * MIB) else { return };
        let (raw, image, back) = (mounted.join("raw"), mounted.join("image"), mounted.join("back"));
        let bytes = pattern(5, index(48 * MIB));
        let file = fs::File::create(&raw).unwrap();
        // 144 MiB in a row, then a hole, then 48 MiB, and a part of a cluster.
        for at in [0, 48, 96, 240] {
            file.write_all_at(&bytes, at * MIB).unwrap();
        }
        file.write_all_at(&bytes[..4096], 300 * MIB).unwrap();
        file.sync_all().unwrap();
        for (from, to, words) in [
            (&raw, &image, ["-f", "raw", "-O", "qcow2"]),
            (&image, &back, ["-f", "qcow2", "-O", "raw"]),
        ] {
            let words = [&["convert"], &words[..], &[text(from), text(to)]].concat();
            let Some((outcome, trace)) = traced(&CALLS, &words) else { return };
            outcome.succeeded();
            let clones = trace.matches("FICLONERANGE").count();
            let most = runs(&image);
            assert!((1..=most).contains(&clones), "{kind}: {clones} clones of {most} runs");
        }
        assert!(fs::read(&back).unwrap() == fs::read(&raw).unwrap(), "{kind}");
    }
}
