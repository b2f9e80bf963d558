//! A connection that several users share: a lane's thread, and all others through the reactor.
//!
//! The thread that finds something to do drives the channel under its lock, for all users;
//! completions are called when the lock is released. While a lane is attached and no other thread
//! waits for anything, the reactor does not look at the socket, so that bulk work has no hand-off
//! and no second thread is woken by it.
//!
//! Operations that are lost with the connection are repeated elsewhere (`repeating`). Changes that
//! we gave up wait here until the peer has closed its side: before that it may still execute them.

use runtime::{Mutex, MutexGuard, Timers};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

use device::{Completed, Done, Error, Interest, Operation, Outcome, Result};
use net::{Received, Stream};
use rustix::io::Errno;

use super::Shared;
use super::care::Keep;
use super::inbox::Inbox;
use super::order::{Lost, Submission, Whose, tell};
use super::ready::{BOTH, RECEIVE, ReadySet};
use super::silence::Silence;
use crate::channel::{Channel, Ended, Ending};
use crate::reach::ReadyConnection;

/// This many bytes are sent before a batch of requests ends.
const PLENTY: u64 = 128 << 10;
/// How many times to receive at once from a peer that was given up.
const LOOKS: usize = 16;

/// What is to be done once the lock is released.
#[derive(Default)]
#[must_use]
struct Deferred {
    dones: Vec<(Done, Result<Outcome>)>,
    lost: Vec<Lost>,
    /// The connection was found to be unusable.
    over: bool,
    /// Changes wait for the peer to close its side, no longer than this.
    parts_within: Option<Duration>,
}

/// A shared connection.
pub(crate) struct SharedConnection {
    stream: Arc<Stream>,
    /// The name in errors.
    name: Arc<str>,
    timers: Timers,
    keep: Arc<Keep>,
    /// What repeats the operations that are lost here.
    home: Weak<Shared>,
    /// Operations in flight.
    load: AtomicUsize,
    /// It is not known yet whether its server is still the same.
    doubted: AtomicBool,
    inner: Mutex<Inner>,
}

struct Inner {
    channel: Channel<Submission>,
    lane: Option<LaneSide>,
    /// How many lanes there have been.
    lanes: u64,
    /// Operations in flight that are not the lane's.
    others: usize,
    /// The reactor's set and the token there, once it runs.
    reactor: Option<(Arc<ReadySet>, u64)>,
    /// The events that the reactor waits for.
    watched: Option<Interest>,
    /// What is known of the server's silence, if it has a limit.
    silence: Option<Silence>,
    /// How often bytes were sent or received.
    moves: u64,
    /// How much had gone over the socket then, under TLS.
    carried: u64,
    /// Changes that wait until the peer has closed its side.
    parting: Vec<Lost>,
    /// Its end was reported.
    told: bool,
}

/// What belongs to the attached lane.
struct LaneSide {
    id: u64,
    inbox: Arc<Inbox>,
    /// The events that its thread waits for.
    watched: Option<Interest>,
}

runtime::debug_as!(SharedConnection, |it| "SharedConnection({})", it.name);

impl SharedConnection {
    /// `silence` limits that of the server; `timers` check it.
    pub(crate) fn new(
        connected: ReadyConnection,
        (name, timers): (Arc<str>, &Timers),
        silence: Option<Duration>,
        (keep, home): (Arc<Keep>, Weak<Shared>),
    ) -> Arc<Self> {
        let stream = Arc::new(connected.stream);
        let session = Arc::new(connected.session);
        let channel = Channel::new(stream.clone(), session, &connected.leftover);
        let inner = Inner {
            channel,
            lane: None,
            lanes: 0,
            others: 0,
            reactor: None,
            watched: None,
            silence: silence.map(Silence::new),
            moves: 0,
            carried: 0,
            parting: Vec::new(),
            told: false,
        };
        let connection = Arc::new(Self {
            stream,
            name,
            timers: timers.clone(),
            keep,
            home,
            load: AtomicUsize::new(0),
            doubted: AtomicBool::new(false),
            inner: Mutex::new(inner),
        });
        if let Some(limit) = silence {
            listen_in(&connection, limit);
        }
        connection
    }

    /// Ends the connection if the server has been silent for too long. Returns how long to wait
    /// before the next check; `None` when no more are needed.
    fn end_silence(self: &Arc<Self>) -> Option<Duration> {
        let mut inner = self.inner.lock();
        // The thread of a lane may be busy elsewhere.
        inner.drive();
        self.drive_held(&mut inner);
        let next = inner.silent_for(&self.stream);
        self.settle(inner, None);
        next
    }

    /// Whether it can be of use, and how much it has to do: less is better.
    pub(crate) fn load(&self) -> Option<usize> {
        let inner = self.inner.lock();
        let lane = usize::from(inner.lane.is_some());
        (!inner.channel.is_over()).then_some(inner.others * 2 + lane)
    }

    /// How many operations are in flight, as far as is known without waiting.
    pub(crate) fn under_way(&self) -> usize {
        self.load.load(Relaxed)
    }

    /// Grows when bytes are sent or received.
    pub(crate) fn moves(&self) -> u64 {
        self.inner.lock().moves
    }

    /// Whether it is unusable.
    pub(crate) fn is_over(&self) -> bool {
        self.inner.lock().channel.is_over()
    }

    /// Whether a flush may go over it: its server is still the same, or the epoch says that it may
    /// not be.
    pub(crate) fn is_trusted(&self) -> bool {
        !self.doubted.load(SeqCst)
    }

    /// Sets whether it is trusted.
    pub(crate) fn trust(&self, is_trusted: bool) {
        self.doubted.store(!is_trusted, SeqCst);
    }

    /// Lets the reactor watch the socket from now on, if it does not yet.
    pub(crate) fn watch(&self, set: Arc<ReadySet>, token: u64) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.reactor.is_none() {
            inner.reactor = Some((set, token));
        }
        self.update_reactor(&mut inner)
    }

    /// Starts an operation for a caller that does not drive this. A batch is sent when it ends, or
    /// earlier if it is large.
    pub(crate) fn submit(self: &Arc<Self>, order: Submission, operation: Operation) {
        let mut inner = self.inner.lock();
        inner.others += 1;
        self.load.fetch_add(1, Relaxed);
        inner.channel.start(order, operation);
        if inner.channel.ended.is_empty() && inner.channel.unsent() < PLENTY && self.sends_later() {
            return inner.note(false);
        }
        self.send(inner);
    }

    fn sends_later(self: &Arc<Self>) -> bool {
        runtime::at_end_of_batch(Arc::as_ptr(self).addr(), || {
            let connection = self.clone();
            move || connection.send(connection.inner.lock())
        })
    }

    fn send(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>) {
        let moved = inner.channel.send();
        inner.note(moved);
        self.settle(inner, None);
    }

    /// The reactor found the socket ready.
    pub(crate) fn ready(self: &Arc<Self>) {
        let mut inner = self.inner.lock();
        if !inner.parting.is_empty() {
            return self.hear_out(inner);
        }
        inner.drive();
        self.drive_held(&mut inner);
        self.settle(inner, None);
    }

    /// Continues as long as there are bytes that the socket does not report.
    fn drive_held(&self, inner: &mut Inner) {
        while self.stream.holds() && !inner.channel.is_closed() && inner.drive() {}
    }

    /// Disconnects; everything in flight ends with an error.
    pub(crate) fn close(self: &Arc<Self>) {
        let mut inner = self.inner.lock();
        inner.channel.disconnect();
        inner.told = true;
        let parting = std::mem::take(&mut inner.parting);
        self.settle(inner, None);
        parting.into_iter().for_each(|lost| lost.fail(None));
    }

    /// Disconnects when the server owes nothing, which may be now. Later operations go to another
    /// connection.
    pub(crate) fn leave(self: &Arc<Self>) {
        let mut inner = self.inner.lock();
        inner.channel.leave();
        self.settle(inner, None);
    }

    /// Whether a lane drives it.
    pub(crate) fn has_lane(&self) -> bool {
        self.inner.lock().lane.is_some()
    }

    /// Gives it up, for this reason: it is not known which server is at its end.
    pub(crate) fn give_up(self: &Arc<Self>, why: Error) {
        let mut inner = self.inner.lock();
        inner.channel.give_up(why);
        self.settle(inner, None);
    }

    /// Attaches a lane, which checks its inbox; `None` if there is one already, or the connection
    /// is unusable.
    pub(crate) fn attach(&self, inbox: &Arc<Inbox>) -> Result<Option<u64>> {
        let mut inner = self.inner.lock();
        if inner.lane.is_some() || inner.channel.is_over() {
            return Ok(None);
        }
        let watched = Some(RECEIVE);
        let watch = inbox.watch(&*self.stream, None, watched);
        watch.map_err(|e| Error::os("make a lane", e))?;
        inner.lanes += 1;
        let id = inner.lanes;
        inner.lane = Some(LaneSide { id, inbox: inbox.clone(), watched });
        if let Err(e) = self.update_reactor(&mut inner) {
            self.free(&mut inner);
            return Err(e);
        }
        Ok(Some(id))
    }

    fn free(&self, inner: &mut Inner) {
        if let Some(side) = inner.lane.take() {
            // It cannot fail: both descriptors are ours and open.
            let _ = side.inbox.watch(&*self.stream, side.watched, None);
        }
    }

    /// Detaches the lane; what it has in flight is forgotten when it ends.
    pub(crate) fn detach(&self, id: u64) {
        let mut inner = self.inner.lock();
        if inner.lane.as_ref().is_some_and(|lane| lane.id == id) {
            self.free(&mut inner);
        }
        // The reactor may have stopped.
        let _ = self.update_reactor(&mut inner);
    }

    /// Starts an operation of the lane; it is sent by the next turn. Gives it back if the
    /// connection is unusable.
    pub(crate) fn start(
        &self,
        order: Submission,
        operation: Operation,
    ) -> Option<(Submission, Operation)> {
        let mut inner = self.inner.lock();
        if inner.channel.is_over() {
            return Some((order, operation));
        }
        self.load.fetch_add(1, Relaxed);
        inner.channel.start(order, operation);
        inner.note(false);
        None
    }

    /// A turn of the lane. Returns whether anything moved.
    pub(crate) fn turn(self: &Arc<Self>, lane: u64, out: &mut Vec<Completed>) -> bool {
        let mut inner = self.inner.lock();
        let moved = inner.drive();
        let before = out.len();
        self.settle(inner, Some((lane, out)));
        moved || out.len() > before
    }

    /// Prepares the lane's descriptor for waiting.
    pub(crate) fn before_wait(self: &Arc<Self>) {
        let mut inner = self.inner.lock();
        let wanted = if inner.channel.wants_to_send() { BOTH } else { RECEIVE };
        let wanted = (!inner.channel.is_closed()).then_some(wanted);
        let unsettled = !inner.channel.ended.is_empty();
        if let Some(side) = &mut inner.lane
            && side.watched != wanted
        {
            // It cannot fail: both descriptors are ours and open.
            let _ = side.inbox.watch(&*self.stream, side.watched, wanted);
            side.watched = wanted;
        }
        // Operations that have ended already must not be waited for.
        if unsettled {
            self.settle(inner, None);
        }
    }

    /// Hands out what has ended, updates the reactor, and releases the lock. `driver` is the lane
    /// that is having its turn.
    fn settle(
        self: &Arc<Self>,
        mut inner: MutexGuard<'_, Inner>,
        mut driver: Option<(u64, &mut Vec<Completed>)>,
    ) {
        let mut after = Deferred::default();
        self.hand_out(&mut inner, &mut driver, &mut after);
        if let Err(e) = self.update_reactor(&mut inner) {
            // The socket would never be watched again: better to end the connection.
            inner.channel.fail(e);
            self.hand_out(&mut inner, &mut driver, &mut after);
        }
        if inner.channel.is_closed()
            && let Some(side) = &mut inner.lane
        {
            // A closed socket is always ready.
            let _ = side.inbox.watch(&*self.stream, side.watched.take(), None);
        }
        after.over = inner.channel.is_over() && !std::mem::replace(&mut inner.told, true);
        inner.told = inner.channel.is_over();
        drop(inner);
        self.follow(after);
    }

    /// What is to be done without the lock.
    fn follow(self: &Arc<Self>, after: Deferred) {
        let Deferred { dones, lost, over, parts_within } = after;
        let home = if over || !lost.is_empty() { self.home.upgrade() } else { None };
        // Requests that the callbacks make are sent together.
        runtime::batch(|| {
            if let Some(home) = home.as_ref().filter(|_| over) {
                home.lost_one();
            }
            for lost in lost {
                match &home {
                    Some(home) => home.again(lost),
                    None => lost.fail(None),
                }
            }
            dones.into_iter().for_each(|(done, outcome)| done(outcome));
        });
        if let Some(patience) = parts_within {
            self.part_within(patience);
        }
    }

    /// Hands completions to their callers.
    fn hand_out(
        self: &Arc<Self>,
        inner: &mut Inner,
        driver: &mut Option<(u64, &mut Vec<Completed>)>,
        after: &mut Deferred,
    ) {
        let ending = inner.channel.ending();
        let mut list = std::mem::take(&mut inner.channel.ended);
        for ended in list.drain(..) {
            self.load.fetch_sub(1, Relaxed);
            let Ended { tag: mut order, outcome, undone } = ended;
            if matches!(order.whose, Whose::Other(_) | Whose::Inbox { .. }) {
                inner.others -= 1;
            }
            let outcome = outcome.map_err(|e| e.on(&self.name));
            if let (Some(operation), Err(why)) = (undone, &outcome) {
                let why = why.duplicate();
                if let Whose::Lane { lane, ticket } = order.whose
                    && let Some(side) = inner.lane.as_ref().filter(|side| side.id == lane)
                {
                    order.whose = Whose::Inbox { inbox: side.inbox.clone(), ticket };
                }
                let lost = Lost { order, operation, why };
                let may_be_done = matches!(ending, Some(Ending::GivenUp | Ending::Cut));
                if !may_be_done || !lost.operation.changes() {
                    after.lost.push(lost);
                    continue;
                }
                if let Some(patience) =
                    self.keep.patience.filter(|_| ending == Some(Ending::GivenUp))
                {
                    if inner.parting.is_empty() {
                        after.parts_within = Some(patience);
                    }
                    inner.parting.push(lost);
                    continue;
                }
                order = lost.order;
            }
            let outcome = order.care.ended(outcome);
            match order.whose {
                Whose::Lane { lane, ticket } => match (driver.as_mut(), &inner.lane) {
                    (Some((id, out)), _) if *id == lane => out.push(Completed { ticket, outcome }),
                    (_, Some(side)) if side.id == lane => {
                        side.inbox.put(Completed { ticket, outcome });
                    }
                    // A lane that is gone has forgotten it.
                    _ => {}
                },
                Whose::Other(done) => after.dones.push((done, outcome)),
                whose @ Whose::Inbox { .. } => tell(whose, outcome),
            }
        }
        inner.channel.ended = list;
    }

    /// Limits how long changes wait for the peer to close its side. Not under the lock: a timer may
    /// run its task at once.
    fn part_within(self: &Arc<Self>, patience: Duration) {
        // The caller may have dropped it meanwhile.
        let connection = self.clone();
        self.timers.after(patience, move || {
            let parting = std::mem::take(&mut connection.inner.lock().parting);
            parting.into_iter().for_each(|lost| lost.fail(None));
        });
    }

    /// Checks whether a peer that was given up has closed its side.
    fn hear_out(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>) {
        let mut unread = [0; 4096];
        for _ in 0..LOOKS {
            let closed = match self.stream.receive(&mut unread) {
                Ok(Received::Bytes(_)) => continue,
                Ok(Received::Nothing) => break,
                Ok(Received::End) | Err(Errno::CONNRESET | Errno::PIPE) => true,
                Err(_) => false,
            };
            let parting = std::mem::take(&mut inner.parting);
            self.stream.close();
            self.settle(inner, None);
            let home = self.home.upgrade().filter(|_| closed);
            return runtime::batch(|| {
                for lost in parting {
                    match &home {
                        Some(home) => home.again(lost),
                        None => lost.fail(None),
                    }
                }
            });
        }
        self.settle(inner, None);
    }

    /// Tells the reactor's set what it waits for.
    fn update_reactor(&self, inner: &mut Inner) -> Result<()> {
        let Some((set, token)) = &inner.reactor else { return Ok(()) };
        let left_to_lane = inner.lane.is_some() && inner.others == 0;
        let wanted = if !inner.parting.is_empty() {
            Some(RECEIVE)
        } else if inner.channel.is_closed() || left_to_lane {
            None
        } else if inner.channel.wants_to_send() {
            Some(BOTH)
        } else {
            Some(RECEIVE)
        };
        if wanted == inner.watched {
            return Ok(());
        }
        set.watch((&*self.stream, *token), inner.watched, wanted)
            .map_err(|e| Error::os("watch the connection", e))?;
        inner.watched = wanted;
        Ok(())
    }
}

impl Inner {
    /// Moves what can be moved. Returns whether anything was.
    fn drive(&mut self) -> bool {
        let mut moved = self.channel.send();
        moved |= self.channel.receive();
        // Replies make room, and some operations need another request.
        if self.channel.wants_to_send() {
            moved |= self.channel.send();
        }
        self.note(moved);
        moved
    }

    /// Gives the connection up if the server was silent for too long; see
    /// [`SharedConnection::end_silence`].
    fn silent_for(&mut self, stream: &Stream) -> Option<Duration> {
        if self.channel.is_closed() {
            return None;
        }
        match self.silence.as_mut()?.look(stream.on_the_way()) {
            Ok(left) => Some(left),
            Err(why) => {
                self.channel.give_up(why);
                None
            }
        }
    }

    /// Notes what the server did just now.
    fn note(&mut self, moved: bool) {
        let carried = self.channel.carried();
        let moved = moved | (std::mem::replace(&mut self.carried, carried) != carried);
        self.moves += u64::from(moved);
        if let Some(silence) = &mut self.silence {
            silence.note(moved, self.channel.owes());
        }
    }
}

/// Checks for a server's silence as long as the connection exists, first after `wait`.
fn listen_in(connection: &Arc<SharedConnection>, wait: Duration) {
    let weak = Arc::downgrade(connection);
    connection.timers.after(wait, move || {
        if let Some(connection) = weak.upgrade()
            && let Some(wait) = connection.end_silence()
        {
            listen_in(&connection, wait);
        }
    });
}
