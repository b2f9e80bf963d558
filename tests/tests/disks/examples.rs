//! Every documented example works as printed, and does the same in a sandbox: all pages, each in an
//! empty directory, as they are and under `--sandbox=require`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use blackbox::examples::{Confined, blocks, root, shell};
use blackbox::peers::peer;
use blackbox::run::{Job, Outcome};
use blackbox::temp::TempDir;

/// For a page.
const LIMIT: Duration = Duration::from_secs(300);

fn has_peers() -> bool {
    let tools = ["nbdinfo", "nbdcopy", "nbdsh", "qemu-img", "qemu-io", "openssl"];
    tools.into_iter().all(|tool| peer(tool).is_some())
}

fn pages_in(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap();
    let mut pages: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    pages.retain(|path| path.extension().is_some_and(|ending| ending == "md"));
    pages.sort();
    pages
}

/// What runs in a shell on a page, as one script.
fn script(page: &Path) -> String {
    let text = std::fs::read_to_string(page).unwrap();
    let all = blocks(&text).into_iter().filter(|(word, _)| word == "sh");
    let all: String = all.map(|(_, block)| block).collect();
    // Whatever fails, no server stays behind.
    format!("trap 'kill $(cat *.pid) 2>/dev/null || :' EXIT\n{all}")
}

fn works_confined(pages: &[PathBuf]) -> usize {
    let confined = Confined::default();
    for page in pages {
        let temp = TempDir::new();
        let outcome =
            Job::start(&mut confined.shell(temp.path(), &script(page))).wait_within(LIMIT);
        said_nothing(page, &outcome);
    }
    confined.count()
}

fn said_nothing(page: &Path, outcome: &Outcome) {
    outcome.succeeded();
    assert!(!outcome.stderr.contains("ermission denied"), "{}: {outcome:#?}", page.display());
}

/// The commands of a page's transcripts, each with what it prints.
fn transcripts(page: &str) -> Vec<(String, String)> {
    let consoles = blocks(page).into_iter().filter(|(word, _)| word == "console");
    let mut found: Vec<(String, String)> = Vec::new();
    for (_, block) in consoles.filter(|(_, block)| block.starts_with("$ ")) {
        for line in block.lines() {
            match line.strip_prefix("$ ") {
                Some(command) => found.push((command.to_owned(), String::new())),
                None => found.last_mut().unwrap().1.extend([line, "\n"]),
            }
        }
    }
    found
}

/// Without times, rates and numbers of processes, which differ each time.
fn without_numbers(text: &str) -> String {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let words = text.split_inclusive(|c: char| !is_number(c) && !c.is_ascii_alphabetic());
    let plain = |word: &str| match word.strip_suffix(|c: char| !is_number(c)) {
        Some(number) if number.chars().all(is_number) => word.replace(number, "N"),
        _ => word.to_owned(),
    };
    words.map(plain).collect()
}

#[test]
fn transcripts_show_what_their_commands_print() {
    let mut count = 0;
    for page in pages_in("docs").into_iter().chain([root().join("README.md")]) {
        let temp = TempDir::new();
        for (command, shown) in transcripts(&std::fs::read_to_string(&page).unwrap()) {
            count += 1;
            let run = shell(temp.path(), &format!("{{ {command}; }} 2>&1"));
            let outcome = Job::start(&mut { run }).wait_within(LIMIT);
            let (printed, shown) = (without_numbers(&outcome.stdout), without_numbers(&shown));
            assert_eq!(printed, shown, "{}: {command}", page.display());
        }
    }
    assert!(count >= 4, "{count}");
}

#[test]
fn the_examples_of_the_first_page_work_in_a_sandbox() {
    if has_peers() {
        assert!(works_confined(&[root().join("README.md")]) > 20);
    }
}

#[test]
fn the_examples_of_all_pages_work_in_a_sandbox() {
    if has_peers() {
        assert!(works_confined(&pages_in("docs")) > 25);
    }
}

#[test]
fn the_examples_of_all_filters_work_in_a_sandbox() {
    if has_peers() {
        assert!(works_confined(&pages_in("docs/filters")) > 25);
    }
}

/// Those that no other test runs.
#[test]
fn the_examples_of_other_pages_work_as_printed() {
    if !has_peers() {
        return;
    }
    for page in ["copy", "nbdkit", "prealloc", "qemu-img", "tls"] {
        let page = root().join(format!("docs/{page}.md"));
        let temp = TempDir::new();
        Job::start(&mut shell(temp.path(), &script(&page))).wait_within(LIMIT).succeeded();
    }
}

#[test]
fn the_commands_of_the_readme_work_as_printed() {
    if !has_peers() {
        return;
    }
    let script = script(&root().join("README.md"));
    assert!(script.matches("diskferry ").count() > 12, "{script}");
    let temp = TempDir::new();
    let outcome = Job::start(&mut shell(temp.path(), &script)).wait_within(LIMIT);
    outcome.succeeded();
    assert!(!outcome.stderr.contains("diskferry: "), "{outcome:#?}");
    let read = |name: &str| std::fs::read(temp.join(name)).unwrap();
    assert!(read("disk.raw") == read("copy.raw"), "the copy differs");
    assert!(String::from_utf8(read("copy.log")).unwrap().contains("Write"));
}

#[test]
fn every_block_of_the_readme_is_run_by_some_test() {
    // What is no `sh`: `packaging/newcomer` installs, and the servers start below.
    let page = std::fs::read_to_string(root().join("README.md")).unwrap();
    for (word, block) in blocks(&page) {
        let installs = block == "cargo install --locked --path crates/cli\n";
        let elsewhere = installs || block.lines().all(|line| line.starts_with("diskferry serve "));
        let is_transcript = word == "console" && block.starts_with("$ ");
        let is_run = word == "sh" || is_transcript || (word.is_empty() && elsewhere);
        assert!(is_run, "no test runs this:\n{block}");
    }
}

/// Servers that a page shows without a client.
#[test]
fn the_servers_on_the_pages_start_in_a_sandbox() {
    if !has_peers() {
        return;
    }
    let confined = Confined::default();
    let mut lines = Vec::new();
    for page in pages_in("docs").into_iter().chain([root().join("README.md")]) {
        let text = std::fs::read_to_string(page).unwrap();
        let blocks = blocks(&text).into_iter().filter(|(word, _)| word.is_empty());
        let all: Vec<_> = blocks
            .flat_map(|(_, block)| block.lines().map(str::to_owned).collect::<Vec<_>>())
            .collect();
        lines.extend(all.into_iter().filter(|line| line.starts_with("diskferry serve ")));
    }
    // Those need a server, or certificates where the system has them.
    lines.retain(|line| !line.contains("example.com") && !line.contains("/etc/pki"));
    assert!(lines.len() >= 6, "{lines:?}");
    for line in lines {
        let temp = TempDir::new();
        let prepared = "truncate -s 1M disk.raw; (umask 077; echo alice:0123456789abcdef0123456789abcdef >keys.psk)\n\
             openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 2 -keyout key -out cert 2>/dev/null\n\
             mkdir pki; cp cert pki/ca-cert.pem; cp cert pki/server-cert.pem; cp key pki/server-key.pem\n";
        // Not the system's places and ports.
        let line = line.replace("/run/", "$PWD/").replace("--metrics 9111", "--metrics $PWD/other");
        let script = format!("{prepared}{line} --run 'test -n \"$uri\"'");
        let outcome = Job::start(&mut confined.shell(temp.path(), &script)).wait_within(LIMIT);
        assert!(outcome.status.success(), "{line}: {outcome:#?}");
    }
    assert!(confined.count() >= 6);
}
