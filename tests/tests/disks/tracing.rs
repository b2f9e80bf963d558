//! Our binary under strace.

use std::ffi::OsStr;
use std::fs;

use blackbox::peers::{diskferry, strace};
use blackbox::run::{Outcome, program, run, whole_calls};
use blackbox::temp::TempDir;

/// Runs our binary with these words, and strace with its own; the calls, each in one line. `None`,
/// after saying so, where there is no strace.
pub(crate) fn traced<S: AsRef<OsStr>>(
    options: &[&str],
    words: impl IntoIterator<Item = S>,
) -> Option<(Outcome, String)> {
    let temp = TempDir::new();
    let log = temp.join("calls");
    let mut command = program(&strace()?, ["-f", "-y", "-o", log.to_str().unwrap()]);
    let outcome = run(command.args(options).arg(diskferry()).args(words));
    Some((outcome, whole_calls(&fs::read_to_string(log).unwrap())))
}
