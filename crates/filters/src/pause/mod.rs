//! `pause`: holds requests back on a command from a socket, for example to take a snapshot of the
//! device below.
//!
//! Between `P` and the next `r` nothing is in flight below, and nothing is begun. What comes
//! meanwhile is kept, in order, and holds no thread; there is no more of it than the server takes
//! on. What is held back when its client leaves, or the server stops, is not done. A stop ends the
//! pause: filters above may have something to write back. Nothing is flushed.

mod control;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device::{
    Arrival, Done, Edge, Error, ErrorKind, Fault, Filter, Filtered, Operation, Over, Params, Reach,
    Result, param, text,
};
use runtime::{Context, Mutex};

use crate::FilterKind;
use crate::kit::outlet::left;
use crate::kit::params::required;
use control::ControlSocket;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "pause",
    summary: "pauses requests on command through a control socket",
    keeps_disk: false,
    params: &[param("pause-control", "SOCKET", "a Unix socket to create, which takes `p` and `r`")],
    reaches,
    example: "serve --filter=pause memory 1M pause-control=control.sock --run 'nbdinfo \"$uri\"'",
    open: |params, below, context| {
        let control = context.common(params, || open(params, context))?;
        Ok(Filtered::device(Pause::new(control), below))
    },
    ..FilterKind::PLAIN
};

fn reaches(params: &Params) -> Reach {
    let socket = params.get("pause-control").map(text::path);
    Reach { sockets: socket.into_iter().collect(), ..Reach::default() }
}

fn open(params: &Params, context: &Context) -> Result<ControlSocket> {
    let control = ControlSocket::listen(required(params, "pause-control", "control.sock")?)?;
    let end = control.ending();
    context.control.on_end(end);
    let requests = Arc::downgrade(control.requests());
    context.control.on_stopping(move || {
        if let Some(requests) = requests.upgrade() {
            requests.end();
        }
    });
    Ok(control)
}

/// The pause state of all clients.
#[derive(Default)]
struct Requests(Mutex<State>);

#[derive(Default)]
struct State {
    paused: bool,
    /// The server stops: there is no pause any more.
    ended: bool,
    /// Requests that the device below has not answered.
    under_way: u64,
    next: u64,
    /// The requests that are held back, in the order in which they came.
    held: BTreeMap<u64, Held>,
    /// Called when nothing is in flight any more.
    idle: Option<Box<dyn FnOnce() + Send>>,
}

struct Held {
    /// The client that it belongs to.
    owner: u64,
    below: Edge,
    operation: Operation,
    done: Done,
}

impl Requests {
    /// Starts a request, now or on resume.
    fn enter(self: &Arc<Self>, held: Held) {
        let mut state = self.0.lock();
        if state.paused {
            state.next += 1;
            let number = state.next;
            state.held.insert(number, held);
            return;
        }
        state.under_way += 1;
        drop(state);
        self.begin(held);
    }

    fn begin(self: &Arc<Self>, Held { below, operation, done, .. }: Held) {
        let ends = RequestGuard(self.clone());
        let then: Done = Box::new(move |result| {
            done(result);
            drop(ends);
        });
        below.submit(operation, then);
    }

    /// Begins nothing from now on; `idle` is called when all that was begun has ended, unless the
    /// server stops.
    fn pause(&self, idle: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock();
        if state.ended {
            return;
        }
        state.paused = true;
        if state.under_way > 0 {
            state.idle = Some(Box::new(idle));
            return;
        }
        drop(state);
        idle();
    }

    /// Starts all requests that were held back. `idle` is not called any more.
    fn resume(self: &Arc<Self>) {
        let mut state = self.0.lock();
        state.paused = false;
        state.idle = None;
        let held = std::mem::take(&mut state.held);
        state.under_way += held.len() as u64;
        drop(state);
        held.into_values().for_each(|held| self.begin(held));
    }

    /// The server stops: what is held back is not done, and what comes later is not held back.
    fn end(&self) {
        let mut state = self.0.lock();
        (state.paused, state.ended, state.idle) = (false, true, None);
        let held = std::mem::take(&mut state.held);
        drop(state);
        held.into_values().for_each(|held| (held.done)(Err(stopping())));
    }

    /// What is held back of one that has left is not done.
    fn leave(&self, owner: u64) {
        let mut state = self.0.lock();
        let (gone, stay) = std::mem::take(&mut state.held)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, held)| held.owner == owner);
        state.held = stay;
        drop(state);
        gone.into_values().for_each(|held| (held.done)(Err(left())));
    }
}

/// What was held back when the server stopped ends with this, and was not done.
fn stopping() -> Error {
    let action = "requests are paused, and the server stops: it was not done";
    Error::new(ErrorKind::Shutdown, Fault::User, action)
}

/// A request that is in flight, until it has been answered, or was dropped instead.
struct RequestGuard(Arc<Requests>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.under_way = state.under_way.saturating_sub(1);
        let idle = if state.under_way == 0 { state.idle.take() } else { None };
        drop(state);
        if let Some(idle) = idle {
            idle();
        }
    }
}

/// Numbers the clients.
static OWNERS: AtomicU64 = AtomicU64::new(0);

struct Pause {
    control: Arc<ControlSocket>,
    owner: u64,
}

impl Pause {
    fn new(control: Arc<ControlSocket>) -> Self {
        Self { control, owner: OWNERS.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Filter for Pause {
    fn run(&self, over: &Over, operation: Operation, done: Done) {
        let (owner, below) = (self.owner, over.below.clone());
        // Every operation: even looking at the disk.
        self.control.requests().enter(Held { owner, below, operation, done });
    }

    fn for_client(&self, _: &Over, arrival: &mut Arrival<'_>) -> Option<Arc<dyn Filter>> {
        // Of its own, so that its requests can be dropped when it leaves.
        let own = Self::new(self.control.clone());
        let (requests, owner) = (own.control.requests().clone(), own.owner);
        arrival.client.presence.on_leaving(move || requests.leave(owner));
        Some(Arc::new(own))
    }
}

#[cfg(test)]
mod tests;
