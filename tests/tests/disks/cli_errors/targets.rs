//! Copies that cannot be done, or stop in the middle.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use blackbox::fake::{Script, Step};
use blackbox::launch::{Serve, Server};
use blackbox::nbd::cmd;
use blackbox::peers::{peer, skip_environment};
use blackbox::run::{Job, Outcome, ours, run};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index, wait_for, wait_for_lines};
use rustix::process::Signal;

use super::{fails_saying, ferry, is_root};

/// Panics unless a copy that failed midway left nothing under the target's name, or reported that
/// the target is incomplete.
#[track_caller]
fn assert_honest(outcome: &Outcome, target: &Path) {
    let line = outcome.failed();
    assert!(!target.exists() || line.contains("incomplete"), "a half copy without a word: {line}");
}

#[test]
fn a_target_file_too_small_is_not_touched() {
    // A regular file may be made longer; a block device or an export may not. Ours leaves an
    // existing file of another size alone or replaces it whole: never a cut copy.
    let temp = TempDir::new();
    let source = temp.file("source", &pattern(0, index(2 * MIB)));
    let target = temp.file("target", &[0xd1; 4096]);
    let outcome = run(ours(["copy"]).arg(&source).arg(&target));
    if outcome.status.success() {
        assert!(fs::read(&target).unwrap() == pattern(0, index(2 * MIB)));
    } else {
        outcome.failed();
        assert_eq!(fs::read(&target).unwrap(), [0xd1; 4096], "the target was touched");
    }
}

#[test]
fn an_export_too_small_is_not_touched() {
    let temp = TempDir::new();
    let path = temp.file("disk", &vec![0xd1; index(MIB)]);
    let server = Serve::file(&path).start();
    let uri = server.uri("");
    fails_saying(&["copy", "pattern:2M", &uri], &["1048576"]);
    assert!(fs::read(&path).unwrap() == vec![0xd1; index(MIB)], "the target was touched");
    fails_saying(&["copy", "pattern:2M", "memory:1M"], &["1048576"]);
}

#[test]
fn a_read_only_export_is_not_a_target() {
    let server = Serve::memory("1M").option("-r").start();
    fails_saying(&["copy", "pattern:1M", &server.uri("")], &["read"]);
}

#[test]
fn what_is_neither_file_nor_disk_is_refused() {
    let temp = TempDir::new();
    let fifo = temp.join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    // Opening a FIFO must not wait for a writer.
    let outcome = run(ours(["info"]).arg(&fifo));
    outcome.failed();
}

/// Runs our binary as the user nobody, for whom permissions count. `None`, after saying so, when
/// that cannot be done.
fn as_unprivileged_user(words: &[&str]) -> Option<Outcome> {
    if !is_root() {
        return Some(ferry(words));
    }
    let setpriv = peer("setpriv")?;
    let temp = TempDir::new();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // The user nobody may not be able to reach the binary.
    let copy = temp.join("diskferry");
    fs::copy(blackbox::peers::diskferry(), &copy).unwrap();
    let mut command = Command::new(setpriv);
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy).args(words);
    let outcome = run(&mut command);
    if outcome.stderr.contains("setpriv:") {
        skip_environment("setpriv may not change the user here");
        return None;
    }
    Some(outcome)
}

#[test]
fn permission_denied_is_reported() {
    let temp = TempDir::new();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let secret = temp.file("secret", &[1; 4096]);
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
    let path = secret.to_str().unwrap();
    for words in [&["info", path][..], &["copy", "pattern:4K", path]] {
        let Some(outcome) = as_unprivileged_user(words) else { return };
        let line = outcome.failed();
        assert!(line.contains(path) && line.contains("ermission denied"), "{line}");
    }
    assert_eq!(fs::read(&secret).unwrap(), [1; 4096], "the target was touched");
    let new = temp.join("new");
    let Some(outcome) = as_unprivileged_user(&["copy", "pattern:4K", new.to_str().unwrap()]) else {
        return;
    };
    outcome.failed();
    assert!(!new.exists());
}

/// Whether a line gives the cause that there is no room, in the system's words or others.
fn tells_no_room(line: &str) -> bool {
    ["o space left", "o room", "ENOSPC"].iter().any(|words| line.contains(words))
}

#[test]
fn a_device_that_is_full_fails_the_copy() {
    let server = Serve::device(["full", "1M"]).start();
    for target in ["full:1M", &server.uri("")] {
        let outcome = ferry(["copy", "pattern:1M", target]);
        assert!(tells_no_room(outcome.failed()), "{outcome:?}");
    }
    // Zeroes fit on a full disk that holds zeroes: success, or an honest refusal.
    let outcome = ferry(["copy", "null:1M", "full:1M"]);
    if !outcome.status.success() {
        outcome.failed();
    }
}

/// A file system of 2 MiB, unmounted when dropped.
struct Small(TempDir);

impl Small {
    fn mount() -> Option<Self> {
        let temp = TempDir::new();
        let mounted = is_root()
            && Command::new("mount")
                .args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"])
                .arg(temp.path())
                .status()
                .is_ok_and(|status| status.success());
        if !mounted {
            skip_environment("may not mount a small file system here");
            return None;
        }
        Some(Self(temp))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_file_system_fails_the_copy() {
    let Some(small) = Small::mount() else { return };
    let target = small.0.join("copy");
    let outcome = run(ours(["copy", "pattern:8M"]).arg(&target));
    assert!(tells_no_room(outcome.failed()), "{outcome:?}");
    assert_honest(&outcome, &target);
    // An existing file that is written over: reported as incomplete.
    let _ = fs::remove_file(&target);
    fs::File::create(&target).unwrap().set_len(8 * MIB).unwrap();
    let outcome = run(ours(["copy", "pattern:8M"]).arg(&target));
    assert_honest(&outcome, &target);
}

#[test]
fn a_source_that_vanishes_fails_the_copy() {
    let fake = Script::new(16 * MIB)
        .on_request(|_, request, _| {
            let late = request.command == cmd::READ && request.offset >= 8 * MIB;
            if late { Step::Close } else { Step::Honest }
        })
        .start();
    let temp = TempDir::new();
    let target = temp.join("copy");
    let outcome = run(ours(["copy", &fake.uri("")]).arg(&target));
    assert_honest(&outcome, &target);
    fake.finish();
}

#[test]
fn a_target_that_vanishes_fails_the_copy() {
    let fake = Script::new(16 * MIB)
        .on_request(|_, request, _| {
            let late = request.command == cmd::WRITE && request.offset >= 8 * MIB;
            if late { Step::Close } else { Step::Honest }
        })
        .start();
    let uri = fake.uri("");
    let outcome = ferry(["copy", "pattern:16M", &uri]);
    let line = outcome.failed();
    assert!(line.contains("incomplete"), "a half copy without a word: {line}");
    fake.finish();
}

/// A slow nbdkit, which can be killed in the middle of a copy.
fn slow(words: &[&str]) -> Option<Server> {
    let nbdkit = peer("nbdkit")?;
    let mut all = vec!["--filter=delay"];
    all.extend(words);
    Some(Server::nbdkit(&nbdkit, &all))
}

/// nbdkit's log lines about each read.
const READ: &str = " Read ";

/// A pattern of this size, each read of which takes so many milliseconds and is then logged.
fn slow_to_read(size: &str, delay: u32, log: &Path) -> Option<Server> {
    let (delay, logfile) = (format!("rdelay={delay}ms"), format!("logfile={}", log.display()));
    slow(&["--filter=log", "pattern", size, &delay, &logfile])
}

#[test]
fn a_source_killed_midway_fails_the_copy() {
    let temp = TempDir::new();
    let log = temp.join("log");
    let Some(mut server) = slow_to_read("64M", 200, &log) else { return };
    let target = temp.join("copy");
    let mut command = ours(["copy", "-R", "2", "-C", "1", &server.uri("")]);
    let job = Job::start(command.arg(&target));
    wait_for_lines(&log, READ, 4);
    server.signal(Signal::KILL);
    assert_honest(&job.wait(), &target);
}

#[test]
fn a_target_killed_midway_fails_the_copy() {
    let temp = TempDir::new();
    let log = temp.join("log");
    let logfile = format!("logfile={}", log.display());
    let words = ["--filter=log", "memory", "64M", "wdelay=200ms", &logfile];
    let Some(mut server) = slow(&words) else { return };
    let uri = server.uri("");
    let job = Job::start(&mut ours(["copy", "-R", "2", "-C", "1", "pattern:64M", &uri]));
    wait_for_lines(&log, " Write ", 1);
    server.signal(Signal::KILL);
    let outcome = job.wait();
    let line = outcome.failed();
    assert!(line.contains("incomplete"), "a half copy without a word: {line}");
}

#[test]
fn an_interrupted_copy_says_what_is_left() {
    for signal in [Signal::INT, Signal::TERM] {
        let temp = TempDir::new();
        let log = temp.join("log");
        let Some(server) = slow_to_read("64M", 200, &log) else { return };
        let target = temp.join("copy");
        let mut command = ours(["copy", "-R", "2", "-C", "1", &server.uri("")]);
        let job = Job::start(command.arg(&target));
        wait_for_lines(&log, READ, 4);
        job.signal(signal);
        let outcome = job.wait();
        assert!(!outcome.status.success(), "{outcome:?}");
        assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
        if signal == Signal::INT {
            assert!(outcome.status.code().is_some(), "it ended by itself: {outcome:?}");
            assert!(outcome.stderr.starts_with("diskferry: "), "{outcome:?}");
        }
        let left = !target.exists() || outcome.stderr.contains("incomplete");
        assert!(left || outcome.status.code().is_none(), "{outcome:?}");
    }
}

#[test]
fn sigusr1_prints_a_line_and_the_copy_goes_on() {
    let temp = TempDir::new();
    let log = temp.join("log");
    let Some(server) = slow_to_read("24M", 20, &log) else { return };
    let target = temp.join("copy");
    let mut command =
        ours(["copy", "-R", "1", "-C", "1", "--request-size", "256K", &server.uri("")]);
    let job = Job::start(command.arg(&target));
    wait_for_lines(&log, READ, 4);
    job.signal(Signal::USR1);
    wait_for("a word of progress", || job.said().ends_with('\n'));
    job.wait().succeeded();
    assert!(fs::read(&target).unwrap().len() == index(24 * MIB));
}

#[test]
fn progress_as_json_is_one_object_a_line() {
    let outcome = ferry(["copy", "--progress=json", "pattern:64M", "null:"]);
    outcome.succeeded();
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert!(!lines.is_empty(), "{outcome:?}");
    for line in lines {
        let value: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(value.is_object(), "{line}");
    }
}

#[test]
fn a_quiet_or_piped_copy_says_nothing() {
    for words in [&["copy", "pattern:4M", "null:"][..], &["copy", "-q", "pattern:4M", "null:"]] {
        let outcome = ferry(words);
        outcome.succeeded();
        assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("", ""));
    }
}

#[test]
fn a_file_that_shrinks_is_not_padded_with_zeroes() {
    // The server's file is cut while it is served: reads past the new end are errors.
    let temp = TempDir::new();
    let path: PathBuf = temp.file("disk", &pattern(0, index(8 * MIB)));
    let server = Serve::file(&path).option("-r").start();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(MIB).unwrap();
    let target = temp.join("copy");
    let outcome = run(ours(["copy", "--no-extents", &server.uri("")]).arg(&target));
    outcome.failed();
    // The server lives.
    server.session(blackbox::session::Mode::Simple, "").assert_alive();
}

#[test]
fn closed_output_is_no_crash() {
    // As `diskferry map ... | head -1` with thousands of lines.
    let binary = blackbox::peers::diskferry();
    let script = "\"$0\" map 'sparse-random:1G?percent=50&runlength=4096' | head -1";
    let outcome = run(Command::new("sh").args(["-c", script]).arg(binary));
    outcome.succeeded();
    assert!(!outcome.stderr.contains("panicked") && !outcome.stderr.contains("roken"));
}

#[test]
fn bytes_that_a_source_filter_rounds_off_are_reported() {
    let temp = TempDir::new();
    let source = temp.file("source", &pattern(0, 5000));
    let target = temp.join("target");
    let outcome =
        run(ours(["copy", "--source-filter=blocksize?minblock=4K"]).args([&source, &target]));
    outcome.succeeded();
    assert!(outcome.stderr.contains("the last 904 bytes are not copied"), "{outcome:?}");
    let outcome =
        run(ours(["copy", "--source-filter=blocksize?minblock=8"]).args([&source, &target]));
    outcome.succeeded();
    assert_eq!(outcome.stderr, "");
}

#[test]
fn what_progress_counts_is_what_the_verdict_says() {
    let Some(server) = slow(&["pattern", "64M", "rdelay=100ms"]) else { return };
    let words = ["copy", "-R", "2", "-C", "1", "--progress=json", &server.uri(""), "null:"];
    let job = Job::start(&mut ours(words));
    let number = |of: &serde_json::Value, key: &str| of["data"][key].as_u64().unwrap();
    // It has come somewhere, and says so once a second.
    wait_for("progress", || {
        let said = job.said();
        let last = said.trim_end().lines().last().map(serde_json::from_str::<serde_json::Value>);
        last.is_some_and(|last| last.is_ok_and(|last| number(&last, "rate") > 0))
    });
    job.signal(Signal::INT);
    let outcome = job.wait();
    assert_eq!(outcome.status.code(), Some(130), "{outcome:?}");
    let lines = outcome.stderr.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<serde_json::Value> = lines.collect();
    let [.., progress, error] = lines.as_slice() else { panic!("{outcome:?}") };
    for line in [progress, error] {
        let parts = ["copied", "zeroed", "skipped"].map(|key| number(line, key));
        assert_eq!(number(line, "done"), parts.into_iter().sum::<u64>(), "{line}");
    }
    assert!(number(progress, "done") > 0 && number(progress, "rate") > 0, "{progress}");
    assert!(number(error, "done") >= number(progress, "done"), "{progress} {error}");
}
