//! Every documented example works as printed, shows what it prints, and does the same in a
//! sandbox: all pages, each in an empty directory, as they are and under `--sandbox=require`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use blackbox::examples::{
    Confined, Example, blocks, examples, is_shown, root, shell, with_outputs,
};
use blackbox::peers::peer;
use blackbox::run::{Job, Outcome, ferry};
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

#[test]
fn transcripts_show_what_their_commands_print() {
    let mut count = 0;
    for page in pages_in("docs").into_iter().chain([root().join("README.md")]) {
        let temp = TempDir::new();
        for (command, shown) in transcripts(&std::fs::read_to_string(&page).unwrap()) {
            count += 1;
            let run = shell(temp.path(), &format!("{{ {command}; }} 2>&1"));
            let outcome = Job::start(&mut { run }).wait_within(LIMIT);
            let printed = &outcome.stdout;
            let page = page.display();
            assert!(is_shown(&shown, printed), "{page}: {command}\n{shown}---\n{printed}");
        }
    }
    assert!(count >= 4, "{count}");
}

/// What the examples of a page print, one after the other in one shell.
fn printed(page: &Path, examples: &[Example]) -> Vec<String> {
    let temp = TempDir::new();
    let end = "printf '\\036'\n";
    let scripts = examples.iter().map(|example| example.script.as_str());
    let script: String = scripts.flat_map(|script| [script, end]).collect();
    // Whatever fails, no server stays behind.
    let script = format!("exec 2>&1; trap 'kill $(cat *.pid) 2>/dev/null || :' EXIT\n{script}");
    let outcome = Job::start(&mut shell(temp.path(), &script)).wait_within(LIMIT);
    assert!(outcome.status.success(), "{}: {}", page.display(), outcome.stdout);
    let (here, temporary) = (temp.path().display().to_string(), std::env::temp_dir());
    let servers = temporary.join("diskferry-").display().to_string();
    let plain = |text: &str| text.replace(&here, "/tmp/here").replace(&servers, "/tmp/diskferry-");
    let outputs = outcome.stdout.split('\u{1e}').map(plain);
    outputs.take(examples.len()).collect()
}

/// Whether the program loads plugins, as a static one does not.
fn loads_plugins() -> bool {
    let told = ferry(["info", "plugin:null"]);
    let cannot = told.stderr.contains("linked statically and cannot");
    if cannot {
        println!("skipped: plugins.md: this program is linked statically, and loads none");
    }
    !cannot
}

/// `BLACKBOX_BLESS=1` writes into the pages what is printed, where it is not what they show.
#[test]
fn every_example_shows_what_it_prints() {
    if !has_peers() {
        return;
    }
    let bless = std::env::var_os("BLACKBOX_BLESS").is_some();
    let only = std::env::var("BLACKBOX_PAGE").unwrap_or_default();
    let (mut count, mut wrong) = (0, String::new());
    for path in pages_in("docs").into_iter().chain([root().join("README.md")]) {
        let page = std::fs::read_to_string(&path).unwrap();
        let examples = examples(&page);
        let is_wanted = path.to_str().unwrap().contains(&only);
        let cannot = path.ends_with("plugins.md") && !loads_plugins();
        if examples.is_empty() || !is_wanted || cannot {
            continue;
        }
        count += examples.len();
        let mut printed = printed(&path, &examples);
        for (example, printed) in examples.iter().zip(&mut printed) {
            if example.shows(printed) {
                printed.clone_from(&example.shown);
            } else {
                let (path, shown) = (path.display(), &example.shown);
                wrong += &format!("{path}:\n{}shows\n{shown}prints\n{printed}\n", example.script);
            }
        }
        if bless {
            std::fs::write(&path, with_outputs(&page, &examples, &printed)).unwrap();
        }
    }
    assert!(bless || wrong.is_empty(), "{wrong}");
    assert!(bless || !only.is_empty() || count > 90, "{count}");
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
        let mut pages = pages_in("docs");
        // A plugin in this process may need anything.
        pages.retain(|page| !page.ends_with("plugins.md"));
        assert!(works_confined(&pages) > 25);
    }
}

#[test]
fn the_examples_of_all_filters_work_in_a_sandbox() {
    if has_peers() {
        assert!(works_confined(&pages_in("docs/filters")) > 25);
    }
}

/// Blocks with commands that no test runs as they are printed, and what they need. Servers among
/// them start below.
const ELSEWHERE: [(&str, usize, &str); 16] = [
    ("README.md", 2, "an installation, which packaging/newcomer does, and a server"),
    ("attach.md", 4, "kernel modules and a machine, which tests/lab has; an environment file"),
    ("backup.md", 3, "libvirt with a running machine, and restic"),
    ("fleet.md", 1, "a store: tests/tests/wire/s3_fleet.rs"),
    ("http.md", 3, "a server on the Internet"),
    ("kubevirt.md", 1, "a cluster: tests/lab/importer"),
    ("limits.md", 1, "a server, and the system's directories"),
    ("migrate.md", 3, "two machines"),
    ("page-cache.md", 1, "a server"),
    ("pipeline.md", 2, "a server on the Internet, and another machine"),
    ("prove.md", 1, "other machines"),
    ("python.md", 2, "an installation, which scripts/python does, and libnbd's module"),
    ("s3.md", 2, "a bucket: tests/tests/wire/s3.rs"),
    ("serve.md", 3, "a machine that boots: tests/lab/boot"),
    ("service.md", 4, "systemd: tests/lab/systemd; lines of a log"),
    ("tls.md", 3, "other machines, and certificates in the system's directories"),
];

#[test]
fn every_block_of_a_page_is_run_or_it_is_said_why_not() {
    let mut found = BTreeMap::new();
    for page in pages_in("docs").into_iter().chain([root().join("README.md")]) {
        let name = page.file_name().unwrap().to_str().unwrap().to_owned();
        for (word, block) in blocks(&std::fs::read_to_string(page).unwrap()) {
            let is_transcript = word == "console" && block.starts_with("$ ");
            let is_run = ["sh", "python"].contains(&word.as_str()) || is_transcript;
            let is_command =
                !["output", "output measured", "xml", "json", "ini"].contains(&word.as_str());
            *found.entry(name.clone()).or_insert(0) += usize::from(is_command && !is_run);
        }
    }
    found.retain(|_, count| *count > 0);
    let said = ELSEWHERE.map(|(page, count, _)| (page.to_owned(), count));
    assert_eq!(found, BTreeMap::from(said));
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
