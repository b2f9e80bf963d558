//! Who is served: what a device may know of a client that has chosen it.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::{Device, Result};

/// Where a client comes from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Peer {
    /// TCP.
    Ip(SocketAddr),
    /// A Unix socket; who it was that connected, where the system says so (SO_PEERCRED).
    Unix {
        /// Process, user and group.
        credentials: Option<Credentials>,
    },
    /// A virtual machine, or its host.
    Vsock {
        /// The machine.
        cid: u32,
        /// Its port.
        port: u32,
    },
    /// Anything else: a pair of pipes, say.
    Other,
}

/// Who made a Unix socket connection, at that time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Credentials {
    /// The process.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// A client that has chosen an export.
#[derive(Clone, Debug)]
pub struct Client {
    /// Counts the connections of the server, from 1.
    pub number: u64,
    /// Where it comes from.
    pub peer: Peer,
    /// The export name it asked for.
    pub export: String,
    /// Whether the connection is encrypted.
    pub tls: bool,
}

/// Called once with what a client is to be served from: see [`Device::connect`].
pub type Connected = Box<dyn FnOnce(Result<Option<Arc<dyn Device>>>) + Send>;
