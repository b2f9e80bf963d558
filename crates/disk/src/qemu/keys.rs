//! The keys of a node, with dots, as QEMU has them: read from an option string, or from JSON.

use std::fmt::Write as _;

use device::{Error, Params, Result, between_commas};
use serde_json::Value;

use super::{TUNING, wrong};

/// Depth of objects in JSON.
const DEEPEST: usize = 8;

/// Keys with dots.
#[derive(Debug, Default)]
pub(crate) struct Keys(Params);

impl Keys {
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)
    }

    pub(crate) fn need(&self, key: &str) -> Result<&str> {
        self.get(key).ok_or_else(|| Error::invalid(format!("there is no `{key}`")))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those of the node that `name` holds.
    pub(crate) fn below(&self, name: &str) -> Self {
        let mut below = Params::default();
        for (key, value) in self.0.iter() {
            if let Some(key) = key.strip_prefix(name).and_then(|key| key.strip_prefix('.')) {
                below.add(key, value);
            }
        }
        Self(below)
    }

    /// Those that are not of the node in the file below.
    pub(crate) fn own(&self) -> Params {
        let mut own = Params::default();
        let all = self.0.iter().filter(|(key, _)| !key.starts_with("file."));
        all.for_each(|(key, value)| own.add(key, value));
        own
    }

    /// Refuses unknown keys of the node itself, those of the node below left out or not.
    pub(crate) fn check(&self, known: &[&str], has_below: bool) -> Result<()> {
        let all: Vec<_> = known.iter().chain(TUNING).chain(&["driver"]).copied().collect();
        let own = if has_below { self.own() } else { self.0.clone() };
        let file = if has_below { &["file"][..] } else { &[] };
        own.check(&[&all[..], file].concat())
    }

    /// Of `key=value,key=value`; a doubled comma is one.
    pub(crate) fn of_words(text: &str) -> Result<Self> {
        let mut keys = Params::default();
        for word in between_commas(text) {
            let (key, value) = word.split_once('=').ok_or_else(|| {
                Error::invalid(format!("`{word}` has no value; write {word}=VALUE"))
            })?;
            keys.set(key, value)?;
        }
        Ok(Self(keys))
    }

    /// Of JSON, in which QEMU also takes strings in single quotes.
    pub(crate) fn of_json(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text)
            .or_else(|e| serde_json::from_str(&double_quoted(text)).map_err(|_| e))
            .map_err(|e| Error::invalid(e.to_string()))?;
        if !value.is_object() {
            return Err(Error::invalid("it is not an object"));
        }
        let mut keys = Params::default();
        flatten(&value, "", DEEPEST, &mut keys)?;
        Ok(Self(keys))
    }
}

/// The same JSON with double quotes around every string.
fn double_quoted(text: &str) -> String {
    let (mut out, mut quote, mut letters) = (String::new(), None, text.chars());
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (None, '"' | '\'') => {
                quote = Some(letter);
                out.push('"');
            }
            (Some(open), end) if open == end => {
                quote = None;
                out.push('"');
            }
            (Some(_), '"') => out.push_str("\\\""),
            (Some(_), '\\') => match letters.next() {
                // JSON itself does not escape it.
                Some('\'') => out.push('\''),
                Some(next) => drop(write!(out, "\\{next}")),
                None => out.push('\\'),
            },
            (_, other) => out.push(other),
        }
    }
    out
}

fn flatten(value: &Value, name: &str, depth: usize, out: &mut Params) -> Result<()> {
    let within = |key: &str| {
        if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") }
    };
    let text = match value {
        Value::Object(map) if depth > 0 => {
            let mut all = map.iter();
            return all.try_for_each(|(key, value)| flatten(value, &within(key), depth - 1, out));
        }
        Value::Array(all) if depth > 0 => {
            let mut all = all.iter().enumerate();
            return all.try_for_each(|(n, value)| {
                flatten(value, &within(&n.to_string()), depth - 1, out)
            });
        }
        // Without a backing image.
        Value::Null if name == "backing" => String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(flag) => if *flag { "on" } else { "off" }.to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Object(_) | Value::Array(_) | Value::Null => {
            return Err(Error::invalid(format!("`{name}` has the wrong type")));
        }
    };
    out.set(name, &text).map_err(|e| wrong("twice", &e))
}
