//! The NBD client: exports of servers, for code that speaks in operations of devices.
//!
//! - `reach` is the route to a server: how it is named ([`ServerSpec`], [`ExportSpec`]), dialled or
//!   started, and the handshake. [`inspect`] and [`list`] query a server without using an export.
//! - `channel` is one connection in transmission: requests out, replies in, never waiting, with no
//!   thread of its own.
//! - `connections` are the connections of one user of an export: a [`ClientLane`] is a thread that
//!   drives one itself, and a reactor drives them for all other callers. Cookies are internal;
//!   callers know their operations by a ticket, or are called back.
//!
//! It promises that no server can make it write outside a buffer, report a read as done that was
//! not answered in full, or hold more memory than it was asked for. It never sends what the server
//! did not advertise. It reconnects on request ([`Connections::reopen`]), or by itself if the
//! target says for how long ([`ExportSpec::reconnect`]); it always reports what may be lost, and
//! never reconnects to another disk.

#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod backoff;
mod channel;
mod connections;
mod reach;

pub use connections::{ClientLane, Connections, Upstream};
pub use reach::{
    Calling, ExportSpec, MOST_CONNECTIONS, ReadyConnection, ServerSpec, Subprocess, abandon,
    certificate_places, command_reaches, inspect, list,
};
