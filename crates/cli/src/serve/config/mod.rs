//! `--config FILE`: options and exports in a file (TOML).
//!
//! A key is an option of the command line without its dashes, and its value what follows it there;
//! so the table of options is that of the file, too. Besides, each `[[export]]` is a disk with its
//! own settings ([`export`]). Errors name the line. Reading the file opens nothing that it names.

mod export;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};
use device::nearest;
use runtime::Mutex;
use server::limits::LIMITS;
use toml::de::{DeTable, DeValue};

pub(super) use export::ExportTable;
use value::{Lines, Wrong, entries};

use super::arguments;
use crate::failure::Failure;
use crate::misread::reason;

/// Bytes of a file, at most.
const LARGEST: u64 = 1 << 20;
/// The key under which exports are.
const EXPORT: &str = "export";
/// Options for one run of the process, and those that each export has.
const ELSEWHERE: &[(&str, &str)] = &[
    ("config", HERE),
    ("check", HERE),
    ("help", HERE),
    ("version", HERE),
    ("dump-config", HERE),
    ("dump-plugin", HERE),
    ("short-options", HERE),
    ("long-options", HERE),
    ("run", HERE),
    ("single", HERE),
    ("daemon", HERE),
    ("foreground", HERE),
    ("exit-with-parent", HERE),
    ("exportname", HERE),
    ("disk", BELOW),
    ("filter", BELOW),
    ("format", BELOW),
    ("allow-external", BELOW),
    ("description", BELOW),
    ("allow", BELOW),
];
const HERE: &str = "belongs on the command line";
const BELOW: &str = "belongs below [[export]]";
/// The options that a reload changes, besides the limits.
const LIVE: &[&str] = &["verbose"];
/// The limit that it does not.
const FIXED: &str = "threads";

/// The contents of a file.
#[derive(Debug)]
pub(super) struct Config {
    path: PathBuf,
    options: Vec<Given>,
    pub(super) exports: Vec<ExportTable>,
    /// What reloads have made of exports: their settings, or none where one is not served any more.
    reloaded: Mutex<BTreeMap<String, Option<String>>>,
}

/// An option.
#[derive(Debug)]
struct Given {
    line: usize,
    /// Its long name.
    option: String,
    /// As they would be on the command line.
    words: Vec<String>,
}

impl Config {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read; or an error in it, with its line.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let path = std::path::absolute(path)
            .map_err(|e| Failure::new(format!("--config {}: {e}", path.display())))?;
        let text = text(&path)?;
        let lines = Lines::new(&path, &text);
        let table = DeTable::parse(&text)
            .map_err(|e| lines.wrong(e.span().map_or(0, |span| span.start), e.message()))?;
        let command = command();
        let (options, exports, reloaded) = (Vec::new(), Vec::new(), Mutex::default());
        let mut config = Self { path: path.clone(), options, exports, reloaded };
        for (key, at) in entries(table.get_ref()) {
            if key == EXPORT {
                config.exports = export::read(at, &lines)?;
                continue;
            }
            let said = given(&command, key, at.value).map_err(|why| lines.wrong(at.offset, why))?;
            let Some((option, words)) = said else { continue };
            config.options.push(Given { line: lines.line(at.offset), option, words });
        }
        Ok(config)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The whole command line: the options of the file, and after them those that were typed, which
    /// therefore count.
    pub(super) fn matches(&self) -> Result<ArgMatches, Failure> {
        let words = self.options.iter().flat_map(|given| &given.words).map(OsString::from);
        // After the program and the verb.
        let typed = std::env::args_os().skip(2);
        command().try_get_matches_from(words.chain(typed)).map_err(|e| {
            Failure::usage(format!(
                "{}: with the command line: {}",
                self.path.display(),
                reason(&e)
            ))
        })
    }

    /// What went wrong, with the line of the option that it is about.
    pub(super) fn place(&self, failure: Failure) -> Failure {
        let line = failure.line();
        let is_about = |given: &&Given| {
            let rest = line.strip_prefix("--").and_then(|line| line.strip_prefix(&*given.option));
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-'))
        };
        match self.options.iter().find(is_about) {
            Some(given) => failure.behind(&format!("{}:{}: ", self.path.display(), given.line)),
            None => failure,
        }
    }

    /// What of `new` is not in force before the server is started again.
    pub(super) fn awaits_restart(&self, new: &Self) -> Late {
        let (ours, theirs) = (self.fixed(), new.fixed());
        let all = ours.keys().chain(theirs.keys()).filter(|key| ours.get(*key) != theirs.get(*key));
        Late(all.cloned().collect())
    }

    /// What does not change while the server runs.
    fn fixed(&self) -> BTreeMap<Item, String> {
        let is_live = |option: &str| {
            let is_limit = |limit: &server::limits::ServerLimit| {
                limit.option.is_some_and(|(name, _)| name == option && name != FIXED)
            };
            LIVE.contains(&option) || LIMITS.iter().any(is_limit)
        };
        let options = self.options.iter().filter(|given| !is_live(&given.option));
        let options =
            options.map(|given| (Item::Option(given.option.clone()), given.words.join(" ")));
        let exports = self.exports.iter().enumerate();
        let exports = exports.map(|(i, one)| (Item::Export(one.name.clone()), one.fixed(i)));
        let mut all: BTreeMap<_, _> = options.chain(exports).collect();
        for (name, fixed) in &*self.reloaded.lock() {
            let item = Item::Export(name.clone());
            match fixed {
                Some(fixed) => all.insert(item, fixed.clone()),
                None => all.remove(&item),
            };
        }
        all
    }

    /// The first export of `new` is the default from now on.
    pub(super) fn has_default_of(&self, new: &Self) {
        let now = self.fixed();
        for (number, export) in new.exports.iter().enumerate() {
            let as_it_is = now.get(&Item::Export(export.name.clone()));
            // With or without being the first one.
            if [0, 1].iter().any(|number| as_it_is == Some(&export.fixed(*number))) {
                let fixed = Some(export.fixed(number));
                self.reloaded.lock().insert(export.name.clone(), fixed);
            }
        }
    }

    /// An export is served as `new` has it, from now on; or not at all, if it has none of that
    /// name.
    pub(super) fn serves(&self, name: &str, new: &Self) {
        let found = new.exports.iter().enumerate().find(|(_, export)| export.name == name);
        let fixed = found.map(|(number, export)| export.fixed(number));
        self.reloaded.lock().insert(name.to_owned(), fixed);
    }
}

/// Something that a file says, by its name.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Item {
    Export(String),
    Option(String),
}

/// What is said in the file, and not in force before the server is started again.
#[derive(Debug)]
pub(super) struct Late(BTreeSet<Item>);

impl Late {
    /// In words: exports as ``export `NAME` ``, and options; empty where there is nothing.
    pub(super) fn words(&self) -> String {
        let word = |item: &Item| match item {
            Item::Export(name) => format!("export `{name}`"),
            Item::Option(option) => option.clone(),
        };
        self.0.iter().map(word).collect::<Vec<_>>().join(", ")
    }

    /// Whether more than exports waits.
    pub(super) fn is_of_options(&self) -> bool {
        self.0.iter().any(|item| matches!(item, Item::Option(_)))
    }

    /// Whether what clients of an export get is not what the file describes: the export is another,
    /// or the server is.
    pub(super) fn concerns(&self, export: &str) -> bool {
        self.0.iter().any(|item| match item {
            Item::Export(name) => name == export,
            Item::Option(_) => true,
        })
    }
}

/// The options of `serve`, without anything before them.
fn command() -> Command {
    arguments::arguments(Command::new("serve")).no_binary_name(true)
}

/// The file, if it is one, and not too long.
fn text(path: &Path) -> Result<String, Failure> {
    let say = |e: &dyn std::fmt::Display| Failure::new(format!("{}: {e}", path.display()));
    // Reading a pipe might wait.
    if !std::fs::metadata(path).map_err(|e| say(&e))?.is_file() {
        return Err(say(&"is not a regular file"));
    }
    let file = programs::names::read(path).map(File::from).map_err(|e| say(&e))?;
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|e| say(&e))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > LARGEST {
        return Err(Failure::usage(format!("{}: has more than {LARGEST} bytes", path.display())));
    }
    String::from_utf8(bytes).map_err(|e| {
        let before = e.as_bytes().iter().take(e.utf8_error().valid_up_to());
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        Failure::usage(format!("{}:{line}: is not UTF-8", path.display()))
    })
}

/// Every word by which an option goes.
fn names(argument: &Arg) -> impl Iterator<Item = &str> {
    argument.get_long().into_iter().chain(argument.get_all_aliases().unwrap_or_default())
}

/// An option's long name, and its words on a command line; `None` for a flag that is off.
fn given(
    command: &Command,
    key: &str,
    value: &DeValue<'_>,
) -> Result<Option<(String, Vec<String>)>, Wrong> {
    if let Some((_, place)) = ELSEWHERE.iter().find(|(option, _)| *option == key) {
        return Err(format!("`{key}` {place}"));
    }
    let is_elsewhere =
        |argument: &&Arg| ELSEWHERE.iter().any(|(id, _)| *id == argument.get_id().as_str());
    let all = || command.get_arguments().filter(|argument| !is_elsewhere(argument));
    let Some(argument) = all().find(|argument| names(argument).any(|name| name == key)) else {
        let known: Vec<&str> = all().filter_map(Arg::get_long).chain([EXPORT]).collect();
        return Err(unknown("option", key, &known));
    };
    let long = argument.get_long().unwrap_or(key).to_owned();
    let words = value::words(argument, &long, value)?;
    if words.is_empty() {
        return Ok(None);
    }
    // Each by itself, so that it is clear which one is wrong.
    command.clone().try_get_matches_from(&words).map_err(|e| reason(&e))?;
    Ok(Some((long, words)))
}

/// The error for a word that is not one of `known`.
fn unknown(what: &str, key: &str, known: &[&str]) -> Wrong {
    let hint = nearest(key, known).map(|near| format!("; did you mean `{near}`?"));
    format!("there is no {what} `{key}`{}", hint.unwrap_or_default())
}
