//! The thread that drives connections for callers that do not drive them themselves.
//!
//! It is started with the first operation that needs it, and ends when the device is dropped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use device::{Error, Result};
use runtime::{Bell, Mutex};
use rustix::io::Errno;

use super::connection::SharedConnection;
use super::ready::{RECEIVE, Ready, ReadySet};

const WAKE: u64 = u64::MAX;

/// The reactor's handle. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct ClientReactor(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    set: Arc<ReadySet>,
    wake: Bell,
    stop: AtomicBool,
    /// A connection's token is its index here. The device owns the connections.
    connections: Mutex<Vec<Weak<SharedConnection>>>,
}

impl ClientReactor {
    pub(crate) fn start() -> Result<Self> {
        let say = |e: Errno| Error::os("make a reactor", e);
        let set = ReadySet::new().map_err(say)?;
        let wake = Bell::new().map_err(|e| Error::os("make a reactor", e))?;
        set.watch((&wake, WAKE), None, Some(RECEIVE)).map_err(say)?;
        let shared = Arc::new(Shared {
            set: Arc::new(set),
            wake,
            stop: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let for_thread = shared.clone();
        std::thread::Builder::new()
            .name("nbd-client".into())
            .spawn(move || for_thread.run())
            .map_err(|e| Error::os("start a thread", e))?;
        Ok(Self(shared))
    }

    /// Watches a connection from now on.
    pub(crate) fn add(&self, connection: &Arc<SharedConnection>) -> Result<()> {
        let token = {
            let mut all = self.0.connections.lock();
            let weak = Arc::downgrade(connection);
            // A late event of one that is gone may wake its successor; that does no harm.
            let free = all.iter().position(|one| one.strong_count() == 0);
            let place = free.unwrap_or(all.len());
            match all.get_mut(place) {
                Some(one) => *one = weak,
                None => all.push(weak),
            }
            place as u64
        };
        connection.watch(self.0.set.clone(), token)
    }
}

impl Drop for ClientReactor {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
        self.0.wake.ring();
    }
}

impl Shared {
    fn run(&self) {
        let mut events = Ready::with_capacity(64);
        while !self.stop.load(Ordering::Acquire) {
            match self.set.wait(&mut events) {
                Ok(()) | Err(Errno::INTR) => {}
                // An open set of our own returns no other error.
                Err(_) => return,
            }
            for token in ReadySet::tokens(&events) {
                let place = usize::try_from(token).unwrap_or(usize::MAX);
                let connection = self.connections.lock().get(place).and_then(Weak::upgrade);
                if let Some(connection) = connection {
                    connection.ready();
                }
            }
        }
    }
}
