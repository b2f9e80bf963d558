//! Requests: parsing them (server) and encoding them (client).
//!
//! A parsed request says how many bytes of payload follow; the parser must take them off the
//! stream (or drain them) before the next request, whatever becomes of this one.

use crate::codec::{Reader, put_u16, put_u32, put_u64};
use crate::constants::{
    Command, CommandFlags, EXTENDED_REQUEST_LEN, EXTENDED_REQUEST_MAGIC, ErrorCode, Framing,
    REQUEST_LEN, REQUEST_MAGIC,
};
use crate::error::{Fatal, PeerMisbehaved};
use crate::session::Refusal;

/// A request as it arrived; only its framing has been checked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// Flags, known or not.
    pub flags: CommandFlags,
    /// The command's wire value, known or not; see [`Request::kind`].
    pub command: u16,
    /// Chosen by the client, echoed in every reply.
    pub cookie: u64,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes, or that of the payload for a block status with a payload.
    pub length: u64,
    /// Bytes of payload that follow the header.
    pub payload: u64,
}

impl Request {
    /// The command, if it is a known one.
    pub const fn kind(&self) -> Option<Command> {
        Command::from_wire(self.command)
    }
}

/// Bytes of a request's header.
pub const fn request_header_len(mode: Framing) -> usize {
    match mode {
        Framing::Simple | Framing::Structured => REQUEST_LEN,
        Framing::Extended => EXTENDED_REQUEST_LEN,
    }
}

/// Parses the request header at the start of `bytes`.
///
/// `None` asks for more bytes; otherwise [`request_header_len`] bytes are consumed.
///
/// # Errors
///
/// The stream cannot be followed any further (wrong magic): disconnect.
pub fn parse_request(mode: Framing, bytes: &[u8]) -> Result<Option<Request>, Fatal> {
    let mut reader = Reader::new(bytes);
    let Some(magic) = reader.u32() else { return Ok(None) };
    let expected = match mode {
        Framing::Simple | Framing::Structured => REQUEST_MAGIC,
        Framing::Extended => EXTENDED_REQUEST_MAGIC,
    };
    if magic != expected {
        return Err(PeerMisbehaved::BadRequestMagic.into());
    }
    let Some(mut request) = fields(mode, &mut reader) else { return Ok(None) };
    request.payload = payload_len(mode, &request);
    Ok(Some(request))
}

fn fields(mode: Framing, reader: &mut Reader<'_>) -> Option<Request> {
    Some(Request {
        flags: CommandFlags(reader.u16()?),
        command: reader.u16()?,
        cookie: reader.u64()?,
        offset: reader.u64()?,
        length: if mode == Framing::Extended { reader.u64()? } else { reader.u32()?.into() },
        payload: 0,
    })
}

/// The protocol demands PAYLOAD_LEN of an extended write, and leaves open what follows without it.
/// QEMU's client (seen in 11.1) never sets it and always sends the payload, and QEMU's server takes
/// it so; anything else would cut every VM off.
fn payload_len(mode: Framing, request: &Request) -> u64 {
    let write = request.command == Command::Write.to_wire();
    let flagged = mode == Framing::Extended && request.flags.contains(CommandFlags::PAYLOAD_LEN);
    if write || flagged { request.length } else { 0 }
}

/// Appends a request's header.
///
/// With extended headers a write gets its PAYLOAD_LEN flag here. The range is not checked:
/// [`crate::Negotiated::encode_request`] does that. A compact header holds 32 bits of length; a
/// longer one is refused.
///
/// # Errors
///
/// The length does not fit the header. Nothing was appended.
pub fn encode_request(
    mode: Framing,
    command: Command,
    flags: CommandFlags,
    cookie: u64,
    offset: u64,
    length: u64,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    if mode == Framing::Extended {
        let flags =
            if command == Command::Write { flags.with(CommandFlags::PAYLOAD_LEN) } else { flags };
        put_u32(out, EXTENDED_REQUEST_MAGIC);
        put_body(flags, command, cookie, offset, out);
        put_u64(out, length);
    } else {
        let too_long = Refusal::new(ErrorCode::EOVERFLOW, "4 GiB or more in one request");
        let length = u32::try_from(length).map_err(|_| too_long)?;
        put_u32(out, REQUEST_MAGIC);
        put_body(flags, command, cookie, offset, out);
        put_u32(out, length);
    }
    Ok(())
}

fn put_body(flags: CommandFlags, command: Command, cookie: u64, offset: u64, out: &mut Vec<u8>) {
    put_u16(out, flags.0);
    put_u16(out, command.to_wire());
    put_u64(out, cookie);
    put_u64(out, offset);
}
