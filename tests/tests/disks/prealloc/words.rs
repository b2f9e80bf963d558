//! What it says.

use blackbox::temp::TempDir;

use super::{ferry, text};

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
