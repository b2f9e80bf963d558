//! Bad input: one line that names the thing and the cause, a non-zero exit, and a target that
//! is untouched or reported as incomplete.

mod bytes;
mod formats;
mod locks;
mod targets;
mod words;

use blackbox::run::ferry;

/// It must fail with one line that contains every one of these words.
#[track_caller]
fn fails_saying(words: &[&str], said: &[&str]) {
    let outcome = ferry(words);
    let line = outcome.failed();
    for part in said {
        assert!(line.contains(part), "{part:?} should be in {line:?}");
    }
}

/// Whether this process may do anything to any file.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
