//! Formats whose disks lie in blocks: what others make of ours and we of theirs, against the bytes; and what
//! strangers make up.

#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod both_ways;
mod creating;
mod hostile;
mod laid;
mod packed;
mod support;
mod vhdx;
