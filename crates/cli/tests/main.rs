//! The program, run as users run it: what needs its own files.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod copy;
mod inspect;
mod one_disk;
mod resize;

use std::path::PathBuf;
use std::process::{Command, Output};

/// A directory of its own for one test, removed with it.
struct Room(PathBuf);

impl Room {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("diskferry-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn ours(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_diskferry")).args(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The one line that a failure prints.
fn complaint(output: &Output, code: i32) -> String {
    let line = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.starts_with("diskferry: "), "{line}");
    line
}
