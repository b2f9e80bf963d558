//! Every filter has a page of documentation, and its examples work as printed.
//!
//! In a page, a block of `sh` is run in an empty directory with our binary on the path; a block of
//! `text` after it is what it prints.

use std::path::{Path, PathBuf};

use blackbox::examples::{blocks, examples, shell};
use blackbox::peers::peer;
use blackbox::run::{ours, run};
use blackbox::temp::TempDir;

fn pages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/filters")
}

/// The filters that the binary has.
fn words() -> Vec<String> {
    let outcome = run(&mut ours(["serve", "--dump-config"]));
    let list = outcome.succeeded().lines().find_map(|l| l.strip_prefix("filters=")).unwrap();
    list.split(',').map(str::to_owned).collect()
}

#[test]
fn every_filter_has_a_page_with_an_example_and_every_page_a_filter() {
    let words = words();
    assert!(words.len() >= 2, "{words:?}");
    for word in &words {
        let page = std::fs::read_to_string(pages().join(format!("{word}.md"))).expect(word);
        assert!(page.starts_with(&format!("# {word}\n")), "{word}");
        assert!(blocks(&page).iter().any(|(kind, _)| kind == "sh"), "{word} has no example");
        let help = run(&mut ours(["serve", "--help", word]));
        for line in help.succeeded().lines() {
            if let Some((key, _)) = line.trim().split_once('=')
                && !key.is_empty()
                && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
                && line.starts_with("  ")
            {
                assert!(page.contains(&format!("{key}=")), "{word}: {key} is not in its page");
            }
        }
    }
    for entry in std::fs::read_dir(pages()).unwrap() {
        let path = entry.unwrap().path();
        let word = path.file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(words.contains(&word) || word == "README", "{word}: no such filter");
    }
}

#[test]
fn the_examples_of_all_filters_work_as_printed() {
    if ["nbdinfo", "nbdcopy", "nbdsh", "qemu-img"].into_iter().any(|tool| peer(tool).is_none()) {
        return;
    }
    for word in words() {
        let page = std::fs::read_to_string(pages().join(format!("{word}.md"))).expect(&word);
        for example in examples(&page) {
            let temp = TempDir::new();
            let outcome = run(&mut shell(temp.path(), &example.script));
            let printed = outcome.succeeded();
            assert!(example.shows(printed), "{word}: {}{printed}", example.script);
        }
    }
}
