//! The clients that are connected: who they are, what they have asked for, and how they are sent
//! away.
//!
//! A client enters and leaves with its connection, on its reactor; others look, and dismiss. A lock
//! is held for moments, and never on the way of a request.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use device::Result;
use runtime::Mutex;

use crate::exports::HeldExport;
use crate::log::Voice;

/// How a client is sent away.
pub trait Dismiss: Send + Sync {
    /// The client is to leave: it gets the replies that it is owed, and no more. Called from any
    /// thread; does not wait.
    ///
    /// # Errors
    /// It is of a kind that is not sent away.
    fn dismiss(&self) -> Result<()>;
}

/// All of them, by number.
#[derive(Debug, Default)]
pub struct PresentClients(Mutex<BTreeMap<u64, PresentClient>>);

struct PresentClient {
    way: Weak<dyn Dismiss>,
    voice: Arc<Voice>,
    /// What it has, once it has chosen.
    export: Option<Weak<HeldExport>>,
}

runtime::debug_as!(PresentClient, |it| "PresentClient({:?})", it.voice);

/// A client, and what it has asked for so far.
#[derive(Clone, Debug)]
pub struct ClientStatus {
    /// Its number among all clients of the server, from 1.
    pub number: u64,
    /// Its address, if it is known.
    pub address: Option<String>,
    /// The name of its export, once it has chosen one.
    pub export: Option<String>,
    /// How long it has been connected.
    pub age: Duration,
    /// Requests, and replies that were errors.
    pub requests: u64,
    /// See `requests`.
    pub errors: u64,
    /// Bytes.
    pub read: u64,
    /// Bytes.
    pub written: u64,
}

impl PresentClients {
    /// A client has come, of this number, that is sent away by `way`.
    pub fn enter(&self, number: u64, way: Weak<dyn Dismiss>, voice: &Arc<Voice>) {
        let client = PresentClient { way, voice: voice.clone(), export: None };
        self.0.lock().insert(number, client);
    }

    /// It has chosen an export.
    pub fn chose(&self, number: u64, export: &Arc<HeldExport>) {
        if let Some(client) = self.0.lock().get_mut(&number) {
            client.export = Some(Arc::downgrade(export));
        }
    }

    /// It has gone.
    pub fn left(&self, number: u64) {
        // What it held is dropped when the lock is not held any more.
        let gone = self.0.lock().remove(&number);
        drop(gone);
    }

    pub(crate) fn list(&self) -> Vec<ClientStatus> {
        let all = self.0.lock();
        let status = |(number, client): (&u64, &PresentClient)| {
            let export = client.export.as_ref().and_then(Weak::upgrade);
            let export = export.map(|export| export.name.clone());
            ClientStatus { number: *number, export, ..client.voice.status() }
        };
        all.iter().map(status).collect()
    }

    /// How many there are.
    pub(crate) fn number(&self) -> usize {
        self.0.lock().len()
    }

    /// How many have this export.
    pub(crate) fn count(&self, export: &Arc<HeldExport>) -> usize {
        self.0.lock().values().filter(|client| client.has(export)).count()
    }

    /// Sends away all that have this export; how many they are.
    pub(crate) fn dismiss_all(&self, export: &Arc<HeldExport>) -> usize {
        export.close();
        let all: Vec<_> = {
            let all = self.0.lock();
            let having = all.values().filter(|client| client.has(export));
            having.filter_map(|client| client.way.upgrade()).collect()
        };
        all.iter().for_each(|way| {
            // Others stay, and have it.
            let _ = way.dismiss();
        });
        all.len()
    }

    /// Sends a client away: it gets the replies that it is owed, and no more. `None` if it is not
    /// there.
    pub(crate) fn dismiss(&self, number: u64) -> Option<Result<()>> {
        let way = self.0.lock().get(&number).and_then(|client| client.way.upgrade());
        way.map(|way| way.dismiss())
    }
}

impl PresentClient {
    fn has(&self, export: &Arc<HeldExport>) -> bool {
        self.export.as_ref().is_some_and(|mine| std::ptr::eq(mine.as_ptr(), Arc::as_ptr(export)))
    }
}
