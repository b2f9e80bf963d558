//! What a hostile or broken server may send to our client, and what the client must do: the
//! numbered client checks of the protocol's conformance list, which are rows of
//! `blackbox::conformance` or tests `client_check_NN_what`. What of 18 and 19 needs TLS itself is
//! in `wire/tls`; what bytes alone show as strictly is in `crates/wire/tests/checks`.
//!
//! The server is a thread of the test; the client is the binary: `info`, `list`, `map`, `copy`.
//! In every test the fake server also judges the client's manners (check 40), and every run is
//! guarded against hanging, panics and unbounded memory.

mod chunks;
mod handshake;
mod manners;
mod replies;
mod silence;
mod status;

use std::fs;

use blackbox::MIB;
use blackbox::fake::Fake;
use blackbox::listed::{OF_BYTES, missing};
use blackbox::run::{Outcome, measured, ours};
use blackbox::session::Mode;
use blackbox::temp::TempDir;

#[test]
fn every_check_has_a_test() {
    let folders = ["tests/tests/wire/client_conformance", "tests/tests/wire/tls"];
    let folders = [&OF_BYTES[..], &folders].concat();
    let missing = missing("client", 1..=40, &folders);
    assert!(missing.is_empty(), "{missing:?}");
}

/// The reply forms with chunks.
const CHUNKED: [Mode; 2] = [Mode::Structured, Mode::Extended];
/// Every reply form.
const MODES: [Mode; 3] = [Mode::Simple, Mode::Structured, Mode::Extended];

/// What any run may need, in bytes: the client's own buffers, far below what a hostile length
/// would make it allocate.
const MEMORY: u64 = 256 * MIB;

/// Runs a verb of our binary on the fake's default export.
fn verb(verb: &str, fake: &Fake) -> Outcome {
    let outcome = measured(&ours([verb, &fake.uri("")]));
    outcome.fits_in(MEMORY);
    outcome
}

/// Copies the fake's disk to a file.
fn copy_out(fake: &Fake) -> (Outcome, Option<Vec<u8>>) {
    let temp = TempDir::new();
    let target = temp.join("copy");
    let uri = fake.uri("");
    let mut command = ours(["copy", &uri]);
    let outcome = measured(command.arg(&target));
    outcome.fits_in(MEMORY);
    let content = fs::read(&target).ok();
    (outcome, content)
}

/// The copy must succeed and be exact.
#[track_caller]
fn copy_is_right(fake: &Fake) {
    let (outcome, content) = copy_out(fake);
    outcome.succeeded();
    assert!(content.as_ref() == Some(&fake.disk()), "the copy differs: {outcome:#?}");
    fake.finish();
}

/// The copy must fail with one line, which is returned.
#[track_caller]
fn copy_fails(fake: &Fake) -> String {
    let (outcome, _) = copy_out(fake);
    let line = outcome.failed().to_owned();
    fake.finish();
    line
}

/// The copy may fail; if it reports success, it must be exact.
#[track_caller]
fn copy_is_right_or_fails(fake: &Fake) {
    let (outcome, content) = copy_out(fake);
    if outcome.status.success() {
        outcome.succeeded();
        assert!(content.as_ref() == Some(&fake.disk()), "a wrong copy: {outcome:#?}");
    } else {
        outcome.failed();
    }
    fake.finish();
}
