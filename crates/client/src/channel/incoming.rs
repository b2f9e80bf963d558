//! Receiving replies.
//!
//! Headers, and everything small, pass through an inbox; the data of large reads are received
//! straight into the buffers that wait for them. While such data are expected, only the next header
//! is received into the inbox, so that hardly a byte of the data is copied. The same system call
//! that completes a buffer brings the header after it.
//!
//! The server chooses offsets and lengths; all of them are checked by `wire::PendingReply` before
//! they are used here, and buffers are only accessed by `get_mut`.

use std::io::IoSliceMut;

use net::{Received, Stream};
use wire::constants::{EXTENDED_REPLY_LEN, SIMPLE_REPLY_LEN, STRUCTURED_REPLY_LEN};
use wire::{
    Body, Fatal, Framing, InFlight, PayloadEffect, PayloadSpan, PeerMisbehaved, parse_reply_header,
};

use super::Flight;

/// Bytes of the inbox.
const INBOX: usize = 64 << 10;
/// Reads up to this many bytes pass through the inbox, many at a time.
pub(crate) const SMALL: usize = 16 << 10;

/// What is expected next.
#[derive(Clone, Copy, Debug)]
enum State {
    Header,
    /// The eight bytes before the data of a chunk.
    Offset {
        cookie: u64,
        length: u64,
    },
    /// Data of a read: `left` bytes to `at` in its buffer.
    Data {
        cookie: u64,
        at: usize,
        left: usize,
    },
    /// The payload of a chunk, wanted in one piece.
    Payload {
        cookie: u64,
        length: usize,
    },
}

/// The receiving half of a channel.
#[derive(Debug)]
pub(crate) struct Incoming {
    inbox: Box<[u8]>,
    /// Unread bytes of the inbox.
    start: usize,
    end: usize,
    state: State,
    /// A payload longer than the inbox, as far as it has come.
    long: Vec<u8>,
    /// The last receive returned less than there was room for.
    drained: bool,
}

impl Incoming {
    /// Begins with the bytes that came along with the handshake, at most an inbox full.
    pub(crate) fn new(leftover: &[u8]) -> Self {
        let mut inbox = vec![0; INBOX.max(leftover.len())].into_boxed_slice();
        if let Some(room) = inbox.get_mut(..leftover.len()) {
            room.copy_from_slice(leftover);
        }
        let (end, state) = (leftover.len(), State::Header);
        Self { inbox, start: 0, end, state, long: Vec::new(), drained: false }
    }

    /// Whether the socket was empty after the last receive.
    pub(crate) fn has_drained(&self) -> bool {
        self.drained
    }

    fn unread(&self) -> &[u8] {
        self.inbox.get(self.start..self.end).unwrap_or_default()
    }

    fn consume(&mut self, n: usize) {
        self.start = (self.start + n).min(self.end);
    }

    /// Takes messages off the inbox until a reply is complete (its cookie) or bytes are missing.
    pub(crate) fn parse<T>(
        &mut self,
        mode: Framing,
        flights: &mut InFlight<Flight<T>>,
    ) -> Result<Option<u64>, Fatal> {
        loop {
            let complete = match self.state {
                State::Header => self.header(mode, flights)?,
                State::Offset { cookie, length } => self.offset(cookie, length, flights)?,
                State::Data { cookie, .. } => self.data(cookie, flights)?,
                State::Payload { cookie, length } => self.payload(cookie, length, flights)?,
            };
            match complete {
                Took::Nothing => return Ok(None),
                Took::Something => {}
                Took::Last(cookie) => return Ok(Some(cookie)),
            }
        }
    }

    fn header<T>(
        &mut self,
        mode: Framing,
        flights: &mut InFlight<Flight<T>>,
    ) -> Result<Took, Fatal> {
        let Some((header, n)) = parse_reply_header(mode, self.unread())? else {
            return Ok(Took::Nothing);
        };
        self.consume(n);
        let cookie = header.cookie;
        let reply = &mut flights.find(cookie)?.reply;
        self.state = match reply.header(&header)? {
            Body::Empty if reply.is_complete() => return Ok(Took::Last(cookie)),
            Body::Empty => State::Header,
            Body::Data { length } => State::Offset { cookie, length },
            Body::SimpleData { length } => State::Data { cookie, at: 0, left: size(length)? },
            Body::Payload { length } => State::Payload { cookie, length: size(length)? },
        };
        Ok(Took::Something)
    }

    fn offset<T>(
        &mut self,
        cookie: u64,
        length: u64,
        flights: &mut InFlight<Flight<T>>,
    ) -> Result<Took, Fatal> {
        let Some(offset) = self.unread().first_chunk::<8>().copied() else {
            return Ok(Took::Nothing);
        };
        self.consume(8);
        let span = flights.find(cookie)?.reply.data_offset(offset, length)?;
        self.state = State::Data { cookie, at: size(span.start)?, left: size(span.length)? };
        Ok(Took::Something)
    }

    /// Moves data that are in the inbox to where they belong.
    fn data<T>(&mut self, cookie: u64, flights: &mut InFlight<Flight<T>>) -> Result<Took, Fatal> {
        let State::Data { at, left, .. } = self.state else { return Ok(Took::Nothing) };
        let n = left.min(self.end - self.start);
        let flight = flights.find(cookie)?;
        if n > 0 {
            let from = self.inbox.get(self.start..self.start + n).ok_or(outside())?;
            room(flight, at, n)?.copy_from_slice(from);
            self.start += n;
        }
        if n < left {
            self.state = State::Data { cookie, at: at + n, left: left - n };
            return Ok(Took::Nothing);
        }
        self.state = State::Header;
        Ok(if flight.reply.is_complete() { Took::Last(cookie) } else { Took::Something })
    }

    fn payload<T>(
        &mut self,
        cookie: u64,
        length: usize,
        flights: &mut InFlight<Flight<T>>,
    ) -> Result<Took, Fatal> {
        let flight = flights.find(cookie)?;
        if self.long.is_empty() && length <= self.end - self.start {
            let payload = self.inbox.get(self.start..self.start + length).ok_or(outside())?;
            let event = flight.reply.payload(payload)?;
            self.start += length;
            self.state = State::Header;
            return ended(flight, event, cookie);
        }
        if self.long.is_empty() && length <= self.inbox.len() {
            return Ok(Took::Nothing);
        }
        // Memory grows with what arrives, not with what the header promises.
        let n = (length - self.long.len()).min(self.end - self.start);
        self.long.extend_from_slice(self.inbox.get(self.start..self.start + n).ok_or(outside())?);
        self.start += n;
        if self.long.len() < length {
            return Ok(Took::Nothing);
        }
        let event = flight.reply.payload(&self.long)?;
        self.long = Vec::new();
        self.state = State::Header;
        ended(flight, event, cookie)
    }

    /// Receives once. `large` says that data longer than [`SMALL`] may come.
    pub(crate) fn fill<T>(
        &mut self,
        stream: &Stream,
        mode: Framing,
        large: bool,
        flights: &mut InFlight<Flight<T>>,
    ) -> Result<rustix::io::Result<Received>, Fatal> {
        let ahead = if large { longest_header(mode) } else { INBOX };
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.inbox.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let have = self.end;
        let wanted = match self.state {
            State::Data { .. } | State::Header | State::Offset { .. } => ahead,
            State::Payload { length, .. } => (length - self.long.len()).saturating_add(ahead),
        };
        let stop = wanted.max(have + 1).min(self.inbox.len());
        let wanted = stop - have;
        let room_for_more = self.inbox.get_mut(have..stop).ok_or(outside())?;
        let (direct, got) = match self.state {
            State::Data { cookie, at, left } if left > 0 => {
                let target = room(flights.find(cookie)?, at, left)?;
                let mut both = [IoSliceMut::new(target), IoSliceMut::new(room_for_more)];
                (left, stream.receive_scattered(&mut both))
            }
            _ => (0, stream.receive_scattered(&mut [IoSliceMut::new(room_for_more)])),
        };
        let Ok(Received::Bytes(n)) = got else { return Ok(got) };
        self.drained = n < direct + wanted;
        self.end += n.saturating_sub(direct);
        if let State::Data { cookie, at, left } = self.state {
            let n = n.min(direct);
            self.state = State::Data { cookie, at: at + n, left: left - n };
        }
        Ok(got)
    }
}

/// What a step of parsing consumed.
enum Took {
    Last(u64),
    Nothing,
    Something,
}

fn ended<T>(flight: &mut Flight<T>, event: PayloadEffect, cookie: u64) -> Result<Took, Fatal> {
    if let PayloadEffect::Zeroes(PayloadSpan { start, length }) = event {
        room(flight, size(start)?, size(length)?)?.fill(0);
    }
    Ok(if flight.reply.is_complete() { Took::Last(cookie) } else { Took::Something })
}

fn room<T>(flight: &mut Flight<T>, at: usize, len: usize) -> Result<&mut [u8], Fatal> {
    let end = at.checked_add(len).ok_or(outside())?;
    flight.work.buffer().and_then(|buffer| buffer.get_mut(at..end)).ok_or(outside())
}

fn outside() -> Fatal {
    Fatal(PeerMisbehaved::ContentOutOfRange)
}

fn size(n: u64) -> Result<usize, Fatal> {
    usize::try_from(n).map_err(|_| Fatal(PeerMisbehaved::ChunkTooLong))
}

/// The longest header that may come before data.
fn longest_header(mode: Framing) -> usize {
    match mode {
        Framing::Simple => SIMPLE_REPLY_LEN,
        Framing::Structured => STRUCTURED_REPLY_LEN + 8,
        Framing::Extended => EXTENDED_REPLY_LEN + 8,
    }
}
