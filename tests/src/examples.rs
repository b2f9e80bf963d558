//! The examples of the documentation, and a shell in which they run: with our binary on the path,
//! as it is or always in a sandbox.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::peers::diskferry;
use crate::temp::TempDir;

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// The blocks of a page: the word after the fence, and the text.
pub fn blocks(page: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(word), None) => open = Some((word.to_owned(), String::new())),
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some((_, text))) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    found
}

/// Commands of a page, and what they print: the block `output` that follows theirs, if one does.
#[derive(Debug, Default)]
pub struct Example {
    /// The commands.
    pub script: String,
    /// What they print.
    pub shown: String,
    /// The fence of the output: after `measured`, its figures and bars are of another run.
    pub fence: String,
    /// The line of the page on which the fence of the commands is, from 0.
    line: usize,
    /// How many lines of the page the commands and the output take.
    lines: usize,
}

/// The examples of a page that run in a shell.
pub fn examples(page: &str) -> Vec<Example> {
    let mut found: Vec<Example> = Vec::new();
    // The block that is open, and whether nothing but empty lines is behind the last example.
    let (mut open, mut follows) = (None, false);
    for (number, line) in page.lines().enumerate() {
        match (line.strip_prefix("```"), open) {
            (Some("sh"), None) => {
                found.push(Example { line: number, ..Example::default() });
                open = Some("sh");
            }
            (Some(word @ ("output" | "output measured")), None) if follows => {
                found.last_mut().unwrap().fence = word.to_owned();
                open = Some("output");
            }
            (Some(_), None) => open = Some(""),
            (Some(_), Some(word)) => {
                follows = word == "sh";
                if let Some(last) = found.last_mut().filter(|_| !word.is_empty()) {
                    last.lines = number + 1 - last.line;
                }
                open = None;
            }
            (None, Some("sh")) => found.last_mut().unwrap().script.extend([line, "\n"]),
            (None, Some("output")) => found.last_mut().unwrap().shown.extend([line, "\n"]),
            (None, Some(_)) => {}
            (None, None) => follows &= line.is_empty(),
        }
    }
    found
}

/// The page with `printed` as the output of its examples.
pub fn with_outputs(page: &str, examples: &[Example], printed: &[String]) -> String {
    let mut lines = page.lines();
    let (mut at, mut new) = (0, String::new());
    for (example, printed) in examples.iter().zip(printed) {
        let mut block = format!("```sh\n{}```\n", example.script);
        if !printed.is_empty() {
            let fence = if example.fence.is_empty() { "output" } else { &example.fence };
            block += &format!("\n```{fence}\n{printed}```\n");
        }
        (&mut lines).take(example.line - at).for_each(|line| new.extend([line, "\n"]));
        new += &block;
        (&mut lines).take(example.lines).for_each(drop);
        at = example.line + example.lines;
    }
    lines.for_each(|line| new.extend([line, "\n"]));
    new
}

impl Example {
    /// Whether the page shows what its commands have printed.
    pub fn shows(&self, printed: &str) -> bool {
        match self.fence.as_str() {
            "output measured" => is_shown(&without_figures(&self.shown), &without_figures(printed)),
            _ => is_shown(&self.shown, printed),
        }
    }
}

/// The words of a table of measurements.
fn without_figures(text: &str) -> String {
    let is_word = |word: &&str| {
        word.chars().all(|c| c.is_ascii_alphabetic() || "()/.…".contains(c))
            && !["s", "ms", "B", "KiB", "MiB", "GiB"].contains(word)
    };
    let words = |line: &str| line.split_whitespace().filter(is_word).collect::<Vec<_>>().join(" ");
    text.lines().map(|line| words(line) + "\n").collect()
}

/// Whether this was printed: `…` is anything on a line, a line of it any lines, and times and rates
/// differ each time. What servers log comes when it comes, beside what their clients print, and may
/// be left out.
pub fn is_shown(shown: &str, printed: &str) -> bool {
    let is_logged = |line: &String| {
        let time = line.strip_prefix("diskferry: ").unwrap_or_default();
        time.starts_with("… ") || time.starts_with("20")
    };
    let lines = |text: &str| text.lines().map(without_times).partition::<Vec<_>, _>(is_logged);
    let ((logged, others), (all_logged, all_others)) = (lines(shown), lines(printed));
    have_lines(&others, &all_others) && (logged.is_empty() || have_lines(&logged, &all_logged))
}

fn have_lines(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first == "…" => {
            (0..=printed.len()).any(|from| have_lines(rest, &printed[from..]))
        }
        Some((first, rest)) => printed
            .split_first()
            .is_some_and(|(line, others)| is_line(first, line) && have_lines(rest, others)),
    }
}

fn is_line(shown: &str, printed: &str) -> bool {
    let Some((before, after)) = shown.split_once('…') else { return shown == printed };
    let Some(rest) = printed.strip_prefix(before) else { return false };
    let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    ends.into_iter().any(|at| is_line(after, &rest[at..]))
}

/// A line in which each time and rate is `…`: `0.31 s`, `420ms`, `1.2 GiB/s`.
fn without_times(line: &str) -> String {
    const UNITS: [&str; 19] = [
        "s", "ms", "µs", "us", "ns", "min", "h", "sec", "/s", "B/s", "kB/s", "MB/s", "GB/s",
        "KiB/s", "MiB/s", "GiB/s", "ops/sec", "KiB/sec", "MiB/sec",
    ];
    let is_number = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '/';
    let (mut new, mut rest) = (String::new(), line);
    while let Some(next) = rest.chars().next() {
        let inside = new.ends_with(is_word);
        let behind = rest.trim_start_matches(is_number);
        let unit = behind.strip_prefix(' ').unwrap_or(behind);
        let end = UNITS
            .iter()
            .find_map(|name| unit.strip_prefix(name).filter(|end| !end.starts_with(is_word)));
        match end.filter(|_| next.is_ascii_digit() && !inside) {
            Some(end) => {
                new.push('…');
                rest = end;
            }
            None => {
                new.push(next);
                rest = &rest[next.len_utf8()..];
            }
        }
    }
    new
}

/// A shell with our binary on the path, and nbdsh's Python before others.
pub fn shell(directory: &Path, script: &str) -> Command {
    shell_with(diskferry().canonicalize().unwrap().parent().unwrap(), directory, script)
}

fn shell_with(programs: &Path, directory: &Path, script: &str) -> Command {
    let path = std::env::var("PATH").unwrap();
    let mut shell = Command::new("bash");
    shell.args(["-euc", script]).current_dir(directory);
    shell.env("PATH", format!("{}:/usr/bin:{path}", programs.display()));
    shell
}

/// A `diskferry` that does its work under `--sandbox=require`, in all verbs that have the option,
/// and counts.
#[derive(Debug)]
pub struct Confined(TempDir);

impl Default for Confined {
    fn default() -> Self {
        let temp = TempDir::new();
        let real = diskferry().canonicalize().unwrap();
        let (real, count) = (real.display(), temp.join("count"));
        let script = format!(
            "#!/bin/sh\n\
             case \"${{1-}}\" in ''|-*) exec '{real}' \"$@\" ;; esac\n\
             '{real}' \"$1\" --help 2>/dev/null </dev/null | grep -q -e '--sandbox ' || exec '{real}' \"$@\"\n\
             verb=$1; shift; echo \"$verb\" >>'{}'\n\
             exec '{real}' \"$verb\" --sandbox=require \"$@\"\n",
            count.display()
        );
        let program = temp.file("diskferry", script.as_bytes());
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Self(temp)
    }
}

impl Confined {
    /// As [`shell`], with this one.
    pub fn shell(&self, directory: &Path, script: &str) -> Command {
        shell_with(self.0.path(), directory, script)
    }

    /// How often it was run in a sandbox.
    pub fn count(&self) -> usize {
        fs::read_to_string(self.0.join("count")).map_or(0, |text| text.lines().count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_may_differ_and_what_is_left_out_and_nothing_else() {
        for (shown, printed) in [
            ("1 MiB in 0.31 s, 3.1 GiB/s\n", "1 MiB in 12ms, 310 MB/s\n"),
            ("pid …, port …;\n", "pid 17, port 80;\n"),
            ("a\n…\nd\n", "a\nb\nc\nd\n"),
            ("a\n…\n", "a\n"),
            ("diskferry: … error …\nb\n", "b\ndiskferry: 2026-11-29 06:00:00.7 error 5\n"),
            ("", ""),
        ] {
            assert!(is_shown(shown, printed), "{shown}{printed}");
        }
        for (shown, printed) in [
            ("1 MiB in 0.31 s\n", "2 MiB in 0.31 s\n"),
            ("12.3%\n", "12.4%\n"),
            ("5 seconds\n", "6 seconds\n"),
            ("7 sectors\n", "8 sectors\n"),
            ("a\n", "a\nb\n"),
            ("", "a\n"),
            ("a\n", ""),
            ("a…c\n", "a b\n"),
        ] {
            assert!(!is_shown(shown, printed), "{shown}{printed}");
        }
    }

    #[test]
    fn an_output_is_put_behind_its_commands_and_taken_away_where_nothing_is_printed() {
        let page =
            "a\n```sh\none\n```\n\n```output\n1\n```\nb\n```sh\ntwo\n```\n```output\n3\n```\n";
        let found = examples(page);
        let shown: Vec<_> = found.iter().map(|example| example.shown.as_str()).collect();
        assert_eq!(shown, ["1\n", "3\n"]);
        let same = ["1\n", "3\n"].map(str::to_owned);
        assert_eq!(with_outputs(page, &found, &same), page.replace("```\n```o", "```\n\n```o"));
        let other = ["", "2\n"].map(str::to_owned);
        let changed = "a\n```sh\none\n```\nb\n```sh\ntwo\n```\n\n```output\n2\n```\n";
        assert_eq!(with_outputs(page, &found, &other), changed);
        // What is behind prose belongs to nothing.
        let apart = examples("```sh\none\n```\nb\n```output\n1\n```\n");
        assert_eq!((apart.len(), apart[0].shown.as_str()), (1, ""));
    }
}
