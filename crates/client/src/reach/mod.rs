//! The way to a server: how it is named, how a socket is had that leads to it, and what is said
//! until an export can be used.

mod handshake;
mod route;
mod subprocess;
mod target;

use std::time::Duration;

use device::Result;
use wire::{ClientPolicy, Goal, ListedExport, Session};

pub use handshake::Connected;
pub(crate) use handshake::connect;
pub(crate) use route::Route;
pub use subprocess::abandon;
pub use target::{MOST_CONNECTIONS, Server, Target};

/// Asks a server about one export, without using it. The export is opened and left again: some
/// servers (nbd-server) know its size only then. `timeout` limits all of it.
///
/// # Errors
/// The server cannot be reached, or it refuses.
pub fn inspect(server: &Server, export: &str, timeout: Option<Duration>) -> Result<Session> {
    let policy = ClientPolicy {
        export: export.to_owned(),
        goal: Goal::Go,
        describe: true,
        list_contexts: true,
        ..ClientPolicy::default()
    };
    handshake::inspect(&Route::open(server)?, policy, timeout)
}

/// Asks a server which exports it has, and about each of them. `timeout` limits all of it.
///
/// # Errors
/// The server cannot be reached, or it does not tell.
pub fn list(server: &Server, timeout: Option<Duration>) -> Result<Vec<ListedExport>> {
    let policy = ClientPolicy {
        goal: Goal::List { details: true },
        describe: true,
        list_contexts: true,
        ..ClientPolicy::default()
    };
    handshake::list(&Route::open(server)?, policy, timeout)
}
