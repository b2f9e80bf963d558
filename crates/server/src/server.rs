//! The server: its reactors, what they share, and its end.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use device::{BufferPool, Error, Result};
use net::{Listener, SocketName, Stream};
use runtime::{Cover, WorkPool};
use rustix::io::Errno;

use crate::bell::ReactorBell;
use crate::connection::Common;
use crate::leavers::Leavers;
use crate::reactor::{Driver, Reactor, STOP};
use crate::shared::Shared;
use crate::terms::{Options, Terms};
use serving::{Exports, Hub, Live};

/// How long a stopping server waits for its threads, after its connections.
const GRACE: Duration = Duration::from_secs(3);

/// A running server. Dropping it stops it at once; [`Server::stop`] is graceful.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    names: Vec<SocketName>,
}

/// Waits until a server has no connection.
#[derive(Debug)]
pub struct Idle(Arc<Shared>);

impl Idle {
    /// Returns when no client is connected; at once if none is.
    pub fn wait(self) {
        let mut lock = self.0.idle_lock.lock();
        while self.0.connections.load(Ordering::SeqCst) > 0 {
            lock = self.0.idle.wait(lock);
        }
    }
}

/// A handle on a running server. It keeps nothing of it alive.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    shared: Weak<Shared>,
    live: Live,
}

impl ServerHandle {
    /// What it shares with other front ends.
    #[must_use]
    pub fn live(&self) -> &Live {
        &self.live
    }

    /// Replaces the limits, for all clients, and, for new ones, the TLS settings by those of
    /// `options`; without TLS in it, those stay as they are. Its other fields change nothing, and a
    /// lower limit of connections closes none.
    pub fn change(&self, options: &Options) {
        let Some(shared) = self.shared.upgrade() else { return };
        let Common { terms, hub, .. } = &*shared.common;
        terms.change(options);
        hub.tell_limits(options.limits());
        hub.budget.set_limit(options.memory);
    }

    /// Whether it still works: each thread that serves clients completes a turn within `limit`.
    /// Takes that long at most. A thread that stops, or has ended, need not.
    #[must_use]
    pub fn is_well(&self, limit: Duration) -> bool {
        self.shared.upgrade().is_none_or(|shared| shared.answers(limit))
    }
}

impl Server {
    /// Serves `exports` to clients that connect to `listeners`.
    ///
    /// # Errors
    /// The system gives no epoll instance or no thread.
    pub fn start(exports: Exports, listeners: Vec<Listener>, options: &Options) -> Result<Self> {
        options.log.start(options.verbose)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let count = if options.reactors == 0 { cores.min(64) } else { options.reactors };
        let reactors = (0..count).map(|_| ReactorBell::new()).collect::<Result<Vec<_>>>()?;
        let pool = exports.list().first().map(|export| export.edge.pool().clone());
        let common = Arc::new(Common {
            computing: pool.unwrap_or_else(|| WorkPool::new(1)).for_computing(),
            hub: Arc::new(Hub::new(exports, options.log.clone(), options.memory, count)),
            policy: options.policy.clone(),
            terms: Terms::new(options.clone()),
            buffers: BufferPool::new(shelf(options.memory)),
            leavers: Leavers::default(),
        });
        common.hub.tell_limits(options.limits());
        let shared = Arc::new(Shared::new(common, reactors));
        let names = listeners.iter().filter_map(Listener::name).cloned().collect();
        let mut server = Self { shared: shared.clone(), threads: Vec::new(), names };
        let mut listeners = Some(listeners);
        let cover = Cover::new(count, Driver::take_over);
        for me in 0..count {
            let listeners = listeners.take().unwrap_or_default();
            let reactor = Reactor::new(shared.clone(), me, listeners, cover.clone())?;
            let driver = Driver::of(Box::new(reactor));
            let thread = std::thread::Builder::new()
                .name(format!("reactor-{me}"))
                .spawn(move || driver.run())
                .map_err(|e| Error::os("start a thread", e))?;
            server.threads.push(thread);
        }
        Ok(server)
    }

    /// Serves the client at the other end of a connected stream socket.
    ///
    /// # Errors
    /// It is not a socket that can be served, or there are too many connections.
    pub fn adopt(&self, socket: OwnedFd) -> Result<()> {
        let say = |e: Errno| Error::os("serve a connection that was handed over", e);
        let stream = Stream::new(socket).map_err(say)?;
        if self.shared.admit(stream) { Ok(()) } else { Err(say(Errno::MFILE)) }
    }

    /// A way to wait, in another thread, until all connections have ended.
    #[must_use]
    pub fn idle(&self) -> Idle {
        Idle(self.shared.clone())
    }

    /// What it shares with other front ends.
    #[must_use]
    pub fn hub(&self) -> &Arc<Hub> {
        &self.shared.common.hub
    }

    /// A handle on it while it runs.
    #[must_use]
    pub fn handle(&self) -> ServerHandle {
        ServerHandle { shared: Arc::downgrade(&self.shared), live: Live::of(self.hub()) }
    }

    /// How many clients are connected.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Stops: accepts no client, takes no more requests, replies to those that it has, and closes.
    /// Blocks until that is done, half a minute at most. Returns whether every thread has ended by
    /// then; one that waits for a disk may not.
    #[must_use]
    pub fn stop(mut self) -> bool {
        self.names.iter().for_each(SocketName::remove);
        self.shared.stop();
        let running = self.shared.running.lock();
        let ended = &self.shared.ended;
        let waited = ended.wait_timeout_while(running, STOP + GRACE, |running| *running > 0);
        let all = *waited.0 == 0;
        if all {
            for thread in self.threads.drain(..) {
                // A reactor that panicked has logged that itself.
                let _ = thread.join();
            }
        }
        all
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

/// Bytes of buffers that are kept for reuse.
fn shelf(memory: u64) -> usize {
    usize::try_from(memory / 8).unwrap_or(usize::MAX).min(64 << 20)
}
