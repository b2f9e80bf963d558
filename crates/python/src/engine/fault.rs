//! Errors in libnbd's form: a number of the system's, or 0, and a text that ends with what the number means.

use rustix::io::Errno;

/// What went wrong. The text does not yet name the call that it went wrong in, nor the number.
#[derive(Clone, Debug)]
pub(crate) struct EngineError {
    /// The system's number; 0 where there is none.
    pub(crate) errno: i32,
    pub(crate) text: String,
}

impl EngineError {
    pub(crate) fn new(errno: Errno, text: impl Into<String>) -> Self {
        Self { errno: errno.raw_os_error(), text: text.into() }
    }

    /// One that is not the system's.
    pub(crate) fn plain(text: impl Into<String>) -> Self {
        Self { errno: 0, text: text.into() }
    }

    pub(crate) fn number(errno: i32, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }

    /// The whole text, for the call of that name.
    pub(crate) fn said_by(&self, call: &str) -> String {
        match self.errno {
            0 => format!("nbd_{call}: {}", self.text),
            number => format!("nbd_{call}: {}: {}", self.text, meaning(number)),
        }
    }
}

/// What a number of the system's means, as the C library says it.
fn meaning(number: i32) -> String {
    let text = std::io::Error::from_raw_os_error(number).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
