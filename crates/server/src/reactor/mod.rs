//! A reactor: a thread that serves its connections in turn.
//!
//! Each reactor has an epoll instance and a share of the connections, which stay with it: no lock
//! and no hand-over on the way of a request. The first one also accepts; a new connection goes to
//! the reactor that has the fewest. What ends elsewhere calls it by its [`ReactorBell`].
//!
//! Its thread also does work that is nearly always quick, such as writes to a disk; while that does
//! not come back, another thread drives the reactor on (`driving.rs`).

mod accepting;
mod driving;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use device::{Buffer, Error, Result};
use net::Listener;
use runtime::{Cover, QuickJob, contained, deferring};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::bell::{Accepted, ReactorBell, WAKE};
use crate::connection::{AfterTurn, Connection, Turn};
use crate::gather::Gather;
use crate::link::Link;
use crate::shared::{Shared, StillRunning};
pub(crate) use driving::Driver;
use serving::Severity;

/// The receive buffer of a reactor, in bytes.
const INBOX: usize = 256 << 10;
/// The buffer for gathered replies of a reactor, in bytes.
const GATHER: usize = 256 << 10;
/// How often connections are checked for timeouts.
const TICK: Duration = Duration::from_secs(1);
/// After a wait shorter than this it polls before it sleeps.
const BRISK: Duration = Duration::from_micros(50);
/// How soon a connection is tried again that waited for memory.
const STARVED: Duration = Duration::from_millis(5);
/// How many of those are tried at a time.
const RETRIES: usize = 32;
/// How long a stopping server waits for its connections.
pub(crate) const STOP: Duration = Duration::from_secs(25);
const FIRST_CONNECTION: u64 = 1 << 16;

/// What a thread drives.
pub(crate) struct Reactor {
    shared: Arc<Shared>,
    me: usize,
    bell: Arc<ReactorBell>,
    listeners: Vec<Listener>,
    /// Listeners that are paused until there are descriptors again.
    parked: Vec<u64>,
    /// When that was last logged.
    told: Option<Instant>,
    connections: HashMap<u64, Connection>,
    next_token: u64,
    turn: Turn,
    /// Turns that are due.
    due: VecDeque<Due>,
    /// Work that came up in turns.
    deferred: VecDeque<QuickJob>,
    tick: Instant,
    /// Connections that wait for something without an event.
    starved: Vec<u64>,
    /// When they were last tried.
    tried: Instant,
    /// Connections whose turn ended before their work did.
    again: Vec<u64>,
    /// The last wait was short.
    brisk: bool,
    /// Since when it stops.
    stopping: Option<Instant>,
    /// Connections that have ended while their clients may still see bytes that are leased.
    late: Vec<(Arc<Link>, Instant)>,
    cover: Arc<Cover<Box<Self>>>,
    _running: StillRunning,
}

/// A connection, and what its socket is ready for.
#[derive(Clone, Copy, Debug)]
struct Due {
    token: u64,
    readable: bool,
    writable: bool,
}

impl Reactor {
    pub(crate) fn new(
        shared: Arc<Shared>,
        me: usize,
        listeners: Vec<Listener>,
        cover: Arc<Cover<Box<Self>>>,
    ) -> Result<Self> {
        let bell = shared.reactors.get(me).cloned();
        let bell =
            bell.ok_or_else(|| Error::invalid("start a reactor without a bell; a defect"))?;
        for (token, listener) in (1u64..).zip(&listeners) {
            let say = |e: Errno| Error::os("listen", e).on(listener.place());
            listener.set_nonblocking().map_err(say)?;
            let data = epoll::EventData::new_u64(token);
            epoll::add(bell.epoll(), listener, data, epoll::EventFlags::IN).map_err(say)?;
        }
        Ok(Self {
            cover,
            _running: StillRunning::new(shared.clone()),
            shared,
            me,
            bell,
            listeners,
            parked: Vec::new(),
            told: None,
            connections: HashMap::new(),
            next_token: FIRST_CONNECTION,
            turn: Turn::new(Buffer::zeroed(INBOX), Gather::new(GATHER)),
            due: VecDeque::new(),
            deferred: VecDeque::new(),
            tick: Instant::now(),
            starved: Vec::new(),
            tried: Instant::now(),
            again: Vec::new(),
            brisk: false,
            stopping: None,
            late: Vec::new(),
        })
    }

    fn bell(&self) -> &Arc<ReactorBell> {
        &self.bell
    }

    fn close_all(&mut self) {
        let tokens: Vec<u64> = self.connections.keys().copied().collect();
        for token in tokens {
            self.close(token);
        }
    }

    /// Waits for events, and notes which turns are due. Returns false if it cannot go on.
    fn look(&mut self) -> bool {
        let mut events = Vec::with_capacity(64);
        if let Err(e) = self.wait(&mut events) {
            let what = format_args!("a reactor cannot go on: {e}");
            self.shared.common.hub.log.event(Severity::Error, None, None, what);
            return false;
        }
        for event in &events {
            self.event(event.data.u64(), event.flags);
        }
        let called = self.called();
        self.due.extend(called);
        true
    }

    /// Adds new connections, and returns the turns of those to which it was called: to send the
    /// replies to what has ended elsewhere.
    fn called(&mut self) -> impl Iterator<Item = Due> + use<> {
        let news = self.bell.news();
        news.arrivals.into_iter().for_each(|arrival| self.add(arrival));
        news.called.into_iter().map(|token| Due { token, readable: false, writable: false })
    }

    /// Sends the replies to what has ended so far.
    fn reply(&mut self) {
        self.called().for_each(|due| self.turn(due));
    }

    /// Notes the turns of those that could not end their work in the last one.
    fn look_again(&mut self) {
        let waited = std::mem::take(&mut self.again);
        let again = |token| Due { token, readable: true, writable: false };
        let starved = self.starved_ones();
        self.due.extend(waited.into_iter().chain(starved).map(again));
    }

    /// What is done after each round of turns. Returns whether it has stopped.
    fn tidy(&mut self) -> bool {
        if self.tick.elapsed() >= TICK {
            self.tick = Instant::now();
            self.unpark();
            self.expire(self.tick);
            self.release_leases();
        }
        self.bell.answer(&self.shared.asked);
        self.shared.stopping.load(Ordering::SeqCst) && self.stopped()
    }

    /// Waits for events. While clients answer within microseconds it polls before it sleeps,
    /// yielding the processor each time: a sleep and a wake-up cost more than the wait, most of all
    /// in a virtual machine.
    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> rustix::io::Result<()> {
        let bell = self.bell().clone();
        let mut look = |timeout: Option<&Timespec>| match epoll::wait(
            bell.epoll(),
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
                if look(Some(&now))? || bell.has_news() {
                    return Ok(());
                }
                std::thread::yield_now();
            }
        }
        bell.sleeps();
        let busy = !self.again.is_empty() || bell.has_news();
        let timeout = if busy { Some(now) } else { self.timeout() };
        let found = look(timeout.as_ref());
        bell.is_awake();
        self.brisk = (found? || bell.has_news()) && begun.elapsed() < BRISK;
        Ok(())
    }

    /// Retries the connections that wait for something without an event, if it is time: with each
    /// event would be too often, where there are many.
    fn starved_ones(&mut self) -> Vec<u64> {
        if self.starved.is_empty() || self.tried.elapsed() < STARVED {
            return Vec::new();
        }
        self.tried = Instant::now();
        // First come, first served; the cost is bounded however many wait.
        let some = self.starved.len().min(RETRIES);
        self.starved.drain(..some).collect()
    }

    fn timeout(&self) -> Option<Timespec> {
        let idle = self.connections.is_empty() && self.parked.is_empty() && self.late.is_empty();
        let wait = match (self.starved.is_empty(), idle) {
            (false, _) => STARVED.saturating_sub(self.tried.elapsed()),
            (true, false) => TICK,
            (true, true) => return None,
        };
        Timespec::try_from(wait).ok()
    }

    fn event(&mut self, token: u64, flags: epoll::EventFlags) {
        if token == WAKE {
            return self.unpark();
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
                // The client is no longer there to read the replies; without this the event would
                // come for ever.
                connection.link().abandon();
            } else if flags.contains(epoll::EventFlags::RDHUP) {
                connection.peer_ended();
            }
        }
        self.due.push_back(Due { token, readable, writable });
    }

    fn turn(&mut self, Due { token, readable, writable }: Due) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if connection.is_to_leave() {
            return self.stop_connection(token);
        }
        let turn = &mut self.turn;
        let (after, deferred) =
            deferring(|| contained("a connection", || connection.turn(turn, readable, writable)));
        self.deferred.extend(deferred);
        let Ok(after) = after else {
            // What it had gathered must not go to another client.
            self.turn.gather.clear();
            return self.close(token);
        };
        // The rest of a payload probably arrives while we poll.
        self.brisk |= connection.is_receiving();
        self.decide(token, after);
    }

    fn decide(&mut self, token: u64, after: AfterTurn) {
        match after {
            AfterTurn::Keep => {}
            AfterTurn::Again if self.again.contains(&token) => {}
            AfterTurn::Again => self.again.push(token),
            AfterTurn::Later | AfterTurn::Starved if self.starved.contains(&token) => {}
            AfterTurn::Later | AfterTurn::Starved => self.starved.push(token),
            AfterTurn::Close => self.close(token),
        }
    }

    fn close(&mut self, token: u64) {
        if let Some(connection) = self.connections.remove(&token) {
            let link = connection.link().clone();
            link.abandon();
            link.close();
            link.settle();
            connection.ended();
            let _ = epoll::delete(self.bell().epoll(), link.stream());
            drop(connection);
            if link.release_leases(Some(Duration::ZERO)) {
                // Its descriptor is free for the next client.
                drop(link);
                self.left();
            } else {
                // Until then it is a connection as far as limits go.
                self.late.push((link, Instant::now()));
            }
        }
    }

    /// Drops the leases of what clients have received.
    fn release_leases(&mut self) {
        for connection in self.connections.values() {
            connection.link().release_leases(None);
        }
        let before = self.late.len();
        self.late.retain(|(link, ended)| !link.release_leases(Some(ended.elapsed())));
        for _ in self.late.len()..before {
            self.left();
        }
    }

    /// A connection is no more.
    fn left(&self) {
        self.bell().lost();
        self.shared.left();
    }

    fn add(&mut self, Accepted { stream, account }: Accepted) {
        let token = self.next_token;
        self.next_token += 1;
        let bell = self.bell().clone();
        let data = epoll::EventData::new_u64(token);
        if epoll::add(bell.epoll(), &stream, data, epoll::EventFlags::IN).is_err() {
            return self.left();
        }
        let (common, peer) = (self.shared.common.clone(), stream.peer());
        let client = common.hub.next_client();
        let link = Arc::new(Link::new(stream, bell, (token, client), account));
        self.connections.insert(token, Connection::new(link, &peer, common));
        if self.stopping.is_some() {
            return self.stop_connection(token);
        }
        // An oldstyle client waits for the server to begin.
        self.due.push_back(Due { token, readable: true, writable: false });
    }

    /// Closes connections that take too long; while memory is short, those that hold most of it
    /// first, and no more than necessary, unless the server stops.
    fn expire(&mut self, now: Instant) {
        let budget = self.shared.common.hub.budget.clone();
        let terms = self.shared.common.terms.now();
        let mut overdue: Vec<(u64, u64)> = self
            .connections
            .iter_mut()
            .filter_map(|(t, c)| c.is_overdue(now, &terms).then(|| (c.held(), *t)))
            .collect();
        overdue.sort_unstable_by(|a, b| b.cmp(a));
        let mut freed = 0;
        for (held, token) in overdue {
            if held > 0 && freed >= budget.slice() && self.stopping.is_none() {
                continue;
            }
            freed += held;
            if let Some(connection) = self.connections.get_mut(&token) {
                connection.give_up();
            }
            self.close(token);
        }
    }

    /// Continues a stop. Returns whether all is done.
    fn stopped(&mut self) -> bool {
        let since = match self.stopping {
            Some(since) => since,
            None => {
                let now = Instant::now();
                self.stopping = Some(now);
                // A service manager may hold the same sockets, so closing ours is not enough.
                for listener in self.listeners.drain(..) {
                    let _ = epoll::delete(self.bell.epoll(), &listener);
                }
                let tokens: Vec<u64> = self.connections.keys().copied().collect();
                for token in tokens {
                    self.stop_connection(token);
                }
                now
            }
        };
        if since.elapsed() >= STOP {
            self.close_all();
        }
        self.connections.is_empty()
    }

    fn stop_connection(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let after = connection.stop(&mut self.turn);
        self.decide(token, after);
    }
}
