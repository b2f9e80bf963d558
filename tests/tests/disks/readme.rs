//! The README's commands work as printed: its blocks of `sh`, one after the other, in an empty
//! directory. What it links to is there.

use std::time::Duration;

use blackbox::examples::{blocks, root, shell};
use blackbox::peers::peer;
use blackbox::run::Job;
use blackbox::temp::TempDir;

/// For all of it.
const LIMIT: Duration = Duration::from_secs(300);

fn page() -> String {
    std::fs::read_to_string(root().join("README.md")).unwrap()
}

/// The blocks of `sh`, as one script.
fn script() -> String {
    blocks(&page()).into_iter().filter(|(word, _)| word == "sh").map(|(_, block)| block).collect()
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
    let outcome = Job::start(&mut shell(temp.path(), &script)).wait_within(LIMIT);
    outcome.succeeded();
    assert!(!outcome.stderr.contains("diskferry: "), "{outcome:#?}");
    let read = |name: &str| std::fs::read(temp.join(name)).unwrap();
    assert!(read("disk.raw") == read("copy.raw"), "the copy differs");
    assert!(String::from_utf8(read("copy.log")).unwrap().contains("Write"));
}

#[test]
fn every_block_of_the_readme_is_run_by_some_test() {
    // What is no `sh`: `packaging/newcomer` installs, and `examples.rs` starts the servers.
    for (word, block) in blocks(&page()) {
        let installs = block == "cargo install --locked --path crates/cli\n";
        let elsewhere = installs || block.lines().all(|line| line.starts_with("diskferry serve "));
        assert!(word == "sh" || (word.is_empty() && elsewhere), "no test runs this:\n{block}");
    }
}

#[test]
fn what_the_readme_links_to_is_there() {
    let page = page();
    let mut count = 0;
    for (before, after) in [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"')] {
        for rest in page.split(before).skip(1) {
            let link = rest.split(after).next().unwrap();
            if !link.starts_with("http") {
                assert!(root().join(link).exists(), "there is no {link}");
                count += 1;
            }
        }
    }
    assert!(count > 15, "{count} links");
}
