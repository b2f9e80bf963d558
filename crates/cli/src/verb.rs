//! What a verb is: its words, its arguments, and what it does.

use clap::{ArgMatches, Command};

use crate::failure::{ExitResult, USAGE};

/// A verb.
pub(crate) struct Verb {
    /// The word on the command line.
    pub(crate) name: &'static str,
    /// One line on what it does.
    pub(crate) summary: &'static str,
    /// A few lines more.
    pub(crate) about: &'static str,
    /// Commands that work as they are, or nearly.
    pub(crate) example: &'static str,
    /// Exit statuses beyond [`STATUS`], a sentence; may be empty.
    pub(crate) status: &'static str,
    /// Exit status for wrong usage.
    pub(crate) usage: u8,
    /// Its arguments.
    pub(crate) arguments: fn(Command) -> Command,
    /// Does it.
    pub(crate) run: fn(&ArgMatches) -> ExitResult,
}

/// What the exit status of each verb means.
pub(crate) const STATUS: &str = "0: all was done. 1: something failed when it was tried. 2: the \
    command line is wrong (an unknown option, device, filter or parameter, an invalid value, size \
    or URI, or something missing). 75: a server was unreachable (no socket, no answer, no such \
    host) or lost; a retry may succeed.";

/// The same for verbs that have qemu-img's statuses.
pub(crate) const STATUS_OF_IMAGES: &str = "0: all was done. 1: something failed, or the command \
    line is wrong. 75: a server was unreachable (no socket, no answer, no such host) or lost; a \
    retry may succeed.";

impl Verb {
    /// The text on the exit status.
    pub(crate) fn statuses(&self) -> String {
        let common = if self.usage == USAGE { STATUS } else { STATUS_OF_IMAGES };
        format!("{common} {}", self.status).trim_end().to_owned()
    }
}
