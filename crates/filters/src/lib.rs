//! One file a filter, and the table that names them.
//!
//! A filter is a device over a device. Each is one file or folder here and one line in [`table`];
//! nothing else knows of it. What they share lies in `kit`. Names, parameters and meanings are nbdkit's where nbdkit has the filter.

mod blocksize;
mod blocksize_policy;
mod cache;
mod checkwrite;
mod cow;
mod delay;
mod error;
mod evil;
mod exitlast;
mod fua;
mod ip;
mod kit;
mod limit;
mod log;
mod multi_conn;
mod nocache;
mod noextents;
mod noparallel;
mod nozero;
mod offset;
mod partition;
mod protect;
mod rate;
mod readahead;
mod readonly;
mod retry;
mod stats;
pub mod table;
mod truncate;

pub use table::{Kind, kind, kinds, open};
