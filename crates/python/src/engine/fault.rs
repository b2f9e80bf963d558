//! Errors in libnbd's form: an errno, or 0, and a text that ends with the meaning of the errno.

use rustix::io::Errno;

/// A failure. The text does not yet name the call that failed, nor the errno.
#[derive(Clone, Debug)]
pub(crate) struct EngineError {
    /// The errno; 0 where there is none.
    pub(crate) errno: i32,
    pub(crate) text: String,
}

impl EngineError {
    pub(crate) fn new(errno: Errno, text: impl Into<String>) -> Self {
        Self { errno: errno.raw_os_error(), text: text.into() }
    }

    /// Something that makes no sense, or not now.
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(Errno::INVAL, text)
    }

    /// A failure without an errno.
    pub(crate) fn plain(text: impl Into<String>) -> Self {
        Self { errno: 0, text: text.into() }
    }

    pub(crate) fn number(errno: i32, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }

    /// The whole text, for the call of this name.
    pub(crate) fn said_by(&self, call: &str) -> String {
        match self.errno {
            0 => format!("nbd_{call}: {}", self.text),
            number => format!("nbd_{call}: {}: {}", self.text, meaning(number)),
        }
    }
}

/// The meaning of an errno, in the C library's words.
fn meaning(number: i32) -> String {
    let text = std::io::Error::from_raw_os_error(number).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
