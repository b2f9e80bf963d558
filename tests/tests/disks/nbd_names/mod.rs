//! nbdkit, nbdcopy, nbdinfo and QEMU's tools by their names: scripts of those that call them
//! (callers.txt), run by a shell that finds the real tools, and by one that finds ours under those
//! names.

use std::os::unix::fs::symlink;
use std::process::Command;

use blackbox::peers::{diskferry, peer};
use blackbox::run::{Outcome, run};
use blackbox::temp::TempDir;

const SCRIPTS: &str = include_str!("callers.txt");
const OF_QEMU_IMG: &str = include_str!("../qemu_img/callers.txt");
const TOOLS: [&str; 5] = ["nbdkit", "nbdcopy", "nbdinfo", "qemu-img", "qemu-nbd"];
/// A web server, for scripts that need one.
const RANGES: &str = include_str!("ranges.py");

/// A script of the table.
#[derive(Debug)]
struct Script {
    caller: &'static str,
    name: &'static str,
    lines: Vec<(&'static str, &'static str)>,
}

fn scripts() -> Vec<Script> {
    let (mut found, mut caller) = (Vec::<Script>::new(), "");
    for line in SCRIPTS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once(' ').unwrap_or_else(|| panic!("{line}: has no words")) {
            ("==", name) => caller = name,
            ("=", name) => found.push(Script { caller, name, lines: Vec::new() }),
            words => found.last_mut().unwrap().lines.push(words),
        }
    }
    found
}

/// A directory, and the tools that a shell in it finds.
struct Side {
    temp: TempDir,
    path: String,
}

impl Side {
    fn real() -> Self {
        let usual = std::env::var("PATH").unwrap_or_default();
        let temp = TempDir::new();
        temp.file("ranges.py", RANGES.as_bytes());
        Self { temp, path: usual }
    }

    fn ours() -> Self {
        let real = Self::real();
        let names = real.temp.join("names");
        std::fs::create_dir(&names).unwrap();
        for name in TOOLS {
            symlink(diskferry(), names.join(name)).unwrap();
        }
        Self { path: format!("{}:{}", names.display(), real.path), temp: real.temp }
    }

    fn shell(&self, script: &str) -> Outcome {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).env("PATH", &self.path).current_dir(self.temp.path());
        shell.env("RANGES", self.temp.join("ranges.py"));
        run(&mut shell)
    }
}

/// What of an outcome is the same on both sides. Nothing is said on standard error where the real
/// tool says nothing.
fn same(outcome: &Outcome) -> (Option<i32>, String, bool) {
    (outcome.status.code(), outcome.stdout.clone(), outcome.stderr.is_empty())
}

#[test]
fn callers_get_what_they_get_of_the_real_tools() {
    if TOOLS.iter().chain(&["qemu-io", "python3"]).any(|tool| peer(tool).is_none()) {
        return;
    }
    let mut wrong = Vec::new();
    for script in scripts() {
        let (real, ours) = (Side::real(), Side::ours());
        for (word, line) in &script.lines {
            let here = format!("{}: {}: {line}", script.caller, script.name);
            match word.split('#').next().unwrap() {
                "both" => {
                    let (theirs, own) = (real.shell(line), ours.shell(line));
                    if same(&theirs) != same(&own) {
                        wrong.push(format!("{here}\n  real: {theirs:?}\n  ours: {own:?}"));
                    }
                }
                // What the installed version of the real tool does not have yet, or has otherwise.
                "ours" => {
                    let own = ours.shell(line);
                    if !own.status.success() {
                        wrong.push(format!("{here}\n  ours: {own:?}"));
                    }
                }
                other => panic!("{other}: {line}"),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The lines that were counted first are all among the scripts, which other tests run.
#[test]
fn none_of_the_hundred_lines_is_missing() {
    let lines = [SCRIPTS, OF_QEMU_IMG].into_iter().flat_map(str::lines);
    let tags = lines.filter(|line| !line.starts_with('#')).filter_map(|line| {
        let word = line.split(' ').next()?;
        word.split_once('#').map(|(_, numbers)| numbers)
    });
    let mut found: Vec<u32> =
        tags.flat_map(|tag| tag.split(',')).map(|number| number.parse().unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, (1..=100).collect::<Vec<_>>());
}
