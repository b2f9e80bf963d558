//! One file a device, and the table that names them.
//!
//! [`open`] turns a [`Name`](device::Name) into a [`Device`](device::Device). Each device is one
//! file or folder here and one line in [`table`]; nothing else knows of it.

mod checked;
pub mod data;
pub mod file;
mod full;
pub mod memory;
pub mod nbd;
mod null;
mod ones;
mod options;
mod oracle;
mod pattern;
mod random;
mod sparse_random;
mod storage;
pub mod table;
mod words;

pub use device::Param;
pub use nbd::abandon;
pub use options::OpenOptions;
pub use storage::{Export, Relation, Span, Storage};
pub use table::{Kind, kind, kinds, open, open_kind, storage};
