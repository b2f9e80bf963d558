//! What the black-box tests share: a raw NBD client and a hostile NBD server, both written on
//! bytes and sockets, launchers for the binary under test and for its peers, and a guarded way
//! to run a command.
//!
//! Nothing here depends on the project's own crates: a mistake made in `wire` must not be made
//! again in its test. Anything unexpected panics with what was seen, because every caller is a
//! test. Nothing here waits for ever: every socket and every child has a deadlock guard.
//!
//! Environment:
//! - `DISKFERRY`: the binary under test (default: `target/debug` or `target/release`).
//! - `REQUIRE_PEERS=1`: a missing peer fails the test instead of skipping it.
//! - `BLACKBOX_ROUNDS`, `BLACKBOX_SEED`: the long form of the random tests (see `dice`).
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

pub mod cgroup;
pub mod conformance;
pub mod dice;
pub mod examples;
pub mod fake;
pub mod haggle;
pub mod launch;
pub mod listed;
pub mod meddler;
pub mod nbd;
pub mod nbd_server;
pub mod peers;
pub mod rules;
pub mod run;
pub mod session;
pub mod socket;
pub mod storage;
pub mod temp;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take before it counts as a deadlock. Nothing is measured with it.
pub const GUARD: Duration = Duration::from_secs(60);

/// What `look` finds, as soon as it finds something. Panics with `what` when that takes longer than
/// [`GUARD`].
#[track_caller]
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < GUARD, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until `is_so`, looking again and again. Panics with `what` when that takes longer than
/// [`GUARD`].
#[track_caller]
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, || is_so().then_some(()));
}

/// Runs a test in which something must happen in time, as a client must speak before it is closed.
/// Where it fails and threads of this machine did not run for as long as `limit` meanwhile, that
/// shows nothing: it is run again, a few times.
pub fn on_time(limit: Duration, test: impl Fn()) {
    for _ in 0..5 {
        let ended = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&ended);
        let watch = thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !watched.load(Ordering::Relaxed) {
                let begun = Instant::now();
                thread::sleep(Duration::from_millis(10));
                longest = longest.max(begun.elapsed());
            }
            longest
        });
        let outcome = catch_unwind(AssertUnwindSafe(&test));
        ended.store(true, Ordering::Relaxed);
        let stalled = watch.join().unwrap();
        match outcome {
            Ok(()) => return,
            Err(failure) if stalled < limit => resume_unwind(failure),
            Err(_) => println!("again: this machine did nothing for {stalled:?}"),
        }
    }
    panic!("this machine has no time for the test");
}

/// Waits until this many lines of a file have these words: of a log, say, into which the filter
/// `log` writes.
#[track_caller]
pub fn wait_for_lines(file: &Path, words: &str, count: usize) {
    wait_for(words, || {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().filter(|line| line.contains(words)).count() >= count
    });
}

/// The first line of a file that has these words, as soon as it is there.
#[track_caller]
pub fn line_with(file: &Path, words: &str) -> String {
    eventually(words, || {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().find(|line| line.contains(words)).map(str::to_owned)
    })
}

/// One mebibyte, in bytes.
pub const MIB: u64 = 1 << 20;

/// A length as an index. Test sizes fit in memory, so this cannot fail on a 64-bit host.
pub fn index(length: u64) -> usize {
    usize::try_from(length).unwrap()
}

/// The size of a buffer as a length on the wire.
pub fn length(buffer: &[u8]) -> u64 {
    u64::try_from(buffer.len()).unwrap()
}
