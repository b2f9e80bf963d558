//! `qemu-img`: its verbs are ours, with its words. What is different under its name: `map` prints a
//! table for people, and files beside an image are opened where its format was named.

use std::ffi::OsString;

use super::{Called, verb};
use crate::failure::Failure;

/// The version whose output ours is like.
const VERSION: &str = "version 11.0.0";

/// The verbs, and whether each opens what an image names.
const VERBS: [(&str, bool); 15] = [
    ("amend", true),
    ("bench", true),
    ("bitmap", true),
    ("check", true),
    ("commit", true),
    ("compare", true),
    ("convert", true),
    ("create", false),
    ("dd", true),
    ("info", true),
    ("map", true),
    ("measure", true),
    ("rebase", true),
    ("resize", true),
    ("snapshot", true),
];

pub(super) fn becomes(words: &[OsString]) -> Result<Called, Failure> {
    let mut rest = words.iter();
    let name = loop {
        let Some(word) = rest.next() else {
            return Err(Failure::new("Not enough arguments; try `qemu-img --help`"));
        };
        match word.to_str() {
            Some("-h" | "--help") => return Ok(Called::Says(help())),
            Some("-V" | "--version") => {
                return Ok(Called::Says(super::version("qemu-img", VERSION)));
            }
            // What it writes of itself is not asked for here.
            Some("-T" | "--trace") => drop(rest.next()),
            Some(word) if word.starts_with("--trace=") || word.starts_with("-T") => {}
            Some(word) => break word.to_owned(),
            None => return Err(Failure::new("a verb is not text")),
        }
    };
    let Some((_, opens)) = VERBS.iter().find(|(known, _)| **known == *name) else {
        return Err(Failure::new(format!("Command not found: {name}")));
    };
    let rest: Vec<OsString> = rest.cloned().collect();
    let mut ours = Vec::new();
    let is = |word: &OsString, option: &str| {
        word.to_str().is_some_and(|word| word == option || word.starts_with(&format!("{option}=")))
    };
    if name == "map" && !rest.iter().any(|word| is(word, "--output")) {
        ours.push(OsString::from("--output=human"));
    }
    if *opens && !rest.iter().any(|word| is(word, "--allow-external")) {
        ours.push(super::external().into());
    }
    Ok(verb(&name, ours.into_iter().chain(rest)))
}

fn help() -> String {
    let verbs: String = VERBS.iter().map(|(name, _)| format!("  {name}\n")).collect();
    format!(
        "{}usage: qemu-img [standard options] command [command options]\n\nCommands:\n{verbs}\n\
         'qemu-img COMMAND --help' shows the options of one\n",
        super::version("qemu-img", VERSION)
    )
}
