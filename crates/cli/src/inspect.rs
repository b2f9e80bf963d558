//! `diskferry inspect`: whether an image may be used without harm, as JSON.
//!
//! For services that take untrusted images. It reads the image that is named and opens nothing
//! else; it runs in a process of its own under limits of memory and time, so that any input ends in
//! a verdict.

use std::io::Read;
use std::process::{Command as Process, Stdio};

use clap::{ArgMatches, Command};
use device::text;
use disk::{Described, Image, Named, OpenOptions};
use runtime::{Context, WorkPool};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde_json::{Map, Value, json};

use crate::arguments::{disk, flag};
use crate::failure::{ExitResult, Failure};
use crate::image::{self, Source};
use crate::output::VERSION;
use crate::sandbox::{self, Sandbox};
use crate::verb::Verb;
use crate::{formats, output};

pub(crate) const VERB: Verb = Verb {
    name: "inspect",
    summary: "Check whether an untrusted image is safe to use",
    about: "It prints a verdict as JSON: the format that the image has by its header, the size of the \
            disk in it, what it names, and whether it is safe: it is of one known format, the one that -f names; it refers to no other file; it has no unknown feature; its metadata make sense. It opens nothing else, and needs no more than 64 MiB and a second for \
            any input.",
    example: "  diskferry create -q -f raw disk.raw 1M\n  \
              diskferry inspect disk.raw",
    status: "1: it is not safe, or cannot be examined.",
    usage: 1,
    arguments,
    run,
};

/// Bytes of memory, and seconds of a processor's time.
const MEMORY: u64 = 64 << 20;
const SECONDS: u64 = 1;
/// Bytes of the longest verdict.
const LONGEST: u64 = 1 << 20;
/// Texts of an image that are shown, and letters of each.
const TEXTS: usize = 64;
const LETTERS: usize = 4096;

fn arguments(command: Command) -> Command {
    command
        .arg(disk())
        .arg(flag("--safe", "Accepted: it is what this verb does").hide(true))
        .arg(image::format_argument("-f, --format", "The format that it should have"))
        .arg(flag("-U, --force-share", "Do not lock the image against others"))
        .arg(sandbox::argument())
        .arg(flag("--confined", "Part of the program").hide(true))
}

fn run(matches: &ArgMatches) -> ExitResult {
    let name = image::word(matches, "disk").unwrap_or_default();
    let declared = image::word(matches, "format");
    if matches.get_flag("confined") {
        confine()?;
        let verdict = look(matches, name, declared)?;
        return show(&verdict.json(), verdict.is_safe());
    }
    Named::parse(name)?;
    let (told, succeeded) = ask_a_confined_one(matches, name, declared)?;
    match serde_json::from_slice::<Value>(&told) {
        Ok(verdict) => show(&verdict, succeeded),
        Err(_) => {
            let verdict = Verdict {
                reasons: vec![
                    "examining it takes more than 64 MiB of memory or a second of time".into(),
                ],
                ..Verdict::of(name, declared)
            };
            show(&verdict.json(), false)
        }
    }
}

fn show(verdict: &Value, is_safe: bool) -> ExitResult {
    output::verdict(u8::from(!is_safe), |out| image::write_json(out, verdict))
}

/// The same program in another process.
fn ask_a_confined_one(
    matches: &ArgMatches,
    name: &str,
    declared: Option<&str>,
) -> Result<(Vec<u8>, bool), Failure> {
    let failed = |e: std::io::Error| Failure::new(format!("start a separate process: {e}"));
    let mut process = Process::new("/proc/self/exe");
    process.args(["inspect", "--confined"]);
    if let Some(format) = declared {
        process.args(["-f", format]);
    }
    if matches.get_flag("force-share") {
        process.arg("-U");
    }
    if let Some(wish) = image::word(matches, "sandbox") {
        process.arg(format!("--sandbox={wish}"));
    }
    process.arg("--").arg(text::path(name));
    process.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = process.spawn().map_err(failed)?;
    let mut told = Vec::new();
    if let Some(out) = child.stdout.take() {
        out.take(LONGEST).read_to_end(&mut told).map_err(failed)?;
    }
    Ok((told, child.wait().map_err(failed)?.success()))
}

/// From here on this process is limited to what a verdict may cost.
fn confine() -> Result<(), Failure> {
    let set = |resource, limit| {
        let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
        setrlimit(resource, limit).map_err(|e| Failure::new(format!("limit this process: {e}")))
    };
    set(Resource::Data, MEMORY)?;
    set(Resource::Core, 0)?;
    set(Resource::Fsize, 0)?;
    set(Resource::Cpu, SECONDS)
}

/// What is found.
#[derive(Debug, Default)]
struct Verdict {
    name: String,
    declared: Option<String>,
    format: Option<&'static str>,
    found: Map<String, Value>,
    /// Why it is not safe.
    reasons: Vec<String>,
    /// Facts that may surprise, and do no harm.
    notes: Vec<String>,
}

impl Verdict {
    fn of(name: &str, declared: Option<&str>) -> Self {
        Self { name: shown(name), declared: declared.map(str::to_owned), ..Self::default() }
    }

    fn is_safe(&self) -> bool {
        self.reasons.is_empty()
    }

    fn json(&self) -> Value {
        let mut keys = Map::new();
        keys.insert("version".into(), json!(VERSION));
        keys.insert("filename".into(), json!(self.name));
        keys.insert("format".into(), json!(self.format));
        if let Some(declared) = &self.declared {
            keys.insert("declared-format".into(), json!(declared));
        }
        keys.extend(self.found.clone());
        keys.insert("safe".into(), json!(self.is_safe()));
        keys.insert("reasons".into(), json!(self.reasons));
        keys.insert("notes".into(), json!(self.notes));
        Value::Object(keys)
    }
}

fn look(matches: &ArgMatches, name: &str, declared: Option<&str>) -> Result<Verdict, Failure> {
    let mut verdict = Verdict::of(name, declared);
    let context = Context::new(WorkPool::undivided(1));
    let options =
        OpenOptions { lock: !matches.get_flag("force-share"), ..OpenOptions::read_only() };
    let disk = Named::parse(name)?;
    let source = Source { disk, stack: disk::Stack::default(), unsaid: false, read_only: false };
    let held = Sandbox::enter(sandbox::wish(matches), &source.reach())?.shut()?;
    verdict.found.insert("sandbox".into(), held.json());
    let container = match source.open(&options, &context) {
        Ok(opened) => opened.container,
        Err(failure) => {
            verdict.reasons.push(failure.line());
            return Ok(verdict);
        }
    };
    let looks = match disk::looks_like(&container) {
        Ok(looks) => looks,
        Err(e) => {
            verdict.reasons.push(e.to_string());
            return Ok(verdict);
        }
    };
    let words: Vec<_> = looks.iter().map(|format| format.word).collect();
    let first = words.first().copied().unwrap_or("raw");
    verdict.format = Some(first);
    if words.len() > 1 {
        verdict.reasons.push(format!("it looks like several formats: {}", words.join(", ")));
    }
    if looks.iter().all(|format| format.packing.is_some_and(disk::PackingKind::has_files))
        && declared != Some(first)
        && let Err(failure) = formats::refuse(&source.disk, &container)
    {
        verdict.format = None;
        verdict.reasons.push(Failure::from(failure).line());
    }
    if let Some(declared) = declared.filter(|declared| *declared != first) {
        verdict.reasons.push(format!("-f says {declared}, but its header says {first}"));
    }
    match disk::describe(&source.disk, &Image::of(first)?, &options, &context) {
        Ok(described) => judge(&described, &mut verdict),
        Err(e) => verdict.reasons.push(e.to_string()),
    }
    Ok(verdict)
}

/// The image's description of itself.
fn judge(described: &Described, verdict: &mut Verdict) {
    let said = &described.description;
    let mut find = |key: &str, value: Value| drop(verdict.found.insert(key.to_owned(), value));
    find("virtual-size", json!(said.virtual_size));
    find("actual-size", json!(described.container.info().size));
    find("cluster-size", json!(said.cluster_size));
    find("backing-filename", json!(said.backing.as_ref().map(|backing| shown(&backing.name))));
    let files = said.data_files.iter().take(TEXTS).map(|file| shown(&file.name));
    find("data-files", json!(files.collect::<Vec<_>>()));
    find("snapshots", json!(said.snapshots.len()));
    find("encrypted", json!(said.encrypted));
    find("dirty-flag", json!(said.dirty));
    let unknown = said.unknown_features.iter().take(TEXTS).map(|name| shown(name));
    find("unknown-features", json!(unknown.clone().collect::<Vec<_>>()));
    if let Some(backing) = &said.backing {
        let what = format!("it has a backing image, `{}`", shown(&backing.name));
        verdict.reasons.push(what);
    }
    let files: Vec<_> = said.data_files.iter().take(3).map(|file| shown(&file.name)).collect();
    if !files.is_empty() {
        let what = format!("its data is in other files: `{}`", files.join("`, `"));
        verdict.reasons.push(what);
    }
    let unknown: Vec<_> = unknown.take(3).collect();
    if !unknown.is_empty() {
        verdict.reasons.push(format!("it has unknown features: {}", unknown.join(", ")));
    }
    if said.corrupt {
        verdict.reasons.push("it is marked as corrupt".into());
    }
    if said.dirty {
        verdict.notes.push("it was not closed properly".into());
    }
    if said.encrypted {
        verdict.notes.push("its content is encrypted".into());
    }
}

/// A text of the image, at a length that can be shown.
fn shown(text: &str) -> String {
    text::shown(text).chars().take(LETTERS).collect()
}
