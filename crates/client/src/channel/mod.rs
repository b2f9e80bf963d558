//! One connection in transmission, without a thread: requests out, replies in, never waiting.
//!
//! Its owner calls [`Channel::send`] and [`Channel::receive`] when the socket is ready. An
//! operation is started with a tag and ends exactly once, with that tag: with its outcome, or with
//! the failure of the connection. A server that breaks the protocol, or goes away, ends everything;
//! nothing is silently left half done.

mod failure;
mod habits;
mod incoming;
mod work;

use std::collections::VecDeque;
use std::sync::Arc;

use device::{Error, ErrorKind, Fault, Operation, Outcome, Result, Slice};
use net::{Outgoing, Received, Stream};
use wire::{
    Command, CommandFlags, InFlight, Negotiated, PeerMisbehaved, PendingReply, StatusQuery,
};

pub(crate) use habits::Habits;
use incoming::{Incoming, SMALL};
use work::{Ask, Step, Work};

/// Requests on the wire at a time; more wait here.
const IN_FLIGHT: usize = 256;
/// Bytes that may wait for the socket before further requests wait here, too.
const UNSENT: u64 = 32 << 20;
/// Bytes and operations after which receiving pauses, so that a thread that drives several channels
/// can process the data while it is still in the cache.
const PAUSE_BYTES: usize = 512 << 10;
const PAUSE_ENDED: usize = 64;
/// It pauses earlier, after this part of what is in flight, so that client and server work side by
/// side and do not wait in turns.
const PARTS: usize = 4;

/// An operation that has ended.
#[derive(Debug)]
pub(crate) struct Ended<T> {
    pub(crate) tag: T,
    pub(crate) outcome: Result<Outcome>,
    /// The rest of it, if it was lost with the connection and may be repeated.
    pub(crate) undone: Option<Operation>,
}

impl<T> Ended<T> {
    fn new(tag: T, outcome: Result<Outcome>) -> Self {
        Self { tag, outcome, undone: None }
    }
}

/// What is known of the peer when a connection has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ending {
    /// It has closed its side, or reset the connection: its requests are done by now, or never will
    /// be.
    Closed,
    /// We gave it up. It may still execute requests, until it is seen to close its side.
    GivenUp,
    /// The network gave it up. It may still execute requests, and it will never be seen to close.
    Cut,
    /// It broke the protocol, or we disconnected: nothing may be repeated.
    Broken,
}

/// A request on the wire.
#[derive(Debug)]
struct Flight<T> {
    tag: T,
    work: Work,
    ask: Ask,
    reply: PendingReply,
    /// The bytes of a write, kept until it is answered.
    payload: Option<Slice>,
    /// Where it ends in the stream of requests.
    end: u64,
}

/// An operation that is not on the wire yet.
#[derive(Debug)]
struct WaitingRequests<T> {
    tag: T,
    work: Work,
    payload: Option<Slice>,
}

/// The connection.
#[derive(Debug)]
pub(crate) struct Channel<T> {
    stream: Arc<Stream>,
    session: Arc<Negotiated>,
    habits: Habits,
    flights: InFlight<Flight<T>>,
    waiting: VecDeque<WaitingRequests<T>>,
    outgoing: Outgoing<Slice>,
    incoming: Incoming,
    /// Reads on the wire that are too long for the inbox.
    large: usize,
    /// Why no more is sent.
    over: Option<Error>,
    /// Whether we decided that.
    given_up: bool,
    /// Only replies to requests on the wire are awaited: the server is shutting down, or we leave.
    leaving: bool,
    /// All replies have come, and DISC was sent.
    left: bool,
    /// The operations that have ended, for its owner to take.
    pub(crate) ended: Vec<Ended<T>>,
}

impl<T> Channel<T> {
    /// `leftover`: the bytes that came along with the handshake.
    pub(crate) fn new(stream: Arc<Stream>, session: Arc<Negotiated>, leftover: &[u8]) -> Self {
        Self {
            stream,
            habits: Habits::of(&session),
            session,
            flights: InFlight::default(),
            waiting: VecDeque::new(),
            outgoing: Outgoing::default(),
            incoming: Incoming::new(leftover),
            large: 0,
            over: None,
            given_up: false,
            leaving: false,
            left: false,
            ended: Vec::new(),
        }
    }

    /// Whether the connection is of no more use to new operations.
    pub(crate) fn is_over(&self) -> bool {
        self.is_closed() || self.leaving
    }

    /// Whether everything has ended. A connection that is being left has not.
    pub(crate) fn is_closed(&self) -> bool {
        self.over.is_some()
    }

    /// Whether the server owes a reply.
    pub(crate) fn owes(&self) -> bool {
        !self.flights.is_empty()
    }

    /// Whether bytes wait for the socket to take them.
    pub(crate) fn wants_to_send(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// How many bytes those are.
    pub(crate) fn unsent(&self) -> u64 {
        self.outgoing.unsent()
    }

    /// How many bytes of ciphertext have gone over the socket, either way; 0 in clear text.
    pub(crate) fn carried(&self) -> u64 {
        self.stream.carried()
    }

    /// Starts an operation. Nothing is sent before [`Channel::send`].
    pub(crate) fn start(&mut self, tag: T, operation: Operation) {
        let (step, payload) = work::begin(operation, &self.session);
        self.step(tag, step, payload);
    }

    fn step(&mut self, tag: T, step: Step, payload: Option<Slice>) {
        let work = match step {
            Step::Ended(outcome) => return self.ended.push(Ended::new(tag, outcome)),
            Step::Go(work) => work,
        };
        let waiting = WaitingRequests { tag, work, payload };
        if let Some(why) = self.refusal() {
            return self.ended.push(self.refused(waiting, why));
        }
        if !self.has_room() || !self.waiting.is_empty() {
            return self.waiting.push_back(waiting);
        }
        self.launch(waiting);
    }

    /// Whether one more request may go on the wire.
    fn has_room(&self) -> bool {
        self.flights.len() < IN_FLIGHT && self.outgoing.unsent() < UNSENT
    }

    /// Why no request may be added.
    fn refusal(&self) -> Option<Error> {
        if let Some(why) = &self.over {
            return Some(why.duplicate());
        }
        self.leaving.then(|| {
            let action = "talk to the server: it is shutting down";
            Error::new(ErrorKind::Shutdown, Fault::Peer, action)
        })
    }

    /// Puts an operation's next request on the wire.
    fn launch(&mut self, waiting: WaitingRequests<T>) {
        let WaitingRequests { tag, work, mut payload } = waiting;
        let ask = work.ask(&self.session, &self.habits);
        let Ask { command, flags, offset, length, context } = ask;
        let large = is_large(&work);
        let query = context.map(|id| StatusQuery { length, contexts: vec![id] });
        let mut reply = PendingReply::new(&self.session, command, flags, offset, length);
        if let Some(query) = &query {
            reply = reply.with_contexts(query.contexts.clone());
        }
        let kept = payload.as_mut().map(Slice::same);
        let flight = Flight { tag, work, ask, reply, payload: kept, end: u64::MAX };
        let cookie = self.flights.insert(flight);
        let session = &self.session;
        let encoded = self.outgoing.head(|out| match &query {
            Some(query) => session.encode_status_request(flags, cookie, offset, query, out),
            None => session.encode_request(command, flags, cookie, offset, length, out),
        });
        match encoded {
            Ok(()) => {
                self.large += usize::from(large);
                if let Some(slice) = payload {
                    self.outgoing.payload(slice);
                }
                if let Ok(flight) = self.flights.find(cookie) {
                    flight.end = self.outgoing.end();
                }
            }
            Err(refusal) => {
                if let Some(flight) = self.flights.remove(cookie) {
                    let error = failure::refused(command, refusal);
                    let outcome = Err(flight.work.located(error));
                    self.ended.push(Ended::new(flight.tag, outcome));
                }
            }
        }
    }

    /// Takes the operations that were not sent, and will not be.
    fn refused(&self, waiting: WaitingRequests<T>, why: Error) -> Ended<T> {
        let WaitingRequests { tag, work, payload } = waiting;
        let outcome = Err(work.located(why));
        let undone = match self.ending() {
            Some(Ending::Broken) => None,
            _ => work.undone(payload, &self.session),
        };
        Ended { tag, outcome, undone }
    }

    /// How the connection has ended, if it has.
    pub(crate) fn ending(&self) -> Option<Ending> {
        let why = self.over.as_ref()?;
        if self.left {
            return Some(Ending::Closed);
        }
        Some(match (why.kind(), why.fault()) {
            (ErrorKind::Disconnected | ErrorKind::Shutdown, Fault::Peer) => Ending::Closed,
            (ErrorKind::Protocol, _) | (_, Fault::Us) => Ending::Broken,
            _ if self.given_up => Ending::GivenUp,
            _ => Ending::Cut,
        })
    }

    /// Sends what the socket takes. Returns whether it took anything.
    pub(crate) fn send(&mut self) -> bool {
        if self.outgoing.is_empty() {
            return false;
        }
        let mut any = false;
        loop {
            match self.outgoing.send(&self.stream) {
                Ok(moved) => {
                    any |= moved;
                    // Sending makes room, too.
                    if !moved || !self.launch_waiting() {
                        return any;
                    }
                }
                Err(e) => {
                    // The server may have sent a reason before it closed.
                    while self.over.is_none() && self.receive_once().is_some() {}
                    self.fail(self.stream.failure("send to the server", e));
                    return true;
                }
            }
        }
    }

    /// Receives what has come. Returns whether anything has.
    pub(crate) fn receive(&mut self) -> bool {
        let (mut bytes, before) = (0, self.ended.len());
        // The next requests are then sent while the server is busy with the rest. Long replies
        // pause by their bytes.
        let parts = if self.large > 0 { 1 } else { PARTS };
        let pause = (self.flights.len() / parts).clamp(1, PAUSE_ENDED);
        while self.over.is_none() && bytes < PAUSE_BYTES && self.ended.len() - before < pause {
            match self.receive_once() {
                Some(n) => bytes += n,
                None => break,
            }
            if self.incoming.has_drained() {
                break;
            }
        }
        bytes > 0 || self.ended.len() > before
    }

    /// Receives once, and processes all that has come so far. `None` when nothing is there.
    fn receive_once(&mut self) -> Option<usize> {
        let (mode, large) = (self.session.mode, self.large > 0);
        let n = match self.incoming.fill(&self.stream, mode, large, &mut self.flights) {
            Ok(Ok(Received::Bytes(n))) => n,
            Ok(Ok(Received::Nothing)) => return None,
            Ok(Ok(Received::End)) => {
                self.fail(failure::closed());
                return None;
            }
            Ok(Err(e)) => {
                self.fail(self.stream.failure("receive from the server", e));
                return None;
            }
            Err(e) => {
                self.fail(failure::fatal(e));
                return None;
            }
        };
        self.digest();
        Some(n)
    }

    /// Ends or continues the operations whose replies are complete.
    fn digest(&mut self) {
        while self.over.is_none() {
            match self.incoming.parse(self.session.mode, &mut self.flights) {
                Ok(None) => break,
                Ok(Some(cookie)) => self.complete(cookie),
                Err(e) => self.fail(failure::fatal(e)),
            }
        }
    }

    fn complete(&mut self, cookie: u64) {
        let Some(flight) = self.flights.remove(cookie) else { return };
        let Flight { tag, work, ask, reply, payload, end } = flight;
        self.large -= usize::from(is_large(&work));
        let answer = reply.outcome();
        if answer.is_ok() && !self.outgoing.has_sent(end) {
            // It cannot have executed a request that was not sent in full. Under TLS that is one
            // whose last record the socket has not taken whole.
            let why = failure::fatal(PeerMisbehaved::UnknownCookie.into());
            self.ended.push(Ended::new(tag, Err(work.located(why.duplicate()))));
            return self.fail(why);
        }
        if failure::is_leaving(&answer) {
            // It refused the request, and changed nothing.
            self.leaving = true;
            if let Some(why) = self.refusal() {
                let waiting = WaitingRequests { tag, work, payload };
                self.ended.push(self.refused(waiting, why));
            }
        } else {
            let step = work.answered(&ask, answer, &self.session, &mut self.habits);
            self.step(tag, step, None);
        }
        self.launch_waiting();
        self.leave_if_done();
    }

    /// Disconnects when all requests on the wire have been answered; none is added.
    pub(crate) fn leave(&mut self) {
        self.leaving = true;
        self.launch_waiting();
        self.leave_if_done();
    }

    fn leave_if_done(&mut self) {
        if self.leaving && self.flights.is_empty() && self.over.is_none() {
            self.left = true;
            self.disconnect();
        }
    }

    /// Puts waiting operations on the wire, as far as there is room. Returns whether there were
    /// any.
    fn launch_waiting(&mut self) -> bool {
        let mut any = false;
        while self.has_room()
            && let Some(waiting) = self.waiting.pop_front()
        {
            any = true;
            match self.refusal() {
                None => self.launch(waiting),
                Some(why) => self.ended.push(self.refused(waiting, why)),
            }
        }
        any
    }

    /// Ends everything, because we gave up waiting.
    pub(crate) fn give_up(&mut self, why: Error) {
        self.given_up |= self.over.is_none();
        self.fail(why);
    }

    /// Ends everything with an error.
    pub(crate) fn fail(&mut self, why: Error) {
        if self.over.is_some() {
            return;
        }
        self.over = Some(why.duplicate());
        self.end_all(&why);
        match self.ending() {
            // The receiving side stays open, to see when the peer closes.
            Some(Ending::GivenUp) => self.stream.end(),
            _ => self.stream.close(),
        }
    }

    fn end_all(&mut self, why: &Error) {
        let repeatable = self.ending() != Some(Ending::Broken);
        for flight in self.flights.drain() {
            let Flight { tag, work, payload, .. } = flight;
            let outcome = Err(work.located(why.duplicate()));
            let may = repeatable && !work.is_once();
            let undone = if may { work.undone(payload, &self.session) } else { None };
            self.ended.push(Ended { tag, outcome, undone });
        }
        for waiting in std::mem::take(&mut self.waiting) {
            self.ended.push(self.refused(waiting, why.duplicate()));
        }
        self.outgoing.clear();
        self.large = 0;
    }

    /// Sends DISC, if that is possible at once. Requests on the wire end with an error, and nothing
    /// is sent afterwards.
    pub(crate) fn disconnect(&mut self) {
        if self.over.is_some() {
            return;
        }
        // In the middle of a message the server would take it for the missing bytes.
        if self.outgoing.is_empty() {
            let (none, session) = (CommandFlags::NONE, self.session.clone());
            let _ = self
                .outgoing
                .head(|out| session.encode_request(Command::Disconnect, none, 0, 0, 0, out));
            let _ = self.outgoing.send(&self.stream);
        }
        let action = "talk to the server: the connection was closed";
        let why = Error::new(ErrorKind::Disconnected, Fault::Us, action);
        self.over = Some(why.duplicate());
        self.end_all(&why);
        self.stream.end();
    }
}

/// Whether the data of a read are received straight into its buffer.
fn is_large(work: &Work) -> bool {
    matches!(work, Work::Read { buffer, .. } if buffer.len() > SMALL)
}
