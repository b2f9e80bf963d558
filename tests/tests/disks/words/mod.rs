//! Words that people bring along from other tools: `-` for a pipe, `[ CMD ARGS ]` for a server, one
//! question to `info`, a range and a rate for `copy`, a directory for `serve`, and `resize`.

mod amending;
mod brackets;
mod choices;
mod directory;
mod questions;
mod ranges;
mod resizing;
mod streams;

use std::ffi::OsStr;
use std::process::Command;

use blackbox::peers::diskferry;
use blackbox::run::{Outcome, ferry, run, text};

/// Runs a script of bash in which `$ferry` is our binary, and `$1`, `$2` … are these words.
fn script<S: AsRef<OsStr>>(line: &str, words: impl IntoIterator<Item = S>) -> Outcome {
    let mut command = Command::new("bash");
    run(command.args(["-c", line, "-"]).args(words).env("ferry", diskferry()))
}
