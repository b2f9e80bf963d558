//! Server: encoding replies in the shape that the command and the session's mode demand.
//!
//! Everything is appended to the caller's buffer; the bytes of a read are the caller's to send
//! after the header made here. With simple replies a read has one header for all its data, with
//! chunks as many as the caller likes.

use crate::codec::{clipped, len32, len64, put_u16, put_u32, put_u64};
use crate::constants::{
    Command, CommandFlags, EXTENDED_REPLY_LEN, EXTENDED_REPLY_MAGIC, ErrorCode, Framing,
    MAX_SENT_MESSAGE, SIMPLE_REPLY_LEN, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_LEN,
    STRUCTURED_REPLY_MAGIC, chunk,
};
use crate::request::Request;
use crate::session::Refusal;
use crate::status::{StatusExtent, StatusLimits, encode_status};

/// Makes the replies to one request.
#[derive(Clone, Copy, Debug)]
pub struct ReplyWriter {
    mode: Framing,
    flags: CommandFlags,
    command: u16,
    cookie: u64,
    offset: u64,
    length: u64,
}

impl ReplyWriter {
    /// Replies to `request` in `mode`.
    pub const fn new(mode: Framing, request: &Request) -> Self {
        Self {
            mode,
            flags: request.flags,
            command: request.command,
            cookie: request.cookie,
            offset: request.offset,
            length: request.length,
        }
    }

    /// The same for a block status whose range came in its payload: `length` in bytes.
    #[must_use]
    pub const fn with_length(mut self, length: u64) -> Self {
        self.length = length;
        self
    }

    /// The framing in use.
    pub const fn mode(&self) -> Framing {
        self.mode
    }

    /// Whether data and holes go out as chunks, as many as wanted. Otherwise a read has exactly
    /// one header, then all its bytes.
    pub const fn is_chunked(&self) -> bool {
        !matches!(self.mode, Framing::Simple)
    }

    /// Whether a read of this request may be answered with holes and several pieces.
    pub const fn may_fragment(&self) -> bool {
        self.is_chunked() && !self.flags.contains(CommandFlags::DF)
    }

    /// Success, complete. For a read this ends a reply whose content has been sent without DONE
    /// (or that has no content); without chunks it must then be a read of length 0.
    pub fn done(&self, out: &mut Vec<u8>) {
        if self.needs_chunks() {
            self.chunk(chunk::FLAG_DONE, chunk::NONE, 0, out);
        } else {
            self.simple(0, out);
        }
    }

    /// Failure, complete. The message is cut to a few hundred bytes, and left out where the form
    /// has no room for it.
    ///
    /// ENOTSUP belongs to fast zero alone; elsewhere it becomes EINVAL.
    pub fn error(&self, error: ErrorCode, message: &str, out: &mut Vec<u8>) {
        let error = self.permitted(error);
        if self.needs_chunks() || (self.is_chunked() && !message.is_empty()) {
            self.error_chunk(error, message, out);
        } else {
            self.simple(error.0, out);
        }
    }

    /// The reply to a refused request.
    pub fn refuse(&self, refusal: &Refusal, out: &mut Vec<u8>) {
        self.error(refusal.error, refusal.message, out);
    }

    /// The header before `length` bytes of data from `offset` on; the caller sends them next.
    ///
    /// `length` is not 0. `last` ends the reply with these data: say so only when nothing can fail
    /// any more. Without chunks the data are all that was asked for, whatever `offset` and `last`
    /// say, and a failure after this header leaves nothing but to disconnect.
    pub fn read_data(&self, offset: u64, length: u32, last: bool, out: &mut Vec<u8>) {
        debug_assert!(length != 0, "a data chunk has data");
        let before = out.len();
        if self.is_chunked() {
            let flags = if last { chunk::FLAG_DONE } else { 0 };
            self.chunk(flags, chunk::OFFSET_DATA, 8 + u64::from(length), out);
            put_u64(out, offset);
        } else {
            self.simple(0, out);
        }
        debug_assert_eq!(out.len() - before, self.read_data_header_len());
    }

    /// How long the header of [`ReplyWriter::read_data`] is, in bytes.
    pub const fn read_data_header_len(&self) -> usize {
        match self.mode {
            Framing::Simple => SIMPLE_REPLY_LEN,
            Framing::Structured => STRUCTURED_REPLY_LEN + 8,
            Framing::Extended => EXTENDED_REPLY_LEN + 8,
        }
    }

    /// `length` zero bytes from `offset` on, without sending them. Only with chunks, not under DF
    /// (see [`ReplyWriter::may_fragment`]) unless it is the only content; `length` is not 0.
    pub fn read_hole(&self, offset: u64, length: u32, last: bool, out: &mut Vec<u8>) {
        debug_assert!(self.is_chunked() && length != 0, "a hole chunk needs chunks and a length");
        let flags = if last { chunk::FLAG_DONE } else { 0 };
        self.chunk(flags, chunk::OFFSET_HOLE, 12, out);
        put_u64(out, offset);
        put_u32(out, length);
    }

    /// The status of one context; call once for each context of the query, `last` with the last.
    ///
    /// The extents begin at the request's offset and follow each other; the iterator is left as
    /// soon as enough is known. Empty extents are skipped, at most `max_extents` are sent, 32-bit
    /// lengths are cut to an aligned value, REQ_ONE is obeyed. The caller keeps the last extent
    /// inside the export.
    ///
    /// Returns the bytes covered. 0 says that there was no extent to send and nothing was appended:
    /// the caller must reply with an error instead.
    pub fn block_status(
        &self,
        context: u32,
        extents: impl IntoIterator<Item = StatusExtent>,
        max_extents: usize,
        last: bool,
        out: &mut Vec<u8>,
    ) -> u64 {
        let flags = if last { chunk::FLAG_DONE } else { 0 };
        let wide = self.mode == Framing::Extended;
        let kind = if wide { chunk::BLOCK_STATUS_EXT } else { chunk::BLOCK_STATUS };
        let start = out.len();
        self.chunk(flags, kind, 0, out);
        let payload_at = out.len();
        let limits = StatusLimits {
            mode: self.mode,
            flags: self.flags,
            length: self.length,
            extents: max_extents,
        };
        let covered = encode_status(limits, context, extents, out);
        if covered == 0 {
            out.truncate(start);
            return 0;
        }
        let payload = out.len() - payload_at;
        let (width, field) =
            if wide { (8, len64(payload).to_be_bytes()) } else { (4, pad(len32(payload))) };
        if let (Some(to), Some(from)) =
            (out.get_mut(payload_at - width..payload_at), field.get(..width))
        {
            to.copy_from_slice(from);
        }
        covered
    }

    fn permitted(&self, error: ErrorCode) -> ErrorCode {
        match error.known() {
            ErrorCode::ENOTSUP if !self.flags.contains(CommandFlags::FAST_ZERO) => {
                ErrorCode::EINVAL
            }
            known => known,
        }
    }

    /// Whether even a plain success or failure must be a chunk.
    fn needs_chunks(&self) -> bool {
        match self.mode {
            Framing::Simple => false,
            Framing::Structured => {
                self.command == Command::Read.to_wire()
                    || self.command == Command::BlockStatus.to_wire()
            }
            Framing::Extended => true,
        }
    }

    fn simple(&self, error: u32, out: &mut Vec<u8>) {
        put_u32(out, SIMPLE_REPLY_MAGIC);
        put_u32(out, error);
        put_u64(out, self.cookie);
    }

    fn chunk(&self, flags: u16, kind: u16, length: u64, out: &mut Vec<u8>) {
        let wide = self.mode == Framing::Extended;
        put_u32(out, if wide { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC });
        put_u16(out, flags);
        put_u16(out, kind);
        put_u64(out, self.cookie);
        if wide {
            put_u64(out, self.offset);
            put_u64(out, length);
        } else {
            // Reads are refused before they can overflow this; see `Negotiated::max_payload`.
            put_u32(out, u32::try_from(length).unwrap_or(u32::MAX));
        }
    }

    fn error_chunk(&self, error: ErrorCode, message: &str, out: &mut Vec<u8>) {
        let message = clipped(message, MAX_SENT_MESSAGE);
        self.chunk(chunk::FLAG_DONE, chunk::ERROR, 6 + len64(message.len()), out);
        put_u32(out, error.0);
        put_u16(out, u16::try_from(message.len()).unwrap_or(0));
        out.extend_from_slice(message.as_bytes());
    }
}

/// A 32-bit field as the first half of eight bytes.
fn pad(value: u32) -> [u8; 8] {
    (u64::from(value) << 32).to_be_bytes()
}
