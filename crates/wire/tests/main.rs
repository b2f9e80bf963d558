//! The protocol, sans I/O.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod checks;
mod properties;
mod uri;
