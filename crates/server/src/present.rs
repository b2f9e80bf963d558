//! The clients that are connected: who they are, what they have asked for, and how they are sent
//! away.
//!
//! A client enters and leaves with its connection, on its reactor; others look, and dismiss. A lock
//! is held for moments, and never on the way of a request.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use runtime::Mutex;

use crate::exports::HeldExport;
use crate::link::Link;
use crate::log::Voice;

/// All of them, by number.
#[derive(Debug, Default)]
pub(crate) struct PresentClients(Mutex<BTreeMap<u64, PresentClient>>);

#[derive(Debug)]
struct PresentClient {
    link: Weak<Link>,
    voice: Arc<Voice>,
    /// What it has, once it has chosen.
    export: Option<Weak<HeldExport>>,
}

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
    pub(crate) fn enter(&self, link: &Arc<Link>, voice: &Arc<Voice>) {
        let client =
            PresentClient { link: Arc::downgrade(link), voice: voice.clone(), export: None };
        self.0.lock().insert(link.client(), client);
    }

    pub(crate) fn chose(&self, number: u64, export: &Arc<HeldExport>) {
        if let Some(client) = self.0.lock().get_mut(&number) {
            client.export = Some(Arc::downgrade(export));
        }
    }

    pub(crate) fn left(&self, number: u64) {
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
            having.filter_map(|client| client.link.upgrade()).collect()
        };
        all.iter().for_each(|link| link.dismiss());
        all.len()
    }

    /// Sends a client away: it gets the replies that it is owed, and no more. Returns false if it
    /// is not there.
    pub(crate) fn dismiss(&self, number: u64) -> bool {
        let link = self.0.lock().get(&number).and_then(|client| client.link.upgrade());
        link.map(|link| link.dismiss()).is_some()
    }
}

impl PresentClient {
    fn has(&self, export: &Arc<HeldExport>) -> bool {
        self.export.as_ref().is_some_and(|mine| std::ptr::eq(mine.as_ptr(), Arc::as_ptr(export)))
    }
}
