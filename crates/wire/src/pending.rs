//! Client: the reply to one request, from its first header to its outcome.
//!
//! The caller reads a header, finds the request by its cookie, and lets [`PendingReply`] say what
//! to read next. Violations that leave the stream in step fail the request only; the others are
//! [`Fatal`]. A reply counts as success only when all of it was right: every byte of a read, every
//! selected context of a block status, and no error chunk. No reply is followed for ever: what adds
//! nothing to it (errors, content that was there already) has a limit in bytes.

use std::fmt;

use crate::codec::len64;
use crate::constants::{
    BASE_ALLOCATION, Command, CommandFlags, ErrorCode, Framing, allocation, chunk,
};
use crate::coverage::ReadCoverage;
use crate::error::{Fatal, PeerMisbehaved};
use crate::receive::{ChunkPayload, RemoteError, ReplyHeader, ReplyKind, parse_chunk_payload};
use crate::session::Negotiated;
use crate::status::{StatusExtent, fit_status};

/// Longest payload of an error chunk: number, length, the longest message, offset, some room.
const MAX_ERROR_PAYLOAD: u64 = 65_536 + 14;
/// Longest payload of a status chunk, for each framing.
const MAX_STATUS: u64 = 4 + 8 * (1 << 20);
const MAX_STATUS_EXT: u64 = 8 + 16 * (1 << 20);

/// Bytes of chunks that add nothing to a reply: enough for an error in each sector of the longest
/// read.
const MAX_WASTE: u64 = 4 << 20;
/// What a chunk counts beside its payload.
const CHUNK_WASTE: u64 = 32;

/// Extents of a context that are kept until the reply is complete; the rest is to be asked again.
const MAX_KEPT_EXTENTS: usize = 64 << 10;

/// What follows a reply header, and what to do with it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Body {
    /// Eight bytes of offset, to be given to [`PendingReply::data_offset`], then `length` bytes of
    /// data.
    Data {
        /// Bytes of data, not counting the offset; not 0.
        length: u64,
    },
    /// Nothing follows.
    Empty,
    /// `length` bytes, to be given to [`PendingReply::payload`] in one piece.
    Payload {
        /// Bytes.
        length: u64,
    },
    /// All the data of a simple read: `length` bytes from the start of the request's range.
    SimpleData {
        /// Bytes.
        length: u64,
    },
}

/// Where the data that follow belong, relative to the start of the request's range.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PayloadSpan {
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub length: u64,
}

/// What a payload meant for the caller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PayloadEffect {
    /// Nothing to do.
    Noted,
    /// These bytes of the read are zeroes: the caller must put them there.
    Zeroes(PayloadSpan),
}

/// Why a request failed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ReplyError {
    /// The reply broke the protocol, without putting the stream out of step (EPROTO).
    Protocol(PeerMisbehaved),
    /// The server reported an error.
    Remote(RemoteError),
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(reason) => write!(f, "server broke the protocol: {reason}"),
            Self::Remote(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReplyError {}

/// The extents of one context, from the request's offset on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ContextStatus {
    /// The context's id.
    pub context: u32,
    /// At least one, none empty, ending inside the export. The list may be shorter than the
    /// request (ask again from where it ends), and its last extent may reach beyond it.
    pub extents: Vec<StatusExtent>,
}

/// The reply to one request.
#[derive(Debug)]
pub struct PendingReply {
    mode: Framing,
    command: Command,
    flags: CommandFlags,
    offset: u64,
    length: u64,
    /// Export size less offset.
    room: u64,
    coverage: ReadCoverage,
    /// Contexts that must be answered.
    contexts: Vec<u32>,
    allocation_context: Option<u32>,
    statuses: Vec<ContextStatus>,
    /// The first thing that went wrong.
    failure: Option<ReplyError>,
    /// How many things went wrong, and the bytes of the chunks that they came in.
    failures: u64,
    waste: u64,
    /// Type and DONE flag of the chunk whose body is awaited.
    chunk: Option<(u16, bool)>,
    complete: bool,
}

impl PendingReply {
    /// For a request as it was sent; `length` in bytes is that of its range.
    pub fn new(
        session: &Negotiated,
        command: Command,
        flags: CommandFlags,
        offset: u64,
        length: u64,
    ) -> Self {
        let status = command == Command::BlockStatus;
        let read = command == Command::Read;
        let contexts = if status { session.contexts.as_slice() } else { &[] };
        Self {
            mode: session.mode,
            command,
            flags,
            offset,
            length,
            room: session.size.saturating_sub(offset),
            coverage: ReadCoverage::new(if read { length } else { 0 }),
            contexts: contexts.iter().map(|(id, _)| *id).collect(),
            allocation_context: session.context(BASE_ALLOCATION),
            statuses: Vec::new(),
            failure: None,
            failures: 0,
            waste: 0,
            chunk: None,
            complete: false,
        }
    }

    /// For a block status that asked for some contexts only.
    #[must_use]
    pub fn with_contexts(mut self, ids: Vec<u32>) -> Self {
        self.contexts = ids;
        self
    }

    /// The next header of this reply.
    ///
    /// # Errors
    ///
    /// The stream cannot be followed any further.
    pub fn header(&mut self, header: &ReplyHeader) -> Result<Body, Fatal> {
        if self.complete || self.chunk.is_some() {
            return Err(PeerMisbehaved::UnknownCookie.into());
        }
        match header.kind {
            ReplyKind::Simple { error } => self.simple(error),
            ReplyKind::Chunk { flags, chunk, length, offset } => {
                if offset.is_some_and(|offset| offset != self.offset) {
                    return Err(PeerMisbehaved::ContentOutOfRange.into());
                }
                let last = flags & chunk::FLAG_DONE != 0;
                let body = self.chunk_body(chunk, last, length)?;
                self.chunk = Some((chunk, last));
                if body == Body::Empty {
                    self.payload(&[])?;
                }
                Ok(body)
            }
        }
    }

    fn simple(&mut self, error: u32) -> Result<Body, Fatal> {
        if error != 0 {
            let code = ErrorCode(error).known();
            self.fail(ReplyError::Remote(RemoteError {
                code,
                message: String::new(),
                offset: None,
            }));
            self.complete = true;
            return Ok(Body::Empty);
        }
        match self.command {
            // Whether data follow is not known.
            Command::Read if self.mode != Framing::Simple => {
                return Err(PeerMisbehaved::SimpleReplyToRead.into());
            }
            Command::Read => {
                self.complete = true;
                self.coverage = ReadCoverage::new(0);
                let length = self.length;
                return Ok(if length == 0 { Body::Empty } else { Body::SimpleData { length } });
            }
            // `outcome` finds that contexts are missing.
            _ => self.complete = true,
        }
        Ok(Body::Empty)
    }

    /// What follows a chunk header; refuses lengths that no honest chunk for this request has.
    fn chunk_body(&self, kind: u16, last: bool, length: u64) -> Result<Body, Fatal> {
        let limit = match kind {
            chunk::NONE => 0,
            chunk::OFFSET_DATA | chunk::OFFSET_HOLE if self.command != Command::Read => {
                return Err(PeerMisbehaved::ChunkUnexpected.into());
            }
            chunk::OFFSET_DATA => self.length.saturating_add(8),
            chunk::OFFSET_HOLE => 12,
            chunk::BLOCK_STATUS | chunk::BLOCK_STATUS_EXT
                if self.command != Command::BlockStatus =>
            {
                return Err(PeerMisbehaved::BlockStatusWithoutRequest.into());
            }
            chunk::BLOCK_STATUS => MAX_STATUS,
            chunk::BLOCK_STATUS_EXT => MAX_STATUS_EXT,
            kind if kind & chunk::ERROR_BIT != 0 => MAX_ERROR_PAYLOAD,
            _ => return Err(PeerMisbehaved::ChunkUnknown.into()),
        };
        if length > limit {
            return Err(PeerMisbehaved::ChunkTooLong.into());
        }
        match kind {
            chunk::NONE if !last => Err(PeerMisbehaved::DoneMissing.into()),
            chunk::OFFSET_DATA if length < 9 => Err(PeerMisbehaved::DataTooShort.into()),
            chunk::OFFSET_DATA => Ok(Body::Data { length: length - 8 }),
            _ if length == 0 => Ok(Body::Empty),
            _ => Ok(Body::Payload { length }),
        }
    }

    /// The offset at the start of a data chunk of `length` bytes of data ([`Body::Data`]). Gives
    /// the place for the bytes that follow; it always lies inside the request's range.
    ///
    /// # Errors
    ///
    /// The data belong elsewhere, or there is no end of them: disconnect.
    pub fn data_offset(&mut self, offset: [u8; 8], length: u64) -> Result<PayloadSpan, Fatal> {
        let last = self.take_chunk(chunk::OFFSET_DATA)?;
        let before = self.failures;
        let span = self.content(u64::from_be_bytes(offset), length)?;
        self.ends_some_day(before, length, last)?;
        self.complete = last;
        Ok(span)
    }

    /// The whole payload of a chunk ([`Body::Payload`]).
    ///
    /// # Errors
    ///
    /// Content belongs elsewhere, a context is answered twice, or there is no end of errors:
    /// disconnect.
    pub fn payload(&mut self, payload: &[u8]) -> Result<PayloadEffect, Fatal> {
        let Some((kind, last)) = self.chunk.take() else {
            return Err(PeerMisbehaved::ChunkUnexpected.into());
        };
        let parsed = parse_chunk_payload(self.mode, kind, payload);
        let (before, length) = (self.failures, len64(payload.len()));
        let mut event = PayloadEffect::Noted;
        match parsed {
            Ok(ChunkPayload::None) => {}
            Ok(ChunkPayload::Hole { offset, length }) => {
                event = PayloadEffect::Zeroes(self.content(offset, length)?);
            }
            Ok(ChunkPayload::Error(error)) => self.remote_error(error),
            Ok(ChunkPayload::Status { context, extents }) => self.status(context, extents)?,
            // Data chunks go through `data_offset`.
            Ok(ChunkPayload::Data { .. }) => return Err(PeerMisbehaved::ChunkUnexpected.into()),
            Err(reason) => self.fail(ReplyError::Protocol(reason)),
        }
        self.ends_some_day(before, length, last)?;
        self.complete = last;
        Ok(event)
    }

    /// Counts a chunk of `length` bytes that added to the failures, of which there were `before`.
    fn ends_some_day(&mut self, before: u64, length: u64, last: bool) -> Result<(), Fatal> {
        if self.failures > before {
            self.waste = self.waste.saturating_add(length.saturating_add(CHUNK_WASTE));
        }
        if self.waste > MAX_WASTE && !last {
            return Err(PeerMisbehaved::AnswerEndless.into());
        }
        Ok(())
    }

    /// Whether the last chunk has been dealt with. The data of the last chunk (or of a simple
    /// read) are still to be read after this becomes true.
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// The outcome of a complete reply: the statuses, one for each context asked for and in that
    /// order, for a block status; an empty list otherwise.
    ///
    /// # Errors
    ///
    /// What the server reported, or how its reply was wrong. An incomplete reply is wrong.
    pub fn outcome(mut self) -> Result<Vec<ContextStatus>, ReplyError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        if !self.complete || !self.coverage.is_complete() {
            return Err(ReplyError::Protocol(PeerMisbehaved::ContentMissing));
        }
        let mut ordered = Vec::with_capacity(self.contexts.len());
        for id in &self.contexts {
            let at = self.statuses.iter().position(|status| status.context == *id);
            let at = at.ok_or(ReplyError::Protocol(PeerMisbehaved::ContextMissing))?;
            ordered.push(self.statuses.swap_remove(at));
        }
        Ok(ordered)
    }

    fn take_chunk(&mut self, kind: u16) -> Result<bool, Fatal> {
        match self.chunk.take() {
            Some((awaited, last)) if awaited == kind => Ok(last),
            _ => Err(PeerMisbehaved::ChunkUnexpected.into()),
        }
    }

    /// Content of a read at an absolute offset. Outside the range is fatal; an overlap only spoils
    /// the request, as the bytes have a place to go.
    fn content(&mut self, offset: u64, length: u64) -> Result<PayloadSpan, Fatal> {
        let start = offset
            .checked_sub(self.offset)
            .filter(|start| *start <= self.length && length <= self.length - start)
            .ok_or(PeerMisbehaved::ContentOutOfRange)?;
        if let Err(reason) = self.coverage.add(start, length) {
            self.fail(ReplyError::Protocol(reason));
        }
        Ok(PayloadSpan { start, length })
    }

    fn remote_error(&mut self, mut error: RemoteError) {
        let inside = |at: u64| at.checked_sub(self.offset).is_some_and(|at| at < self.length);
        error.offset = error.offset.filter(|at| inside(*at));
        self.fail(ReplyError::Remote(error));
    }

    fn status(&mut self, context: u32, mut extents: Vec<StatusExtent>) -> Result<(), Fatal> {
        if !self.contexts.contains(&context) {
            self.fail(ReplyError::Protocol(PeerMisbehaved::ContextUnknown));
            return Ok(());
        }
        if self.statuses.iter().any(|status| status.context == context) {
            return Err(PeerMisbehaved::ContextDuplicate.into());
        }
        fit_status(&mut extents, self.flags, self.length, self.room);
        if extents.is_empty() {
            self.fail(ReplyError::Protocol(PeerMisbehaved::ExtentEmpty));
            return Ok(());
        }
        extents.truncate(MAX_KEPT_EXTENTS);
        extents.shrink_to_fit();
        if self.allocation_context == Some(context) {
            extents.iter_mut().for_each(|extent| extent.flags &= allocation::MASK);
        }
        self.statuses.push(ContextStatus { context, extents });
        Ok(())
    }

    fn fail(&mut self, failure: ReplyError) {
        self.failures += 1;
        self.failure.get_or_insert(failure);
    }
}
