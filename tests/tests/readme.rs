//! The README's commands work as printed: its blocks of `sh`, one after the other, in an empty
//! directory.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use blackbox::examples::{blocks, root, shell};
use blackbox::peers::peer;
use blackbox::run::run;
use blackbox::temp::TempDir;

/// The blocks of `sh`, as one script.
fn script() -> String {
    let page = std::fs::read_to_string(root().join("README.md")).unwrap();
    blocks(&page).into_iter().filter(|(word, _)| word == "sh").map(|(_, block)| block).collect()
}

#[test]
fn the_commands_of_the_readme_work_as_printed() {
    let tools = ["nbdinfo", "nbdcopy", "qemu-img", "qemu-io"];
    if tools.into_iter().any(|tool| peer(tool).is_none()) {
        return;
    }
    let script = script();
    assert!(script.matches("diskferry ").count() > 12, "{script}");
    let temp = TempDir::new();
    // Whatever fails, no server stays behind.
    let script = format!("trap 'kill $(cat *.pid) 2>/dev/null || :' EXIT\n{script}");
    let outcome = run(&mut shell(temp.path(), &script));
    outcome.succeeded();
    assert!(!outcome.stderr.contains("diskferry: "), "{outcome:#?}");
    let read = |name: &str| std::fs::read(temp.join(name)).unwrap();
    assert!(read("disk.raw") == read("copy.raw"), "the copy differs");
    assert!(String::from_utf8(read("copy.log")).unwrap().contains("Write"));
}
