//! Confines a process that reads untrusted bytes.
//!
//! Two steps, neither of which can be taken back. *Files*, while there is one thread and nothing is
//! open: from then on only the files that the command line names can be opened (landlock). *Calls*,
//! when everything is open and for all threads: no starting of programs, no access to other
//! processes, no mounts, no change of owners and permissions, and no new sockets but those of the
//! network that the work needs (seccomp).
//!
//! Open files stay open. This crate opens no disk and ends no process: a forbidden call fails.

#[cfg(target_os = "linux")]
mod calls;
#[cfg(target_os = "linux")]
mod files;
#[cfg(target_os = "linux")]
mod mounts;
#[cfg(not(target_os = "linux"))]
mod other;
#[cfg(target_os = "linux")]
mod parts;

#[cfg(target_os = "linux")]
pub use calls::confine as confine_calls;
#[cfg(target_os = "linux")]
pub use files::confine as confine_files;
#[cfg(not(target_os = "linux"))]
pub use other::{confine_calls, confine_files};

use std::fmt;

use device::Endpoint;

/// Whether there is a sandbox on this system.
pub const EXISTS: bool = cfg!(target_os = "linux");

/// What a process does with sockets once all is open.
#[derive(Clone, Debug, Default)]
pub struct Sockets {
    /// Where it connects to.
    pub connects: Vec<Endpoint>,
    /// Whether it accepts connections, at sockets that are open.
    pub accepts: bool,
    /// Whether it makes sockets of its own in private directories.
    pub listens: bool,
}

/// What became of files.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FileConfinement {
    /// All rules are enforced.
    Confined,
    /// The kernel does not know all of them; or, for a file, only its whole mount could be allowed.
    Partly,
    /// The kernel knows none, or landlock is not permitted.
    Free,
}

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
