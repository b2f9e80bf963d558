//! Devices over the system, and beside peers.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod block_device;
mod model;
mod oracles;
mod page_cache;
mod qemu_locks;
mod scratch;
