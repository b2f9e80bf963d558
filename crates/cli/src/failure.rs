//! How a verb fails: one line on standard error, and an exit status.

use std::fmt;
use std::process::ExitCode;

/// What a verb returns.
pub(crate) type Outcome = Result<ExitCode, Failure>;

/// A failure on its way to the user.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    /// The command line makes no sense: exit status 2.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), code: 2 }
    }

    /// The verb could not do its work: exit status 1.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), code: 1 }
    }

    /// The same with another exit status.
    pub(crate) fn with_code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// Says it in one line.
    pub(crate) fn report(self) -> ExitCode {
        eprintln!("diskferry: {}", self.line());
        ExitCode::from(self.code)
    }

    /// What went wrong, in one line.
    pub(crate) fn line(&self) -> String {
        let line: String =
            self.message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        line.trim_end().to_owned()
    }

    /// The exit status.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }
}

impl From<device::Error> for Failure {
    fn from(e: device::Error) -> Self {
        Self::new(e)
    }
}

impl From<device::NameError> for Failure {
    fn from(e: device::NameError) -> Self {
        Self::usage(e)
    }
}
