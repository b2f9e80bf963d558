//! Copies on a filesystem that can share blocks: nothing is copied, and nothing is shared that
//! must not be.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use blackbox::peers::{diskferry, peer};
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

/// The runs of data of an image that lie in a row, by qemu-img.
fn runs(format: &str, image: &Path) -> usize {
    let mut command = Command::new("qemu-img");
    let told = run(command.args(["map", "--output=json", "-f", format]).arg(image));
    told.succeeded().matches("\"data\": true").count()
}

#[test]
fn an_uncompressed_image_is_cloned_run_by_run_whichever_way() {
    let (Some(_), Some(_)) = (peer("qemu-img"), peer("strace")) else { return };
    for kind in ["xfs", "btrfs"] {
        let Some(fs) = Mounted::new(kind, 1024 * MIB) else { return };
        let (raw, image, back) = (fs.join("raw"), fs.join("image"), fs.join("back"));
        let bytes = pattern(5, index(48 * MIB));
        let file = std::fs::File::create(&raw).unwrap();
        // 144 MiB in a row, then a hole, then 48 MiB, and a part of a cluster.
        for at in [0, 48, 96, 240] {
            file.write_all_at(&bytes, at * MIB).unwrap();
        }
        file.write_all_at(&bytes[..4096], 300 * MIB).unwrap();
        file.sync_all().unwrap();
        let calls = fs.join("calls");
        for (from, to, words) in [
            (&raw, &image, ["-f", "raw", "-O", "qcow2"]),
            (&image, &back, ["-f", "qcow2", "-O", "raw"]),
        ] {
            let mut command = Command::new("strace");
            command.args(["-f", "-e", "trace=ioctl", "-o"]).arg(&calls);
            command.arg(diskferry()).arg("convert").args(words);
            run(command.arg(from).arg(to)).succeeded();
            let clones = std::fs::read_to_string(&calls).unwrap().matches("FICLONERANGE").count();
            let most = runs("qcow2", &image);
            assert!((1..=most).contains(&clones), "{kind}: {clones} clones of {most} runs");
        }
        assert!(std::fs::read(&back).unwrap() == std::fs::read(&raw).unwrap(), "{kind}");
    }
}

#[test]
fn a_file_of_many_units_is_copied_where_nothing_can_be_shared() {
    let Some(fs) = Mounted::new("ext4", 400 * MIB) else { return };
    let (source, target) = (fs.join("source"), fs.join("target"));
    std::fs::write(&source, pattern(0, index(100 * MIB))).unwrap();
    for options in [&["copy"][..], &["copy", "--sparse=0"], &["copy", "--sparse=0", "--threads=1"]]
    {
        run(ours(options.iter().copied()).arg(&source).arg(&target)).succeeded();
        assert!(std::fs::read(&target).unwrap() == pattern(0, index(100 * MIB)), "{options:?}");
        std::fs::remove_file(&target).unwrap();
    }
}
