//! The README's commands work as printed: its blocks of `sh`, one after the other, in an empty
//! directory.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::Path;
use std::process::Command;

use blackbox::peers::{diskferry, peer};
use blackbox::run::run;
use blackbox::temp::TempDir;

/// The blocks of `sh`, as one script.
fn script() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut script = String::new();
    let mut inside = false;
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(word) => inside = word == "sh",
            None if inside => script += &format!("{line}\n"),
            None => {}
        }
    }
    script
}

#[test]
fn the_commands_of_the_readme_work_as_printed() {
    let tools = ["nbdinfo", "nbdcopy", "qemu-img", "qemu-io"];
    if tools.into_iter().any(|tool| peer(tool).is_none()) {
        return;
    }
    let script = script();
    assert!(script.matches("diskferry ").count() > 12, "{script}");
    let path = format!(
        "{}:{}",
        diskferry().canonicalize().unwrap().parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let temp = TempDir::new();
    // Whatever fails, no server stays behind.
    let script = format!("trap 'kill $(cat *.pid) 2>/dev/null || :' EXIT\n{script}");
    let mut shell = Command::new("bash");
    shell.args(["-euc", &script]).current_dir(temp.path()).env("PATH", &path);
    let outcome = run(&mut shell);
    outcome.succeeded();
    assert!(!outcome.stderr.contains("diskferry: "), "{outcome:#?}");
    let read = |name: &str| std::fs::read(temp.join(name)).unwrap();
    assert!(read("disk.raw") == read("copy.raw"), "the copy differs");
    assert!(String::from_utf8(read("copy.log")).unwrap().contains("Write"));
}
