//! An NBD server as a device: the client.
//!
//! One connection is a [`channel`]: it queues requests, sends them gathered, and reads replies
//! straight into the buffers that wait for them, without a thread of its own. A [`connection`]
//! lets several share one; a [`lane`] is a thread that drives it itself, and the reactor drives it
//! for everybody else.
//!
//! It promises that no server can make it write outside a buffer, report a read as done that was
//! not answered in full, or hold more memory than it was asked for. It never sends what the server
//! did not offer, and it connects again only when it is asked to (`Device::reopen`).

mod channel;
mod connect;
mod connection;
mod connections;
mod device;
mod dial;
pub(crate) mod facts;
mod failure;
mod habits;
mod incoming;
mod lane;
mod outgoing;
mod reactor;
mod route;
mod silence;
mod storage;
mod subprocess;
mod target;
mod upstream;
mod vsock;
mod work;

use std::sync::Arc;

use ::device::{Device, Params, Result};
use runtime::Context;
use wire::{ClientPolicy, Goal, ListedExport, Session, Uri};

use crate::OpenOptions;
use dial::Until;
use route::Route;
pub(crate) use storage::storage;
use target::Target;

/// Opens the export that `params` name: see the table for what they may be.
///
/// # Errors
/// The parameters make no sense, the server cannot be reached, or it refuses.
pub fn open(params: &Params, options: &OpenOptions, context: &Context) -> Result<Arc<dyn Device>> {
    let target = Target::parse(params, options)?;
    Ok(Arc::new(device::NbdDevice::open(target, options, context)?))
}

/// Opens the export that a URI names.
///
/// # Errors
/// The server cannot be reached, or it refuses.
pub fn open_uri(uri: &Uri, options: &OpenOptions, context: &Context) -> Result<Arc<dyn Device>> {
    let target = Target::of(uri.clone(), options);
    Ok(Arc::new(device::NbdDevice::open(target, options, context)?))
}

/// Ends the servers that were started for exports that are still open. For a program that ends
/// without closing anything.
pub fn abandon() {
    subprocess::abandon_all();
}

/// Asks a server about one export, without using it. The export is opened and left again: some
/// servers (nbd-server) know its size only then.
///
/// # Errors
/// The server cannot be reached, or it refuses.
pub fn inspect(uri: &Uri) -> Result<Session> {
    ask_about(&Target::of(uri.clone(), &OpenOptions::default()))
}

fn ask_about(target: &Target) -> Result<Session> {
    let policy = ClientPolicy {
        export: target.export.clone(),
        goal: Goal::Go,
        describe: true,
        list_contexts: true,
        ..ClientPolicy::default()
    };
    let route = Route::open(&target.server)?;
    connect::inspect(&route, policy, Until::within(target.timeout))
}

/// Asks a server which exports it has, and about each of them.
///
/// # Errors
/// The server cannot be reached, or it does not tell.
pub fn list(uri: &Uri) -> Result<Vec<ListedExport>> {
    ask_for_list(&Target::of(uri.clone(), &OpenOptions::default()))
}

fn ask_for_list(target: &Target) -> Result<Vec<ListedExport>> {
    let policy = ClientPolicy {
        goal: Goal::List { details: true },
        describe: true,
        list_contexts: true,
        ..ClientPolicy::default()
    };
    let route = Route::open(&target.server)?;
    connect::list(&route, policy, Until::within(target.timeout))
}
