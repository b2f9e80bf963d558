//! One file a filter, and the table that names them.
//!
//! A filter is a device over a device. Each is one file here and one line in [`table`]; nothing
//! else knows of it. Names, parameters and meanings are nbdkit's where nbdkit has the filter.

mod blocksize;
mod blocksize_policy;
mod control;
mod delay;
mod fua;
mod multi_conn;
mod nocache;
mod noextents;
mod noparallel;
mod nozero;
mod offset;
mod part;
mod partition;
mod protect;
mod readonly;
pub mod table;
#[cfg(test)]
mod tested;
mod truncate;

pub use control::{Context, Control};
pub use table::{Kind, kind, kinds, open};
