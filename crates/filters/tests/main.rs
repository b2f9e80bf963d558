//! Filters over each other, by many clients, and with parameters that make no sense.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod crowds;
mod refusals;
mod stacks;
