//! The connections of one user of an export, and how they are shared out.
//!
//! The first is there from the beginning. Further ones, if the server allows them (CAN_MULTI_CONN),
//! are made in the background: for lanes, as these are opened and as further ones help (`growth`);
//! for other callers, as they help (`traffic`); or all at once if that was asked for. Each has at
//! most one lane; other operations go where least is in flight. A flush on one connection covers
//! them all, or nothing is changed over them, or there is only one.
//!
//! A server that does not advertise multi-conn is read over several all the same, if nothing is
//! written: where they help, and only after their bytes were compared (`unpromised`). Many such
//! servers have one client at a time: then it stays at one connection, and nothing has waited for
//! another.
//!
//! What is in flight on a connection that is lost goes to the others at once. Where all are lost,
//! they stay lost until a caller asks to reconnect; unless requests may wait for a while: then it
//! reconnects by itself (`reconnecting`), and always reports what the server may have forgotten
//! (`care`). In either mode a further connection is in doubt (`doubt`), and carries no flush, until
//! another has answered.

mod canaries;
mod care;
mod connection;
mod doubt;
mod growth;
mod inbox;
mod lane;
mod order;
mod reactor;
mod ready;
mod reconnecting;
mod repeating;
mod same;
mod silence;
#[cfg(test)]
mod tests;
mod traffic;
mod unpromised;
mod upstream;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use device::losses::LossAccount;
use device::{Done, Error, ErrorKind, Fault, Operation, Result};
use runtime::{Condvar, Mutex};
use wire::{Negotiated, TransmissionFlags as Flags};

use crate::channel::Habits;
use crate::reach::ReadyConnection;
use care::Keep;
use connection::SharedConnection;
pub use lane::ClientLane;
use order::{Submission, Whose};
use reconnecting::Establishing;
use repeating::WaitingRequests;
use traffic::Traffic;
pub use upstream::Upstream;

/// How long a lane waits for a connection of its own before other connections work for it.
const SOON: Duration = Duration::from_secs(1);

/// The connections. Dropping them disconnects, and ends what is in flight with an error.
#[derive(Debug)]
pub struct Connections(Arc<Shared>);

/// What the connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    upstream: Arc<Upstream>,
    /// How the server described the export at first; this was advertised to others.
    session: Arc<Negotiated>,
    keep: Arc<Keep>,
    /// Most connections.
    most: usize,
    /// The server advertises multi-conn.
    promised: bool,
    /// Something may be changed over them.
    writes: bool,
    list: Mutex<Vec<Arc<SharedConnection>>>,
    /// Unusable connections that still owe replies.
    leaving: Mutex<Vec<Arc<SharedConnection>>>,
    /// Whether the reactor watches those in the list; changed while the list is locked.
    watched: AtomicBool,
    /// How many lanes there are.
    lanes: AtomicUsize,
    /// How often a connection was added.
    times: AtomicU64,
    /// Held while it reconnects on request; the last result.
    reopening: Mutex<Option<Error>>,
    /// How often that was done.
    reopened: AtomicU64,
    /// The traffic of callers without a lane; its lock comes before all others.
    traffic: Traffic,
    /// Locked before the list, where both are.
    state: Mutex<State>,
    /// An attempt to make a connection has ended.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: WaitingRequests,
    making: Establishing,
    /// Why the last attempt failed.
    last: Option<Error>,
    /// The disk there now is another one: there is nothing to wait for.
    another: Option<Error>,
    /// They are no longer needed.
    closed: bool,
}

impl Shared {
    /// All connections.
    fn all(&self) -> Vec<Arc<SharedConnection>> {
        self.list.lock().clone()
    }

    fn name(&self) -> &str {
        &self.upstream.name
    }

    /// Whether it reconnects by itself.
    fn reconnects(&self) -> bool {
        self.keep.patience.is_some()
    }

    fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Acquire)
    }

    /// A connection among the others.
    fn adopt(self: &Arc<Self>, connected: ReadyConnection) -> Arc<SharedConnection> {
        let Upstream { name, target, timers, .. } = &*self.upstream;
        let home = (self.keep.clone(), Arc::downgrade(self));
        SharedConnection::new(connected, (name.clone(), timers), target.silence, home)
    }

    /// Lets the reactor watch all connections, from the first operation on that needs it.
    fn watch(&self) -> Result<()> {
        if self.is_watched() {
            return Ok(());
        }
        let all = self.list.lock();
        if !self.is_watched() {
            let reactor = self.upstream.reactor()?;
            for connection in all.iter() {
                reactor.add(connection)?;
            }
            self.watched.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// The connection with the least to do. A lost one is used only if all are lost and it does not
    /// reconnect: it returns the error.
    fn choose(&self) -> Option<Arc<SharedConnection>> {
        let all = self.list.lock();
        if let ([only], false) = (all.as_slice(), self.reconnects()) {
            return Some(only.clone());
        }
        let best = all.iter().filter_map(|c| Some((c.load()?, c))).min_by_key(|(load, _)| *load);
        let first = all.first().filter(|_| !self.reconnects());
        best.map(|(_, connection)| connection).or(first).cloned()
    }
}

impl Connections {
    /// Opens one connection; all others follow in the background if the target says so. `reads`:
    /// nothing is changed over them, now or later.
    ///
    /// # Errors
    /// A thread for background work cannot be started.
    pub fn new(upstream: Arc<Upstream>, first: ReadyConnection, reads: bool) -> Result<Self> {
        let promised = first.session.flags.contains(Flags::CAN_MULTI_CONN);
        let target = &upstream.target;
        let most = if promised || reads { target.connections } else { 1 };
        let eager = if target.eager { most } else { 1 };
        let block = u64::from(first.session.blocks.minimum.max(1));
        let keep = Keep::new(upstream.name.clone(), target.reconnect, block);
        let shared = Arc::new(Shared {
            session: Arc::new(first.session.clone()),
            keep,
            most,
            promised,
            writes: !reads,
            list: Mutex::default(),
            leaving: Mutex::default(),
            watched: AtomicBool::new(false),
            lanes: AtomicUsize::new(0),
            times: AtomicU64::new(0),
            reopening: Mutex::default(),
            reopened: AtomicU64::new(0),
            traffic: Traffic::new(Instant::now()),
            state: Mutex::default(),
            changed: Condvar::new(),
            upstream,
        });
        let first = shared.adopt(first);
        shared.list.lock().push(first);
        if shared.reconnects() {
            // A thread must notice when a connection is lost.
            shared.watch()?;
        }
        shared.want(eager);
        Ok(Self(shared))
    }

    /// How many lanes there can be: one for each connection, or one in all without multi-conn. No
    /// operation may depend on a further connection then.
    #[must_use]
    pub fn lanes(&self) -> usize {
        if self.0.promised { self.0.most } else { 1 }
    }

    /// Whether it reconnects by itself.
    #[must_use]
    pub fn reconnects(&self) -> bool {
        self.0.reconnects()
    }

    /// Longest zero or trim in one request, in bytes, as far as is known at first.
    #[must_use]
    pub fn longest_effect(&self) -> u64 {
        Habits::of(&self.0.session).effect(&self.0.session)
    }

    /// Grows whenever a connection was made to what may be another server, before anything goes
    /// over it.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.0.keep.epoch()
    }

    /// Starts an operation; `done` is called exactly once, from any thread, possibly before this
    /// returns. Ranges must not be longer than the server accepts. `account` records whether a
    /// flush covers it.
    pub fn submit(&self, operation: Operation, done: Done, account: Option<&Arc<LossAccount>>) {
        self.0.weigh(&operation);
        let care = self.0.keep.care(&operation, account);
        self.0.order(Submission::new(Whose::Other(done), care), operation);
    }

    /// A lane, on a connection without one; a new connection is made, as long as more are allowed.
    /// If that takes long or fails, other connections work for the lane, as long as there are any.
    ///
    /// # Errors
    /// All connections have a lane, all are lost (`reopen` reconnects them), or none can be made.
    pub fn lane(&self, account: Option<Arc<LossAccount>>) -> Result<ClientLane> {
        let shared = &self.0;
        let mut lane = ClientLane::new(shared, account)?;
        if lane.find()? {
            return Ok(lane);
        }
        let lanes = shared.lanes.load(Ordering::Acquire);
        let lost = shared.all().iter().filter(|connection| connection.is_over()).count();
        if lanes > shared.most {
            let action = format!("make a lane: all {} connections have one", shared.most);
            return Err(Error::new(ErrorKind::Limit, Fault::Us, action).on(shared.name()));
        }
        if lost > 0 && shared.list.lock().len() >= shared.most {
            let action = "make a lane: the connection was lost";
            return Err(Error::new(ErrorKind::Disconnected, Fault::Peer, action).on(shared.name()));
        }
        shared.want(lanes.max(lost + 1));
        let until = Instant::now() + SOON;
        loop {
            let state = shared.state.lock();
            let left = until.saturating_duration_since(Instant::now());
            let goes_on = state.making.trying && !left.is_zero();
            let last = state.last.as_ref().map(Error::duplicate);
            let another = state.another.as_ref().map(Error::duplicate);
            if goes_on {
                drop(shared.changed.wait_timeout(state, left));
            } else {
                drop(state);
            }
            if lane.find()? {
                return Ok(lane);
            }
            if let Some(e) = another {
                return Err(e);
            }
            if !goes_on {
                // Other connections do its work, or it waits for them.
                let has_others = shared.all().iter().any(|c| !c.is_over());
                return match last.filter(|_| !has_others && !shared.reconnects()) {
                    Some(e) => Err(e),
                    None => Ok(lane),
                };
            }
        }
    }

    /// Reconnects lost connections. A caller that comes while that is being done shares the result.
    ///
    /// # Errors
    /// The server cannot be reached, or its export is not the same.
    pub fn reopen(&self) -> Result<()> {
        self.0.reopen()
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        let shared = &self.0;
        shared.state.lock().closed = true;
        shared.changed.notify_all();
        // Operations that this ends call back, and a callback may ask for a connection.
        let mut all = std::mem::take(&mut *shared.list.lock());
        all.append(&mut shared.leaving.lock());
        for connection in all {
            connection.close();
        }
        let action = "talk to the server: the connection was closed";
        shared.fail_waiting(&Error::new(ErrorKind::Disconnected, Fault::Us, action));
    }
}
