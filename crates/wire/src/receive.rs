//! Client: reply headers, and the payloads of chunks.
//!
//! These functions look at one message each; [`crate::PendingReply`] strings them together for a
//! request and keeps the rules that span several chunks.

use crate::codec::{Reader, len64};
use crate::constants::{
    EXTENDED_REPLY_LEN, EXTENDED_REPLY_MAGIC, ErrorCode, Framing, SIMPLE_REPLY_LEN,
    SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_LEN, STRUCTURED_REPLY_MAGIC, chunk,
};
use crate::error::{Fatal, PeerMisbehaved, cleaned};
use crate::status::{StatusExtent, parse_status_payload};

/// The header of a reply or of one chunk of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReplyHeader {
    /// The form, with what is particular to it.
    pub kind: ReplyKind,
    /// The request's cookie, as the server echoed it.
    pub cookie: u64,
}

/// The two forms of replies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReplyKind {
    /// One header for the whole reply; the data of a successful read follow.
    Simple {
        /// 0 or an error number.
        error: u32,
    },
    /// A chunk; `length` bytes of payload follow.
    Chunk {
        /// Bit 0: the last chunk of the reply. The other bits are to be ignored.
        flags: u16,
        /// Type of the chunk.
        chunk: u16,
        /// Bytes of payload.
        length: u64,
        /// The request's offset, echoed by extended chunks only.
        offset: Option<u64>,
    },
}

/// Parses the reply header at the start of `bytes`; gives the bytes consumed with it. `None` asks
/// for more bytes.
///
/// # Errors
///
/// The magic is none that this session can meet.
pub fn parse_reply_header(
    mode: Framing,
    bytes: &[u8],
) -> Result<Option<(ReplyHeader, usize)>, Fatal> {
    let mut reader = Reader::new(bytes);
    let Some(magic) = reader.u32() else { return Ok(None) };
    let parsed = match (magic, mode) {
        (SIMPLE_REPLY_MAGIC, Framing::Simple | Framing::Structured) => {
            simple(&mut reader).map(|header| (header, SIMPLE_REPLY_LEN))
        }
        (STRUCTURED_REPLY_MAGIC, Framing::Structured) => {
            structured(&mut reader).map(|header| (header, STRUCTURED_REPLY_LEN))
        }
        (EXTENDED_REPLY_MAGIC, Framing::Extended) => {
            extended(&mut reader).map(|header| (header, EXTENDED_REPLY_LEN))
        }
        _ => return Err(PeerMisbehaved::BadReplyMagic.into()),
    };
    Ok(parsed)
}

fn simple(reader: &mut Reader<'_>) -> Option<ReplyHeader> {
    let error = reader.u32()?;
    Some(ReplyHeader { kind: ReplyKind::Simple { error }, cookie: reader.u64()? })
}

fn structured(reader: &mut Reader<'_>) -> Option<ReplyHeader> {
    let (flags, chunk, cookie) = (reader.u16()?, reader.u16()?, reader.u64()?);
    let length = reader.u32()?.into();
    Some(ReplyHeader { kind: ReplyKind::Chunk { flags, chunk, length, offset: None }, cookie })
}

fn extended(reader: &mut Reader<'_>) -> Option<ReplyHeader> {
    let (flags, chunk, cookie) = (reader.u16()?, reader.u16()?, reader.u64()?);
    let (offset, length) = (Some(reader.u64()?), reader.u64()?);
    Some(ReplyHeader { kind: ReplyKind::Chunk { flags, chunk, length, offset }, cookie })
}

/// A chunk's payload, taken apart.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ChunkPayload {
    /// Data at an absolute offset; the bytes are the payload from the ninth on.
    Data {
        /// First byte in the export.
        offset: u64,
        /// Bytes of data, not 0.
        length: u64,
    },
    /// The request failed.
    Error(RemoteError),
    /// Zero bytes at an absolute offset.
    Hole {
        /// First byte in the export.
        offset: u64,
        /// Bytes, not 0.
        length: u64,
    },
    /// Nothing.
    None,
    /// Status in one context.
    Status {
        /// The context's id.
        context: u32,
        /// The extents, none empty.
        extents: Vec<StatusExtent>,
    },
}

/// An error that the server reported for one request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RemoteError {
    /// What; unknown numbers have become EINVAL.
    pub code: ErrorCode,
    /// The server's words, cleaned; may be empty.
    pub message: String,
    /// Where, if the server told.
    pub offset: Option<u64>,
}

impl std::fmt::Display for RemoteError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "server replied: {}", self.code)?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        match self.offset {
            Some(offset) => write!(f, ", at offset {offset}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for RemoteError {}

/// Takes the whole payload of a chunk of type `kind` apart.
///
/// # Errors
///
/// The payload breaks a rule. Its length was known from the header, so the stream is still in
/// step, and it is enough to fail the request.
pub fn parse_chunk_payload(
    mode: Framing,
    kind: u16,
    payload: &[u8],
) -> Result<ChunkPayload, PeerMisbehaved> {
    match kind {
        chunk::NONE if payload.is_empty() => Ok(ChunkPayload::None),
        chunk::NONE => Err(PeerMisbehaved::ChunkTooLong),
        chunk::OFFSET_DATA => {
            let mut reader = Reader::new(payload);
            let offset = reader.u64().ok_or(PeerMisbehaved::DataTooShort)?;
            if reader.is_empty() {
                return Err(PeerMisbehaved::DataTooShort);
            }
            Ok(ChunkPayload::Data { offset, length: len64(reader.len()) })
        }
        chunk::OFFSET_HOLE => hole(payload).ok_or(PeerMisbehaved::HoleMalformed),
        chunk::BLOCK_STATUS if mode == Framing::Structured => status(mode, payload),
        chunk::BLOCK_STATUS_EXT if mode == Framing::Extended => status(mode, payload),
        kind if kind & chunk::ERROR_BIT != 0 => error(kind, payload).map(ChunkPayload::Error),
        _ => Err(PeerMisbehaved::ChunkUnexpected),
    }
}

fn hole(payload: &[u8]) -> Option<ChunkPayload> {
    let mut reader = Reader::new(payload);
    let (offset, length) = (reader.u64()?, reader.u32()?);
    (length != 0 && reader.is_empty())
        .then_some(ChunkPayload::Hole { offset, length: length.into() })
}

fn status(mode: Framing, payload: &[u8]) -> Result<ChunkPayload, PeerMisbehaved> {
    parse_status_payload(mode, payload)
        .map(|(context, extents)| ChunkPayload::Status { context, extents })
}

/// Error chunks of unknown types are read as far as the known ones agree: number and message.
fn error(kind: u16, payload: &[u8]) -> Result<RemoteError, PeerMisbehaved> {
    let mut reader = Reader::new(payload);
    let too_long = PeerMisbehaved::ErrorMessageTooLong;
    let code = reader.u32().ok_or(too_long)?;
    let length = reader.u16().ok_or(too_long)?;
    let message = reader.bytes(length.into()).ok_or(too_long)?;
    let offset = match kind {
        chunk::ERROR_OFFSET => Some(reader.u64().ok_or(too_long)?),
        _ => None,
    };
    if code == 0 {
        return Err(PeerMisbehaved::ErrorIsZero);
    }
    Ok(RemoteError { code: ErrorCode(code).known(), message: cleaned(message), offset })
}
