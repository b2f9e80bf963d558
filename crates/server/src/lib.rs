//! The NBD server engine: listeners and connections.
//!
//! A few reactor threads (one a core) share the connections. Each turns an epoll instance of its
//! own: it reads as many requests as a socket holds, runs those that will not wait to completion
//! at once, gathers small replies into one send, and sends large reads from their place in a file
//! with sendfile. What may wait (cold data, a sync, a peer behind us) goes to a bounded pool, or
//! to the device's own completion, and holds no reactor.
//!
//! An idle connection costs a descriptor and a few hundred bytes. Memory is budgeted for each
//! connection and in all; a peer that does not read, or negotiates for ever, or sends half a
//! payload, is bounded in bytes and in time. The pool is shared by all, and takes turns: half of it
//! at most works for one disk, and clients of a disk are served in turn.

#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod bell;
mod connection;
mod execute;
mod gather;
mod leavers;
pub mod limits;
mod link;
mod offer;
mod reactor;
mod server;
mod shared;
mod terms;

pub use net::{Family, ListenAddress, Listener, SocketName, SocketRights, look_up, tls};
pub use server::{Idle, Server, ServerHandle};
pub use terms::Options;
