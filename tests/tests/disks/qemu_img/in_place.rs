//! The verbs that change an image where it lies, beside qemu-img: scripts (in_place.txt) that both
//! run on equal images, with the same statuses, the same JSON, and disks that are the same after
//! that. Where we differ on purpose, the script says so.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use blackbox::peers::{diskferry, peer};
use blackbox::run::{Outcome, program, run};
use blackbox::temp::TempDir;
use serde_json::Value;

const SCRIPTS: &str = include_str!("in_place.txt");
/// Those of programs that call qemu-img, which ours runs under that name.
const CALLERS: &str = include_str!("callers.txt");
/// What says where something is, or when it was made: it differs from run to run.
const APART: &[&str] = &[
    "actual-size",
    "children",
    "compressed",
    "date-nsec",
    "date-sec",
    "filename",
    "fragmented-clusters",
    "full-backing-filename",
    "image-end-offset",
    "offset",
];
const ALLOWED: &[&str] = &["--allow-external", "chain"];

/// A script of the table.
#[derive(Debug)]
struct Script {
    section: &'static str,
    name: &'static str,
    lines: Vec<(&'static str, &'static str)>,
}

fn scripts(of: &'static str) -> Vec<Script> {
    let (mut found, mut section) = (Vec::<Script>::new(), "");
    for line in of.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once(' ').unwrap_or_else(|| panic!("{line}: has no words")) {
            ("==", name) => section = name,
            ("=", name) => found.push(Script { section, name, lines: Vec::new() }),
            words => found.last_mut().unwrap().lines.push(words),
        }
    }
    found
}

/// A directory with the images of one of the two.
struct Side {
    temp: TempDir,
    program: PathBuf,
}

impl Side {
    fn new(program: PathBuf) -> Self {
        let memory = Path::new("/dev/shm");
        let temp = if memory.is_dir() { TempDir::below(memory) } else { TempDir::new() };
        Self { temp, program }
    }

    fn run<'a>(&self, of: &PathBuf, words: impl IntoIterator<Item = &'a str>) -> Outcome {
        run(program(of, words).current_dir(self.temp.path()))
    }

    fn qemu_img(&self, words: &[&str]) -> Outcome {
        self.run(&peer("qemu-img").unwrap(), words.iter().copied())
    }

    /// Does what prepares an image, or happens to it meanwhile.
    fn prepare(&self, word: &str, rest: &'static str) {
        let here = self.temp.path();
        match word {
            "img" => {
                self.qemu_img(&split(rest)).succeeded();
            }
            "io" => {
                let mut words = rest.splitn(3, ' ');
                let mut next = || words.next().unwrap();
                let (format, image, commands) = (next(), next(), next());
                let commands = commands.split(';').flat_map(|command| ["-c", command.trim()]);
                let words = ["-f", format, image].into_iter().chain(commands);
                let done = self.run(&peer("qemu-io").unwrap(), words);
                let said = format!("{}{}", done.succeeded(), done.stderr);
                assert!(!said.contains("rror"), "{said}");
            }
            "put" => {
                let words = split(rest);
                let at = usize::from_str_radix(words[1], 16).unwrap();
                let mut bytes = std::fs::read(here.join(words[0])).unwrap();
                for (n, byte) in words[2].as_bytes().chunks(2).enumerate() {
                    let byte = std::str::from_utf8(byte).unwrap();
                    bytes[at + n] = u8::from_str_radix(byte, 16).unwrap();
                }
                std::fs::write(here.join(words[0]), bytes).unwrap();
            }
            "sh" => {
                run(Command::new("sh").args(["-c", rest]).current_dir(here)).succeeded();
            }
            other => panic!("no line begins with {other}"),
        }
    }

    /// All files, with their bytes.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = std::fs::read_dir(self.temp.path()).unwrap();
        let read = |path: PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read(path).unwrap())
        };
        entries.map(|entry| read(entry.unwrap().path())).collect()
    }

    /// What qemu-img says of an image: its status, and what it prints without what is apart.
    fn told(&self, verb: &str, image: &str) -> (Option<i32>, Value) {
        let told = self.qemu_img(&[verb, "--output=json", "-f", "qcow2", image]);
        (told.status.code(), json(&told.stdout))
    }

    /// The disk, and all snapshots.
    fn disks(&self, image: &str) -> Vec<(Option<i32>, Vec<u8>)> {
        let (_, info) = self.told("info", image);
        let snapshots = info["snapshots"].as_array().cloned().unwrap_or_default();
        let ids = snapshots.iter().map(|known| format!("snapshot.id={}", as_text(&known["id"])));
        let disk = |snapshot: Option<String>| {
            let of = snapshot.iter().flat_map(|id| ["-l", id]);
            let words = ["convert", "-f", "qcow2", "-O", "raw"].into_iter().chain(of);
            let out = TempDir::new();
            let path = out.join("out");
            let words: Vec<_> = words.chain([image, path.to_str().unwrap()]).collect();
            let status = self.qemu_img(&words).status.code();
            (status, std::fs::read(path).unwrap_or_default())
        };
        std::iter::once(None).chain(ids.map(Some)).map(disk).collect()
    }
}

fn as_text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The words of a line; one in single or double quotes may be empty, or have spaces.
fn split(line: &str) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), line.trim_start());
    while !rest.is_empty() {
        let quote = rest.chars().next().filter(|first| "'\"".contains(*first));
        let (word, after) = match quote {
            Some(quote) => rest[1..].split_once(quote).unwrap(),
            None => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        };
        words.push(word);
        rest = after.trim_start();
    }
    words
}

/// JSON without what is apart; `null` if it is none.
fn json(text: &str) -> Value {
    without(serde_json::from_str(text).unwrap_or_default())
}

fn without(value: Value) -> Value {
    match value {
        Value::Object(all) => {
            let kept = all.into_iter().filter(|(key, _)| !APART.contains(&key.as_str()));
            Value::Object(kept.map(|(key, value)| (key, without(value))).collect())
        }
        Value::Array(all) => joined(all.into_iter().map(without).collect()),
        other => other,
    }
}

/// The extents of a map, those that follow one another in one. Which of their data are zero is said
/// by the file below, as it happens to lie there.
fn joined(all: Vec<Value>) -> Value {
    let mut kept: Vec<Value> = Vec::new();
    for mut extent in all {
        if extent["data"] == Value::Bool(true) {
            extent["zero"] = Value::Bool(false);
        }
        let alike = |last: &&mut Value| {
            let keys = ["depth", "present", "zero", "data"];
            extent["start"].is_u64() && keys.iter().all(|key| last[*key] == extent[*key])
        };
        match kept.last_mut().filter(alike) {
            Some(last) => {
                let len = [&*last, &extent].map(|it| it["length"].as_u64().unwrap());
                last["length"] = len.iter().sum::<u64>().into();
            }
            None => kept.push(extent),
        }
    }
    Value::Array(kept)
}

/// Runs a script; returns what is not as it should be.
fn tried(script: &Script, ours: &Path, qemu_img: &Path) -> Vec<String> {
    let sides = [Side::new(ours.to_owned()), Side::new(qemu_img.to_owned())];
    let (mut wrong, mut is_apart, mut but) = (Vec::new(), false, Vec::new());
    for &(word, rest) in &script.lines {
        match word.split('#').next().unwrap() {
            "run" => wrong.extend(both(&sides, rest, &script.lines)),
            "own" => {
                let (status, line) = rest.split_once(' ').unwrap();
                wrong.extend(alone(&sides, status.parse().unwrap(), line));
                is_apart = true;
            }
            "but" => but.push(rest.split_once(": ").unwrap().0),
            // In words for whoever reads it.
            "why" => {}
            _ => sides.iter().for_each(|side| side.prepare(word, rest)),
        }
    }
    if !is_apart {
        wrong.extend(compared(&sides, &but));
    }
    wrong
}

/// What both do ends with the same status, and prints the same JSON.
fn both(sides: &[Side; 2], line: &str, lines: &[(&str, &str)]) -> Option<String> {
    let [ours, theirs] = [0, 1].map(|n| done(&sides[n], line, n == 0));
    // Some callers take any byte there as a failure.
    let says_more = theirs.stderr.is_empty() && !ours.stderr.is_empty();
    if ours.status.code() != theirs.status.code() || says_more {
        return Some(format!("{line}: {ours:#?} {theirs:#?}"));
    }
    let [ours, theirs] = [ours, theirs].map(|outcome| json(&outcome.stdout));
    let is_known = lines.iter().any(|it| it.0 == "but" && it.1.starts_with(&format!("`{line}`")));
    (!theirs.is_null() && (ours == theirs) == is_known)
        .then(|| format!("{line}:\n  ours   {ours}\n  theirs {theirs}"))
}

/// What only one does. We change nothing where we fail, and leave nothing behind where we do not.
fn alone(sides: &[Side; 2], status: i32, line: &str) -> Option<String> {
    let before = sides[0].files();
    let [ours, theirs] = [0, 1].map(|n| done(&sides[n], line, n == 0));
    let is_as_said = ours.status.code() == Some(status) && theirs.status.code() != Some(status);
    let is_well = match status {
        0 => {
            let words = split(line);
            let mut images = words.iter().filter(|word| before.contains_key(**word));
            images.all(|image| {
                sides[0].qemu_img(&["check", "-q", "-f", "qcow2", image]).status.success()
            })
        }
        _ => sides[0].files() == before,
    };
    (!is_as_said || !is_well).then(|| format!("{line}: well {is_well}: {ours:#?} {theirs:#?}"))
}

fn done(side: &Side, line: &str, is_ours: bool) -> Outcome {
    let words = split(line);
    let is_renamed = side.program.ends_with("qemu-img");
    let allowed = if is_ours && !is_renamed && words[0] != "create" { ALLOWED } else { &[] };
    let run = || side.run(&side.program, words.iter().chain(allowed).copied());
    // QEMU gives up where it finds that its processor's clock stood still while it counted.
    let again = |outcome: &Outcome| outcome.stderr.contains("Unable to get accurate CPU usage");
    let outcomes = (0..20).map(|_| run());
    outcomes.into_iter().find(|outcome| is_ours || !again(outcome)).unwrap_or_else(run)
}

/// What is left of both must be the same, but for what is named.
fn compared(sides: &[Side; 2], but: &[&str]) -> Vec<String> {
    let (mut wrong, mut seen) = (Vec::new(), Vec::new());
    let files = [0, 1].map(|n| sides[n].files());
    let mut differs = |what: String, how: String| {
        if but.contains(&&*what) { seen.push(what) } else { wrong.push(format!("{what}: {how}")) }
    };
    if !files[0].keys().eq(files[1].keys()) {
        differs("files".to_owned(), format!("{:?}", [0, 1].map(|n| files[n].keys())));
    }
    for (name, bytes) in &files[0] {
        let Some(other) = files[1].get(name) else { continue };
        if ![bytes, other].iter().all(|bytes| bytes.starts_with(b"QFI\xfb")) {
            if bytes != other {
                differs(format!("{name} bytes"), format!("{} {}", bytes.len(), other.len()));
            }
            continue;
        }
        for verb in ["info", "check", "map"] {
            let [ours, theirs] = [0, 1].map(|n| sides[n].told(verb, name));
            if ours != theirs {
                differs(format!("{name} {verb}"), format!("\n  {ours:?}\n  {theirs:?}"));
            }
        }
        if sides[0].disks(name) != sides[1].disks(name) {
            differs(format!("{name} disk"), "other bytes".to_owned());
        }
    }
    let is_unseen = |known: &&&str| !known.starts_with('`') && !seen.iter().any(|it| it == **known);
    let unseen = but.iter().filter(is_unseen).map(|known| format!("{known}: does not differ"));
    let unseen: Vec<_> = unseen.collect();
    wrong.extend(unseen);
    wrong
}

/// Runs all scripts of a section.
fn section(name: &str) {
    section_of(SCRIPTS, name, &diskferry());
}

/// The same of a caller of qemu-img, with ours in its place.
fn caller(name: &str) {
    let temp = TempDir::new();
    let ours = temp.join("qemu-img");
    std::os::unix::fs::symlink(diskferry(), &ours).unwrap();
    section_of(CALLERS, name, &ours);
}

fn section_of(all: &'static str, name: &str, ours: &Path) {
    let (Some(qemu_img), Some(_)) = (peer("qemu-img"), peer("qemu-io")) else { return };
    let scripts: Vec<_> = scripts(all).into_iter().filter(|it| it.section == name).collect();
    assert!(!scripts.is_empty(), "{name}: no scripts");
    let mut failed = Vec::new();
    for script in scripts {
        let wrong = tried(&script, ours, &qemu_img);
        failed.extend(wrong.into_iter().map(|wrong| format!("{}: {wrong}", script.name)));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn the_callers_of_openstack_find_what_they_know() {
    caller("openstack");
    caller("more of openstack");
}

#[test]
fn the_callers_of_kubevirt_find_what_they_know() {
    caller("cdi");
    caller("more of kubevirt");
}

#[test]
fn the_callers_of_ovirt_find_what_they_know() {
    caller("ovirt");
    caller("more of ovirt");
}

#[test]
fn the_callers_of_proxmox_find_what_they_know() {
    caller("proxmox");
    caller("more of proxmox");
}

#[test]
fn the_callers_of_incus_libguestfs_and_libvirt_find_what_they_know() {
    for name in ["incus", "libguestfs", "more of incus and libvirt", "formats"] {
        caller(name);
    }
}

#[test]
fn people_and_programs_for_their_desks_find_what_they_know() {
    for name in ["people", "more of people"] {
        caller(name);
    }
}

#[test]
fn nodes_of_qemu_are_what_they_are_there() {
    caller("nodes");
}

#[test]
fn check_finds_and_repairs_what_qemu_img_does() {
    section("check");
}

#[test]
fn snapshots_become_what_qemu_img_makes_of_them() {
    section("snapshot");
}

#[test]
fn bitmaps_become_what_qemu_img_makes_of_them() {
    section("bitmap");
}

#[test]
fn options_become_what_qemu_img_makes_of_them() {
    section("amend");
}

#[test]
fn a_disk_gets_another_size_as_with_qemu_img() {
    section("resize");
}

#[test]
fn an_overlay_gets_another_backing_image_as_with_qemu_img() {
    section("rebase");
}

#[test]
fn an_overlay_is_committed_as_with_qemu_img() {
    section("commit");
}

#[test]
fn images_are_made_and_written_as_with_qemu_img() {
    section("convert, dd and create");
}

#[test]
fn what_was_changed_is_told_of_as_with_qemu_img() {
    section("all");
}
