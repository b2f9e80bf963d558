//! The server: its reactors, what they share, and its end.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use device::{BufferPool, Error, Result};
use net::{Listener, SocketName, Stream};
use runtime::{Cover, WorkPool};
use rustix::io::Errno;

use crate::bell::ReactorBell;
use crate::budget::Budget;
use crate::connection::Common;
use crate::exports::Exports;
use crate::leavers::Leavers;
use crate::metrics::{Live, Metrics};
use crate::present::PresentClients;
use crate::reactor::{Driver, Reactor, STOP};
use crate::shared::Shared;
use crate::terms::{Options, Terms};

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
            exports,
            policy: options.policy.clone(),
            terms: Terms::new(options.clone()),
            metrics: Metrics::new(count),
            budget: Arc::new(Budget::new(options.memory)),
            buffers: BufferPool::new(shelf(options.memory)),
            log: options.log.clone(),
            leavers: Leavers::default(),
            present: PresentClients::default(),
            clients: AtomicU64::new(0),
        });
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

    /// A handle on it while it runs.
    #[must_use]
    pub fn live(&self) -> Live {
        Live(Arc::downgrade(&self.shared))
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
