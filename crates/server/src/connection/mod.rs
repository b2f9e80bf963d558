//! One connection, seen from its reactor: the handshake, then requests until it ends.
//!
//! Bytes are received into the reactor's buffer and parsed there; an incomplete rest is carried to
//! the next turn. A long payload is received straight into a buffer of its own. Nothing here waits;
//! a handshake whose export is not ready is paused until it is. `securing.rs` has TLS.

mod opener;
mod pace;
mod payload;
mod requests;
mod securing;
mod turn;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use device::{BufferPool, Peer};
use runtime::{Behalf, WorkPool, batch};
use serving::{Hub, RateLimit, Reason, Severity, Share, Tally, Voice};
use wire::{ServerHandshake, ServerPolicy};

use crate::execute::Served;
use crate::leavers::Leavers;
use crate::link::{LINGER, Link, Out};
use crate::terms::{Options, Terms};
use opener::ExportOpener;
use pace::{Moved, Pace, Standstill};
use payload::Incoming;
use securing::{Refused, Securing};
pub(crate) use turn::Turn;

/// Requests of at most this many bytes are served also when memory is short, one at a time for
/// each connection.
const SMALL: u64 = 64 << 10;
/// After a payload longer than this, only the next header is received at first, so that the
/// next payload goes straight where it belongs.
const LONG_PAYLOAD: u64 = 32 << 10;
/// The same for one that was owed nothing when the server stopped.
const IDLE_LINGER: Duration = Duration::from_secs(1);
/// How many bytes it may still send meanwhile.
const LINGER_BYTES: usize = 1 << 20;

/// What all connections of a server share.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) hub: Arc<Hub>,
    pub(crate) policy: ServerPolicy,
    pub(crate) terms: Terms,
    /// For work that keeps a processor busy.
    pub(crate) computing: WorkPool,
    pub(crate) buffers: BufferPool,
    pub(crate) leavers: Leavers,
}

/// What to do with a connection after its turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AfterTurn {
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
    phase: Phase,
    /// Bytes received and not yet understood.
    carry: Vec<u8>,
    /// The memory of what is carried, and of an option that is not complete.
    keeps: Share,
    incoming: Option<Incoming>,
    /// The carried bytes hold requests that had to wait for others to end.
    held_back: bool,
    /// The next request takes so many bytes, and there is no memory for it yet; 0 if none waits.
    waits_for_room: u64,
    /// Receive only a header next.
    header_only: bool,
    /// The handshake waits for the export that the client chose.
    awaits_export: bool,
    /// Since when it waits, if it does.
    awaits_since: Instant,
    /// The peer sends nothing more; noticed while it waited for its export.
    peer_ended: bool,
    opener: ExportOpener,
    /// When the handshake began, plus the time that the client had to wait for us.
    started: Instant,
    /// Nothing was owed by either side when the server stopped.
    was_idle: bool,
    /// Once the server stops: whether its peer still reads what it is owed.
    stops: Option<Standstill>,
    stands_still: bool,
    /// When it last had a turn.
    active: Instant,
    /// Bytes received so far.
    received: u64,
    pace: Pace,
    /// Its next request waits for memory of the budget.
    starves: bool,
    /// Its rate of requests, if that is limited; and whether it has to wait for that.
    rate: Option<RateLimit>,
    over_rate: bool,
    /// When it last asked for something, or was owed something.
    asked: Instant,
    /// It has been idle for too long.
    is_unused: bool,
    /// Why it ends, once it is known.
    why: Option<&'static str>,
    /// The counters of its export, once it has one.
    tally: Option<Arc<Tally>>,
}

#[derive(Debug)]
enum Phase {
    Handshake(Box<ServerHandshake>),
    /// TLS begins.
    Securing(Box<Securing>),
    /// TLS failed, and the client is to learn of that only later.
    Refused(Box<Refused>),
    /// Between two phases.
    Gone,
    Transmission(Arc<Served>),
    /// No more requests; ends when all replies are out. A peer that broke the protocol is not
    /// waited for after that.
    Finishing {
        polite: bool,
    },
    /// All replies are sent and the shutdown is announced; ends when the peer closes, sends more
    /// than a little, or takes too long.
    Lingering {
        since: Instant,
        left: usize,
    },
}

impl Connection {
    /// A new connection; the greeting is sent at once.
    pub(crate) fn new(link: Arc<Link>, peer: &Peer, common: Arc<Common>) -> Self {
        let voice = Arc::new(Voice::new(common.hub.log.clone(), peer));
        voice.event(Severity::Info, format_args!("connected"));
        let way: Weak<Link> = Arc::downgrade(&link);
        common.hub.present.enter(link.client(), way, &voice);
        let opener = ExportOpener::new(common.clone(), link.clone(), voice.clone());
        let handshake = ServerHandshake::new(common.policy.clone());
        link.send([Out::Bytes(handshake.greeting())]);
        let keeps = Share::take(link.account(), 0);
        let now = Instant::now();
        let rate = common.terms.now().max_requests.map(|limit| RateLimit::new(limit, now));
        // An oldstyle client has chosen its export by connecting.
        let awaits_export = common.policy.oldstyle;
        Self {
            link,
            common,
            voice,
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
            opener,
            started: now,
            was_idle: false,
            stops: None,
            stands_still: false,
            active: now,
            received: 0,
            pace: Pace::default(),
            starves: false,
            rate,
            over_rate: false,
            asked: now,
            is_unused: false,
            why: None,
            tally: None,
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
    pub(crate) fn turn(&mut self, turn: &mut Turn, readable: bool, writable: bool) -> AfterTurn {
        // Work that it gives to the pool takes turns with that of others; requests to an upstream
        // server are sent together.
        Behalf::of_client(self.link.client()).run(|| batch(|| self.work(turn, readable, writable)))
    }

    fn work(&mut self, turn: &mut Turn, readable: bool, writable: bool) -> AfterTurn {
        self.link.attend();
        if writable {
            self.link.writable();
        }
        let mut after = AfterTurn::Keep;
        // The TLS handshake itself waits for room in the socket.
        let is_due = readable || (writable && matches!(self.phase, Phase::Securing(_)));
        if is_due || self.link.is_paused() {
            self.active = turn.begin_turn();
            after = self.receive(turn);
            self.count_kept();
            // Also those of a client that has sent DISC in this turn.
            if let Some(tally) = &self.tally {
                turn.answered.tell(tally, self.active);
            }
        }
        let sent = self.link.leave(&mut turn.gather);
        if sent && after == AfterTurn::Keep && self.link.is_paused() {
            // It may have waited for just that.
            after = AfterTurn::Again;
        }
        self.starves = after == AfterTurn::Starved;
        if self.starves {
            self.link.account().wait(self.waits_for_room.max(1));
        }
        self.settle(after)
    }

    /// Counts the received bytes that are carried over, if they are more than a few.
    fn count_kept(&mut self) {
        let of_handshake = match &self.phase {
            Phase::Handshake(handshake) => handshake.held(),
            _ => 0,
        };
        let kept = (self.carry.capacity() + of_handshake) as u64;
        self.keeps.resize(if kept > 1024 { kept } else { 0 });
    }

    /// It was dismissed, and does not end yet.
    pub(crate) fn is_to_leave(&self) -> bool {
        self.stops.is_none() && self.link.is_dismissed()
    }

    /// The server stops, or the client is dismissed: no more requests are taken.
    pub(crate) fn stop(&mut self, turn: &mut Turn) -> AfterTurn {
        self.ends(if self.link.is_dismissed() {
            "it was disconnected by command"
        } else {
            "the server stops"
        });
        self.was_idle = self.is_idle();
        self.stops = Some(Standstill::new(Instant::now()));
        match self.phase {
            // Nothing was promised yet, and the export may never become ready.
            Phase::Handshake(_) | Phase::Securing(_) | Phase::Refused(_) | Phase::Gone => {
                self.link.abandon();
            }
            Phase::Transmission(_) => self.finish(true),
            Phase::Finishing { .. } | Phase::Lingering { .. } => {}
        }
        turn.gather.flush(&self.link);
        self.settle(AfterTurn::Keep)
    }

    /// Whether nothing is owed by either side.
    fn is_idle(&self) -> bool {
        self.carry.is_empty()
            && self.incoming.is_none()
            && self.link.is_quiet()
            && self.link.stream().unread() == 0
    }

    /// The peer of a paused connection sends nothing more. Called once: it stays so.
    pub(crate) fn peer_ended(&mut self) {
        self.peer_ended = true;
        self.link.hear_end(false);
        self.leave_if_done();
    }

    /// If a peer sends nothing more, all that it sent has been processed, and it waits for an
    /// export, it cannot want anything else.
    fn leave_if_done(&self) {
        let unread = self.link.stream().unread();
        if self.awaits_export && self.carry.is_empty() && unread == 0 {
            self.link.abandon();
        }
    }

    /// Bytes of memory that it holds.
    pub(crate) fn held(&self) -> u64 {
        let incoming = self.incoming.as_ref().map_or(0, Incoming::held);
        self.link.held() + incoming + self.carry.capacity() as u64
    }

    /// Whether it has taken too long; called about once a second. Where memory is short, not all
    /// such connections need be closed.
    pub(crate) fn is_overdue(&mut self, now: Instant, terms: &Options) -> bool {
        if self.rate.as_ref().map(RateLimit::limit) != terms.max_requests {
            self.rate = terms.max_requests.map(|limit| RateLimit::new(limit, now));
        }
        match &self.phase {
            Phase::Refused(refused) => now >= refused.until,
            Phase::Handshake(_) | Phase::Securing(_) | Phase::Gone => {
                !self.awaits_export && now.duration_since(self.started) >= terms.handshake_timeout
            }
            Phase::Lingering { since, .. } => {
                let patience = match &self.stops {
                    Some(_) if self.was_idle => IDLE_LINGER,
                    Some(_) => LINGER.min(terms.stop_timeout),
                    None => LINGER,
                };
                now.duration_since(*since) >= patience
            }
            Phase::Transmission(_) => {
                self.is_unused = self.asks_for_nothing(now, terms);
                self.is_unused || self.is_too_slow(now)
            }
            Phase::Finishing { .. } => {
                self.stands_still = self.holds_up_the_stop(now, terms);
                self.stands_still || self.is_too_slow(now)
            }
        }
    }

    /// Whether the server stops, and the peer reads nothing of what it is owed.
    fn holds_up_the_stop(&mut self, now: Instant, terms: &Options) -> bool {
        let Some(standstill) = &mut self.stops else { return false };
        // A socket reports room only when much has gone, and bytes count as sent when all of their
        // ciphertext has left.
        let stream = self.link.stream();
        let seen = [self.link.sent(), stream.unsent(), stream.on_the_way()];
        standstill.lasts(now, seen, !self.link.is_owed()) >= terms.stop_timeout
    }

    /// Whether it was idle for too long, and is owed nothing.
    fn asks_for_nothing(&mut self, now: Instant, terms: &Options) -> bool {
        let Some(limit) = terms.idle_timeout else { return false };
        if self.incoming.is_some() || self.held_back || !self.link.is_quiet() {
            self.asked = now;
        }
        now.saturating_duration_since(self.asked) >= limit
    }

    /// Whether its peer must move, and does not.
    fn is_too_slow(&mut self, now: Instant) -> bool {
        let sends = self.incoming.is_some() && !self.waits_for_us();
        if !(sends || self.link.is_owed()) {
            self.pace.rest();
            return false;
        }
        let moved = Moved::over(self.link.stream(), self.received, self.link.sent());
        let account = self.link.account();
        // However little it holds, the others wait for the elder.
        let least = if account.is_elder() { pace::TRIFLE + 1 } else { 0 };
        let (held, wanted) = (self.held().max(least), account.is_wanted());
        self.pace.is_too_slow(now, moved, held, wanted)
    }

    /// Whether the rest of its payload is there, and only we do not take it.
    fn waits_for_us(&self) -> bool {
        self.is_held_up()
            || (self.starves || self.link.is_paused()) && self.link.stream().unread() > 0
    }

    /// It is closed because it has taken too long.
    pub(crate) fn give_up(&mut self) {
        match &mut self.phase {
            Phase::Refused(refused) => refused.say(&self.link),
            Phase::Lingering { .. } if self.was_idle => {}
            Phase::Lingering { .. } => self.why = Some("the client did not hang up"),
            Phase::Handshake(_) | Phase::Securing(_) => {
                self.report(Reason::Handshake, &"the handshake takes too long");
            }
            _ if self.is_unused => {
                self.report(Reason::Idle, &"it was idle for too long");
            }
            _ if self.stands_still => {
                self.report(Reason::Slow, &"it reads nothing, and the server is stopping");
            }
            _ => self.report(Reason::Slow, &"it makes no progress"),
        }
    }

    fn finish(&mut self, polite: bool) {
        self.phase = Phase::Finishing { polite };
        self.carry = Vec::new();
        self.incoming = None;
        self.link.account().is_complete();
        // What the peer still sends does not matter until the replies are out.
        self.link.pause();
    }

    /// The first reason is the one that counts.
    fn ends(&mut self, why: &'static str) {
        self.why.get_or_insert(why);
    }

    /// It has been closed.
    pub(crate) fn ended(&self) {
        self.common.hub.present.left(self.link.client());
        // Its account may live on, with what is in flight for it.
        self.link.account().is_complete();
        self.voice.ended(self.why.unwrap_or("the client has gone"));
    }

    /// The server closes the connection, for this reason.
    fn report(&mut self, reason: Reason, why: &dyn std::fmt::Display) {
        self.common.hub.metrics.closed(reason);
        self.ends("the server closed it");
        self.voice.event(Severity::Warning, format_args!("closing the connection: {why}"));
    }

    fn settle(&mut self, after: AfterTurn) -> AfterTurn {
        if self.link.is_broken() {
            return AfterTurn::Close;
        }
        if let Phase::Finishing { polite } = self.phase
            && self.link.is_quiet()
        {
            if !polite {
                return AfterTurn::Close;
            }
            // Closing with unread bytes would make the system throw our last replies away, so
            // say that nothing more comes and wait for the peer to hang up.
            self.link.stream().end();
            self.phase = Phase::Lingering { since: Instant::now(), left: LINGER_BYTES };
            self.link.settle();
            self.link.resume();
            let unread = self.link.stream().unread();
            if self.was_idle && unread == 0 && self.active.elapsed() >= IDLE_LINGER {
                // It got its last reply long ago, and everything that it sent was received: nothing
                // is lost.
                return AfterTurn::Close;
            }
        }
        after
    }
}
