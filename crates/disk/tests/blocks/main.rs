//! Formats whose disks lie in blocks: our images in other programs and theirs here, against the bytes; and
//! untrusted ones.

#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod both_ways;
mod creating;
mod hostile;
mod laid;
mod packed;
mod support;
mod vhdx;
