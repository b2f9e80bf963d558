//! How a verb fails: one line on standard error, and an exit status.
//!
//! The status is 2 for an error in the command line (an unknown device, filter, option or
//! parameter, an invalid value, size or URI, or something missing), 75 (EX_TEMPFAIL) where a server
//! could not be reached or was lost and another try may succeed, and 1 for everything else that
//! failed. Verbs with qemu-img's words end with 1 in both cases.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;
use std::sync::OnceLock;

use device::ErrorClass;

/// What a verb returns.
pub(crate) type ExitResult = Result<ExitCode, Failure>;

/// Exit status for wrong usage, except for verbs that say otherwise.
pub(crate) const USAGE: u8 = 2;

/// Exit status where the way to a server failed: EX_TEMPFAIL of sysexits.h.
const TRANSIENT: u8 = 75;

/// The cure, by a sign in the line: an error of the system, or a server's reply.
const CURES: [(&str, &str); 2] = [
    ("(os error 24)", "`ulimit -n` shows the limit"),
    ("(ERR_UNKNOWN)", "`diskferry list URI` shows the exports of a server"),
];

/// A failure on its way to the user.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
    is_usage: bool,
}

impl Failure {
    /// The command line makes no sense: exit status 2.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), code: USAGE, is_usage: true }
    }

    /// The verb could not do its work: exit status 1.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), code: 1, is_usage: false }
    }

    /// The same, caused by `e`: exit status 75 if another try may succeed.
    pub(crate) fn because(e: &device::Error, message: impl fmt::Display) -> Self {
        let failure = Self::new(message);
        match e.class() {
            ErrorClass::Transient => failure.with_code(TRANSIENT),
            ErrorClass::Misbehaved | ErrorClass::Ours | ErrorClass::Permanent => failure,
        }
    }

    /// The same with another exit status.
    pub(crate) fn with_code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// The same of a verb that ends with `code` when its command line makes no sense.
    pub(crate) fn with_usage_code(self, code: u8) -> Self {
        if self.is_usage { self.with_code(code) } else { self }
    }

    /// The same, with more at its end.
    pub(crate) fn and(mut self, more: &str) -> Self {
        self.message.push_str(more);
        self
    }

    /// The same, with a prefix that says where.
    pub(crate) fn behind(mut self, place: &str) -> Self {
        self.message.insert_str(0, place);
        self
    }

    /// Says it in one line.
    pub(crate) fn report(self) -> ExitCode {
        if serving::stderr_is_journal() {
            // The journal takes the number for the priority, an error.
            let _ = write!(std::io::stderr(), "<3>");
        }
        say(&self.line());
        ExitCode::from(self.code)
    }

    /// What went wrong, in one line.
    pub(crate) fn line(&self) -> String {
        let line: String = device::text::shown(&self.message)
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let line = line.trim_end();
        match CURES.iter().find(|(sign, _)| line.contains(sign)) {
            Some((_, cure)) => format!("{line}; {cure}"),
            None => line.to_owned(),
        }
    }

    /// The exit status.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }
}

/// The name under which this program was called, if it is another tool's.
static NAME: OnceLock<&'static str> = OnceLock::new();

/// From now on messages begin with the name of this tool.
pub(crate) fn name_program(name: &'static str) {
    let _ = NAME.set(name);
}

/// What messages begin with.
pub(crate) fn program() -> &'static str {
    NAME.get().copied().unwrap_or("diskferry")
}

/// Whether it was called by another tool's name: then nothing is said that this tool would not say.
pub(crate) fn is_renamed() -> bool {
    NAME.get().is_some()
}

/// Says a line on standard error.
pub(crate) fn say(line: &str) {
    // A reader that has gone away changes nothing about the exit status.
    let _ = writeln!(std::io::stderr(), "{}: {line}", program());
}

impl From<device::Error> for Failure {
    fn from(e: device::Error) -> Self {
        if e.is_usage() { Self::usage(e) } else { Self::because(&e, &e) }
    }
}
