//! Checks 66, 67 and 90: what was promised to be on stable storage is.
//!
//! strace is the witness: it logs a system call before the server goes on, so when a reply is
//! here and no sync is in the log, the promise was empty.

use std::fs;
use std::path::Path;

use blackbox::launch::{Serve, Server};
use blackbox::nbd::{cflag, cmd};
use blackbox::peers::{skip_environment, strace};
use blackbox::session::{Mode, Request};
use blackbox::temp::{TempDir, pattern};
use blackbox::{MIB, index};

/// A traced server on a file; `None`, after saying so, where tracing is not possible.
fn traced(temp: &TempDir, file: &Path) -> Option<Server> {
    strace()?;
    Some(Serve::file(file).traced(&temp.join("log")).start())
}

/// Panics unless the trace, from line `from` on, holds a promise of stable storage. A server
/// that syncs through io_uring cannot be watched this way.
#[track_caller]
fn assert_synced(log: &Path, from: usize, what: &str) {
    let text = fs::read_to_string(log).unwrap();
    if text.lines().skip(from).any(|line| line.contains("io_uring_enter(")) {
        skip_environment("the server uses io_uring, which strace does not see into");
        return;
    }
    assert!(!syncs(log, from).is_empty(), "{what} without a sync: {}", tail(log));
}

/// The lines of the trace that promise stable storage, from line `from` on.
fn syncs(log: &Path, from: usize) -> Vec<String> {
    let text = fs::read_to_string(log).unwrap();
    // The threads that are in the middle of one, as strace splits it.
    let mut inside = Vec::new();
    let mut promises = |line: &&str| {
        let thread = line.split_whitespace().next().unwrap_or_default().to_owned();
        if line.contains("_DSYNC") && line.contains("<unfinished") {
            inside.push(thread.clone());
        }
        let goes_on = line.contains("pwritev2 resumed") && inside.contains(&thread);
        let call = ["fsync(", "fdatasync(", "msync("].iter().any(|name| line.contains(name));
        let resumed = line.contains("sync resumed");
        let through = goes_on || line.contains("RWF_DSYNC") || line.contains("RWF_SYNC");
        let failed = line.contains("= -1");
        let unfinished = line.contains("<unfinished");
        (call || resumed || through) && !failed && !unfinished
    };
    text.lines().skip(from).filter(|line| promises(line)).map(str::to_owned).collect()
}

fn lines(log: &Path) -> usize {
    fs::read_to_string(log).unwrap().lines().count()
}

fn disk(temp: &TempDir) -> std::path::PathBuf {
    temp.file("disk", &pattern(0, index(4 * MIB)))
}

#[test]
fn server_check_66_flush_syncs_before_it_is_answered() {
    let temp = TempDir::new();
    let path = disk(&temp);
    let Some(server) = traced(&temp, &path) else { return };
    let log = temp.join("log");
    let mut session = server.session(Mode::Simple, "");
    for n in 0..8 {
        let before = lines(&log);
        session.write(n * 8192, &[0x42; 8192]);
        session.flush();
        assert_synced(&log, before, "FLUSH was answered");
    }
    // The power goes: what a FLUSH covered is in the file.
    server.kill();
    let content = fs::read(&path).unwrap();
    assert!(content[..65536].iter().all(|b| *b == 0x42));
}

#[test]
fn server_check_67_fua_syncs_before_it_is_answered() {
    let temp = TempDir::new();
    let path = disk(&temp);
    let Some(server) = traced(&temp, &path) else { return };
    let log = temp.join("log");
    let mut session = server.session(Mode::Simple, "");
    let requests = [
        Request::write(4096, &[0x43; 4096]),
        Request::write(4097, &[0x44; 300_000]),
        Request::new(cmd::WRITE_ZEROES, 0, 4096),
        Request::new(cmd::WRITE_ZEROES, 0, 8192).flags(cflag::NO_HOLE),
        Request::new(cmd::TRIM, MIB, MIB),
    ];
    for request in requests {
        let before = lines(&log);
        let command = request.command;
        assert_eq!(session.error_of(&request.flags(cflag::FUA)), 0);
        if command != cmd::TRIM {
            assert_synced(&log, before, "FUA was answered");
        }
    }
}

#[test]
fn server_check_90_flush_on_another_connection_covers_the_write() {
    let temp = TempDir::new();
    let path = disk(&temp);
    let Some(server) = traced(&temp, &path) else { return };
    let log = temp.join("log");
    let mut one = server.session(Mode::Simple, "");
    let mut two = server.session(Mode::Structured, "");
    for n in 0..4_u8 {
        let before = lines(&log);
        one.write(u64::from(n) * 4096, &[n + 1; 4096]);
        two.flush();
        assert_synced(&log, before, "FLUSH was answered");
        for session in [&mut one, &mut two] {
            assert_eq!(session.read(u64::from(n) * 4096, 4096).unwrap(), [n + 1; 4096]);
        }
    }
    // FUA on one is visible on the other.
    let request = Request::write(65536, &[9; 512]).flags(cflag::FUA);
    assert_eq!(two.error_of(&request), 0);
    assert_eq!(one.read(65536, 512).unwrap(), [9; 512]);
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
