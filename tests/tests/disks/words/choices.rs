//! Other options of `copy` that tools of its kind have.

use std::fs;

use blackbox::temp::{TempDir, pattern};

use super::{ferry, script, text};

#[test]
fn no_clobber_makes_a_file_and_a_stream_leaves_alone_what_is_there() {
    let temp = TempDir::new();
    let source = temp.file("in", &pattern(0, 100_000));
    let target = temp.join("out");
    ferry(["copy", "--no-clobber", text(&source), text(&target)]).succeeded();
    assert!(fs::read(&target).unwrap() == pattern(0, 100_000));
    let line = "cat \"$1\" | \"$ferry\" copy --no-clobber - \"$2\"";
    let old = temp.file("old", b"precious");
    assert_eq!(script(line, [text(&source), text(&old)]).status.code(), Some(1));
    assert_eq!(fs::read(&old).unwrap(), b"precious");
}

#[test]
fn a_rate_is_in_bytes_and_bounds_how_long_a_copy_takes() {
    let temp = TempDir::new();
    let source = temp.file("in", &pattern(0, 3 << 20));
    let target = temp.join("out");
    let begun = std::time::Instant::now();
    ferry(["copy", "--rate", "1M/s", text(&source), text(&target)]).succeeded();
    // Two seconds' worth may be saved up; a copy that is slower is no failure of this test.
    assert!(begun.elapsed().as_millis() >= 900, "{:?}", begun.elapsed());
    assert!(fs::read(&target).unwrap() == pattern(0, 3 << 20));
    let small = temp.file("small", &pattern(0, 4096));
    for rate in ["1M", "1MiB/s", "4096"] {
        ferry(["copy", "--rate", rate, text(&small), text(&target)]).succeeded();
        assert!(fs::read(&target).unwrap() == pattern(0, 4096));
    }
}

#[test]
fn verbose_says_what_both_ends_are_and_what_was_done() {
    let temp = TempDir::new();
    let source = temp.file("in", &pattern(0, 1 << 20));
    let target = temp.join("out");
    let outcome = ferry(["copy", "-v", text(&source), text(&target)]);
    outcome.succeeded();
    assert!(outcome.stdout.is_empty());
    assert!(outcome.stderr.contains("made now"), "{outcome:#?}");
    assert!(outcome.stderr.contains("copied 1 MiB of data"), "{outcome:#?}");
    let outcome = script("\"$ferry\" copy -v \"$1\" - | cmp - \"$1\"", [text(&source)]);
    outcome.succeeded();
}
