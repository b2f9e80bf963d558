//! Giving a file or block device its room before it is needed, and zeroes that are written.
//!
//! What the file reads as is never changed: only what its map calls a hole or never written is zeroed, and of a
//! block device, which has no map, only what reads as zeroes. The map is asked for again in front of every 256 MiB,
//! and other programs are kept out by the locks that all devices take; a program that heeds no locks, and writes to a hole
//! in the moment between the question and the zeroes, loses what it wrote.
//!
//! A file is given all its room first, without a change of its length; where there is not enough, that is undone and
//! nothing else was done. Then it gets its length, then zeroes. So whatever ends it early leaves a file
//! that reads as it should and that a second run completes.
//!
//! | file | what it is |
//! |---|---|
//! | `run` | the steps |
//! | `lacking` | which ranges are not written |
//! | `fiemap` | the file system's map |
//! | `written` | zeroes by the best way, several requests in flight |
//! | `system` | the requests; a seam for tests |
//! | `pace` | the limit of bytes a second |

mod fiemap;
mod lacking;
mod pace;
mod run;
mod system;
mod written;

pub(crate) use run::preallocate;
pub(crate) use written::{Job, Written};
