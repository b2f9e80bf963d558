//! Disks attached to this machine, where programs work that speak no NBD: a disk as a file (FUSE).
//!
//! An attachment is a client of an [`Edge`](device::Edge), as a connection of a server is, so a
//! disk can be attached and served at the same time. It begins in two steps, because a sandbox
//! shuts between them: a point is *mounted* while that is allowed and before any disk is open, and
//! a disk is *attached* there when it is open. Programs that look at the point meanwhile wait.
//!
//! What the kernel asks is believed no more than what a peer asks: ranges, lengths and the number
//! of bytes in flight are limited.

mod fuse;
mod mounts;
mod point;

pub use fuse::{Attachment, FuseMount, unmount};
pub use mounts::{AttachedDisk, attached};
pub use point::{Point, PointOptions};
