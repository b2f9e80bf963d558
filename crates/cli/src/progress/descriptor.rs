//! Progress into a descriptor that whoever started us has opened, as nbdcopy writes it: `42/100`, a
//! line each.

use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::{Error, ErrorKind};
use clap::{Arg, Command};

/// Opened while the words are read: a sandbox comes later.
static FILE: OnceLock<File> = OnceLock::new();

/// Takes one of the words, or the number of a descriptor that is open for writing.
#[derive(Clone)]
pub(super) struct WordOrNumber(pub(super) [&'static str; 2]);

/// Whether a word is the number of a descriptor.
pub(super) fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit())
}

impl TypedValueParser for WordOrNumber {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<String, Error> {
        let Some(number) = value.to_str().filter(|word| is_number(word)) else {
            return PossibleValuesParser::new(self.0).parse_ref(command, arg, value);
        };
        // A file is appended to, whatever another descriptor of it has written.
        let file = File::options().append(true).open(format!("/dev/fd/{number}")).map_err(|e| {
            let text = format!("progress: descriptor {number}: {e}\n");
            Error::raw(ErrorKind::ValueValidation, text).with_cmd(command)
        })?;
        FILE.get_or_init(|| file);
        Ok(number.to_owned())
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}

/// Writes how many hundredths are done; below all of them as long as something is left.
pub(super) fn tell(done: u64, total: u64) {
    let part = (u128::from(done) * 100).checked_div(u128::from(total)).unwrap_or(0);
    let part = if done < total { part.min(99) } else { part.min(100) };
    if let Some(mut file) = FILE.get() {
        // If it cannot be written, the work goes on all the same.
        let _ = file.write_all(format!("{part}/100\n").as_bytes());
    }
}
