//! The outcome of a negotiation, and the rules that requests must keep under it.
//!
//! Both sides hold a [`Negotiated`]: a server checks what arrives with it, a client what it is
//! about to send. It performs nothing.

use crate::codec::{Reader, len64, put_u32, put_u64};
use crate::constants::{
    Command, CommandFlags, ErrorCode, Framing, MAX_TOLERATED_PAYLOAD, TransmissionFlags,
};
use crate::request::{Request, encode_request};

/// Block size constraints of an export, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BlockConstraints {
    /// Offsets and lengths must be multiples of this power of two (1 to 65536).
    pub minimum: u32,
    /// What is efficient; a power of two, at least 512 and at least the minimum.
    pub preferred: u32,
    /// Most bytes of data in one read or write; `u32::MAX` means no limit.
    pub maximum: u32,
}

impl BlockConstraints {
    /// What the protocol lets both sides assume when nothing was advertised.
    pub const DEFAULT: Self = Self { minimum: 1, preferred: 4096, maximum: 32 << 20 };

    /// Whether the three keep the protocol's rules.
    pub const fn is_valid(&self) -> bool {
        self.minimum.is_power_of_two()
            && self.minimum <= 65536
            && self.preferred.is_power_of_two()
            && self.preferred >= 512
            && self.preferred >= self.minimum
            && self.maximum >= self.preferred
    }
}

impl Default for BlockConstraints {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Which greeting led to the session.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Protocol {
    /// The first protocol: no names, no options.
    Oldstyle,
    /// Options, but only EXPORT_NAME is certain to be understood.
    Newstyle,
    /// Today's form.
    #[default]
    NewstyleFixed,
}

impl Protocol {
    /// The word that `nbdinfo` prints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Oldstyle => "oldstyle",
            Self::Newstyle => "newstyle",
            Self::NewstyleFixed => "newstyle-fixed",
        }
    }
}

/// What a negotiation agreed on.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Negotiated {
    /// Framing of requests and replies.
    pub mode: Framing,
    /// Bytes of the export, below 2^63.
    pub size: u64,
    /// What the server offers for this export, free of contradictions.
    pub flags: TransmissionFlags,
    /// Block size constraints; the protocol's defaults when none were advertised.
    pub blocks: BlockConstraints,
    /// Whether `blocks` was really advertised. A client that wants every server to understand it
    /// keeps to multiples of 512 bytes when it was not.
    pub blocks_advertised: bool,
    /// Selected contexts: id and name.
    pub contexts: Vec<(u32, String)>,
    /// The export's name as the client asked for it.
    pub export: String,
    /// The export's own name for itself, if the server told.
    pub canonical_name: Option<String>,
    /// Text for people, if the server told.
    pub description: Option<String>,
    /// Contexts that the export has to offer, if the client asked for the list.
    pub available_contexts: Option<Vec<String>>,
    /// Which greeting was spoken.
    pub protocol: Protocol,
    /// Whether the connection is under TLS.
    pub tls: bool,
}

/// A request that must not be performed, and the answer to it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Refusal {
    /// The error to reply.
    pub error: ErrorCode,
    /// A few words for the peer; short on purpose.
    pub message: &'static str,
    /// What to do once the payload is drained and the error is sent.
    pub after: After,
}

/// Whether a connection goes on after a refusal.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum After {
    /// Drain the payload, reply, go on.
    Continue,
    /// The payload is too large to drain: close, with or without a reply.
    Disconnect,
}

impl Refusal {
    pub(crate) const fn new(error: ErrorCode, message: &'static str) -> Self {
        Self { error, message, after: After::Continue }
    }

    const fn invalid(message: &'static str) -> Self {
        Self::new(ErrorCode::EINVAL, message)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.error.name(), self.message)
    }
}

impl std::error::Error for Refusal {}

/// A block status request with everything resolved.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StatusQuery {
    /// Bytes of the range.
    pub length: u64,
    /// Ids of the contexts to report, each selected and none twice.
    pub contexts: Vec<u32>,
}

impl Negotiated {
    /// The id of a context that was selected.
    pub fn context(&self, name: &str) -> Option<u32> {
        self.contexts.iter().find(|(_, selected)| selected == name).map(|(id, _)| *id)
    }

    /// Largest chunk payload a structured reply can count besides its 8 bytes of offset.
    const MAX_READ: u64 = (u32::MAX - 8) as u64;

    /// Most bytes of data in one read or write.
    pub fn max_payload(&self) -> u64 {
        u64::from(self.blocks.maximum).min(Self::MAX_READ)
    }

    /// Checks a request against what was negotiated.
    ///
    /// A read or write may have length 0: that is success without effect. The payload of a block
    /// status request is checked by [`Negotiated::status_query`], once it has arrived.
    ///
    /// # Errors
    ///
    /// The refusal to reply. The payload (`request.payload` bytes) is still in the stream.
    pub fn check(&self, request: &Request) -> Result<(), Refusal> {
        self.check_within(request, self.size)
    }

    /// The same of an export that has another size by now, in bytes: of which the client has heard
    /// in other ways.
    ///
    /// # Errors
    ///
    /// As for [`check`](Self::check).
    pub fn check_within(&self, request: &Request, size: u64) -> Result<(), Refusal> {
        if request.payload > self.max_payload().max(MAX_TOLERATED_PAYLOAD) {
            return Err(Refusal {
                after: After::Disconnect,
                ..Refusal::invalid("payload is too large")
            });
        }
        let Some(command) = request.kind() else {
            return Err(Refusal::invalid("unknown command"));
        };
        if command == Command::Disconnect {
            return Ok(());
        }
        self.check_ability(command)?;
        self.check_flags(command, request.flags)?;
        match command {
            Command::Flush if request.offset != 0 || request.length != 0 => {
                return Err(Refusal::invalid("flush takes no range"));
            }
            Command::BlockStatus if request.flags.contains(CommandFlags::PAYLOAD_LEN) => {
                return self.check_status_payload(request);
            }
            Command::BlockStatus if request.length == 0 => {
                return Err(Refusal::invalid("block status of an empty range"));
            }
            _ => {}
        }
        self.check_range(size, command, request.offset, request.length)?;
        self.check_payload(command, request)
    }

    fn check_ability(&self, command: Command) -> Result<(), Refusal> {
        let modifies = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        if modifies && self.flags.contains(TransmissionFlags::READ_ONLY) {
            return Err(Refusal::new(ErrorCode::EPERM, "export is read-only"));
        }
        let needed = match command {
            Command::Flush => TransmissionFlags::SEND_FLUSH,
            Command::Trim => TransmissionFlags::SEND_TRIM,
            Command::Cache => TransmissionFlags::SEND_CACHE,
            Command::WriteZeroes => TransmissionFlags::SEND_WRITE_ZEROES,
            Command::Resize => return Err(Refusal::invalid("resize is not supported")),
            Command::BlockStatus if self.contexts.is_empty() || self.mode == Framing::Simple => {
                return Err(Refusal::invalid("no metadata context was selected"));
            }
            Command::Read | Command::Write | Command::Disconnect | Command::BlockStatus => {
                return Ok(());
            }
        };
        if self.flags.contains(needed) {
            Ok(())
        } else {
            Err(Refusal::invalid("command was not advertised"))
        }
    }

    fn check_flags(&self, command: Command, flags: CommandFlags) -> Result<(), Refusal> {
        let mut allowed = CommandFlags::NONE;
        let mut allow = |flag, needed| {
            if self.flags.contains(needed) {
                allowed = allowed.with(flag);
            }
        };
        allow(CommandFlags::FUA, TransmissionFlags::SEND_FUA);
        match command {
            Command::Read => allow(CommandFlags::DF, TransmissionFlags::SEND_DF),
            Command::Write if self.mode == Framing::Extended => {
                allow(CommandFlags::PAYLOAD_LEN, TransmissionFlags::default());
            }
            Command::WriteZeroes => {
                allow(CommandFlags::NO_HOLE, TransmissionFlags::SEND_WRITE_ZEROES);
                allow(CommandFlags::FAST_ZERO, TransmissionFlags::SEND_FAST_ZERO);
            }
            Command::BlockStatus => {
                allow(CommandFlags::REQ_ONE, TransmissionFlags::default());
                if self.mode == Framing::Extended {
                    allow(CommandFlags::PAYLOAD_LEN, TransmissionFlags::BLOCK_STATUS_PAYLOAD);
                }
            }
            _ => {}
        }
        if allowed.contains(flags) { Ok(()) } else { Err(Refusal::invalid("flag does not apply")) }
    }

    /// The range must lie inside the export and keep to the minimum block size. The sum of offset
    /// and length is never formed: it may not fit.
    fn check_range(
        &self,
        size: u64,
        command: Command,
        offset: u64,
        length: u64,
    ) -> Result<(), Refusal> {
        if offset > size || length > size - offset {
            let error = match command {
                Command::Write | Command::WriteZeroes => ErrorCode::ENOSPC,
                _ => ErrorCode::EINVAL,
            };
            return Err(Refusal::new(error, "range is beyond the end of the export"));
        }
        let minimum = u64::from(self.blocks.minimum.max(1));
        if minimum > 1 {
            // The tail of an export whose size is no multiple must stay within reach.
            let tail = length == size - offset;
            if !offset.is_multiple_of(minimum) || !(length.is_multiple_of(minimum) || tail) {
                return Err(Refusal::invalid("range is not aligned to the minimum block size"));
            }
        }
        Ok(())
    }

    fn check_payload(&self, command: Command, request: &Request) -> Result<(), Refusal> {
        let limited = matches!(command, Command::Read | Command::Write);
        if limited && request.length > self.max_payload() {
            let error = if request.flags.contains(CommandFlags::DF) {
                ErrorCode::EOVERFLOW
            } else {
                ErrorCode::EINVAL
            };
            return Err(Refusal::new(error, "more than the maximum block size"));
        }
        Ok(())
    }

    fn check_status_payload(&self, request: &Request) -> Result<(), Refusal> {
        // No id may come twice, so a valid payload is never longer than one with every id.
        let most = 8 + 4 * len64(self.contexts.len());
        let valid = (12..=most).contains(&request.payload) && request.payload.is_multiple_of(4);
        if valid { Ok(()) } else { Err(Refusal::invalid("block status payload malformed")) }
    }

    /// What a block status request asks for. `payload` is what followed the header, empty for the
    /// form without a payload. The request has passed [`Negotiated::check`].
    ///
    /// # Errors
    ///
    /// The refusal to reply; the payload has been taken off the stream.
    pub fn status_query(&self, request: &Request, payload: &[u8]) -> Result<StatusQuery, Refusal> {
        if !request.flags.contains(CommandFlags::PAYLOAD_LEN) {
            let contexts = self.contexts.iter().map(|(id, _)| *id).collect();
            return Ok(StatusQuery { length: request.length, contexts });
        }
        let mut reader = Reader::new(payload);
        let length = reader.u64().ok_or(Refusal::invalid("block status payload malformed"))?;
        if length == 0 {
            return Err(Refusal::invalid("block status of an empty range"));
        }
        self.check_range(self.size, Command::BlockStatus, request.offset, length)?;
        let mut contexts = Vec::new();
        while let Some(id) = reader.u32() {
            if contexts.contains(&id) || !self.contexts.iter().any(|(known, _)| *known == id) {
                return Err(Refusal::invalid("context not selected or named twice"));
            }
            contexts.push(id);
        }
        if contexts.is_empty() || !reader.is_empty() {
            return Err(Refusal::invalid("block status payload malformed"));
        }
        Ok(StatusQuery { length, contexts })
    }

    /// Client: appends a request's header, or refuses what this session's server must never be
    /// sent: commands and flags it did not advertise, ranges beyond the export or misaligned,
    /// payloads above its maximum, 64-bit lengths without extended headers.
    ///
    /// A zero length is passed; some servers answer it with an error.
    ///
    /// # Errors
    ///
    /// The answer the server would (or should) have given. Nothing was appended.
    pub fn encode_request(
        &self,
        command: Command,
        flags: CommandFlags,
        cookie: u64,
        offset: u64,
        length: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let write = command == Command::Write;
        let framed = write && self.mode == Framing::Extended;
        let flags = if framed { flags.with(CommandFlags::PAYLOAD_LEN) } else { flags };
        let payload = if write { length } else { 0 };
        let request =
            Request { flags, command: command.to_wire(), cookie, offset, length, payload };
        if command == Command::BlockStatus && flags.contains(CommandFlags::PAYLOAD_LEN) {
            return Err(Refusal::invalid("this form takes a list of contexts"));
        }
        self.check(&request)?;
        encode_request(self.mode, command, flags, cookie, offset, length, out)
    }

    /// Client: appends a block status request for some of the selected contexts, with its payload.
    ///
    /// # Errors
    ///
    /// As [`Negotiated::encode_request`]; also when the server lacks this form, or an id is not
    /// selected or comes twice. Nothing was appended.
    pub fn encode_status_request(
        &self,
        flags: CommandFlags,
        cookie: u64,
        offset: u64,
        query: &StatusQuery,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let command = Command::BlockStatus;
        let flags = flags.with(CommandFlags::PAYLOAD_LEN);
        let length = 8 + 4 * len64(query.contexts.len());
        let request =
            Request { flags, command: command.to_wire(), cookie, offset, length, payload: length };
        let mut payload = Vec::new();
        put_u64(&mut payload, query.length);
        query.contexts.iter().for_each(|id| put_u32(&mut payload, *id));
        self.check(&request)?;
        self.status_query(&request, &payload)?;
        encode_request(self.mode, command, flags, cookie, offset, length, out)?;
        out.extend_from_slice(&payload);
        Ok(())
    }
}
