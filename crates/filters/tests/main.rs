//! Filters over each other, and by many clients.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod crowds;
mod stacks;
