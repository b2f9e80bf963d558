//! Words that make no sense.

use blackbox::temp::{TempDir, pattern};

use super::{ferry, text};

#[test]
fn wrong_words_are_refused_and_make_nothing() {
    let temp = TempDir::new();
    let (disk, old) = (temp.join("disk"), temp.file("old", &pattern(0, 10_000)));
    let (disk_text, old_text) = (text(&disk), text(&old));
    for (words, said) in [
        (vec![disk_text], "how large"),
        (vec!["--size", "1X", disk_text], "size"),
        (vec!["--size", "1M", "--mode", "full", disk_text], "mode"),
        (vec!["--size", "1M", "--rate", "0", disk_text], "rate"),
        (vec!["--size", "1M", "--length", "2M", disk_text], "beyond the size"),
        (vec!["--offset", "7E", "--length", "7E", disk_text], "no file can be that long"),
        (vec!["--size", "1M", "--keep-size", old_text], "keeps its length"),
    ] {
        let mut all = vec!["prealloc"];
        all.extend(&words);
        let outcome = ferry(&all);
        assert!(outcome.refused().contains(said), "{outcome:?}");
        assert!(!disk.exists(), "{words:?}");
    }
    assert!(std::fs::read(&old).unwrap() == pattern(0, 10_000));
    let outcome = ferry(&["prealloc", "--size", "1M", "memory:1M"]);
    assert!(outcome.failed().contains("only files and block devices"), "{outcome:?}");
    let outcome = ferry(&["prealloc", "--size", "1M", text(temp.path())]);
    assert!(outcome.failed().contains("is a directory"), "{outcome:?}");
    let words = ["copy", "--preallocate", "full", old_text, disk_text];
    assert!(ferry(&words).refused().contains("preallocate"));
    let words = ["copy", "--preallocate", "written", "-O", "qcow2", old_text, disk_text];
    assert!(ferry(&words).refused().contains("-o preallocation"));
}

#[test]
fn it_says_which_way_it_went() {
    let temp = TempDir::new();
    let disk = temp.join("disk");
    let outcome = ferry(&["prealloc", "--size", "3M", "--mode", "sparse", text(&disk)]);
    assert!(outcome.succeeded().contains("3 MiB long, nothing allocated"), "{outcome:?}");
    let outcome = ferry(&["prealloc", "--mode", "unwritten", text(&disk)]);
    assert!(outcome.succeeded().contains("3 MiB allocated, not written"), "{outcome:?}");
    let outcome = ferry(&["prealloc", text(&disk)]);
    assert!(outcome.succeeded().contains("3 MiB zeroed by"), "{outcome:?}");
    assert_eq!(ferry(&["prealloc", "-q", text(&disk)]).succeeded(), "");
    let outcome = ferry(&["prealloc", "--progress=json", text(&disk)]);
    assert!(outcome.stderr.contains("\"type\":\"summary\""), "{outcome:?}");
}
