//! Confines a process that reads untrusted bytes.
//!
//! Two steps, neither of which can be taken back. *Files*, while there is one thread and nothing is
//! open: from then on only the files that the command line names can be opened (landlock). *Calls*,
//! when everything is open and for all threads: no starting of programs, no access to other
//! processes, no mounts, no change of owners and permissions, and no new sockets but those of the
//! network that the work needs (seccomp).
//!
//! Open files stay open. This crate opens no disk and ends no process: a forbidden call fails.

mod calls;
mod files;
mod mounts;
mod parts;

pub use calls::{Sockets, confine as confine_calls};
pub use files::{FileConfinement, confine as confine_files};

use std::fmt;

/// Why a process could not be confined.
#[derive(Debug)]
pub struct ConfinementError {
    action: &'static str,
    cause: String,
}

impl ConfinementError {
    fn new(action: &'static str, cause: impl fmt::Display) -> Self {
        Self { action, cause: cause.to_string() }
    }
}

impl fmt::Display for ConfinementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.action, self.cause)
    }
}

impl std::error::Error for ConfinementError {}
