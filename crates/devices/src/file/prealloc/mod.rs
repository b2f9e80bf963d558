//! Preallocating a file or block device, and written zeroes.
//!
//! What the file reads as never changes: only ranges that its map calls a hole or unwritten are
//! zeroed, and on a block device, which has no map, only ranges that read as zeroes. The map is
//! read again before every 256 MiB, and other programs are kept out by the locks that all devices
//! take; a program that ignores locks, and writes to a hole between the look at the map and the
//! zeroes, loses what it wrote.
//!
//! All of a file is allocated first, without a change of its length; if the disk is full, that is
//! undone, and nothing else was changed. Then it gets its length, then zeroes. So however it ends
//! early, the file reads as it should, and a second run completes it.
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
pub(crate) use written::{PacedRun, Written};
