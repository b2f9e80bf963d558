//! Sockets: one kind of stream for servers and clients, and the ways to get one.
//!
//! A [`Stream`] never waits: it receives, and sends from memory or from a place in a file, and says
//! when it would have to wait. No other code calls recv, send or sendfile on a connection. After a
//! handshake of [`tls`] it encrypts, behind the same methods. Streams come from dialling, before a
//! deadline ([`Until`]), or from a [`Listener`]: TCP, Unix sockets, vsock. This crate knows no
//! protocol.

#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod credentials;
#[cfg_attr(not(target_os = "linux"), path = "delivery/absent.rs")]
mod delivery;
mod dial;
mod handed;
mod listen;
mod outgoing;
mod peer;
mod socket;
mod socket_name;
mod stream;
pub mod tls;
#[cfg_attr(not(target_os = "linux"), path = "vsock/absent.rs")]
mod vsock;

pub use dial::Until;
pub use handed::copy_of;
pub use listen::{Family, ListenAddress, Listener, look_up};
pub use outgoing::Outgoing;
pub use socket_name::{SocketName, SocketRights};
pub use stream::{Received, Sent, Stream, Tuning};
