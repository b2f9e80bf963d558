//! One connection, seen from its reactor: the handshake, then requests until it ends.
//!
//! Bytes are received into the reactor's buffer and parsed there; what is left over is carried to
//! the next turn. A long payload is received straight into a buffer of its own. Nothing here
//! waits; a handshake whose export is not ready is paused until it is.

mod door;
mod pace;
mod payload;

use runtime::{batch, on_behalf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use device::{Buffer, BufferPool, Peer};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use wire::{
    After, CloseReason, Command, Policy, ReplyWriter, Request, ServerHandshake, ServerStep,
    Session, parse_request, request_header_len,
};

use crate::budget::{Budget, OF_CONNECTION, Share};
use crate::execute::{Payload, Run, Served};
use crate::exports::Exports;
use crate::gather::Gather;
use crate::leavers::Leavers;
use crate::link::{Link, Out};
use crate::log::{Level, Log, Voice};
use door::Door;
use pace::Pace;
use payload::Incoming;

/// Reads of the socket in one turn; then the others of this reactor have theirs.
const ROUNDS: usize = 16;
/// Requests of at most this many bytes are served also when memory is short, one at a time for
/// each connection.
const SMALL: u64 = 64 << 10;
/// Bytes received in one go where memory is short: what a connection may have to carry over.
const SIP: usize = 16 << 10;
/// How long one turn may take, but for its last request.
const SLICE: Duration = Duration::from_millis(1);
/// The clock is looked at after requests that cost so much together; a small one costs 1.
const LOOK_AT_CLOCK: u32 = 16;
/// After a payload longer than this, only the next header is received at first, so that the
/// next payload goes straight where it belongs.
const LONG_PAYLOAD: u64 = 32 << 10;
/// How long a closed connection may take to read its last replies.
const LINGER: Duration = Duration::from_secs(10);
/// How long one to which nothing was owed when the server stopped.
const IDLE_LINGER: Duration = Duration::from_secs(1);
/// How many bytes it may still send meanwhile.
const LINGER_BYTES: usize = 1 << 20;

/// What all connections of a server share.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) exports: Exports,
    pub(crate) policy: Policy,
    pub(crate) handshake_timeout: Duration,
    pub(crate) budget: Arc<Budget>,
    pub(crate) buffers: BufferPool,
    pub(crate) log: Log,
    pub(crate) leavers: Leavers,
    /// How many clients there have been.
    pub(crate) clients: AtomicU64,
}

/// Buffers of a reactor, lent to whichever connection has its turn.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) inbox: Buffer,
    pub(crate) gather: Gather,
    /// When this turn is over.
    until: Instant,
    /// What requests have cost since the clock was looked at.
    spent: u32,
    is_late: bool,
}

impl Desk {
    pub(crate) fn new(inbox: Buffer, gather: Gather) -> Self {
        Self { inbox, gather, until: Instant::now(), spent: 0, is_late: false }
    }

    /// The answer is the time.
    fn begin_turn(&mut self) -> Instant {
        let now = Instant::now();
        (self.until, self.spent, self.is_late) = (now + SLICE, 0, false);
        now
    }

    /// Counts a request; whether the turn is over is known from the clock, but not each time.
    fn spend(&mut self, request: &Request) {
        let costly = request.length > SMALL || request.kind() == Some(Command::BlockStatus);
        self.spent += if costly { LOOK_AT_CLOCK } else { 1 };
        if self.spent >= LOOK_AT_CLOCK {
            self.spent = 0;
            self.is_late = Instant::now() >= self.until;
        }
    }
}

/// What becomes of a connection after its turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fate {
    Close,
    Keep,
    /// It has more to do, after the others.
    Again,
    /// Try it again soon.
    Later,
    /// It waits for memory; try it again soon.
    Starved,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    link: Arc<Link>,
    common: Arc<Common>,
    voice: Arc<Voice>,
    number: u64,
    phase: Phase,
    /// Bytes received and not yet understood.
    carry: Vec<u8>,
    /// The memory of what is carried, and of an option that is not complete.
    keeps: Share,
    incoming: Option<Incoming>,
    /// What is carried holds requests that had to wait for others to end.
    held_back: bool,
    /// The next request takes so many bytes, and there is no memory for it yet; 0 if none waits.
    waits_for_room: u64,
    /// Receive only a header next.
    header_only: bool,
    /// The handshake waits for the export that the client chose.
    awaits_export: bool,
    /// Since when, if it does.
    awaits_since: Instant,
    /// The peer sends nothing more, which was seen while it waited for its export.
    peer_ended: bool,
    door: Door,
    /// When the handshake began; later by what the client had to wait for us.
    started: Instant,
    /// Nothing was owed by either side when the server stopped.
    was_idle: bool,
    /// When it last had a turn.
    active: Instant,
    /// Bytes received so far.
    received: u64,
    pace: Pace,
    /// It waits for memory.
    starves: bool,
    /// Why it ends, once it is known.
    why: Option<&'static str>,
}

#[derive(Debug)]
enum Phase {
    Handshake(Box<ServerHandshake>),
    Transmission(Arc<Served>),
    /// No more requests; ends when all replies are out. A peer that broke the protocol is not
    /// waited for after that.
    Finishing {
        polite: bool,
    },
    /// All replies are out and the peer was told; ends when it hangs up, goes on sending more
    /// than a little, or takes too long.
    Lingering {
        since: Instant,
        left: usize,
    },
}

enum Received {
    Bytes(usize),
    Nothing,
    End,
}

impl Connection {
    /// A new connection; the greeting is sent at once.
    pub(crate) fn new(link: Arc<Link>, peer: &Peer, common: Arc<Common>) -> Self {
        let number = common.clients.fetch_add(1, Ordering::Relaxed) + 1;
        let voice = Arc::new(Voice::new(common.log.clone(), peer));
        voice.event(Level::Info, format_args!("connected"));
        let door = Door::new(common.clone(), link.clone(), voice.clone(), number);
        let handshake = ServerHandshake::new(common.policy.clone());
        link.send([Out::Bytes(handshake.greeting())]);
        let keeps = Share::take(link.account(), 0);
        let now = Instant::now();
        // An oldstyle client has chosen its export by connecting.
        let awaits_export = common.policy.oldstyle;
        Self {
            link,
            common,
            voice,
            number,
            phase: Phase::Handshake(Box::new(handshake)),
            carry: Vec::new(),
            keeps,
            incoming: None,
            held_back: false,
            waits_for_room: 0,
            header_only: false,
            awaits_export,
            awaits_since: now,
            peer_ended: false,
            door,
            started: now,
            was_idle: false,
            active: now,
            received: 0,
            pace: Pace::new(now),
            starves: false,
            why: None,
        }
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Whether part of a payload has arrived, and the rest is on its way.
    pub(crate) fn is_receiving(&self) -> bool {
        self.incoming.is_some()
    }

    /// Its socket has something to read, or has room, or what it waited for has ended.
    pub(crate) fn turn(&mut self, desk: &mut Desk, readable: bool, writable: bool) -> Fate {
        // What it gives to the pool takes turns with the others'; what it gives to a peer behind us
        // is sent on together.
        on_behalf(self.number, || batch(|| self.work(desk, readable, writable)))
    }

    fn work(&mut self, desk: &mut Desk, readable: bool, writable: bool) -> Fate {
        if writable {
            self.link.writable();
        }
        let mut fate = Fate::Keep;
        if readable || self.link.is_paused() {
            self.active = desk.begin_turn();
            fate = self.receive(desk);
            desk.gather.flush(&self.link, false);
            self.count_kept();
        }
        self.starves = fate == Fate::Starved;
        if self.starves {
            self.link.account().wait(self.waits_for_room.max(1));
        }
        self.settle(fate)
    }

    /// Counts what is kept of what was received, if that is more than a little.
    fn count_kept(&mut self) {
        let of_handshake = match &self.phase {
            Phase::Handshake(handshake) => handshake.held(),
            _ => 0,
        };
        let kept = (self.carry.capacity() + of_handshake) as u64;
        self.keeps.resize(if kept > 1024 { kept } else { 0 });
    }

    /// The server stops: no more requests are taken.
    pub(crate) fn stop(&mut self, desk: &mut Desk) -> Fate {
        self.ends("the server stops");
        self.was_idle = self.is_idle();
        match self.phase {
            // Nothing was promised yet, and an export that is not ready may never be.
            Phase::Handshake(_) => self.link.abandon(),
            Phase::Transmission(_) => self.finish(true),
            Phase::Finishing { .. } | Phase::Lingering { .. } => {}
        }
        desk.gather.flush(&self.link, false);
        self.settle(Fate::Keep)
    }

    /// Whether nothing is owed by either side.
    fn is_idle(&self) -> bool {
        self.carry.is_empty()
            && self.incoming.is_none()
            && self.link.is_quiet()
            && rustix::io::ioctl_fionread(self.link.socket()) == Ok(0)
    }

    /// The peer of a paused connection sends nothing more. Said once: it stays so.
    pub(crate) fn peer_ended(&mut self) {
        self.peer_ended = true;
        self.link.hear_end(false);
        self.leave_if_done();
    }

    /// If all that a peer sent that sends nothing more has been understood, and is an export that it
    /// waits for, there is nothing left that it could want.
    fn leave_if_done(&self) {
        let unread = rustix::io::ioctl_fionread(self.link.socket());
        if self.awaits_export && self.carry.is_empty() && unread == Ok(0) {
            self.link.abandon();
        }
    }

    /// Bytes of memory that it holds.
    pub(crate) fn held(&self) -> u64 {
        let incoming = self.incoming.as_ref().map_or(0, Incoming::held);
        self.link.held() + incoming + self.carry.capacity() as u64
    }

    /// Whether it has taken too long; called about once a second. Where memory is short, not all
    /// that have need be closed.
    pub(crate) fn is_overdue(&mut self, now: Instant) -> bool {
        match &self.phase {
            Phase::Handshake(_) => {
                !self.awaits_export
                    && now.duration_since(self.started) >= self.common.handshake_timeout
            }
            Phase::Lingering { since, .. } => {
                let patience = if self.was_idle { IDLE_LINGER } else { LINGER };
                now.duration_since(*since) >= patience
            }
            Phase::Transmission(_) | Phase::Finishing { .. } => self.is_too_slow(now),
        }
    }

    /// Whether its peer must move, and does not.
    fn is_too_slow(&mut self, now: Instant) -> bool {
        let sends = self.incoming.is_some() && !self.waits_for_us();
        let moved = self.received + self.link.sent();
        if !(sends || self.link.is_owed()) {
            self.pace.rest(now, moved);
            return false;
        }
        let account = self.link.account();
        // However little it holds, the others wait for the elder.
        let least = if account.is_elder() { pace::TRIFLE + 1 } else { 0 };
        let (held, wanted) = (self.held().max(least), account.is_wanted());
        self.pace.is_too_slow(now, moved, held, wanted)
    }

    /// Whether the rest of its payload is there, and it is we who do not take it.
    fn waits_for_us(&self) -> bool {
        (self.starves || self.link.is_paused())
            && rustix::io::ioctl_fionread(self.link.socket()).is_ok_and(|n| n > 0)
    }

    /// It is closed because it has taken too long.
    pub(crate) fn give_up(&mut self) {
        match &self.phase {
            Phase::Lingering { .. } if self.was_idle => {}
            Phase::Lingering { .. } => self.why = Some("the client did not hang up"),
            Phase::Handshake(_) => self.report(&"the handshake takes too long"),
            _ => self.report(&"it does not go on with what it has begun"),
        }
    }

    fn finish(&mut self, polite: bool) {
        self.phase = Phase::Finishing { polite };
        self.carry = Vec::new();
        self.incoming = None;
        self.link.account().is_complete();
        // What the peer still sends is of no interest until the replies are out.
        self.link.pause();
    }

    /// The first reason is the one that counts.
    fn ends(&mut self, why: &'static str) {
        self.why.get_or_insert(why);
    }

    /// It has been closed.
    pub(crate) fn ended(&self) {
        // Its account may live on, with what is under way for it.
        self.link.account().is_complete();
        self.voice.ended(self.why.unwrap_or("the client has gone"));
    }

    /// A client is sent away.
    fn report(&mut self, why: &dyn std::fmt::Display) {
        self.ends("the server closed it");
        self.voice.event(Level::Warning, format_args!("closing the connection: {why}"));
    }

    fn settle(&mut self, fate: Fate) -> Fate {
        if self.link.is_broken() {
            return Fate::Close;
        }
        if let Phase::Finishing { polite } = self.phase
            && self.link.is_quiet()
        {
            if !polite {
                return Fate::Close;
            }
            // Closing with unread bytes would make the system throw our last replies away, so
            // say that nothing more comes and wait for the peer to hang up.
            let _ = rustix::net::shutdown(self.link.socket(), rustix::net::Shutdown::Write);
            self.phase = Phase::Lingering { since: Instant::now(), left: LINGER_BYTES };
            self.link.settle();
            self.link.resume();
            let unread = rustix::io::ioctl_fionread(self.link.socket());
            if self.was_idle && unread == Ok(0) && self.active.elapsed() >= IDLE_LINGER {
                // It has had its last reply for long, and we all that it sent: nothing is lost.
                return Fate::Close;
            }
        }
        fate
    }

    /// Receives and runs what there is, for one turn.
    fn receive(&mut self, desk: &mut Desk) -> Fate {
        if matches!(self.phase, Phase::Finishing { .. }) {
            return Fate::Keep;
        }
        if self.must_pause() {
            return self.pause();
        }
        self.link.resume();
        self.held_back = false;
        self.waits_for_room = 0;
        if (self.awaits_export || !self.carry.is_empty()) && self.incoming.is_none() {
            let have = self.carry.len();
            self.take_carry(desk);
            self.understand(desk, have);
        }
        for _ in 0..ROUNDS {
            match &self.phase {
                Phase::Finishing { .. } => return Fate::Keep,
                Phase::Handshake(_) | Phase::Transmission(_) | Phase::Lingering { .. } => {}
            }
            if self.held_back || self.awaits_export || self.must_pause() {
                return self.pause();
            }
            if desk.is_late {
                return Fate::Again;
            }
            if self.may_not_go_on() {
                // Nothing tells when there is memory.
                self.link.pause();
                return Fate::Starved;
            }
            let more = match self.incoming.take() {
                Some(incoming) => self.receive_payload(desk, incoming),
                None => self.receive_requests(desk),
            };
            if !more {
                break;
            }
        }
        // An export that is ready later wakes only a connection that is paused.
        if self.held_back || self.awaits_export {
            return self.pause();
        }
        if desk.is_late && !self.carry.is_empty() { Fate::Again } else { Fate::Keep }
    }

    /// Whether the rest of a payload has to wait for memory.
    fn may_not_go_on(&self) -> bool {
        let account = self.link.account();
        self.incoming.as_ref().is_some_and(Incoming::takes_memory)
            && !account.has_room(1)
            && !account.may_exceed()
    }

    fn must_pause(&self) -> bool {
        match self.phase {
            Phase::Transmission(_) => {
                // A payload on its way holds its share already, and a connection that holds
                // nothing may have one small request: otherwise nobody could go on.
                let starves = match self.waits_for_room {
                    0 => self.link.held() > 0 && !self.link.account().has_room(1),
                    wanted => !self.link.account().has_room(wanted),
                };
                self.link.is_full(OF_CONNECTION) || (self.incoming.is_none() && starves)
            }
            Phase::Handshake(_) => {
                // A client may ask for long lists and not read them.
                self.awaits_export && self.link.has_work() || self.link.is_full(OF_CONNECTION)
            }
            _ => false,
        }
    }

    /// Reads no further until something has ended. What ended just now may have done so before
    /// the pause was seen, so look again.
    fn pause(&mut self) -> Fate {
        self.link.pause();
        if !self.must_pause() {
            // Its turn was over, or there is room by now.
            let waits = self.awaits_export && self.door.waits_for_leavers();
            return if waits { Fate::Later } else { Fate::Again };
        }
        if matches!(self.phase, Phase::Handshake(_)) {
            // It is woken when its export is there, and when there is room for replies.
            if self.peer_ended {
                self.leave_if_done();
            } else {
                self.link.hear_end(true);
            }
            return Fate::Keep;
        }
        if self.link.is_full(OF_CONNECTION) { Fate::Keep } else { Fate::Starved }
    }

    fn take_carry(&mut self, desk: &mut Desk) {
        desk.inbox[..self.carry.len()].copy_from_slice(&self.carry);
        self.carry.clear();
    }

    /// Receives into the reactor's buffer, behind what was carried over.
    fn receive_requests(&mut self, desk: &mut Desk) -> bool {
        let have = self.carry.len();
        let mut end = desk.inbox.len();
        if !self.link.account().has_room(1) {
            end = (have + SIP).min(end);
        }
        if let (true, Phase::Transmission(served)) = (self.header_only, &self.phase) {
            end = request_header_len(served.session.mode).max(have + 1);
        }
        let n = match self.recv(&mut desk.inbox[have..end]) {
            Received::Bytes(n) => n,
            Received::Nothing => return false,
            Received::End => return false,
        };
        self.take_carry(desk);
        let filled = n == end - have;
        self.understand(desk, have + n);
        // A short answer means that the socket is empty, unless only a header was asked for.
        filled || self.incoming.is_some()
    }

    fn recv(&mut self, into: &mut [u8]) -> Received {
        loop {
            match rustix::net::recv(self.link.socket(), &mut *into, RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    self.hang_up();
                    return Received::End;
                }
                Ok((n, _)) => {
                    self.received += n as u64;
                    return Received::Bytes(n);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Received::Nothing,
                Err(_) => {
                    self.ends("the connection broke");
                    self.link.abandon();
                    return Received::End;
                }
            }
        }
    }

    /// The peer sends nothing more. It may still read the replies to what it asked.
    fn hang_up(&mut self) {
        self.ends("the client hung up");
        match self.phase {
            // Replies of this turn may still lie in the gather buffer.
            Phase::Transmission(_) => self.finish(true),
            _ => self.link.abandon(),
        }
    }

    /// Takes requests out of `desk.inbox[..end]` and runs them; the rest is carried.
    fn understand(&mut self, desk: &mut Desk, end: usize) {
        let mut at = 0;
        let mut goes_on = std::mem::take(&mut self.awaits_export);
        if goes_on {
            self.started += self.awaits_since.elapsed();
        }
        while (at < end || goes_on) && !self.awaits_export {
            goes_on = false;
            let used = match &mut self.phase {
                Phase::Handshake(_) => self.haggle(&desk.inbox[at..end]),
                Phase::Transmission(served) => {
                    let served = served.clone();
                    if at > 0 && (desk.is_late || self.must_pause() || self.has_enough(desk)) {
                        self.held_back = true;
                        None
                    } else {
                        self.one_request(&served, desk, at, end)
                    }
                }
                Phase::Finishing { .. } => return,
                Phase::Lingering { left, .. } => {
                    *left = left.saturating_sub(end);
                    if *left == 0 {
                        self.link.abandon();
                    }
                    return;
                }
            };
            match used {
                Some(n) => at += n,
                None => break,
            }
        }
        if matches!(self.phase, Phase::Handshake(_) | Phase::Transmission(_)) {
            self.carry.extend_from_slice(&desk.inbox[at..end]);
            if self.carry.is_empty() && self.carry.capacity() > 4096 {
                self.carry = Vec::new();
            }
        }
    }

    /// Whether it has replies to take before it may ask for more: where memory is short, one
    /// request at a time.
    fn has_enough(&self, desk: &Desk) -> bool {
        desk.gather.len() > 0 && !self.link.account().has_room(desk.gather.len() as u64)
    }

    /// One step of the handshake; the answer is how many bytes it took.
    fn haggle(&mut self, input: &[u8]) -> Option<usize> {
        let Phase::Handshake(handshake) = &mut self.phase else { return None };
        let mut out = Vec::new();
        let (consumed, step) = handshake.advance(input, &self.door, &mut out);
        self.link.send([Out::Bytes(out)]);
        match step {
            ServerStep::NeedMore => return (consumed > 0).then_some(consumed),
            ServerStep::Wait => {
                self.awaits_export = true;
                self.awaits_since = Instant::now();
            }
            ServerStep::Transmit(session) => self.transmit(*session),
            ServerStep::Close(CloseReason::Misbehaved(reason)) => {
                self.report(&reason);
                self.finish(false);
            }
            ServerStep::StartTls | ServerStep::Close(_) => {
                self.ends("the client only asked");
                self.finish(true);
            }
        }
        Some(consumed)
    }

    fn transmit(&mut self, mut session: Session) {
        match self.door.enter(&session.export) {
            Some((edge, enforced)) => {
                // What is told and what is held to may differ.
                session.blocks = enforced;
                self.door.entered(&session.export);
                self.voice.chose(&session.export);
                self.voice.event(Level::Info, format_args!("opened"));
                self.phase = Phase::Transmission(Arc::new(Served {
                    session,
                    edge,
                    account: self.link.account().clone(),
                    buffers: self.common.buffers.clone(),
                    voice: self.voice.clone(),
                }));
            }
            // The handshake has just found it; exports do not change while we run.
            None => self.finish(true),
        }
    }

    /// One request at `at`; the answer is how many bytes it took, or that more are needed.
    fn one_request(
        &mut self,
        served: &Arc<Served>,
        desk: &mut Desk,
        at: usize,
        end: usize,
    ) -> Option<usize> {
        let request = match parse_request(served.session.mode, &desk.inbox[at..end]) {
            Ok(Some(request)) => request,
            Ok(None) => return None,
            Err(fatal) => {
                self.report(&fatal);
                self.finish(false);
                return Some(end - at);
            }
        };
        let header = request_header_len(served.session.mode);
        let body = at + header;
        let writer = ReplyWriter::new(served.session.mode, &request);
        if let Err(refusal) = served.session.check(&request) {
            if refusal.after == After::Disconnect {
                // Too much to read past: an answer would promise that we stay in step.
                self.report(&refusal);
                self.finish(false);
                return Some(end - at);
            }
            let mut reply = Vec::new();
            writer.refuse(&refusal, &mut reply);
            return Some(header + self.drain(desk, request, reply, body, end));
        }
        if request.kind() == Some(Command::Disconnect) {
            self.ends("the client said goodbye");
            self.finish(true);
            return Some(end - at);
        }
        let takes = match request.kind() {
            Some(Command::Read) => request.length,
            _ => request.payload,
        };
        if takes > SMALL && !self.link.account().has_room(takes) {
            (self.held_back, self.waits_for_room) = (true, takes);
            return None;
        }
        desk.spend(&request);
        let Some(payload) = self.payload(served, desk, &request, body, end) else {
            // The rest of the payload comes later.
            return Some(end - at);
        };
        let taken = match payload {
            0 => Payload::None,
            len => Payload::Slice(&desk.inbox[body..body + len]),
        };
        let mut run = Run { served, link: &self.link, gather: &mut desk.gather, request, writer };
        run.execute(taken);
        Some(header + payload)
    }
}
