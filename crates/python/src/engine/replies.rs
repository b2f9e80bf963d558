//! Replies, as they arrive: payloads go straight into the memory of their commands.

use std::io::IoSliceMut;

use net::Received;
use rustix::io::Errno;
use wire::constants::chunk;
use wire::{
    ChunkPayload, Command as Kind, ErrorCode, Framing, ReplyHeader, ReplyKind, parse_chunk_payload,
    parse_reply_header,
};

use super::{Engine, EngineError, Event, State};

/// A payload of at least this many bytes is received straight into its memory; a shorter one comes
/// through the inbox, with many replies at a time.
const DIRECT: usize = 16 << 10;
/// Longest payload of data in one reply, in bytes, with the offset before it.
const MAX_DATA: u64 = (64 << 20) + 8;
/// Longest payload that is kept as a whole: a block status of as many extents as there may be.
const MAX_KEPT: u64 = 8 + (16 << 20);
/// Values of the status that `chunk` of a structured read gets.
const DATA: u32 = 1;
const HOLE: u32 = 2;
const ERROR: u32 = 3;

/// What the next bytes are.
#[derive(Debug, Default)]
pub(super) enum Reading {
    #[default]
    Header,
    /// Bytes of a read; `start` and `len` are those of the chunk in its memory, `at` where the next
    /// one goes.
    Data { cookie: u64, start: usize, len: usize, at: usize, last: bool },
    /// Any other payload, which is parsed as a whole; one without a kind is skipped.
    Payload { cookie: u64, kind: Option<u16>, left: usize, bytes: Vec<u8>, last: bool },
}

impl Reading {
    pub(super) const fn is_begun(&self) -> bool {
        !matches!(self, Self::Header)
    }
}

impl<K> Engine<K> {
    /// Receives what the server sent. It stops when it would have to wait, and where the user has
    /// an event to take before it receives more: so the queue of events is bounded, and the next
    /// commands are not late.
    pub(super) fn receive_replies(&mut self) -> Result<(), EngineError> {
        while self.state == State::Ready {
            if self.step()? {
                continue;
            }
            let more = self.stream.as_ref().is_some_and(|stream| stream.holds());
            if self.progressed && !more {
                return Ok(());
            }
            if !self.fetch()? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Receives more; whether there was any.
    fn fetch(&mut self) -> Result<bool, EngineError> {
        let Reading::Data { cookie, start, len, at, last } = self.reading else {
            return self.receive();
        };
        let left = start + len - at;
        let Some(stream) = self.stream.clone() else { return Ok(false) };
        let memory = self.commands.get_mut(&cookie).and_then(|command| command.part(at, left));
        let Some(memory) = memory.filter(|memory| memory.len() >= DIRECT) else {
            return self.receive();
        };
        // One call receives what follows the payload, too.
        let mut both = [IoSliceMut::new(memory), IoSliceMut::new(self.inbox.room())];
        match stream.receive_scattered(&mut both) {
            Ok(Received::Bytes(count)) => {
                self.stats.bytes_received += count as u64;
                let own = count.min(left);
                self.inbox.came(count - own);
                self.reading = Reading::Data { cookie, start, len, at: at + own, last };
                Ok(true)
            }
            Ok(Received::Nothing) => Ok(false),
            Ok(Received::End) => Err(EngineError::plain("recv: server disconnected unexpectedly")),
            Err(e) => Err(EngineError::new(e, "recv")),
        }
    }

    /// Goes on with the bytes in the inbox; false: they are not enough.
    fn step(&mut self) -> Result<bool, EngineError> {
        match &mut self.reading {
            Reading::Header => self.header(),
            Reading::Data { cookie, start, len, at, last } => {
                let left = *start + *len - *at;
                let some = left.min(self.inbox.len());
                let memory = self.commands.get_mut(cookie).and_then(|c| c.part(*at, some));
                if let Some(memory) = memory {
                    memory.copy_from_slice(self.inbox.filled().get(..some).unwrap_or_default());
                }
                self.inbox.take(some);
                *at += some;
                if some < left {
                    return Ok(false);
                }
                let (cookie, start, len, last) = (*cookie, *start, *len, *last);
                self.reading = Reading::Header;
                self.content(cookie, (start, len), DATA);
                self.chunk_done(cookie, last);
                Ok(true)
            }
            Reading::Payload { kind, left, bytes, .. } => {
                let some = (*left).min(self.inbox.len());
                if kind.is_some() {
                    bytes.extend_from_slice(self.inbox.filled().get(..some).unwrap_or_default());
                }
                self.inbox.take(some);
                *left -= some;
                if *left > 0 {
                    return Ok(false);
                }
                let read = std::mem::take(&mut self.reading);
                if let Reading::Payload { cookie, kind, bytes, last, .. } = read {
                    kind.map_or(Ok(()), |kind| self.payload(cookie, kind, &bytes))?;
                    self.chunk_done(cookie, last);
                }
                Ok(true)
            }
        }
    }

    fn header(&mut self) -> Result<bool, EngineError> {
        let filled = self.inbox.filled();
        let Ok(parsed) = parse_reply_header(self.mode, filled) else {
            let magic = filled.iter().take(4).fold(0_u32, |all, b| all << 8 | u32::from(*b));
            return Err(EngineError::plain(format!(
                "invalid or unexpected reply magic {magic:#x}"
            )));
        };
        let Some((ReplyHeader { kind, cookie }, consumed)) = parsed else { return Ok(false) };
        match kind {
            ReplyKind::Simple { error } => {
                self.inbox.take(consumed);
                self.stats.chunks_received += 1;
                self.simple(cookie, error)?;
            }
            ReplyKind::Chunk { flags, chunk: kind, length, .. } => {
                // Before it waits for more.
                if length > MAX_DATA {
                    return Err(EngineError::plain(format!(
                        "invalid server reply length {length}"
                    )));
                }
                let offset = filled.get(consumed..).and_then(|rest| rest.first_chunk::<8>());
                let offset = offset.map(|bytes| u64::from_be_bytes(*bytes));
                if kind == chunk::OFFSET_DATA && length >= 8 && offset.is_none() {
                    return Ok(false);
                }
                self.inbox.take(consumed);
                self.stats.chunks_received += 1;
                let last = flags & chunk::FLAG_DONE != 0;
                self.chunk((cookie, last), kind, length, offset.unwrap_or_default())?;
            }
        }
        Ok(true)
    }

    fn unknown(cookie: u64) -> EngineError {
        let text = format!(
            "no matching cookie {cookie} found for server reply, this is probably a server bug"
        );
        EngineError::invalid(text)
    }

    fn simple(&mut self, cookie: u64, error: u32) -> Result<(), EngineError> {
        let structured = self.mode != Framing::Simple;
        let command = self.flying(cookie).ok_or_else(|| Self::unknown(cookie))?;
        if error != 0 {
            command.fail(ErrorCode(error).to_errno());
        } else if command.ask.kind == Kind::Read && structured {
            return Err(EngineError::plain("server sent unexpected simple reply for read"));
        } else if command.ask.kind == Kind::Read && command.ask.count > 0 {
            let len = usize::try_from(command.ask.count).unwrap_or(usize::MAX);
            self.reading = Reading::Data { cookie, start: 0, len, at: 0, last: true };
            return Ok(());
        }
        self.finish(cookie);
        Ok(())
    }

    fn chunk(
        &mut self,
        (cookie, last): (u64, bool),
        kind: u16,
        length: u64,
        offset: u64,
    ) -> Result<(), EngineError> {
        let wide = self.mode == Framing::Extended;
        let command = self.flying(cookie).ok_or_else(|| Self::unknown(cookie))?;
        let asked = (command.ask.offset, command.ask.count);
        let fits = match kind {
            chunk::NONE => length == 0 && last,
            chunk::OFFSET_DATA => command.ask.kind == Kind::Read && length >= 8,
            chunk::OFFSET_HOLE => command.ask.kind == Kind::Read && length == 12,
            chunk::BLOCK_STATUS => {
                !wide && command.ask.kind == Kind::BlockStatus && length <= MAX_KEPT
            }
            chunk::BLOCK_STATUS_EXT => {
                wide && command.ask.kind == Kind::BlockStatus && length <= MAX_KEPT
            }
            kind => kind & chunk::ERROR_BIT != 0 && (6..=64 << 10).contains(&length),
        };
        if !fits {
            command.fail(Errno::PROTO.raw_os_error());
            self.debug(|| {
                format!(
                    "unexpected reply type {kind} or payload length {length} for cookie \
                         {cookie}, this is probably a server bug"
                )
            });
        }
        if !fits || kind != chunk::OFFSET_DATA {
            let left = usize::try_from(length).unwrap_or(usize::MAX);
            let kind = fits.then_some(kind);
            self.reading = Reading::Payload { cookie, kind, left, bytes: Vec::new(), last };
            return Ok(());
        }
        let len = length - 8;
        let start = Self::within(asked, offset, len)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.inbox.take(8);
        self.reading = Reading::Data { cookie, start, len, at: start, last };
        Ok(())
    }

    /// The range of the command's memory for content.
    fn within((first, count): (u64, u64), offset: u64, len: u64) -> Result<usize, EngineError> {
        let start =
            offset.checked_sub(first).filter(|start| *start <= count && len <= count - start);
        let start = start.and_then(|start| usize::try_from(start).ok());
        start.ok_or_else(|| {
            EngineError::plain(format!(
                "range of structured reply is out of bounds, offset={offset}, cmd->offset={first}, \
                 length={len}, cmd->count={count}: this is likely to be a bug in the NBD server"
            ))
        })
    }

    /// Content of a read has arrived.
    fn content(&mut self, cookie: u64, (start, len): (usize, usize), status: u32) {
        let Some(command) = self.commands.get_mut(&cookie) else { return };
        // Bytes that were sent twice do not make up for missing ones.
        if len > 0 && command.coverage.add(start as u64, len as u64).is_err() {
            command.fail(Errno::PROTO.raw_os_error());
        }
        if command.ask.chunks {
            self.events.push_back(Event::Chunk { cookie, start, len, status, errno: 0 });
            self.progressed = true;
        }
    }

    fn payload(&mut self, cookie: u64, kind: u16, bytes: &[u8]) -> Result<(), EngineError> {
        let parsed = parse_chunk_payload(self.mode, kind, bytes);
        let Some(command) = self.commands.get_mut(&cookie) else { return Ok(()) };
        let asked = (command.ask.offset, command.ask.count);
        match parsed {
            Ok(ChunkPayload::Hole { offset, length }) => {
                let start = Self::within(asked, offset, length)?;
                let len = usize::try_from(length).unwrap_or(usize::MAX);
                command.part(start, len).unwrap_or_default().fill(0);
                self.content(cookie, (start, len), HOLE);
            }
            Ok(ChunkPayload::Error(error)) => {
                let errno = error.code.to_errno();
                let start =
                    error.offset.map(|offset| Self::within(asked, offset, 1)).transpose()?;
                if let (Some(start), true) = (start, command.ask.chunks) {
                    let status = ERROR;
                    let chunk = Event::Chunk { cookie, start, len: 0, status, errno };
                    self.events.push_back(chunk);
                    self.progressed = true;
                }
                command.fail(errno);
                if !error.message.is_empty() {
                    self.debug(|| format!("structured error server message: {}", error.message));
                }
            }
            Ok(ChunkPayload::Status { context, extents }) => {
                let found = self.contexts.iter().find(|(id, _)| *id == context);
                let Some((_, name)) = found else {
                    command.fail(Errno::PROTO.raw_os_error());
                    self.debug(|| format!("server sent unexpected meta context ID {context}"));
                    return Ok(());
                };
                let (context, offset) = (name.clone(), asked.0);
                let extents = extents.iter().map(|extent| (extent.length, extent.flags)).collect();
                self.events.push_back(Event::Extents { cookie, context, offset, extents });
                self.progressed = true;
            }
            Ok(ChunkPayload::None | ChunkPayload::Data { .. }) => {}
            Err(why) => {
                command.fail(Errno::PROTO.raw_os_error());
                self.debug(|| format!("{why}: this is probably a server bug"));
            }
        }
        Ok(())
    }

    fn chunk_done(&mut self, cookie: u64, last: bool) {
        if last {
            self.finish(cookie);
        }
    }
}
