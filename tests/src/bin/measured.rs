//! Runs a program and writes its peak resident memory, in bytes, into a file.
//!
//!     measured FILE PROGRAM ARGUMENTS
//!
//! Linux counts into a process's peak what the process that started it held at that moment. This
//! one holds next to nothing, and a test process hundreds of MiB. Ends as the program ends, by the
//! same signal too.
//!
//! `unsafe` is used for one system call, `wait4`: it is the only one that returns the peak memory
//! of *this* child, and neither the standard library nor rustix wraps it.
#![allow(unsafe_code, reason = "wait4, see above")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, exit};

use rustix::process::{Pid, Signal, getpid, kill_process};

fn main() {
    let mut words = std::env::args_os().skip(1);
    let (file, program) = (words.next().unwrap(), words.next().unwrap());
    let child = Command::new(&program).args(words).spawn();
    let child = child.unwrap_or_else(|e| panic!("starting {}: {e}", program.display()));
    let (status, peak) = wait4(Pid::from_child(&child));
    std::fs::write(file, peak.to_string()).unwrap();
    if let Some(signal) = status.signal().and_then(Signal::from_named_raw) {
        let _ = kill_process(getpid(), signal);
    }
    exit(status.code().unwrap_or(1));
}

/// Waits for a child; its status and its peak memory in bytes.
fn wait4(pid: Pid) -> (ExitStatus, u64) {
    let mut status = 0;
    // SAFETY: rusage is a plain C struct for which all zeroes is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are valid for the call. The pid is of a child that no other code
        // waits for: its `Child` is dropped without waiting.
        let waited =
            unsafe { libc::wait4(pid.as_raw_nonzero().get(), &raw mut status, 0, &raw mut usage) };
        if waited >= 0 {
            break;
        }
        let error = std::io::Error::last_os_error();
        assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "wait4: {error}");
    }
    (ExitStatus::from_raw(status), u64::try_from(usage.ru_maxrss).unwrap() * 1024)
}
