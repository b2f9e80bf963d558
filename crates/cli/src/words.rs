//! Words of the command line that name things: they may be any bytes, and shells complete them.

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{Error, ErrorKind};
use clap::{Arg, Command};
use device::text;
use disk::{ShownKind, StackRole, kinds_of};

/// What a word names where something is read: `-` is standard input.
pub(crate) fn to_read(word: &str) -> &str {
    if word == "-" { "/dev/stdin" } else { word }
}

/// Takes any bytes, as text that carries them; see [`device::text`].
#[derive(Clone)]
pub(crate) enum Words {
    /// What names a disk.
    Disk,
    /// What names a filter, with parameters behind it: shells are offered the filters.
    Filter,
    /// A word that has a page of help.
    Page,
    /// What a disk can do.
    Ability,
    /// What a format takes when it is made, with values behind it: shells are offered the keys.
    FormatOption,
}

impl TypedValueParser for Words {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        _: Option<&Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<String, Error> {
        if value.as_encoded_bytes().contains(&0) {
            return Err(Error::new(ErrorKind::InvalidUtf8).with_cmd(command));
        }
        Ok(text::carry(value))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let value = |kind: ShownKind| PossibleValue::new(kind.word).help(kind.summary);
        match self {
            Self::Disk => None,
            Self::Ability => Some(Box::new(crate::info::ability_words().map(PossibleValue::new))),
            Self::FormatOption => {
                let made = disk::formats().iter().filter_map(|format| format.create);
                let keys = made.flat_map(|create| create.options).map(|param| param.key);
                let keys: std::collections::BTreeSet<_> = keys.collect();
                Some(Box::new(keys.into_iter().map(|key| PossibleValue::new(format!("{key}=")))))
            }
            Self::Page => Some(Box::new(crate::help::words().map(PossibleValue::new))),
            Self::Filter => Some(Box::new(kinds_of(StackRole::Filter).map(value))),
        }
    }
}
