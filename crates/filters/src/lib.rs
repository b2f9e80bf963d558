//! One file a filter, and the table that names them.
//!
//! A filter is a device over a device. Each is one file here and one line in [`table`]; nothing
//! else knows of it. Names, parameters and meanings are nbdkit's where nbdkit has the filter.

mod below;
mod blocksize;
mod blocksize_policy;
mod cache;
mod chance;
mod checkwrite;
mod cow;
mod delay;
mod error;
mod evil;
mod exitlast;
mod fua;
mod ip;
mod limit;
mod log;
mod multi_conn;
mod nocache;
mod noextents;
mod noparallel;
mod nozero;
mod offset;
mod outlet;
mod part;
mod partition;
#[cfg(test)]
mod probe;
mod protect;
mod rate;
mod readahead;
mod readonly;
mod retry;
mod stats;
mod store;
pub mod table;
#[cfg(test)]
mod tested;
mod truncate;

use runtime::{Complaints, Context, Control, Log};
pub use table::{Kind, kind, kinds, open};
