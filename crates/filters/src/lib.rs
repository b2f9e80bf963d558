//! One file a filter, and the table that names them.
//!
//! A filter is a device over a device. Each is one file here and one line in [`table`]; nothing
//! else knows of it. Names, parameters and meanings are nbdkit's where nbdkit has the filter.

mod blocksize;
mod control;
mod delay;
mod error;
mod exitlast;
mod fua;
mod ip;
mod limit;
mod log;
mod nocache;
mod noextents;
mod noparallel;
mod nozero;
mod outlet;
mod protect;
mod rate;
mod readonly;
mod retry;
mod stats;
pub mod table;
#[cfg(test)]
mod tested;

pub use control::{Context, Control};
pub use table::{Kind, kind, kinds, open};
