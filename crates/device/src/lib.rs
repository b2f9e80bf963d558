//! The device contract: what every disk, filter and format is to the rest of the system.
//!
//! A disk is a map before it is bytes. A [`Device`] resolves a range into [`Extent`]s, and each
//! extent says what is there and, where it can, *where* it is ([`Place`]), so that bytes can be
//! moved without passing through user space. A device implements only what is special to it; the
//! [`Edge`] supplies the rest, once, for all: bounds, splitting, zeroes written as data, FUA by
//! flush, waiting.
//!
//! This crate opens nothing and knows no protocol.

pub mod access;
pub mod below;
mod blocks;
mod buffer;
mod client;
mod contract;
mod edge;
mod errno;
mod error;
mod extent;
mod filter;
#[cfg_attr(not(target_os = "linux"), path = "keyring/absent.rs")]
mod keyring;
mod lane;
pub mod losses;
mod map_cost;
pub mod model;
mod name;
mod operation;
#[cfg(all(test, shuttle))]
mod orders;
mod param;
mod part;
mod paths;
mod random;
mod reach;
#[cfg_attr(not(target_os = "linux"), path = "residency/absent.rs")]
pub mod residency;
mod samples;
pub mod secret;
mod simple;
mod size;
mod slice;
pub mod text;
mod timestamp;
pub mod values;
mod window;
mod zeroes;

pub use blocks::{BlockSizes, Granules};
pub use buffer::{Buffer, BufferPool};
pub use client::{Client, Credentials, Identity, Peer, Presence};
pub use contract::{Abilities, Connected, Device, Info, Listed, Now, Order, Session};
pub use edge::Edge;
pub use error::{Error, ErrorClass, ErrorKind, Fault, Result};
pub use extent::{
    Extent, ExtentKind, Guard, Home, Keeper, Place, Stored, is_same_guard, merge_extent,
};
pub use filter::{Admission, Admitted, Arrival, Filter, Filtered, Over, Passes};
pub use keyring::{Serial, keep as keep_keys};
pub use lane::{Completed, EdgeLane, Interest, Lane, LaneStep};
pub use map_cost::MapCost;
pub use name::{Name, Params, between_commas, nearest, suggestion};
pub use operation::{
    Again, Done, Operation, OperationKind, Outcome, StatusRun, ZeroFlags, merge_run,
};
pub use param::{Param, param, repeated};
pub use part::part;
pub use paths::PathsBelow;
pub use random::random_bytes;
pub use reach::{Endpoint, Reach, Use};
pub use samples::samples;
pub use simple::{Blocking, Simple, run as run_blocking};
pub use size::{format_size, parse_size};
pub use slice::{Slice, copy_overlap};
pub use timestamp::timestamp;
pub use window::{Mapping, Window};
pub use zeroes::{ZeroRuns, is_zero};
