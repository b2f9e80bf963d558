//! The server: its reactors, what they share, and its end.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use device::{BufferPool, Error, Result};
use net::{Listener, SocketName, Stream, Tuning};
use rustix::io::Errno;

use crate::budget::Budget;
use crate::connection::Common;
use crate::exports::Exports;
use crate::leavers::Leavers;
use crate::log::{Level, Log};
use crate::reactor::{Bell, Reactor, STOP};

/// With so many connections, the sockets of further ones are left as they are: what a Unix socket
/// may hold is the system's memory, outside any limit of ours.
const FEW: usize = 64;
/// How long a stopping server waits for its threads, after its connections.
const GRACE: Duration = Duration::from_secs(3);
/// How long TCP waits for a client to take what was sent, or to answer: as long as a client may
/// take over what waits here.
const PATIENCE: Duration = Duration::from_secs(300);

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is negotiated.
    pub policy: wire::Policy,
    /// Reactors; 0 for one a core.
    pub reactors: usize,
    /// Connections at a time; more are closed at once.
    pub max_connections: usize,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// Bytes of requests in flight, of all connections.
    pub memory: u64,
    /// Where to say what cannot be said to a client.
    pub log: Log,
    /// Say there also who comes and goes.
    pub verbose: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: wire::Policy::default(),
            reactors: 0,
            max_connections: 1000,
            handshake_timeout: Duration::from_secs(10),
            memory: 512 << 20,
            log: Log::default(),
            verbose: false,
        }
    }
}

/// A running server. Dropping it stops it at once; [`Server::stop`] is graceful.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    names: Vec<SocketName>,
}

/// What the reactors of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) common: Arc<Common>,
    pub(crate) reactors: Vec<Arc<Bell>>,
    connections: AtomicUsize,
    /// Told when the last connection is gone.
    idle: Condvar,
    idle_lock: Mutex<()>,
    max_connections: usize,
    pub(crate) stopping: AtomicBool,
    /// Listeners wait for descriptors.
    pub(crate) full: AtomicBool,
    /// Reactors that have not ended.
    running: Mutex<usize>,
    ended: Condvar,
}

/// Waits for a server to have no connection.
#[derive(Debug)]
pub struct Idle(Arc<Shared>);

impl Idle {
    /// Returns when no client is connected; at once if none is.
    pub fn wait(self) {
        let mut lock = self.0.idle_lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.0.connections.load(Ordering::SeqCst) > 0 {
            lock = self.0.idle.wait(lock).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Server {
    /// Serves `exports` to whoever connects to `listeners`.
    ///
    /// # Errors
    /// The system gives no epoll instance or no thread.
    pub fn start(exports: Exports, listeners: Vec<Listener>, options: &Options) -> Result<Self> {
        options.log.start(options.verbose)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let count = if options.reactors == 0 { cores.min(64) } else { options.reactors };
        let reactors = (0..count).map(|_| Bell::new()).collect::<Result<Vec<_>>>()?;
        let common = Arc::new(Common {
            exports,
            policy: options.policy.clone(),
            handshake_timeout: options.handshake_timeout,
            budget: Arc::new(Budget::new(options.memory)),
            buffers: BufferPool::new(shelf(options.memory)),
            log: options.log.clone(),
            leavers: Leavers::default(),
            clients: AtomicU64::new(0),
        });
        let shared = Arc::new(Shared {
            common,
            reactors,
            connections: AtomicUsize::new(0),
            idle: Condvar::new(),
            idle_lock: Mutex::new(()),
            max_connections: options.max_connections,
            stopping: AtomicBool::new(false),
            full: AtomicBool::new(false),
            running: Mutex::new(0),
            ended: Condvar::new(),
        });
        let names = listeners.iter().filter_map(Listener::name).cloned().collect();
        let mut server = Self { shared: shared.clone(), threads: Vec::new(), names };
        let mut listeners = Some(listeners);
        for me in 0..count {
            let reactor = Reactor::new(shared.clone(), me, listeners.take().unwrap_or_default())?;
            *shared.running.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            let thread = std::thread::Builder::new()
                .name(format!("reactor-{me}"))
                .spawn({
                    let shared = shared.clone();
                    move || Ended::after(shared, reactor)
                })
                .map_err(|e| Error::os("start a thread", e))?;
            server.threads.push(thread);
        }
        Ok(server)
    }

    /// Serves the client at the other end of a connected stream socket.
    ///
    /// # Errors
    /// It is no socket that can be served, or there are too many connections.
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

    /// How many clients are connected.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Stops: accepts no one, takes no more requests, answers what it has taken, says goodbye.
    /// Returns when all that is done, at the latest after half a minute. The answer is whether
    /// every thread has ended by then; one that waits for a disk may not.
    #[must_use]
    pub fn stop(mut self) -> bool {
        self.names.iter().for_each(SocketName::remove);
        self.shared.stop();
        let running = self.shared.running.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = &self.shared.ended;
        let waited = ended.wait_timeout_while(running, STOP + GRACE, |running| *running > 0);
        let all = *waited.unwrap_or_else(PoisonError::into_inner).0 == 0;
        if all {
            for thread in self.threads.drain(..) {
                // A reactor that panicked has said so itself.
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

impl Shared {
    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.reactors.iter().for_each(|bell| bell.wake());
    }

    /// A connection is no more.
    pub(crate) fn left(&self) {
        if self.full.load(Ordering::SeqCst) {
            // The first one listens.
            self.reactors.first().into_iter().for_each(|bell| bell.wake());
        }
        if self.connections.fetch_sub(1, Ordering::SeqCst) == 1 {
            // With the lock, or it could be missed between a look and a wait.
            let _lock = self.idle_lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.idle.notify_all();
        }
    }

    /// Gives a new connection to the reactor that has the fewest. The answer is whether there was
    /// room for it.
    pub(crate) fn admit(&self, stream: Stream) -> bool {
        let open = self.connections.load(Ordering::Relaxed);
        if open >= self.max_connections {
            let peer = stream.peer();
            let what = format_args!("turned away: {open} connections are open already");
            self.common.log.event(Level::Warning, Some(&peer), None, what);
            return false;
        }
        let (send_buffer, patience) = (open < FEW, Some(PATIENCE));
        stream.tune(Tuning { send_buffer, receive_buffer: false, patience });
        let Some(bell) = self.reactors.iter().min_by_key(|bell| bell.load()) else {
            return false;
        };
        self.connections.fetch_add(1, Ordering::SeqCst);
        bell.give(stream);
        true
    }
}

/// Counts a reactor, until it is dropped: also by a panic.
struct Ended(Arc<Shared>);

impl Ended {
    fn after(shared: Arc<Shared>, reactor: Reactor) {
        let _ended = Self(shared);
        reactor.run();
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        *self.0.running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.ended.notify_all();
    }
}

/// Bytes of buffers that are kept for reuse.
fn shelf(memory: u64) -> usize {
    usize::try_from(memory / 8).unwrap_or(usize::MAX).min(64 << 20)
}
