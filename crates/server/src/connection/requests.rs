//! Receiving: the handshake's bytes, then requests, as many as there are in a turn.

use std::sync::Arc;
use std::time::Instant;

use net::Received;
use runtime::Mutex;
use rustix::io::Errno;
use serving::{Reason, Severity};
use wire::{
    After, CloseReason, Command, Negotiated, ReplyWriter, Request, ServerStep, parse_request,
    request_header_len,
};

use super::payload::Incoming;
use super::turn::{part, part_mut};
use super::{AfterTurn, Connection, Phase, SMALL, Turn};
use crate::execute::{Payload, RequestRun, Served, kind};
use crate::link::Out;

/// Reads of the socket in one turn; then the reactor's other connections have theirs.
const ROUNDS: usize = 16;
/// Bytes a connection may have in flight before it is read no further.
const OF_CONNECTION: u64 = 48 << 20;
/// Bytes received at once where memory is short: what a connection may have to carry over.
const SIP: usize = 16 << 10;

impl Connection {
    /// Receives and runs requests, for one turn.
    pub(super) fn receive(&mut self, turn: &mut Turn) -> AfterTurn {
        if matches!(self.phase, Phase::Finishing { .. } | Phase::Refused(_)) {
            return AfterTurn::Keep;
        }
        if self.must_pause() {
            return self.pause();
        }
        self.link.resume();
        self.held_back = false;
        self.over_rate = false;
        self.waits_for_room = 0;
        if (self.awaits_export || !self.carry.is_empty()) && self.incoming.is_none() {
            let have = self.carry.len();
            self.take_carry(turn);
            self.understand(turn, have);
        }
        for _ in 0..ROUNDS {
            match &self.phase {
                Phase::Finishing { .. } | Phase::Refused(_) | Phase::Gone => {
                    return AfterTurn::Keep;
                }
                Phase::Handshake(_)
                | Phase::Securing(_)
                | Phase::Transmission(_)
                | Phase::Lingering { .. } => {}
            }
            if self.held_back || self.awaits_export || self.must_pause() {
                return self.pause();
            }
            if turn.is_late {
                return AfterTurn::Again;
            }
            if self.is_held_up() {
                self.link.pause();
                return AfterTurn::Later;
            }
            if self.may_not_go_on() {
                // There is no event for free memory.
                self.link.pause();
                return AfterTurn::Starved;
            }
            if matches!(self.phase, Phase::Securing(_)) {
                if self.secure() {
                    continue;
                }
                break;
            }
            let more = match self.incoming.take() {
                Some(incoming) => self.receive_payload(turn, incoming),
                None => self.receive_requests(turn),
            };
            if !more {
                break;
            }
        }
        // An export that is ready later wakes only a connection that is paused.
        if self.held_back || self.awaits_export {
            return self.pause();
        }
        let more = turn.is_late && !self.carry.is_empty() || self.link.stream().holds();
        if more && !self.link.is_paused() { AfterTurn::Again } else { AfterTurn::Keep }
    }

    /// Whether the rest of a payload has to wait until its export goes on.
    pub(super) fn is_held_up(&self) -> bool {
        let Phase::Transmission(served) = &self.phase else { return false };
        self.incoming.as_ref().is_some_and(Incoming::changes) && served.export.flow().is_paused()
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
                // nothing may have one small request: otherwise none could go on.
                let starves = match self.waits_for_room {
                    0 => self.link.held() > 0 && !self.link.account().has_room(1),
                    wanted => !self.has_room_for(wanted),
                };
                self.link.is_full(OF_CONNECTION) || (self.incoming.is_none() && starves)
            }
            Phase::Handshake(_) => {
                // A client may ask for long lists and not read them.
                self.awaits_export && self.link.has_work() || self.link.is_full(OF_CONNECTION)
            }
            // Clear text has to leave before TLS begins, and each step of TLS ends before the next.
            Phase::Securing(_) => !self.link.is_quiet(),
            _ => false,
        }
    }

    /// Reads no further until something has ended. That may have happened before the pause was
    /// visible, so check again.
    fn pause(&mut self) -> AfterTurn {
        self.link.pause();
        if !self.must_pause() {
            // Its turn was over, or there is room by now.
            let waits = self.awaits_export && self.opener.waits_for_leavers();
            return if waits || self.over_rate { AfterTurn::Later } else { AfterTurn::Again };
        }
        if matches!(self.phase, Phase::Handshake(_)) {
            // It is woken when its export is there, and when there is room for replies.
            if self.peer_ended {
                self.leave_if_done();
            } else {
                self.link.hear_end(true);
            }
            return AfterTurn::Keep;
        }
        if matches!(self.phase, Phase::Securing(_)) {
            // It is woken when that has left, and when the step has ended.
            return AfterTurn::Keep;
        }
        if self.link.is_full(OF_CONNECTION) { AfterTurn::Keep } else { AfterTurn::Starved }
    }

    fn take_carry(&mut self, turn: &mut Turn) {
        if let Some(start) = turn.inbox.get_mut(..self.carry.len()) {
            start.copy_from_slice(&self.carry);
        }
        self.carry.clear();
    }

    /// Receives into the reactor's buffer, behind what was carried over.
    fn receive_requests(&mut self, turn: &mut Turn) -> bool {
        let have = self.carry.len();
        let mut end = turn.inbox.len();
        if !self.link.account().has_room(1) {
            end = (have + SIP).min(end);
        }
        if let (true, Phase::Transmission(served)) = (self.header_only, &self.phase) {
            end = request_header_len(served.session.mode).max(have + 1);
        }
        let n = match self.recv(part_mut(&mut turn.inbox, have..end)) {
            Received::Bytes(n) => n,
            Received::Nothing => return false,
            Received::End => return false,
        };
        self.take_carry(turn);
        let filled = n == end - have;
        self.understand(turn, have + n);
        // A short answer means that the socket is empty, unless only a header was asked for.
        filled || self.incoming.is_some()
    }

    pub(super) fn recv(&mut self, into: &mut [u8]) -> Received {
        let got = self.link.stream().receive(into);
        self.received(got)
    }

    /// Notes the result of an attempt to receive.
    pub(super) fn received(&mut self, got: rustix::io::Result<Received>) -> Received {
        match got {
            Ok(Received::Bytes(n)) => self.received += n as u64,
            Ok(Received::End) => self.hang_up(),
            Ok(Received::Nothing) => {}
            Err(e) => {
                if e == Errno::PROTO {
                    let why = self.link.stream().failure("receive", e);
                    self.report(Reason::Tls, &why);
                }
                self.ends("the connection broke");
                self.link.abandon();
            }
        }
        got.unwrap_or(Received::End)
    }

    /// The peer sends nothing more. It may still read the replies to what it asked.
    pub(super) fn hang_up(&mut self) {
        self.ends("the client hung up");
        match self.phase {
            // Replies of this turn may still lie in the gather buffer.
            Phase::Transmission(_) => self.finish(true),
            _ => self.link.abandon(),
        }
    }

    /// Takes requests out of `turn.inbox[..end]` and runs them; the rest is carried.
    fn understand(&mut self, turn: &mut Turn, end: usize) {
        let mut at = 0;
        let mut goes_on = std::mem::take(&mut self.awaits_export);
        if goes_on {
            self.started += self.awaits_since.elapsed();
        }
        while (at < end || goes_on) && !self.awaits_export {
            goes_on = false;
            let used = match &mut self.phase {
                Phase::Handshake(_) => self.negotiate(part(&turn.inbox, at..end)),
                Phase::Transmission(served) => {
                    let served = served.clone();
                    let is_over = self.rate.as_mut().is_some_and(|rate| !rate.allows(self.active));
                    if is_over || !served.export.flow().allows() {
                        (self.held_back, self.over_rate) = (true, true);
                        None
                    } else if at > 0 && (turn.is_late || self.must_pause() || self.has_enough(turn))
                    {
                        self.held_back = true;
                        None
                    } else {
                        self.one_request(&served, turn, at, end)
                    }
                }
                Phase::Securing(_) | Phase::Refused(_) | Phase::Finishing { .. } | Phase::Gone => {
                    return;
                }
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
            self.carry.extend_from_slice(part(&turn.inbox, at..end));
            if self.carry.is_empty() && self.carry.capacity() > 4096 {
                self.carry = Vec::new();
            }
        }
    }

    /// Whether there is room for a request of this many bytes; bytes of it that are carried over
    /// already do not count against it.
    fn has_room_for(&self, bytes: u64) -> bool {
        self.link.account().has_room_beside(bytes, self.keeps.bytes())
    }

    /// Whether the client has to read replies before it may ask for more: where memory is short,
    /// one request at a time.
    fn has_enough(&self, turn: &Turn) -> bool {
        turn.gather.len() > 0 && !self.link.account().has_room(turn.gather.len() as u64)
    }

    /// One step of the handshake. Returns how many bytes it consumed.
    fn negotiate(&mut self, input: &[u8]) -> Option<usize> {
        let Phase::Handshake(handshake) = &mut self.phase else { return None };
        let mut out = Vec::new();
        let (consumed, step) = handshake.advance(input, &self.opener, &mut out);
        self.link.send([Out::Bytes(out)]);
        match step {
            ServerStep::NeedMore => return (consumed > 0).then_some(consumed),
            ServerStep::Wait => {
                self.awaits_export = true;
                self.awaits_since = Instant::now();
            }
            ServerStep::Transmit(session) => self.transmit(*session),
            ServerStep::Close(CloseReason::Misbehaved(reason)) => {
                self.report(Reason::Protocol, &reason);
                self.finish(false);
            }
            ServerStep::StartTls => self.start_tls(),
            ServerStep::Close(_) => {
                self.ends("the client opened no export");
                self.finish(true);
            }
        }
        Some(consumed)
    }

    fn transmit(&mut self, mut session: Negotiated) {
        match self.opener.enter(&session.export) {
            Some((export, edge, enforced)) => {
                // The sizes that are advertised and those that are enforced may differ.
                session.blocks = enforced;
                self.opener.entered(&export);
                self.voice.chose(&session.export);
                self.voice.event(Severity::Info, format_args!("opened"));
                // By the export's own name, whatever name was asked for.
                let tally = self.common.hub.metrics.of(&export.name);
                self.tally = Some(tally.clone());
                self.phase = Phase::Transmission(Arc::new(Served {
                    session,
                    edge,
                    export,
                    account: self.link.account().clone(),
                    buffers: self.common.buffers.clone(),
                    voice: self.voice.clone(),
                    tally,
                    known: Mutex::default(),
                }));
            }
            // The handshake has just found it, and has it still.
            None => self.finish(true),
        }
    }

    /// One request at `at`. Returns how many bytes it consumed, or that more are needed.
    fn one_request(
        &mut self,
        served: &Arc<Served>,
        turn: &mut Turn,
        at: usize,
        end: usize,
    ) -> Option<usize> {
        let request = match parse_request(served.session.mode, part(&turn.inbox, at..end)) {
            Ok(Some(request)) => request,
            Ok(None) => return None,
            Err(fatal) => {
                self.report(Reason::Protocol, &fatal);
                self.finish(false);
                return Some(end - at);
            }
        };
        self.asked = self.active;
        let header = request_header_len(served.session.mode);
        let body = at + header;
        let writer = ReplyWriter::new(served.session.mode, &request);
        // One that has grown may be used to its end.
        let size = served.session.size.max(served.edge.size());
        if let Err(refusal) = served.session.check_within(&request, size) {
            if refusal.after == After::Disconnect {
                // Too much to skip: a reply would promise that we stay in step.
                self.report(Reason::Protocol, &refusal);
                self.finish(false);
                return Some(end - at);
            }
            served.voice.asked(kind(&request), 0);
            served.refused(refusal.error);
            self.spend(turn, &request);
            let mut reply = Vec::new();
            writer.refuse(&refusal, &mut reply);
            return Some(header + self.drain(turn, request, reply, body, end));
        }
        if request.kind() == Some(Command::Disconnect) {
            self.ends("the client disconnected");
            self.finish(true);
            return Some(end - at);
        }
        let takes = match request.kind() {
            Some(Command::Read) => request.length,
            _ => request.payload,
        };
        if takes > SMALL && !self.has_room_for(takes) {
            (self.held_back, self.waits_for_room) = (true, takes);
            return None;
        }
        self.spend(turn, &request);
        let Some(payload) = self.payload(served, turn, &request, body, end) else {
            // The rest of the payload comes later.
            return Some(end - at);
        };
        let there = part(&turn.inbox, body..end);
        let taken = match (payload, there.get(..payload)) {
            (0, _) => Payload::None,
            (_, Some(bytes)) => Payload::Slice(bytes),
            // The bytes were just found to be there.
            (_, None) => {
                self.finish(false);
                return Some(end - at);
            }
        };
        let begun = self.active;
        let gather = &mut turn.gather;
        let mut run =
            RequestRun { served, link: &self.link, gather, request, writer, begun, ends: true };
        if run.execute(taken) {
            turn.answered.add(kind(&request));
        }
        turn.gather.flush_portion(&self.link);
        Some(header + payload)
    }

    /// Counts a request, even a refused one, against the turn and the rate limit.
    fn spend(&mut self, turn: &mut Turn, request: &Request) {
        turn.spend(request);
        if let Some(rate) = &mut self.rate {
            rate.spend(1);
        }
    }
}
