//! A connection that several share: a lane's thread, and everybody else through the reactor.
//!
//! Whoever finds something to do drives the channel under its lock, for all of them; completions
//! are called when the lock is released. While a lane is attached and nobody else waits for
//! anything, the reactor does not look at the socket, so that bulk work has no hand-off and no
//! second thread is woken by it.

use runtime::Timers;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use device::{Completed, Done, Error, Operation, Outcome, Result};
use net::Stream;
use rustix::event::{EventfdFlags, epoll, eventfd};
use wire::Session;

use super::silence::Silence;
use crate::channel::{Channel, Ended};
use crate::reach::Connected;

/// So many bytes are sent before a batch of requests ends.
const PLENTY: u64 = 128 << 10;

/// For whom an operation is done.
enum Tag {
    Lane { lane: u64, ticket: u64 },
    Other(Done),
}

impl std::fmt::Debug for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lane { lane, ticket } => write!(f, "Lane({lane}, {ticket})"),
            Self::Other(_) => f.write_str("Other"),
        }
    }
}

/// Completions to be called once the lock is released.
#[derive(Default)]
#[must_use]
pub(crate) struct Dones(Vec<(Done, Result<Outcome>)>);

impl Dones {
    /// What they ask for in turn is sent together.
    pub(crate) fn call(self) {
        runtime::batch(|| self.0.into_iter().for_each(|(done, outcome)| done(outcome)));
    }
}

/// A shared connection.
pub(crate) struct Connection {
    stream: Arc<Stream>,
    session: Arc<Session>,
    /// The name that errors bear.
    name: Arc<str>,
    timers: Timers,
    inner: Mutex<Inner>,
}

struct Inner {
    channel: Channel<Tag>,
    ended: Vec<Ended<Tag>>,
    lane: Option<LaneSide>,
    /// How many lanes there have been.
    lanes: u64,
    /// Operations under way that are not the lane's.
    others: usize,
    /// The reactor's epoll instance and the token there, once it runs.
    reactor: Option<(Arc<OwnedFd>, u64)>,
    /// What the reactor looks for.
    watched: Option<epoll::EventFlags>,
    /// What is known of the server's silence, if it has a limit.
    silence: Option<Silence>,
}

/// What belongs to the attached lane.
struct LaneSide {
    id: u64,
    ended: Vec<Completed>,
    /// The descriptor that its thread polls: the socket, and `wake`.
    epoll: Arc<OwnedFd>,
    /// What it looks for at the socket.
    watched: epoll::EventFlags,
    /// Readable when somebody else has ended operations of the lane.
    wake: OwnedFd,
    woken: bool,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({})", self.name)
    }
}

impl Connection {
    /// `timeout` limits the server's silence; `timers` find out.
    pub(crate) fn new(
        connected: Connected,
        name: Arc<str>,
        timeout: Option<Duration>,
        timers: &Timers,
    ) -> Arc<Self> {
        let stream = Arc::new(connected.stream);
        let session = Arc::new(connected.session);
        let channel = Channel::new(stream.clone(), session.clone(), &connected.leftover);
        let inner = Inner {
            channel,
            ended: Vec::new(),
            lane: None,
            lanes: 0,
            others: 0,
            reactor: None,
            watched: None,
            silence: timeout.map(Silence::new),
        };
        let connection = Arc::new(Self {
            stream,
            session,
            name,
            timers: timers.clone(),
            inner: Mutex::new(inner),
        });
        if let Some(limit) = timeout {
            listen_in(&connection, limit);
        }
        connection
    }

    /// Ends the connection if the server has been silent for too long. How long to wait before it
    /// may have been; `None` when that needs no more looking after.
    fn end_silence(&self) -> Option<Duration> {
        let mut inner = self.lock();
        // The thread of a lane may have other things to do than to look.
        inner.drive();
        let next = inner.silent_for();
        let dones = self.settle(inner, None);
        dones.call();
        next
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it can be of use, and how much it has to do: less is better.
    pub(crate) fn load(&self) -> Option<usize> {
        let inner = self.lock();
        let lane = usize::from(inner.lane.is_some());
        (!inner.channel.is_over()).then_some(inner.others * 2 + lane)
    }

    /// Whether it is of no more use.
    pub(crate) fn is_over(&self) -> bool {
        self.lock().channel.is_over()
    }

    /// Lets the reactor look at the socket from now on, if it does not yet.
    pub(crate) fn watch(&self, epoll: Arc<OwnedFd>, token: u64) -> Result<()> {
        let mut inner = self.lock();
        if inner.reactor.is_none() {
            inner.reactor = Some((epoll, token));
        }
        self.update_reactor(&mut inner)
    }

    /// Starts an operation for somebody who is called back. What belongs to a batch is sent when
    /// that ends, unless there is plenty before.
    pub(crate) fn submit(self: &Arc<Self>, operation: Operation, done: Done) {
        let mut inner = self.lock();
        inner.others += 1;
        let inner_ref = &mut *inner;
        inner_ref.channel.start(Tag::Other(done), operation, &mut inner_ref.ended);
        if inner.ended.is_empty() && inner.channel.unsent() < PLENTY && self.sends_later() {
            return inner.note(false);
        }
        self.send(inner);
    }

    fn sends_later(self: &Arc<Self>) -> bool {
        runtime::at_end_of_batch(Arc::as_ptr(self).addr(), || {
            let connection = self.clone();
            move || connection.send(connection.lock())
        })
    }

    fn send(&self, mut inner: MutexGuard<'_, Inner>) {
        let inner_ref = &mut *inner;
        let moved = inner_ref.channel.send(&mut inner_ref.ended);
        inner_ref.note(moved);
        self.settle(inner, None).call();
    }

    /// The reactor found the socket ready.
    pub(crate) fn ready(&self) {
        let mut inner = self.lock();
        inner.drive();
        let dones = self.settle(inner, None);
        dones.call();
    }

    /// Says goodbye; whatever is under way ends with an error.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        let inner_ref = &mut *inner;
        inner_ref.channel.goodbye(&mut inner_ref.ended);
        let dones = self.settle(inner, None);
        dones.call();
    }

    /// Attaches a lane; `None` if there is one already, or the connection is of no more use.
    pub(crate) fn attach(&self) -> Result<Option<(u64, Arc<OwnedFd>)>> {
        let mut inner = self.lock();
        if inner.lane.is_some() || inner.channel.is_over() {
            return Ok(None);
        }
        let say = |e: rustix::io::Errno| Error::os("make a lane", e);
        let set = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(say)?);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(say)?;
        let watched = epoll::EventFlags::IN;
        epoll::add(&*set, &wake, epoll::EventData::new_u64(0), watched).map_err(say)?;
        epoll::add(&*set, &*self.stream, epoll::EventData::new_u64(1), watched).map_err(say)?;
        inner.lanes += 1;
        let id = inner.lanes;
        let side =
            LaneSide { id, ended: Vec::new(), epoll: set.clone(), watched, wake, woken: false };
        inner.lane = Some(side);
        if let Err(e) = self.update_reactor(&mut inner) {
            inner.lane = None;
            return Err(e);
        }
        Ok(Some((id, set)))
    }

    /// Detaches the lane; what it has under way is forgotten when it ends.
    pub(crate) fn detach(&self, id: u64) {
        let mut inner = self.lock();
        if inner.lane.as_ref().is_some_and(|lane| lane.id == id) {
            inner.lane = None;
        }
        // The reactor may have stopped.
        let _ = self.update_reactor(&mut inner);
    }

    /// Starts an operation of the lane; it is sent by the next turn.
    pub(crate) fn start(&self, lane: u64, ticket: u64, operation: Operation) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        inner.channel.start(Tag::Lane { lane, ticket }, operation, &mut inner.ended);
        inner.note(false);
    }

    /// A turn of the lane; whether anything moved.
    pub(crate) fn turn(&self, lane: u64, out: &mut Vec<Completed>) -> bool {
        let mut inner = self.lock();
        let moved = inner.drive();
        let before = out.len();
        let dones = self.settle(inner, Some((lane, out)));
        dones.call();
        moved || out.len() > before
    }

    /// Prepares the lane's descriptor for waiting.
    pub(crate) fn before_wait(&self) {
        let mut inner = self.lock();
        let mut wanted = epoll::EventFlags::IN;
        if inner.channel.wants_to_send() {
            wanted |= epoll::EventFlags::OUT;
        }
        let over = inner.channel.is_closed();
        let unsettled = !inner.ended.is_empty();
        let Some(side) = &mut inner.lane else { return };
        // What ended early is told by the next turn, which must not be waited for.
        if (unsettled || over || !side.ended.is_empty()) && !side.woken {
            side.wake();
        }
        if side.watched != wanted {
            side.watched = wanted;
            let data = epoll::EventData::new_u64(1);
            // It cannot fail: both descriptors are ours and open.
            let _ = epoll::modify(&*side.epoll, &*self.stream, data, wanted);
        }
    }

    /// Hands out what has ended, lets the reactor know what to look for, and releases the lock.
    /// `driver` is the lane that is having its turn.
    fn settle(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        driver: Option<(u64, &mut Vec<Completed>)>,
    ) -> Dones {
        let mut dones = Dones::default();
        self.hand_out(&mut inner, &mut dones);
        if let Err(e) = self.update_reactor(&mut inner) {
            // Nobody would ever look at the socket again: better to end it all.
            let broken = &mut *inner;
            broken.channel.fail(e, &mut broken.ended);
            self.hand_out(&mut inner, &mut dones);
        }
        if let Some(side) = &mut inner.lane {
            match driver {
                Some((id, out)) if id == side.id => {
                    out.append(&mut side.ended);
                    side.calm();
                }
                _ if !side.ended.is_empty() && !side.woken => side.wake(),
                _ => {}
            }
        }
        dones
    }

    /// Gives what has ended to those it is for.
    fn hand_out(&self, inner: &mut Inner, dones: &mut Dones) {
        for Ended { tag, outcome } in inner.ended.drain(..) {
            let outcome = outcome.map_err(|e| e.on(&self.name));
            match tag {
                Tag::Lane { lane, ticket } => {
                    // A lane that is gone has forgotten it.
                    if let Some(side) = inner.lane.as_mut().filter(|side| side.id == lane) {
                        side.ended.push(Completed { ticket, outcome });
                    }
                }
                Tag::Other(done) => {
                    inner.others -= 1;
                    dones.0.push((done, outcome));
                }
            }
        }
    }

    /// Tells epoll what the reactor is to look for.
    fn update_reactor(&self, inner: &mut Inner) -> Result<()> {
        let Some((set, token)) = &inner.reactor else { return Ok(()) };
        let left_to_lane = inner.lane.is_some() && inner.others == 0;
        let wanted = if inner.channel.is_closed() || left_to_lane {
            None
        } else if inner.channel.wants_to_send() {
            Some(epoll::EventFlags::IN | epoll::EventFlags::OUT)
        } else {
            Some(epoll::EventFlags::IN)
        };
        if wanted == inner.watched {
            return Ok(());
        }
        let data = epoll::EventData::new_u64(*token);
        let done = match (inner.watched, wanted) {
            (None, Some(flags)) => epoll::add(&**set, &*self.stream, data, flags),
            (Some(_), Some(flags)) => epoll::modify(&**set, &*self.stream, data, flags),
            (_, None) => epoll::delete(&**set, &*self.stream),
        };
        done.map_err(|e| Error::os("watch the connection", e))?;
        inner.watched = wanted;
        Ok(())
    }
}

impl Inner {
    /// Moves what can be moved; whether anything was.
    fn drive(&mut self) -> bool {
        let mut moved = self.channel.send(&mut self.ended);
        moved |= self.channel.receive(&mut self.ended);
        // Answers make room, and some operations need another request.
        if self.channel.wants_to_send() {
            moved |= self.channel.send(&mut self.ended);
        }
        self.note(moved);
        moved
    }

    /// Gives the connection up if the server was silent for too long; see
    /// [`Connection::end_silence`].
    fn silent_for(&mut self) -> Option<Duration> {
        if self.channel.is_closed() {
            return None;
        }
        match self.silence.as_ref()?.left() {
            Ok(left) => Some(left),
            Err(why) => {
                self.channel.fail(why, &mut self.ended);
                None
            }
        }
    }

    /// What was seen of the server just now.
    fn note(&mut self, moved: bool) {
        if let Some(silence) = &mut self.silence {
            silence.note(moved, self.channel.owes());
        }
    }
}

impl LaneSide {
    fn wake(&mut self) {
        // It fails only when the counter is full, and then it is readable anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        self.woken = true;
    }

    fn calm(&mut self) {
        if self.woken {
            let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
            self.woken = false;
        }
    }
}

/// Looks after a server's silence, for as long as there is a connection, from `wait` on.
fn listen_in(connection: &Arc<Connection>, wait: Duration) {
    let weak = Arc::downgrade(connection);
    connection.timers.after(wait, move || {
        if let Some(connection) = weak.upgrade()
            && let Some(wait) = connection.end_silence()
        {
            listen_in(&connection, wait);
        }
    });
}
