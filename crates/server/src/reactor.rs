//! The reactors: threads that turn the connections, and the server that owns them.
//!
//! Each reactor has an epoll instance and a share of the connections, which stay with it: no lock
//! and no hand-over on the way of a request. The first one also accepts; a new connection goes to
//! the reactor that has the fewest.

use runtime::contained;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use device::{Buffer, BufferPool, Error, Result};
use net::{Listener, SocketName, peer};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, sockopt};

use crate::budget::Budget;
use crate::connection::{Common, Connection, Desk, Fate};
use crate::exports::Exports;
use crate::gather::Gather;
use crate::leavers::Leavers;
use crate::link::Link;
use crate::log::{Level, Log};

/// The receive buffer of a reactor, in bytes.
const INBOX: usize = 256 << 10;
/// The buffer for gathered replies of a reactor, in bytes.
const GATHER: usize = 256 << 10;
/// What a Unix socket holds on its way to the client, in bytes, where the system allows.
const SOCKET_BUFFER: usize = 4 << 20;
/// With so many connections, the sockets of further ones are left as they are.
const FEW: usize = 64;
/// How often connections are looked at that may have taken too long.
const TICK: Duration = Duration::from_secs(1);
/// Waits shorter than this are spent awake.
const BRISK: Duration = Duration::from_micros(50);
/// How soon a connection is tried again that waited for memory.
const STARVED: Duration = Duration::from_millis(5);
/// How many of those are tried at a time.
const RETRIES: usize = 32;
/// How long a stopping server waits for its connections.
const STOP: Duration = Duration::from_secs(25);
/// How long after that it waits for its threads.
const GRACE: Duration = Duration::from_secs(3);

/// How many panics outside a connection's turn a reactor survives.
const RESCUES: usize = 16;
/// New connections taken in one turn; then those that are there have theirs.
const ACCEPTS: usize = 64;
/// How often it is said that there are no descriptors left.
const FULL: Duration = Duration::from_secs(60);
/// When a silent TCP client is asked whether it is still there, and how often. Our own client asks
/// its servers as often.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(10), 6);
/// How long, in milliseconds, TCP waits for a client to take what was sent, or to answer: as long
/// as a client may take over what waits here.
const PATIENCE: u32 = 300_000;

const WAKE: u64 = 0;
const FIRST_CONNECTION: u64 = 1 << 16;

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

#[derive(Debug)]
struct Shared {
    common: Arc<Common>,
    reactors: Vec<Handle>,
    connections: AtomicUsize,
    /// Told when the last connection is gone.
    idle: Condvar,
    idle_lock: Mutex<()>,
    max_connections: usize,
    stopping: AtomicBool,
    /// Listeners wait for descriptors.
    full: AtomicBool,
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

/// What others may do to a reactor.
#[derive(Debug)]
struct Handle {
    epoll: Arc<OwnedFd>,
    wake: OwnedFd,
    arrivals: Mutex<Vec<OwnedFd>>,
    load: AtomicUsize,
}

impl Handle {
    fn new() -> Result<Self> {
        let say = |e: Errno| Error::os("make a reactor", e);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(say)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(say)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)
            .map_err(say)?;
        Ok(Self {
            epoll: Arc::new(epoll),
            wake,
            arrivals: Mutex::default(),
            load: AtomicUsize::new(0),
        })
    }

    fn wake(&self) {
        // It fails only when the counter is full, and then the reactor is awake anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
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
        let reactors = (0..count).map(|_| Handle::new()).collect::<Result<Vec<_>>>()?;
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
                .spawn(move || Ended::after(reactor))
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
        let stream = sockopt::socket_type(&socket).map_err(say)?;
        if stream != rustix::net::SocketType::STREAM {
            return Err(say(Errno::PROTOTYPE));
        }
        rustix::io::ioctl_fionbio(&socket, true).map_err(say)?;
        if self.shared.admit(socket) { Ok(()) } else { Err(say(Errno::MFILE)) }
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
        self.reactors.iter().for_each(Handle::wake);
    }
}

/// Counts a reactor, until it is dropped: also by a panic.
struct Ended(Arc<Shared>);

impl Ended {
    fn after(reactor: Reactor) {
        let _ended = Self(reactor.shared.clone());
        reactor.run();
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        *self.0.running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.ended.notify_all();
    }
}

/// One thread's view.
struct Reactor {
    shared: Arc<Shared>,
    me: usize,
    listeners: Vec<Listener>,
    /// Those that are not listened to until there are descriptors again.
    parked: Vec<u64>,
    /// When it was said that there are none.
    told: Option<Instant>,
    connections: HashMap<u64, Connection>,
    next_token: u64,
    desk: Desk,
    /// Those that wait for what nothing tells of.
    starved: Vec<u64>,
    /// When they were last tried.
    tried: Instant,
    /// Those whose turn was over before they had done all.
    again: Vec<u64>,
    /// The last wait was short.
    brisk: bool,
    /// Since when it stops.
    stopping: Option<Instant>,
}

impl Reactor {
    fn new(shared: Arc<Shared>, me: usize, listeners: Vec<Listener>) -> Result<Self> {
        for (token, listener) in (1u64..).zip(&listeners) {
            let say = |e: Errno| Error::os("listen", e).on(listener.place());
            rustix::io::ioctl_fionbio(listener, true).map_err(say)?;
            let data = epoll::EventData::new_u64(token);
            if let Some(handle) = shared.reactors.get(me) {
                epoll::add(&*handle.epoll, listener, data, epoll::EventFlags::IN).map_err(say)?;
            }
        }
        Ok(Self {
            shared,
            me,
            listeners,
            parked: Vec::new(),
            told: None,
            connections: HashMap::new(),
            next_token: FIRST_CONNECTION,
            desk: Desk::new(Buffer::zeroed(INBOX), Gather::new(GATHER)),
            starved: Vec::new(),
            tried: Instant::now(),
            again: Vec::new(),
            brisk: false,
            stopping: None,
        })
    }

    fn handle(&self) -> &Handle {
        &self.shared.reactors[self.me]
    }

    fn run(mut self) {
        // Turns contain their own panics; should anything else panic, the connections that it may
        // have left in disorder end, and the thread goes on.
        for _ in 0..RESCUES {
            if contained("a reactor", || self.react()).is_ok() {
                return;
            }
            let tokens: Vec<u64> = self.connections.keys().copied().collect();
            for token in tokens {
                self.close(token);
            }
        }
    }

    fn react(&mut self) {
        let mut events = Vec::with_capacity(64);
        let mut tick = Instant::now();
        loop {
            events.clear();
            if let Err(e) = self.wait(&mut events) {
                let what = format_args!("a reactor cannot go on: {e}");
                self.shared.common.log.event(Level::Error, None, None, what);
                return;
            }
            for event in &events {
                self.event(event.data.u64(), event.flags);
            }
            let waited = std::mem::take(&mut self.again);
            for token in waited.into_iter().chain(self.due()) {
                self.turn(token, true, false);
            }
            if tick.elapsed() >= TICK {
                tick = Instant::now();
                self.unpark();
                self.expire(tick);
            }
            if self.shared.stopping.load(Ordering::SeqCst) && self.stopped() {
                return;
            }
        }
    }

    /// Waits for events. While clients answer within microseconds it looks again and again
    /// before it sleeps, always offering the processor to others first: a sleep and a wake-up
    /// cost more than the wait, most of all in a virtual machine.
    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> rustix::io::Result<()> {
        let epoll = self.handle().epoll.clone();
        let mut look = |timeout: Option<&Timespec>| match epoll::wait(
            &*epoll,
            rustix::buffer::spare_capacity(events),
            timeout,
        ) {
            Ok(n) => Ok(n > 0),
            Err(Errno::INTR) => Ok(false),
            Err(e) => Err(e),
        };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let begun = Instant::now();
        if self.brisk && self.again.is_empty() {
            while begun.elapsed() < BRISK {
                if look(Some(&now))? {
                    return Ok(());
                }
                std::thread::yield_now();
            }
        }
        let timeout = if self.again.is_empty() { self.timeout() } else { Some(now) };
        let found = look(timeout.as_ref())?;
        self.brisk = found && begun.elapsed() < BRISK;
        Ok(())
    }

    /// Those that wait for what nothing tells of, if it is time to try them: with each event of others
    /// would be too often, where there are many.
    fn due(&mut self) -> Vec<u64> {
        if self.starved.is_empty() || self.tried.elapsed() < STARVED {
            return Vec::new();
        }
        self.tried = Instant::now();
        // First come, first served; a crowd must not cost more than a few.
        let some = self.starved.len().min(RETRIES);
        self.starved.drain(..some).collect()
    }

    fn timeout(&self) -> Option<Timespec> {
        let idle = self.connections.is_empty() && self.parked.is_empty();
        let wait = match (self.starved.is_empty(), idle) {
            (false, _) => STARVED.saturating_sub(self.tried.elapsed()),
            (true, false) => TICK,
            (true, true) => return None,
        };
        Timespec::try_from(wait).ok()
    }

    fn event(&mut self, token: u64, flags: epoll::EventFlags) {
        if token == WAKE {
            return self.arrivals();
        }
        if token < FIRST_CONNECTION {
            return self.accept(token);
        }
        let gone = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        let readable = flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP | gone);
        let writable = flags.contains(epoll::EventFlags::OUT);
        if let Some(connection) = self.connections.get_mut(&token)
            && connection.link().is_paused()
        {
            if flags.intersects(gone) {
                // Nobody is left to read the replies; without this the event would come for ever.
                connection.link().abandon();
            } else if flags.contains(epoll::EventFlags::RDHUP) {
                connection.peer_ended();
            }
        }
        self.turn(token, readable, writable);
    }

    fn turn(&mut self, token: u64, readable: bool, writable: bool) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let desk = &mut self.desk;
        let Ok(fate) = contained("a connection", || connection.turn(desk, readable, writable))
        else {
            // What it had gathered must not go to somebody else.
            self.desk.gather.take_back(0);
            return self.close(token);
        };
        // The rest of a payload is being sent while we look.
        self.brisk |= connection.is_receiving();
        self.decide(token, fate);
    }

    fn decide(&mut self, token: u64, fate: Fate) {
        match fate {
            Fate::Keep => {}
            Fate::Again if self.again.contains(&token) => {}
            Fate::Again => self.again.push(token),
            Fate::Later | Fate::Starved if self.starved.contains(&token) => {}
            Fate::Later | Fate::Starved => self.starved.push(token),
            Fate::Close => self.close(token),
        }
    }

    fn close(&mut self, token: u64) {
        if let Some(connection) = self.connections.remove(&token) {
            connection.link().abandon();
            connection.link().settle();
            connection.ended();
            let _ = epoll::delete(&*self.handle().epoll, connection.link().socket());
            // Its descriptor is free for who comes next.
            drop(connection);
            self.left();
        }
    }

    /// A connection is no more.
    fn left(&self) {
        self.handle().load.fetch_sub(1, Ordering::Relaxed);
        if self.shared.full.load(Ordering::SeqCst) {
            // The first one listens.
            self.shared.reactors.first().into_iter().for_each(Handle::wake);
        }
        if self.shared.connections.fetch_sub(1, Ordering::SeqCst) == 1 {
            // With the lock, or it could be missed between a look and a wait.
            let _lock = self.shared.idle_lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.shared.idle.notify_all();
        }
    }

    fn listener(&self, token: u64) -> Option<&Listener> {
        self.listeners.get(usize::try_from(token).ok()?.checked_sub(1)?)
    }

    fn accept(&mut self, token: u64) {
        let Some(listener) = self.listener(token) else { return };
        for _ in 0..ACCEPTS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(listener, flags) {
                Ok(socket) => {
                    self.shared.admit(socket);
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(e) => return self.park(token, e),
            }
        }
    }

    /// Out of descriptors, most likely: the listener is left alone until a connection has left, or
    /// for a tick. Those who wait to be accepted go on waiting.
    fn park(&mut self, token: u64, e: Errno) {
        let Some(listener) = self.listener(token) else { return };
        let is_news = self.told.is_none_or(|told| told.elapsed() >= FULL);
        if is_news {
            let what = format_args!("{}: no more clients for now: {e}", listener.place());
            self.shared.common.log.event(Level::Error, None, None, what);
        }
        let _ = epoll::delete(&*self.handle().epoll, listener);
        if is_news {
            self.told = Some(Instant::now());
        }
        self.parked.push(token);
        self.shared.full.store(true, Ordering::SeqCst);
    }

    fn unpark(&mut self) {
        if self.parked.is_empty() {
            return;
        }
        self.shared.full.store(false, Ordering::SeqCst);
        for token in std::mem::take(&mut self.parked) {
            let Some(listener) = self.listener(token) else { continue };
            let data = epoll::EventData::new_u64(token);
            let epoll = &*self.handle().epoll;
            if epoll::add(epoll, listener, data, epoll::EventFlags::IN).is_err() {
                self.parked.push(token);
            }
        }
    }

    fn arrivals(&mut self) {
        let mut count = [0; 8];
        // Whatever it says, the arrivals are looked at.
        let _ = rustix::io::read(&self.handle().wake, &mut count);
        self.unpark();
        let sockets = std::mem::take(
            &mut *self.handle().arrivals.lock().unwrap_or_else(PoisonError::into_inner),
        );
        for socket in sockets {
            self.add(socket);
        }
    }

    fn add(&mut self, socket: OwnedFd) {
        let token = self.next_token;
        self.next_token += 1;
        let epoll = self.handle().epoll.clone();
        let data = epoll::EventData::new_u64(token);
        if epoll::add(&*epoll, &socket, data, epoll::EventFlags::IN).is_err() {
            return self.left();
        }
        let (common, peer) = (self.shared.common.clone(), peer::of(socket.as_fd()));
        let link = Arc::new(Link::new(socket, epoll, token, common.budget.account(&peer)));
        self.connections.insert(token, Connection::new(link, &peer, common));
        if self.stopping.is_some() {
            return self.stop_connection(token);
        }
        // An oldstyle client waits for us to begin.
        self.turn(token, true, false);
    }

    /// Closes what takes too long; while memory is short, those that hold most of it first, and
    /// no more of them than helps.
    fn expire(&mut self, now: Instant) {
        let budget = self.shared.common.budget.clone();
        let mut overdue: Vec<(u64, u64)> = self
            .connections
            .iter_mut()
            .filter_map(|(t, c)| c.is_overdue(now).then(|| (c.held(), *t)))
            .collect();
        overdue.sort_unstable_by(|a, b| b.cmp(a));
        let mut freed = 0;
        for (held, token) in overdue {
            if held > 0 && freed >= budget.slice() {
                continue;
            }
            freed += held;
            if let Some(connection) = self.connections.get_mut(&token) {
                connection.give_up();
            }
            self.close(token);
        }
    }

    /// Goes on stopping; the answer is whether all is done.
    fn stopped(&mut self) -> bool {
        let since = match self.stopping {
            Some(since) => since,
            None => {
                let now = Instant::now();
                self.stopping = Some(now);
                // A service manager may hold the same sockets, so closing ours is not enough.
                for listener in self.listeners.drain(..) {
                    let _ = epoll::delete(&*self.shared.reactors[self.me].epoll, &listener);
                }
                let tokens: Vec<u64> = self.connections.keys().copied().collect();
                for token in tokens {
                    self.stop_connection(token);
                }
                now
            }
        };
        if since.elapsed() >= STOP {
            let tokens: Vec<u64> = self.connections.keys().copied().collect();
            for token in tokens {
                self.close(token);
            }
        }
        self.connections.is_empty()
    }

    fn stop_connection(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let fate = connection.stop(&mut self.desk);
        self.decide(token, fate);
    }
}

impl Shared {
    /// Gives a new connection to the reactor that has the fewest. The answer is whether there was
    /// room for it.
    fn admit(&self, socket: OwnedFd) -> bool {
        if self.connections.load(Ordering::Relaxed) >= self.max_connections {
            let (peer, open) = (peer::of(socket.as_fd()), self.max_connections);
            let what = format_args!("turned away: {open} connections are open already");
            self.common.log.event(Level::Warning, Some(&peer), None, what);
            return false;
        }
        tune(&socket, self.connections.load(Ordering::Relaxed));
        let Some(handle) = self.reactors.iter().min_by_key(|h| h.load.load(Ordering::Relaxed))
        else {
            return false;
        };
        self.connections.fetch_add(1, Ordering::SeqCst);
        handle.load.fetch_add(1, Ordering::Relaxed);
        handle.arrivals.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        handle.wake();
        true
    }
}

/// Bytes of buffers that are kept for reuse.
fn shelf(memory: u64) -> usize {
    usize::try_from(memory / 8).unwrap_or(usize::MAX).min(64 << 20)
}

/// Options that help; none is essential. `connections` are open already: what a Unix socket may
/// hold is the system's memory, outside any limit of ours.
fn tune(socket: &OwnedFd, connections: usize) {
    if sockopt::socket_domain(socket) == Ok(rustix::net::AddressFamily::UNIX) {
        if connections < FEW {
            let _ = sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER);
        }
    } else {
        let (idle, interval, count) = KEEPALIVE;
        let _ = sockopt::set_tcp_nodelay(socket, true);
        let _ = sockopt::set_socket_keepalive(socket, true);
        let _ = sockopt::set_tcp_keepidle(socket, idle);
        let _ = sockopt::set_tcp_keepintvl(socket, interval);
        let _ = sockopt::set_tcp_keepcnt(socket, count);
        let _ = sockopt::set_tcp_user_timeout(socket, PATIENCE);
    }
}
