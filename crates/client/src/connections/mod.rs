//! The connections of one user of an export, and how they are shared out.
//!
//! The first is there from the beginning. Further ones, if the server allows them
//! (CAN_MULTI_CONN), are made in the background, for lanes as these are asked for and as they help
//! them (`growth`), for others as they help those (`traffic`), or all at once if that was asked for. Each has at most one
//! lane; operations that come otherwise go where least is
//! in flight. A flush on one connection covers them all, or nothing is changed over them, or there is only one.
//!
//! A server that promises nothing of several connections is read over several all the same, if nothing is
//! written: by one lane, where they help, and only once they were seen to hold the same bytes (`unpromised`). Many such
//! servers have one client at a time: then it stays at one, and nothing has waited for that.
//!
//! What is in flight on a connection that is lost goes to the others at once. Where all are lost,
//! they stay lost until a caller asks to reconnect; unless it was said how long requests
//! may wait for that: then it reconnects without being asked (`reconnecting`), never in silence
//! about what the server may have forgotten (`care`). There a further connection is in doubt (`doubt`) until another has answered.

mod canaries;
mod care;
mod connection;
mod doubt;
mod growth;
mod inbox;
mod lane;
mod order;
mod reactor;
mod reconnecting;
mod repeating;
mod same;
mod silence;
#[cfg(test)]
mod tests;
mod traffic;
mod unpromised;
mod upstream;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use device::losses::LossAccount;
use device::{Done, Error, ErrorKind, Fault, Operation, Result};
use wire::{Negotiated, TransmissionFlags as Flags};

use crate::channel::Habits;
use crate::reach::Connected;
use care::Keep;
use connection::Connection;
pub use lane::Lane;
use order::{Order, Whose};
use reconnecting::Making;
use repeating::Waiting;
use traffic::Traffic;
pub use upstream::Upstream;

/// How long a lane waits for a connection of its own before others work for it.
const SOON: Duration = Duration::from_secs(1);

/// The connections. Dropping them says goodbye, and ends what is in flight with an error.
#[derive(Debug)]
pub struct Connections(Arc<Shared>);

/// What the connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    upstream: Arc<Upstream>,
    /// How the server described the export at first; this is what was promised to others.
    session: Arc<Negotiated>,
    keep: Arc<Keep>,
    /// At most so many.
    most: usize,
    /// The server has promised that there may be several.
    promised: bool,
    list: Mutex<Vec<Arc<Connection>>>,
    /// Those that are of no more use, and are still owed answers.
    leaving: Mutex<Vec<Arc<Connection>>>,
    /// Whether the reactor looks after those in the list; changed while the list is locked.
    watched: AtomicBool,
    /// How many lanes there are.
    lanes: AtomicUsize,
    /// How often a connection was added.
    times: AtomicU64,
    /// Held while it reconnects as asked; what came of it last.
    reopening: Mutex<Option<Error>>,
    /// How often that was done.
    reopened: AtomicU64,
    /// What those ask for who have no lane; its lock comes before all others.
    traffic: Traffic,
    /// Locked before the list, where both are.
    state: Mutex<State>,
    /// An attempt to make a connection has ended.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Waiting,
    making: Making,
    /// Why the last attempt failed.
    last: Option<Error>,
    /// What is there now is another disk: there is nothing to wait for.
    another: Option<Error>,
    /// They are no longer needed.
    closed: bool,
}

impl Shared {
    fn list(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leaving(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All connections.
    fn all(&self) -> Vec<Arc<Connection>> {
        self.list().clone()
    }

    fn name(&self) -> &str {
        &self.upstream.name
    }

    /// Whether it reconnects without being asked to.
    fn reconnects(&self) -> bool {
        self.keep.patience.is_some()
    }

    fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Acquire)
    }

    /// A connection among the others.
    fn adopt(self: &Arc<Self>, connected: Connected) -> Arc<Connection> {
        let Upstream { name, target, timers, .. } = &*self.upstream;
        let home = (self.keep.clone(), Arc::downgrade(self));
        Connection::new(connected, (name.clone(), timers), target.silence, home)
    }

    /// Lets the reactor look after all connections, from the first operation on that needs it.
    fn watch(&self) -> Result<()> {
        if self.is_watched() {
            return Ok(());
        }
        let all = self.list();
        if !self.is_watched() {
            let reactor = self.upstream.reactor()?;
            for connection in all.iter() {
                reactor.add(connection)?;
            }
            self.watched.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// The connection with the least to do. One that is lost is used only if all are, and are not
    /// reconnected, for the error.
    fn choose(&self) -> Option<Arc<Connection>> {
        let all = self.list();
        if let ([only], false) = (all.as_slice(), self.reconnects()) {
            return Some(only.clone());
        }
        let best = all.iter().filter_map(|c| Some((c.load()?, c))).min_by_key(|(load, _)| *load);
        let first = all.first().filter(|_| !self.reconnects());
        best.map(|(_, connection)| connection).or(first).cloned()
    }
}

impl Connections {
    /// One to begin with; all the others follow in the background if the target says so. `reads`
    /// says that nothing is changed over them, now or later.
    ///
    /// # Errors
    /// There is no thread for what is to be done in the background.
    pub fn new(upstream: Arc<Upstream>, first: Connected, reads: bool) -> Result<Self> {
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
        shared.list().push(first);
        if shared.reconnects() {
            // A thread must see that a connection is lost.
            shared.watch()?;
        }
        shared.want(eager);
        Ok(Self(shared))
    }

    /// How many lanes there can be: one a connection, or one for all where nothing was promised of
    /// several. No operation may have to wait for such a one.
    #[must_use]
    pub fn lanes(&self) -> usize {
        if self.0.promised { self.0.most } else { 1 }
    }

    /// Whether it reconnects without being asked to.
    #[must_use]
    pub fn reconnects(&self) -> bool {
        self.0.reconnects()
    }

    /// Longest zero or trim in one request, in bytes, as far as is known from the beginning.
    #[must_use]
    pub fn longest_effect(&self) -> u64 {
        Habits::of(&self.0.session).effect(&self.0.session)
    }

    /// Grows whenever a connection was made after the server may have been another one, before
    /// anything goes over it.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.0.keep.epoch()
    }

    /// Starts an operation; `done` is called exactly once, from any thread, possibly before this
    /// returns. Ranges must not be longer than the server said it takes. Whether a flush vouches for
    /// it is noted in `account`.
    pub fn submit(&self, operation: Operation, done: Done, account: Option<&Arc<LossAccount>>) {
        self.0.weigh(&operation);
        let care = self.0.keep.care(&operation, account);
        self.0.order(Order::new(Whose::Other(done), care), operation);
    }

    /// A lane, on a connection that has none; a new one is made, as long as there may be more. If
    /// that takes long, or cannot be done, others work for the lane, as long as there are any.
    ///
    /// # Errors
    /// All connections have a lane, all are lost (`reopen` reconnects them), or none can be made.
    pub fn lane(&self, account: Option<Arc<LossAccount>>) -> Result<Lane> {
        let shared = &self.0;
        let mut lane = Lane::new(shared, account)?;
        if lane.find()? {
            return Ok(lane);
        }
        let lanes = shared.lanes.load(Ordering::Acquire);
        let lost = shared.all().iter().filter(|connection| connection.is_over()).count();
        if lanes > shared.most {
            let action = format!("make a lane: all {} connections have one", shared.most);
            return Err(Error::new(ErrorKind::Limit, Fault::Us, action).on(shared.name()));
        }
        if lost > 0 && shared.list().len() >= shared.most {
            let action = "make a lane: the connection was lost";
            return Err(Error::new(ErrorKind::Disconnected, Fault::Peer, action).on(shared.name()));
        }
        shared.want(lanes.max(lost + 1));
        let until = Instant::now() + SOON;
        loop {
            let state = shared.state();
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
                // Others do its work, or it waits for them.
                let has_others = shared.all().iter().any(|c| !c.is_over());
                return match last.filter(|_| !has_others && !shared.reconnects()) {
                    Some(e) => Err(e),
                    None => Ok(lane),
                };
            }
        }
    }

    /// Reconnects lost connections. A caller that comes while it is being done shares what comes of it.
    ///
    /// # Errors
    /// The server cannot be reached, or its export is not the one it was.
    pub fn reopen(&self) -> Result<()> {
        self.0.reopen()
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        let shared = &self.0;
        shared.state().closed = true;
        shared.changed.notify_all();
        // What this ends may call back, and the callback may ask for a connection.
        let mut all = std::mem::take(&mut *shared.list());
        all.append(&mut shared.leaving());
        for connection in all {
            connection.close();
        }
        let action = "talk to the server: the connection was closed";
        shared.fail_waiting(&Error::new(ErrorKind::Disconnected, Fault::Us, action));
    }
}
