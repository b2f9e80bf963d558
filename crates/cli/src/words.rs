//! Words of the command line that name things: they may be any bytes, and shells complete them.

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{Error, ErrorKind};
use clap::{Arg, Command};
use device::text;

/// What a word names where something is read: `-` is standard input.
pub(crate) fn to_read(word: &str) -> &str {
    if word == "-" { "/dev/stdin" } else { word }
}

/// Takes any bytes, as text that carries them; see [`device::text`].
#[derive(Clone)]
pub(crate) enum Words {
    /// What names a disk.
    Disk,
    /// One of these, maybe with more behind it: shells are offered them.
    Known(fn() -> Vec<PossibleValue>),
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
        match self {
            Self::Disk => None,
            Self::Known(words) => Some(Box::new(words().into_iter())),
        }
    }
}
