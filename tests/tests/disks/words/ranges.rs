//! `copy` of a range: only it changes.

use std::fs;

use blackbox::temp::{TempDir, pattern};

use super::{ferry, script, text};

#[test]
fn a_range_goes_to_the_same_place_and_all_else_stays() {
    let temp = TempDir::new();
    let source = temp.file("in", &pattern(0, 3 << 20));
    let old = vec![9; 4 << 20];
    for (words, from, len, to) in [
        (&["--offset", "1M", "--length", "1M"][..], 1 << 20, 1 << 20, 1 << 20),
        (&["--offset", "1000", "--length", "777"], 1000, 777, 1000),
        (&["--offset", "2M"], 2 << 20, 1 << 20, 2 << 20),
        (&["--length", "513"], 0, 513, 0),
        (&["--target-offset", "1M"], 0, 3 << 20, 1 << 20),
        (&["--offset", "5", "--length", "70000", "--target-offset", "3"], 5, 70_000, 3),
        (&["--offset", "3M"], 3 << 20, 0, 3 << 20),
    ] {
        let target = temp.file("out", &old);
        let mut wanted = old.clone();
        wanted[to..to + len].copy_from_slice(&pattern(0, 3 << 20)[from..from + len]);
        ferry([&["copy"], words, &[text(&source), text(&target)]].concat()).succeeded();
        assert!(fs::read(&target).unwrap() == wanted, "{words:?}");
        let target = temp.file("out", &old);
        let line = "target=$1; shift; export words=\"$*\"; \
            \"$ferry\" serve file \"$target\" --run '\"$ferry\" copy $words \"$uri\"'";
        script(line, [&[text(&target)], words, &[text(&source)]].concat()).succeeded();
        assert!(fs::read(&target).unwrap() == wanted, "{words:?} to a server");
    }
}

#[test]
fn holes_of_a_range_are_zeroed_and_those_beside_it_are_not() {
    let temp = TempDir::new();
    let source = temp.sparse_file("in", 4 << 20);
    let target = temp.file("out", &vec![9; 4 << 20]);
    ferry(["copy", "--offset", "1000", "--length", "2M", text(&source), text(&target)]).succeeded();
    let after = fs::read(&target).unwrap();
    let end = 1000 + (2 << 20);
    assert!(after[1000..end].iter().all(|b| *b == 0));
    assert!(after[..1000].iter().chain(&after[end..]).all(|b| *b == 9));
}

#[test]
fn a_file_that_is_missing_is_made_as_long_as_the_range_needs() {
    let temp = TempDir::new();
    let source = temp.file("in", &pattern(0, 1 << 20));
    let target = temp.join("out");
    ferry(["copy", "--offset", "4K", "--length", "8K", text(&source), text(&target)]).succeeded();
    let after = fs::read(&target).unwrap();
    assert_eq!(after.len(), 12 << 10);
    assert!(after[..4096].iter().all(|b| *b == 0));
    assert!(after[4096..] == pattern(0, 1 << 20)[4096..12 << 10]);
}

#[test]
fn a_range_that_is_not_there_changes_nothing() {
    let temp = TempDir::new();
    let source = temp.file("in", &pattern(0, 1 << 20));
    let target = temp.file("out", &[9; 1000]);
    let words = ["copy", "--offset", "100", "--length", "901", text(&source), text(&target)];
    assert!(ferry(words).failed().contains("target is too small"));
    assert_eq!(fs::read(&target).unwrap(), [9; 1000]);
    let line = "\"$ferry\" serve file \"$1\" --run '\"$ferry\" copy --length 512K --target-offset 1K \"$uri\" \"$uri\"'";
    assert!(script(line, [text(&source)]).failed().contains("is the source itself"));
    assert!(fs::read(&source).unwrap() == pattern(0, 1 << 20));
}

#[test]
fn a_range_of_a_pipe_is_one_too() {
    let temp = TempDir::new();
    let source = temp.file("in", &pattern(0, 1 << 20));
    let target = temp.file("out", &vec![9; 2 << 20]);
    let line = "cat \"$1\" | \"$ferry\" copy --target-offset 4K - \"$2\"";
    script(line, [text(&source), text(&target)]).succeeded();
    let after = fs::read(&target).unwrap();
    assert!(after[4096..4096 + (1 << 20)] == pattern(0, 1 << 20));
    assert!(after[..4096].iter().all(|b| *b == 9));
    assert_eq!(after.len(), 2 << 20);
}
