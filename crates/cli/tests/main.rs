//! The program, run as users run it: what needs its own files.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod copy;
mod inspect;
mod one_disk;
mod resize;
