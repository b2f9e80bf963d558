//! The contract carries image formats: a toy one over memory, a file on a disk, a server, a filter
//! and itself is what the model is, also with many operations in flight and one thread for all, and
//! can be copied to and from.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod below;
mod copied;
mod model;
