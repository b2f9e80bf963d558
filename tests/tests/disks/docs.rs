//! The documentation is whole and true: links lead somewhere, the reference is what the program
//! prints, every option of a peer is on the page for its users, and JSON has the keys that are
//! written of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use blackbox::examples::{root, shell};
use blackbox::peers::peer;
use blackbox::run::{ours, run};
use blackbox::temp::TempDir;
use serde_json::Value;

/// All pages of the repository: those at the top, and below docs.
fn pages() -> Vec<PathBuf> {
    fn below(folder: &Path, deep: bool, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && deep {
                below(&path, true, found);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    below(&root(), false, &mut found);
    below(&root().join("docs"), true, &mut found);
    below(&root().join("fuzz"), false, &mut found);
    found.sort();
    found
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A page without its blocks of code, and without code in its lines.
fn prose(page: &str) -> String {
    let mut in_block = false;
    let lines = page.lines().filter(|line| {
        let fence = line.starts_with("```");
        in_block ^= fence;
        !fence && !in_block
    });
    let all = lines.collect::<Vec<_>>().join("\n");
    all.split('`').step_by(2).collect()
}

/// Where the links of a page lead.
fn links(page: &str) -> Vec<String> {
    let prose = prose(page);
    let all = [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"')].into_iter();
    let ends = all.flat_map(|(begin, end)| prose.split(begin).skip(1).map(move |rest| (rest, end)));
    ends.filter_map(|(rest, end)| rest.split_once(end)).map(|(link, _)| link.to_owned()).collect()
}

/// The anchors of a page's headings, as they are made of them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut in_block = false;
    let mut found = BTreeSet::new();
    for line in page.lines() {
        in_block ^= line.starts_with("```");
        let Some(title) = line.strip_prefix('#').filter(|_| !in_block) else { continue };
        let title = title.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        found.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
    }
    found
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_that_are_there() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in pages() {
        let text = read(&page);
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            count += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let is_there = if anchor.is_empty() {
                target.exists()
            } else {
                target.is_file() && anchors(&read(&target)).contains(anchor)
            };
            if !is_there {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(count > 60, "{count} links");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_page_is_listed_on_the_first_one() {
    let listed = links(&read(root().join("docs/README.md")));
    for folder in ["docs", "docs/reference"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "md") && !path.ends_with("README.md")
            {
                let link = path.strip_prefix(root().join("docs")).unwrap().to_str().unwrap();
                assert!(listed.iter().any(|other| other == link), "docs/README.md: {link}");
            }
        }
    }
}

#[test]
fn the_reference_is_what_the_program_prints() {
    let temp = TempDir::new();
    run(ours(["man", "--markdown"]).arg(temp.path())).succeeded();
    let names = |folder: &Path| -> BTreeSet<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let committed = root().join("docs/reference");
    assert_eq!(names(&committed), names(temp.path()), "docs/reference");
    for name in names(temp.path()) {
        let (here, printed) = (read(committed.join(&name)), read(temp.join(&name)));
        let differs = here.lines().zip(printed.lines()).find(|(a, b)| a != b);
        assert!(
            here == printed,
            "docs/reference/{name} is out of date ({differs:?}): run\n\
             diskferry man --markdown docs/reference"
        );
    }
}

/// The options in a text: `--size`, `-R`.
fn options(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let mut found = BTreeSet::new();
    for word in text.split(|c: char| c.is_whitespace() || "|[](),'`".contains(c)) {
        let name: String = word.chars().take_while(|c| is_part(*c)).collect();
        let letters = name.trim_start_matches('-');
        let dashes = name.len() - letters.len();
        let fits = match dashes {
            1 => letters.len() == 1,
            2 => letters.len() > 1,
            _ => false,
        };
        let begins = letters.starts_with(|c: char| c.is_ascii_alphanumeric());
        if fits && begins && !letters.ends_with('-') {
            found.insert(name);
        }
    }
    found
}

/// A peer's own help.
fn said(program: &Path, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// The options that a page names, in code.
fn named(page: &str) -> BTreeSet<String> {
    let page = read(root().join("docs").join(page));
    page.split('`').skip(1).step_by(2).flat_map(options).collect()
}

#[test]
fn every_option_of_a_peer_is_on_the_page_for_its_users() {
    let tools = [("nbdcopy", 10), ("nbdinfo", 8), ("qemu-nbd", 30), ("nbdkit", 30)];
    for (tool, least) in tools {
        let Some(program) = peer(tool) else { continue };
        let help = said(&program, &["--help"]);
        // Examples have options of other programs.
        let has = options(help.split("Examples:").next().unwrap());
        assert!(has.len() >= least, "{tool}: {has:?}");
        let named = named(&format!("{tool}.md"));
        let missing: Vec<_> = has.difference(&named).collect();
        assert!(missing.is_empty(), "docs/{tool}.md: {missing:?}");
    }
}

/// The options of each verb of the installed qemu-img, which prints them in one form until 10.0 and
/// in another since.
fn verbs_of_qemu_img(program: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let general = said(program, &["--help"]);
    let mut found = BTreeMap::new();
    for line in general.lines().filter_map(|line| line.strip_prefix("  ")) {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        if verb.is_empty() || !verb.chars().all(|c| c.is_ascii_lowercase()) {
            continue;
        }
        if rest.starts_with(['[', '(']) {
            found.insert(verb.to_owned(), options(rest));
        } else if rest.starts_with("- ") {
            found.insert(verb.to_owned(), options(&said(program, &[verb, "--help"])));
        }
    }
    found
}

#[test]
fn every_option_of_qemu_img_is_on_its_page_or_its_verb_is_said_to_be_missing() {
    let Some(program) = peer("qemu-img") else { return };
    let verbs = verbs_of_qemu_img(&program);
    assert!(verbs.len() >= 15, "{verbs:?}");
    let page = read(root().join("docs/qemu-img.md"));
    let missing = page.split("## What is not here").nth(1).unwrap();
    let named = named("qemu-img.md");
    let help = run(&mut ours(["--help"])).succeeded().to_owned();
    let list = help.split("Commands:").nth(1).unwrap();
    for (verb, has) in verbs {
        let is_ours =
            list.lines().any(|line| line.split_whitespace().next() == Some(verb.as_str()));
        if is_ours {
            let without: Vec<_> = has.difference(&named).collect();
            assert!(without.is_empty(), "docs/qemu-img.md, {verb}: {without:?}");
        } else {
            assert!(missing.contains(&format!("`{verb}`")), "docs/qemu-img.md: {verb}");
        }
    }
}

/// The keys of an output in the reference, and whether its form is ours.
fn keys_of(output: &str) -> (BTreeSet<String>, bool) {
    let page = read(root().join("docs/reference/json.md"));
    let section =
        page.split(&format!("\n## {output}\n")).nth(1).unwrap_or_else(|| panic!("{output}"));
    let section = section.split("\n## ").next().unwrap().to_owned();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    let keys =
        cells.flat_map(|cell| cell.split('`').step_by(2).map(str::to_owned).collect::<Vec<_>>());
    (keys.filter(|key| !key.starts_with(", ")).collect(), section.contains("Form: ours"))
}

/// The keys of an object, those of `data` with that word before them, and of exports.
fn keys_in(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (key, value) in value.as_object().unwrap() {
        match (key.as_str(), value) {
            ("data", Value::Object(data)) => {
                found.extend(data.keys().map(|key| format!("data.{key}")))
            }
            ("exports" | "works" | "attached", Value::Array(exports)) => {
                found.insert(key.clone());
                exports.iter().for_each(|export| found.extend(keys_in(export)));
            }
            _ => drop(found.insert(key.clone())),
        }
    }
    found
}

#[test]
fn json_has_the_keys_of_the_reference_and_ours_the_number_of_its_form() {
    let temp = TempDir::new();
    let printed = |line: &str| -> Vec<Value> {
        let outcome = run(&mut shell(temp.path(), line));
        let text = outcome.succeeded();
        match serde_json::from_str(text) {
            Ok(Value::Array(values)) => values,
            Ok(value) => vec![value],
            Err(_) => text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
        }
    };
    let lines = [
        ("progress", "diskferry copy --progress=json pattern:8M disk.raw 2>&1"),
        ("progress", "diskferry zero --progress=json disk.raw 2>&1"),
        (
            "progress",
            "diskferry copy --progress=json --source-filter='error?error-pread-rate=100%' pattern:1M null: 2>&1 || :",
        ),
        ("plan", "diskferry copy --plan=json disk.raw null:"),
        ("zero-and-trim", "diskferry zero --json disk.raw"),
        ("zero-and-trim", "diskferry trim --json disk.raw"),
        ("prealloc", "diskferry prealloc --json --size 1M room.raw"),
        (
            "inspect",
            "diskferry create -q -f qcow2 a.qcow2 1M && diskferry inspect -f qcow2 a.qcow2",
        ),
        ("inspect", "diskferry inspect -f vmdk a.qcow2 || :"),
        ("cache", "diskferry cache evict --json disk.raw"),
        ("cache", "diskferry cache stat --json disk.raw room.raw"),
        (
            "stats",
            "diskferry serve --filter=stats memory 1M statsfile=stats statsformat=json \
                   --run 'diskferry copy \"$uri\" null:' && cat stats",
        ),
        (
            "top",
            "diskferry serve --control $PWD/c memory:1M \
                   --run 'diskferry copy -q pattern:1M \"$uri\"; diskferry top --json -n 1 -d 0.1 c'",
        ),
        ("bench", "diskferry bench --json --seconds 0.02 memory:1M"),
        (
            "attached",
            "diskferry attach memory:1M disk --run 'diskferry attached --json' 2>/dev/null \
                   || diskferry attached --json",
        ),
        ("info", "diskferry serve memory 1M --run 'diskferry info --json \"$uri\"'"),
        (
            "info",
            "diskferry serve --description text memory 1M --run 'diskferry list --json \"$uri\"'",
        ),
        ("map", "diskferry map --json sparse-random:64M"),
        ("map", "diskferry map --json --totals sparse-random:64M"),
        ("measure", "diskferry measure --output=json -O qcow2 --size 1G"),
    ];
    for (output, line) in lines {
        let (keys, is_ours) = keys_of(output);
        let values = printed(line);
        assert!(!values.is_empty(), "{line}");
        for value in values {
            let unknown: Vec<_> = keys_in(&value).difference(&keys).cloned().collect();
            assert!(
                unknown.is_empty(),
                "{line}: {unknown:?} are not in docs/reference/json.md: {value}"
            );
            let version = value.get("version").and_then(Value::as_u64);
            assert_eq!(version, is_ours.then_some(1), "{line}: {value}");
        }
    }
}

#[test]
fn manual_pages_of_verbs_have_signals_and_environment_where_they_have_some() {
    let temp = TempDir::new();
    run(ours(["man"]).arg(temp.path())).succeeded();
    let titles = |page: &str| -> Vec<String> {
        let text = read(temp.join(page));
        let titles = text.lines().filter_map(|line| line.strip_prefix(".SH "));
        titles.map(|title| title.trim_matches('"').to_owned()).collect()
    };
    for verb in ["serve", "copy", "convert", "dd", "zero"] {
        let titles = titles(&format!("diskferry-{verb}.1"));
        for title in ["SIGNALS", "ENVIRONMENT", "FILES"] {
            assert!(titles.iter().any(|other| other == title), "{verb}: {title} not in {titles:?}");
        }
    }
    let root = titles("diskferry.1");
    for title in ["VERBS", "DEVICES", "FILTERS", "FORMATS", "EXIT STATUS", "SEE ALSO"] {
        assert!(root.iter().any(|other| other == title), "{title} not in {root:?}");
    }
    assert!(titles("diskferry-format-qcow2.1").len() >= 5);
    let synopsis = read(temp.join("diskferry-copy.1"));
    let synopsis = synopsis.split(".SH SYNOPSIS").nth(1).unwrap().split(".SH").next().unwrap();
    assert!(synopsis.contains("SIZE") && synopsis.contains("FORMAT"), "{synopsis}");
}
