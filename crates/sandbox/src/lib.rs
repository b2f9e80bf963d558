//! What a process that reads strangers' bytes may still do.
//!
//! Two steps, neither of which can be taken back. *Files*, while there is one thread and nothing is open: from then
//! on only those can be opened that the command line names (landlock). *Calls*, when everything is open and
//! for all threads: no program is started, no other process is looked at, nothing is mounted, and, if the work needs no
//! network, no socket is made (seccomp).
//!
//! What is open stays open. Nothing here opens a disk, and nothing ends a process: a call that is not allowed fails.

mod calls;
mod files;
mod mounts;

pub use calls::confine as confine_calls;
pub use files::{Files, confine as confine_files};

use std::fmt;

/// Why a process could not be confined.
#[derive(Debug)]
pub struct Error {
    action: &'static str,
    cause: String,
}

impl Error {
    fn new(action: &'static str, cause: impl fmt::Display) -> Self {
        Self { action, cause: cause.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.action, self.cause)
    }
}

impl std::error::Error for Error {}
