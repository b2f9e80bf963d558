//! Values of a TOML file, and their positions.

use std::fmt;
use std::path::Path;

use clap::{Arg, ArgAction};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::failure::Failure;

/// What is wrong with a value, in words.
pub(super) type Wrong = String;

/// Tells lines from offsets.
#[derive(Debug)]
pub(super) struct Lines<'a> {
    path: &'a Path,
    text: &'a str,
}

impl<'a> Lines<'a> {
    pub(super) fn new(path: &'a Path, text: &'a str) -> Self {
        Self { path, text }
    }

    /// The line of a byte, from 1 on.
    pub(super) fn line(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().iter().take(offset);
        1 + before.filter(|byte| **byte == b'\n').count()
    }

    /// `FILE:LINE: `.
    pub(super) fn prefix(&self, offset: usize) -> String {
        format!("{}:{}: ", self.path.display(), self.line(offset))
    }

    /// A mistake at a byte.
    pub(super) fn wrong(&self, offset: usize, why: impl fmt::Display) -> Failure {
        Failure::usage(format!("{}{why}", self.prefix(offset)))
    }
}

/// A table's entries in the order of the file.
pub(super) fn entries<'a, 'i>(table: &'a DeTable<'i>) -> Vec<(&'a str, At<'a, 'i>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let entry = |(key, value): (&'a Spanned<DeString<'i>>, &'a Spanned<DeValue<'i>>)| {
        (&**key.get_ref(), At { offset: key.span().start, value: value.get_ref() })
    };
    entries.into_iter().map(entry).collect()
}

/// A value, and the position of its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct At<'a, 'i> {
    pub(super) offset: usize,
    pub(super) value: &'a DeValue<'i>,
}

/// The words of an option on a command line; none for a flag that is off.
pub(super) fn words(argument: &Arg, long: &str, value: &DeValue<'_>) -> Result<Vec<String>, Wrong> {
    let takes_value = argument.get_action().takes_values();
    let is_repeated = matches!(argument.get_action(), ArgAction::Append);
    let word = |value: &DeValue<'_>| Ok(format!("--{long}={}", scalar(long, value)?));
    match value {
        DeValue::Boolean(true) if !takes_value => Ok(vec![format!("--{long}")]),
        DeValue::Boolean(false) if !takes_value => Ok(Vec::new()),
        _ if !takes_value => Err(format!("`{long}` is true or false")),
        DeValue::Array(list) if is_repeated => {
            list.iter().map(|value| word(value.get_ref())).collect()
        }
        DeValue::Array(_) => Err(format!("`{long}` takes one value, not a list")),
        one => Ok(vec![word(one)?]),
    }
}

/// A text or a number, as it would be typed.
fn scalar(key: &str, value: &DeValue<'_>) -> Result<String, Wrong> {
    match value {
        DeValue::String(text) => Ok(text.clone().into_owned()),
        DeValue::Integer(number) => Ok(number.to_string()),
        DeValue::Float(number) => Ok(number.to_string()),
        DeValue::Boolean(_) => Err(format!("`{key}` takes a text: write it in quotes")),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
            Err(format!("`{key}` takes a text or a number"))
        }
    }
}

/// A text.
pub(super) fn text(key: &str, value: &DeValue<'_>) -> Result<String, Wrong> {
    match value {
        DeValue::String(text) => Ok(text.clone().into_owned()),
        _ => Err(format!("`{key}` takes a text: write it in quotes")),
    }
}

/// Texts, each with its position; a single one need not be in a list.
pub(super) fn texts(key: &str, at: At<'_, '_>) -> Result<Vec<(usize, String)>, Wrong> {
    match at.value {
        DeValue::Array(list) => {
            let each = list.iter();
            each.map(|one| Ok((one.span().start, text(key, one.get_ref())?))).collect()
        }
        one => Ok(vec![(at.offset, text(key, one)?)]),
    }
}

/// True or false.
pub(super) fn flag(key: &str, value: &DeValue<'_>) -> Result<bool, Wrong> {
    match value {
        DeValue::Boolean(yes) => Ok(*yes),
        _ => Err(format!("`{key}` is true or false")),
    }
}
