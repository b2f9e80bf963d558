//! The verbs with qemu-img's words: what they make, print and end with, beside qemu-img itself.

mod by_name;
mod convert;
mod formats;
mod in_place;
mod looking;
mod making;
mod measuring;
mod overlays;
mod pipes;

use std::path::Path;

use blackbox::run::{Outcome, ferry, program, run};

/// It must end with this status and one line that contains every one of these words.
#[track_caller]
fn ends_saying(code: i32, words: &[&str], said: &[&str]) {
    let outcome = ferry(words);
    assert_eq!(outcome.status.code(), Some(code), "{outcome:#?}");
    let line = outcome.failed();
    for part in said {
        assert!(line.contains(part), "{part:?} should be in {line:?}");
    }
}

/// Runs a peer with these words.
fn theirs(program_of: &Path, words: &[&str]) -> Outcome {
    run(&mut program(&program_of.to_path_buf(), words))
}
