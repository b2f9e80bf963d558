//! One file a filter, and the table that names them.
//!
//! A filter is a device over a device. Each is one file here and one line in [`table`]; nothing
//! else knows of it. Names, parameters and meanings are nbdkit's where nbdkit has the filter.

mod below;
mod cache;
mod chance;
mod checkwrite;
mod control;
mod cow;
mod delay;
mod evil;
mod nozero;
#[cfg(test)]
mod probe;
mod store;
pub mod table;
mod task;

pub use control::{Complaints, Context, Control};
pub use table::{Kind, kind, kinds, open};
