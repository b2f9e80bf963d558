//! Exit 0 means that it is there: the system's reports of lost writes are noticed, whenever they
//! come.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use blackbox::fake::{ALL_FLAGS, Script};
use blackbox::nbd::{cmd, tflag};
use blackbox::peers::{peer, skip_environment};
use blackbox::run::{Outcome, ours, program, run, text};
use blackbox::storage::{Loop, Mounted};
use blackbox::temp::TempDir;

use crate::tracing::traced;

/// Everything that makes bytes durable.
const SYNCS: &str = "fsync,fdatasync,sync_file_range,syncfs";

/// A copy of 20 MiB under strace, and what strace saw.
fn copied(options: &[&str], to: &Path) -> Option<(Outcome, String)> {
    traced(options, [OsStr::new("copy"), OsStr::new("random:20M?seed=1"), to.as_os_str()])
}

/// A file, and a block device where there can be one.
fn targets(temp: &TempDir) -> (Vec<PathBuf>, Option<Loop>) {
    let device = Loop::over(&temp.sparse_file("backing", 20 << 20), &[]);
    let mut all = vec![temp.join("target")];
    all.extend(device.iter().map(|device| device.path().to_owned()));
    (all, device)
}

#[test]
fn a_file_or_block_device_is_made_durable_and_so_is_the_name_of_a_new_file() {
    let temp = TempDir::new();
    let (targets, _device) = targets(&temp);
    for target in &targets {
        let new = !target.exists();
        let trace = ["-e", &format!("trace={SYNCS}")];
        let Some((outcome, log)) = copied(&trace, target) else { return };
        outcome.succeeded();
        // A new file has no name before it is durable.
        let name = match new {
            true => format!("<{}/#", target.parent().unwrap().display()),
            false => format!("<{}>", target.display()),
        };
        let syncs =
            |call: &str| log.lines().filter(|l| l.contains(call) && l.contains(&name)).count();
        assert_eq!(syncs("fdatasync("), 1, "{log}");
        // In memory there is nothing to be written back.
        let begun = syncs("sync_file_range(");
        assert!(begun > 0 || !target.starts_with("/dev"), "{log}");
        assert_eq!(log.contains(" fsync("), new, "{log}");
    }
}

#[test]
fn a_copy_whose_writes_cannot_be_kept_fails_and_no_flush_does_not_ask() {
    let temp = TempDir::new();
    let (targets, _device) = targets(&temp);
    for target in &targets {
        let inject = ["-e", &format!("inject={SYNCS}:error=EIO")];
        let Some((outcome, log)) = copied(&inject, target) else { return };
        let line = outcome.failed();
        assert!(line.contains("flush"), "{line}: {log}");
        // One that was made here goes.
        assert_eq!(target.exists(), target.starts_with("/dev"));
    }
    let (target, trace) = (temp.join("quick"), format!("trace={SYNCS}"));
    let words = ["copy", "--no-flush", "random:20M?seed=1", text(&target)];
    let Some((outcome, log)) = traced(&["-e", &trace], words) else { return };
    outcome.succeeded();
    assert!(!log.contains("sync"), "{log}");
}

#[test]
fn a_name_that_may_not_last_is_no_success() {
    let temp = TempDir::new();
    let target = temp.join("target");
    // The directory's is the only fsync.
    let Some((outcome, _)) = copied(&["-e", "inject=fsync:error=EIO"], &target) else { return };
    let line = outcome.failed();
    assert!(line.contains("sync its directory") && line.contains("may not last"), "{line}");
    // A directory that cannot be synced is made durable with all of its file system.
    let trace = ["-e", "trace=fsync,syncfs", "-e", "inject=fsync:error=EINVAL"];
    fs::remove_file(&target).unwrap();
    let Some((outcome, log)) = copied(&trace, &target) else { return };
    outcome.succeeded();
    assert!(log.contains("syncfs("), "{log}");
}

#[test]
fn an_error_that_only_close_reports_is_noticed() {
    let temp = TempDir::new();
    let target = temp.join("target");
    for flush in [true, false] {
        // A new file would have no name that strace could find.
        fs::write(&target, b"old").unwrap();
        let close = ["-P", text(&target), "-e", "trace=close", "-e", "inject=close:error=EDQUOT"];
        let words = ["copy", "sparse-random:1M", text(&target), "--no-flush"];
        let words = &words[..if flush { 3 } else { 4 }];
        let Some((outcome, _)) = traced(&close, words) else { return };
        let line = outcome.failed();
        assert!(line.contains("close: ") && line.contains("quota"), "{line}");
    }
}

#[test]
fn storage_that_is_full_only_when_it_is_written_back_fails_the_copy() {
    let Some(mkfs) = peer("mkfs.ext4") else { return };
    let Some(thin) = Mounted::new("tmpfs", 20 << 20) else { return };
    let temp = TempDir::new();
    let backing = thin.join("backing");
    fs::File::create(&backing).unwrap().set_len(96 << 20).unwrap();
    let made = Command::new(mkfs).args(["-q", "-O", "^has_journal"]).arg(&backing).output();
    assert!(made.unwrap().status.success());
    let Some(device) = Loop::over(&backing, &[]) else { return };
    let disk = temp.join("disk");
    fs::create_dir(&disk).unwrap();
    let mounted = Command::new("mount").arg(device.path()).arg(&disk).output();
    if !mounted.is_ok_and(|mounted| mounted.status.success()) {
        return skip_environment("cannot mount an ext4");
    }
    let outcome = run(ours(["copy", "random:40M?seed=1"]).arg(disk.join("target")));
    // It may be written back to for a moment.
    let unmount = || Command::new("umount").arg(&disk).output().unwrap().status.success();
    blackbox::wait_for("it is unmounted", unmount);
    let line = outcome.failed();
    assert!(line.contains("flush") || line.contains("close"), "{line}");
}

#[test]
fn a_server_that_can_flush_is_flushed_and_one_that_cannot_is_not_refused() {
    for (options, can, asked) in [
        (&[][..], true, true),
        (&["--flush"], true, true),
        (&["--no-flush"], true, false),
        (&[], false, false),
    ] {
        let mut script = Script::new(1 << 20);
        script.flags = if can { ALL_FLAGS } else { ALL_FLAGS & !tflag::SEND_FLUSH };
        let fake = script.start();
        let uri = fake.uri("");
        run(ours(["copy", "pattern:1M", &uri]).args(options)).succeeded();
        assert_eq!(fake.finish().asked(cmd::FLUSH), asked, "{options:?}");
    }
    let mut script = Script::new(1 << 20);
    script.flags = ALL_FLAGS & !tflag::SEND_FLUSH;
    let fake = script.start();
    let outcome = run(&mut ours(["copy", "--flush", "pattern:1M", &fake.uri("")]));
    assert!(outcome.failed().contains("flush"), "{outcome:?}");
}

/// A new file gets its name through /proc, once all of it is there.
#[test]
fn an_image_gets_its_name_also_where_there_is_no_proc() {
    let Some(unshare) = peer("unshare") else { return };
    let temp = TempDir::new();
    let (empty, from, to) = (temp.join("empty"), temp.join("disk.raw"), temp.join("disk.qcow2"));
    fs::create_dir(&empty).unwrap();
    run(ours(["copy", "sparse-random:8M?seed=1"]).arg(&from)).succeeded();
    let hidden = |words: &[&str]| {
        let script = "mount --bind \"$0\" /proc && exec \"$@\"";
        let mut command = program(&unshare, ["--mount", "sh", "-c", script]);
        run(command.arg(&empty).args(words))
    };
    if !hidden(&["true"]).status.success() {
        return skip_environment("nothing can be mounted here");
    }
    let diskferry = blackbox::peers::diskferry();
    let [diskferry, from, to] =
        [diskferry.to_str(), from.to_str(), to.to_str()].map(Option::unwrap);
    hidden(&[diskferry, "convert", "-f", "raw", "-O", "qcow2", from, to]).succeeded();
    run(&mut ours(["compare", "-f", "raw", "-F", "qcow2", from, to])).succeeded();
}
