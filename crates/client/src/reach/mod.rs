//! The route to a server: how it is named, how a socket is opened to it, and the handshake until an
//! export can be used.

mod handshake;
mod persisting;
mod route;
mod subprocess;
mod target;

use device::Result;
use wire::{ClientPolicy, ListedExport, Negotiated};

pub use handshake::ReadyConnection;
pub(crate) use handshake::connect;
pub use net::tls::{Calling, certificate_places};
pub(crate) use persisting::persist;
pub(crate) use route::Route;
pub use subprocess::{Subprocess, abandon, command_reaches};
pub use target::{ExportSpec, MOST_CONNECTIONS, ServerSpec};

/// Asks a server about one export, without using it. The export is opened and left again: some
/// servers (nbd-server) know its size only then.
///
/// # Errors
/// The server cannot be reached, or it refuses.
pub fn inspect(target: &ExportSpec) -> Result<Negotiated> {
    let policy = ClientPolicy {
        export: target.export.clone(),
        list_contexts: true,
        ..ClientPolicy::default()
    };
    persist(target, || handshake::inspect(&Route::open(target)?, policy.clone(), target.timeout))
}

/// Asks a server which exports it has, and about each of them.
///
/// # Errors
/// The server cannot be reached, or does not list them.
pub fn list(target: &ExportSpec) -> Result<Vec<ListedExport>> {
    let policy = ClientPolicy { lists: true, list_contexts: true, ..ClientPolicy::default() };
    persist(target, || handshake::list(&Route::open(target)?, policy.clone(), target.timeout))
}
