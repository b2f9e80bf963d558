//! Code that formats share: requests to the disk below without holding a thread, and computing on
//! threads that have time for it.

mod appending;
pub(crate) mod blocks;
pub(crate) mod cache;
pub(crate) mod container;
pub(crate) mod fields;
mod file;
mod growing;
mod layer;
pub(crate) mod numbers;
mod parent;
pub(crate) mod room;
mod scattered;
mod table;
mod taken;

pub(crate) use appending::{Appending, Appends, NewBlock, written_info};
pub(crate) use device::below::{ask, confused, flush, take, write, zero};
pub(crate) use device::below::{read_or_wait as read, resolve_or_wait as resolve};
pub(crate) use file::WrittenFile;
pub(crate) use growing::{Growing, Shape, Slots, blocks_with_data, clear_now, settle, write_table};
pub(crate) use layer::{Layer, Layered, at_once};
pub(crate) use parent::Parent;
pub(crate) use scattered::{
    Asks, Atlas, DEPTH, Later, Lies, Packed, Run, Runs, Scattered, disk_info,
};
pub(crate) use table::Table;
pub(crate) use taken::Taken;
