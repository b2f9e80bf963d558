//! What a file asks the system for where systems differ: its map, room and zeroes, durability,
//! reads that do not wait, what stays in the page cache. Linux in one file, the rest (macOS is the
//! one that is checked) in the other. Both have the same items; what a system lacks is an error
//! there, and the callers have another way, or refuse.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

#[cfg(target_os = "linux")]
pub(crate) use linux::*;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::*;
