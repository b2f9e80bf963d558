//! The `http` device and nginx, with its habits and with those that others have.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod habits;
mod letting_in;
mod memory;
mod nginx;
mod verbs;
