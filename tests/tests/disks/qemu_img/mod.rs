//! The verbs with qemu-img's words: what they make, print and end with, beside qemu-img itself.

mod convert;
mod formats;
mod looking;
mod making;
mod measuring;
mod overlays;
mod pipes;

use blackbox::run::{Outcome, ours, run};

/// Runs our binary with these words.
fn ferry<S: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = S>) -> Outcome {
    run(&mut ours(words))
}

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
