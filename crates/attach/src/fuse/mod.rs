//! A disk as a file, by the kernel's FUSE protocol, whose numbers are in `abi.rs`
//! (include/uapi/linux/fuse.h, version 7.31 and later).
//!
//! The file system is one regular file: its root. It cannot be renamed, linked or given another
//! length, and what is written is as durable as fsync(2) says: that is a flush of the disk. Without
//! `cache` nothing of it is kept in the page cache, so it is what other clients of the disk see.

mod abi;
mod calls;
mod ioctl;
mod mount;
#[cfg(any(test, feature = "played"))]
#[allow(unreachable_pub, reason = "it is reached with the feature")]
pub(crate) mod played;
mod requests;
mod session;
#[cfg(test)]
mod tests;

pub use mount::FuseMount;
pub(crate) use mount::{TYPE, unmount};
pub use session::AttachedFile;
