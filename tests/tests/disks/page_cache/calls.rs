//! The calls that a copy makes, in their order, and what becomes of their failures.

use super::*;
use crate::tracing::traced;
use blackbox::peers::{diskferry, strace};
use blackbox::run::program;

/// A copy by short requests, which go through the page cache.
fn short_copy(temp: &TempDir, options: &[&str]) -> Option<(Outcome, String)> {
    let target = named(&temp.join("target"), "none");
    let words = ["copy", "--request-size", "256k", "random:64M?seed=1"].map(OsString::from);
    traced(options, [&words[..], &[target]].concat())
}

#[test]
fn pages_are_sent_then_waited_for_then_let_go_and_all_is_flushed_at_the_end() {
    let temp = TempDir::new();
    let trace = ["-e", "trace=sync_file_range,fadvise64,fdatasync"];
    let Some((outcome, log)) = short_copy(&temp, &trace) else { return };
    outcome.succeeded();
    // A new file has no name yet.
    let calls: Vec<&str> = log.lines().filter(|l| l.contains(">(deleted)")).collect();
    let find = |from: usize, parts: &[&str]| {
        let is = |l: &&&str| parts.iter().all(|part| l.contains(part));
        calls.iter().skip(from).position(|l| is(&l)).map(|i| i + from)
    };
    let window = ", 0, 4194304, ";
    let sent = find(0, &["sync_file_range(", window, " SYNC_FILE_RANGE_WRITE)"]);
    let waited = find(0, &["sync_file_range(", window, "SYNC_FILE_RANGE_WAIT_AFTER"]);
    let dropped = find(0, &["fadvise64(", window, "POSIX_FADV_DONTNEED"]);
    let order = [sent, waited, dropped].map(|found| found.unwrap_or_else(|| panic!("{log}")));
    assert!(order.is_sorted(), "{order:?}: {log}");
    let flushed = find(0, &["fdatasync("]).unwrap();
    assert!(find(flushed + 1, &["POSIX_FADV_DONTNEED"]).is_some(), "the tail: {log}");
}

#[test]
fn a_failure_that_is_noticed_during_a_copy_fails_it_though_the_flush_succeeds() {
    let temp = TempDir::new();
    // Of three calls at least one waits.
    let inject =
        ["-e", "trace=sync_file_range,fdatasync", "-e", "inject=sync_file_range:error=EIO"];
    let Some((outcome, log)) = short_copy(&temp, &inject) else { return };
    let line = outcome.failed();
    assert!(line.contains("flush") && line.contains("Input/output error"), "{line}: {log}");
    assert!(!temp.join("target").exists());
}

#[test]
fn a_failed_flush_fails_the_copy_in_every_mode() {
    let temp = TempDir::new();
    for mode in ["none", "auto", "direct"] {
        let words = ["copy", "random:8M?seed=1"].map(OsString::from);
        let target = named(&temp.join("target"), mode);
        let inject = ["-e", "inject=fdatasync:error=EIO"];
        let Some((outcome, _)) = traced(&inject, [&words[..], &[target]].concat()) else {
            return;
        };
        assert!(outcome.failed().contains("flush"), "{mode}");
        assert!(!temp.join("target").exists(), "{mode}");
    }
}

#[test]
fn long_requests_are_direct_and_short_ones_are_not() {
    if !has_tools() {
        return;
    }
    let temp = TempDir::new();
    let source = cold(temp.path(), "source", 32 * MIB);
    // Only what succeeds: in its sandbox the program cannot reopen a new file itself.
    let trace = ["-z", "-e", "trace=openat,pread64,pwrite64,io_uring_setup,sync_file_range"];
    let words = [OsString::from("copy"), source.clone().into(), temp.join("target").into()];
    let Some((outcome, log)) = traced(&trace, &words) else { return };
    outcome.succeeded();
    let opened = log.lines().filter(|l| l.contains("openat(") && l.contains("O_DIRECT|")).count();
    assert_eq!(opened, 2, "both ends: {log}");
    let long = log.lines().filter(|l| l.contains("pwrite64(") && l.contains(", 2097152, ")).count();
    assert!(long >= 8, "{long} long writes: {log}");
    assert!(!log.contains("sync_file_range("), "nothing is left to be sent: {log}");
}

#[test]
fn direct_goes_by_io_uring_and_by_threads_where_that_is_forbidden() {
    if !has_tools() {
        return;
    }
    let temp = TempDir::new();
    let source = cold(temp.path(), "source", 16 * MIB + 77);
    let target = temp.join("target");
    let words = [OsString::from("copy"), named(&source, "direct"), named(&target, "direct")];
    for forbidden in [false, true] {
        let mut options = vec!["-e", "trace=io_uring_setup,io_uring_enter,pread64,pwrite64"];
        if forbidden {
            options.extend(["-e", "inject=io_uring_setup:error=EPERM"]);
        }
        let Some((outcome, log)) = traced(&options, &words) else { return };
        outcome.succeeded();
        assert!(is_same(&source, &target), "{forbidden}");
        let entered = log.contains("io_uring_enter(");
        // The system of the test may forbid it, too.
        let refused = log.contains("io_uring_setup(") && log.contains("= -1");
        assert_eq!(entered, !refused, "{forbidden}: {log}");
        assert!(!forbidden || log.contains("pwrite64("), "{log}");
        std::fs::remove_file(&target).unwrap();
        drop_pages(&source);
    }
}

#[test]
fn where_a_file_has_no_direct_io_that_is_noted_and_few_pages_stay() {
    if !has_tools() {
        return;
    }
    let temp = TempDir::new();
    let source = cold(temp.path(), "source", 8 * MIB);
    let target = temp.join("target");
    // A new one would have no name that strace could know it by.
    std::fs::write(&target, "").unwrap();
    let words = [OsString::from("copy"), source.clone().into(), named(&target, "direct")];
    let Some(strace) = strace() else { return };
    let mut command = program(&strace, ["-f", "-o", "/dev/null", "-e", "trace=pread64"]);
    // The first read of the target is the one that tries.
    command.args(["-P", target.to_str().unwrap(), "-e", "inject=pread64:error=EINVAL:when=1"]);
    let outcome = run(command.arg(diskferry()).args(&words));
    outcome.succeeded();
    assert!(outcome.stderr.contains("direct I/O is not available here"), "{}", outcome.stderr);
    assert!(is_same(&source, &target));
}
