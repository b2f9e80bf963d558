//! The client's side of the handshake: from the greeting to a session or a list.
//!
//! [`ClientHandshake`] is fed what the server sent and appends what to send back. It falls back by
//! itself: from extended headers to structured and simple replies, from GO to EXPORT_NAME, from
//! fixed newstyle to what older servers speak. It never falls back from TLS when that is required.
//! It reads no clock: the caller bounds the time.
//!
//! Limits: 64 KiB in one reply; a few thousand replies to one option, 65536 and 32 MiB to a list.

use crate::codec::{Reader, put_u16, put_u32, put_u64, text};
use crate::constants::{
    Framing, IHAVEOPT, MAX_EXPORT_SIZE, MAX_STRING, NBDMAGIC, OLDSTYLE_MAGIC,
    OPTION_REPLY_HEADER_LEN, OPTION_REPLY_MAGIC, TransmissionFlags, handshake_flags, info, option,
};
use crate::error::{HandshakeError, PeerIncompatible, PeerMisbehaved};
use crate::handshake::client_options::{ExportInfo, Phase};
use crate::handshake::fill;
use crate::session::{BlockConstraints, Negotiated, Protocol};

/// Longest reply to an option, in bytes: names and messages have 4096 at most.
const MAX_REPLY: u32 = 64 << 10;

/// What a client wants. It asks for block sizes, and so has to keep to them, and for the canonical
/// name and the description.
#[derive(Clone, Debug)]
pub struct ClientPolicy {
    /// Name of the export; empty for the server's default one.
    pub export: String,
    /// Learn which exports there are, and about each of them, instead of using one.
    pub lists: bool,
    /// TLS or nothing; otherwise no TLS.
    pub tls: bool,
    /// Ask for structured replies.
    pub structured: bool,
    /// Ask for extended headers.
    pub extended: bool,
    /// Names of the contexts to select for block status.
    pub contexts: Vec<String>,
    /// Select the others that the server has as well, a few dozen at most.
    pub all_contexts: bool,
    /// Ask which contexts there are.
    pub list_contexts: bool,
}

impl Default for ClientPolicy {
    fn default() -> Self {
        Self {
            export: String::new(),
            lists: false,
            tls: false,
            structured: true,
            extended: true,
            contexts: Vec::new(),
            all_contexts: false,
            list_contexts: false,
        }
    }
}

/// What comes next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ClientStep {
    /// Send what was appended (if it can still be sent), then close.
    Failed(HandshakeError),
    /// Send what was appended, then close: a list was wanted, and here it is.
    Listed(Vec<ListedExport>),
    /// Send what was appended, then wait for more input.
    NeedMore,
    /// Send what was appended. The transmission phase begins, and input that was not consumed
    /// belongs to it.
    Ready(Box<Negotiated>),
    /// Send what was appended, run the TLS handshake, call [`ClientHandshake::tls_established`],
    /// and go on with what arrives through TLS. If TLS fails, close: never go on in plain text.
    StartTls,
}

/// One export of a list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ListedExport {
    /// Its name.
    pub name: String,
    /// Text for people; may be empty.
    pub description: String,
    /// What the server says about it, once it was asked.
    pub details: Option<Result<Negotiated, HandshakeError>>,
}

/// What the handshake waits for.
#[derive(Clone, Copy, Debug)]
enum State {
    Magic,
    Kind,
    Newstyle,
    Oldstyle,
    ReplyHeader(Phase),
    ReplyData { phase: Phase, kind: u32, length: u32 },
    ExportName,
    Tls,
    Over,
}

/// The client's side of one handshake.
#[derive(Debug)]
pub struct ClientHandshake {
    pub(super) policy: ClientPolicy,
    state: State,
    /// The part of a message that has arrived.
    partial: Vec<u8>,
    protocol: Protocol,
    no_zeroes: bool,
    pub(super) tls: bool,
    pub(super) mode: Framing,
    /// Selected contexts.
    pub(super) contexts: Vec<(u32, String)>,
    pub(super) available: Option<Vec<String>>,
    pub(super) listed: Vec<ListedExport>,
    /// What the replies to the option in flight have told.
    pub(super) told: ExportInfo,
    pub(super) names: Vec<String>,
    /// Replies to the option in flight and their bytes.
    pub(super) replies: u32,
    pub(super) reply_bytes: u64,
}

impl ClientHandshake {
    /// A handshake that wants `policy`. The server speaks first.
    pub fn new(policy: ClientPolicy) -> Self {
        Self {
            policy,
            state: State::Magic,
            partial: Vec::new(),
            protocol: Protocol::NewstyleFixed,
            no_zeroes: false,
            tls: false,
            mode: Framing::Simple,
            contexts: Vec::new(),
            available: None,
            listed: Vec::new(),
            told: ExportInfo::default(),
            names: Vec::new(),
            replies: 0,
            reply_bytes: 0,
        }
    }

    /// Takes what the server sent; appends what to send to `out`. Gives the bytes consumed: all of
    /// them, unless the step says [`ClientStep::Ready`] or [`ClientStep::Failed`].
    pub fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, ClientStep) {
        let mut rest = input;
        let step = loop {
            match self.step(&mut rest, out) {
                Ok(Some(ClientStep::NeedMore)) => {}
                Ok(None) => break ClientStep::NeedMore,
                // Plain text sent ahead of TLS would be taken for authentic afterwards.
                Ok(Some(ClientStep::StartTls)) if !rest.is_empty() => {
                    self.state = State::Over;
                    break ClientStep::Failed(PeerMisbehaved::DataAfterStartTls.into());
                }
                Ok(Some(ClientStep::StartTls)) => {
                    self.state = State::Tls;
                    break ClientStep::StartTls;
                }
                Ok(Some(step)) => {
                    self.state = State::Over;
                    break step;
                }
                Err(error) => {
                    self.give_up(&error, out);
                    break ClientStep::Failed(error);
                }
            }
        };
        (input.len() - rest.len(), step)
    }

    /// The TLS handshake that [`ClientStep::StartTls`] asked for has succeeded; appends the next
    /// option.
    pub fn tls_established(&mut self, out: &mut Vec<u8>) {
        if matches!(self.state, State::Tls) {
            self.tls = true;
            self.mode = Framing::Simple;
            self.contexts.clear();
            self.partial.clear();
            self.begin(Phase::Extended, out);
        }
    }

    /// The error to report when the server has closed the connection while more was needed.
    pub fn closed(&self) -> HandshakeError {
        let during = match self.state {
            State::Magic | State::Kind | State::Newstyle | State::Oldstyle => "the greeting",
            State::ReplyHeader(phase) | State::ReplyData { phase, .. } => {
                option::name(self.option_of(phase))
            }
            State::ExportName => "EXPORT_NAME (does the export exist?)",
            State::Tls => "STARTTLS",
            State::Over => "the end of the handshake",
        };
        HandshakeError::Closed { during }
    }

    /// Takes one message off the input, or as much of one as there is (`None`);
    /// [`ClientStep::NeedMore`] says to go on.
    fn step(
        &mut self,
        rest: &mut &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<ClientStep>, HandshakeError> {
        let wanted = match self.state {
            State::Magic | State::Kind => 8,
            State::Newstyle => 2,
            State::Oldstyle => 136,
            State::ReplyHeader(_) => OPTION_REPLY_HEADER_LEN,
            State::ReplyData { length, .. } => usize::try_from(length).unwrap_or(usize::MAX),
            State::ExportName => 10 + if self.no_zeroes { 0 } else { 124 },
            State::Tls => return Err(PeerMisbehaved::DataAfterStartTls.into()),
            State::Over => return Ok(None),
        };
        if !fill(&mut self.partial, rest, wanted) {
            return Ok(None);
        }
        let message = std::mem::take(&mut self.partial);
        let mut reader = Reader::new(&message);
        let step = match self.state {
            State::Magic => self.magic(reader)?,
            State::Kind => self.kind(reader)?,
            State::Newstyle => self.newstyle(reader, out)?,
            State::Oldstyle => self.oldstyle(reader)?,
            State::ReplyHeader(phase) => {
                self.reply_header(phase, &mut reader)?;
                ClientStep::NeedMore
            }
            State::ReplyData { phase, kind, .. } => {
                self.state = State::ReplyHeader(phase);
                self.reply(phase, kind, &message, out)?
            }
            State::ExportName => self.export_name_reply(reader)?,
            State::Tls | State::Over => ClientStep::NeedMore,
        };
        Ok(Some(step))
    }

    fn magic(&mut self, mut reader: Reader<'_>) -> Result<ClientStep, HandshakeError> {
        if reader.u64() != Some(NBDMAGIC) {
            return Err(PeerMisbehaved::GreetingBad.into());
        }
        let valid = |name: &String| name.len() <= MAX_STRING && !name.contains('\0');
        if !valid(&self.policy.export) || !self.policy.contexts.iter().all(valid) {
            return Err(HandshakeError::Ours(
                "export or context name is longer than 4096 bytes or contains NUL",
            ));
        }
        self.state = State::Kind;
        Ok(ClientStep::NeedMore)
    }

    fn kind(&mut self, mut reader: Reader<'_>) -> Result<ClientStep, HandshakeError> {
        self.state = match reader.u64() {
            Some(IHAVEOPT) => State::Newstyle,
            Some(OLDSTYLE_MAGIC) => State::Oldstyle,
            _ => return Err(PeerMisbehaved::GreetingBad.into()),
        };
        Ok(ClientStep::NeedMore)
    }

    fn newstyle(
        &mut self,
        mut reader: Reader<'_>,
        out: &mut Vec<u8>,
    ) -> Result<ClientStep, HandshakeError> {
        let known = handshake_flags::FIXED_NEWSTYLE | handshake_flags::NO_ZEROES;
        let flags = reader.u16().unwrap_or_default() & known;
        let fixed = flags & handshake_flags::FIXED_NEWSTYLE != 0;
        self.no_zeroes = flags & handshake_flags::NO_ZEROES != 0;
        self.protocol = if fixed { Protocol::NewstyleFixed } else { Protocol::Newstyle };
        if !fixed {
            self.do_without_options()?;
        }
        put_u32(out, flags.into());
        if fixed {
            return Ok(self.begin(Phase::StartTls, out));
        }
        self.send_export_name(out);
        Ok(ClientStep::NeedMore)
    }

    /// Whether what is wanted can be had from a server that understands no options.
    fn do_without_options(&self) -> Result<(), PeerIncompatible> {
        match (self.policy.tls, self.policy.lists) {
            (true, _) => Err(PeerIncompatible::NoTls),
            (false, true) => Err(PeerIncompatible::NoFixedNewstyle),
            (false, false) => Ok(()),
        }
    }

    fn oldstyle(&mut self, mut reader: Reader<'_>) -> Result<ClientStep, HandshakeError> {
        self.protocol = Protocol::Oldstyle;
        self.do_without_options()?;
        if !self.policy.export.is_empty() {
            return Err(PeerIncompatible::NoExportNames.into());
        }
        let size = reader.u64().unwrap_or_default();
        let flags = reader.u32().unwrap_or_default();
        let flags = u16::try_from(flags).map_err(|_| PeerMisbehaved::OldstyleFlags)?;
        self.enter(size, flags)
    }

    /// Sends EXPORT_NAME, which has no reply header and no way to say no.
    pub(super) fn send_export_name(&mut self, out: &mut Vec<u8>) {
        put_option(option::EXPORT_NAME, self.policy.export.as_bytes(), out);
        self.state = State::ExportName;
    }

    fn export_name_reply(&mut self, mut reader: Reader<'_>) -> Result<ClientStep, HandshakeError> {
        let size = reader.u64().unwrap_or_default();
        let flags = reader.u16().unwrap_or_default();
        self.enter(size, flags)
    }

    /// Transmission has begun without options that describe the export.
    fn enter(&mut self, size: u64, flags: u16) -> Result<ClientStep, HandshakeError> {
        let told = ExportInfo { size_and_flags: Some((size, flags)), ..ExportInfo::default() };
        self.ready(told)
    }

    /// The export is described: transmission begins.
    pub(super) fn ready(&mut self, told: ExportInfo) -> Result<ClientStep, HandshakeError> {
        let session = self.session(self.policy.export.clone(), told)?;
        Ok(ClientStep::Ready(Box::new(session)))
    }

    fn reply_header(
        &mut self,
        phase: Phase,
        reader: &mut Reader<'_>,
    ) -> Result<(), HandshakeError> {
        let fields = (reader.u64(), reader.u32(), reader.u32(), reader.u32());
        let (Some(OPTION_REPLY_MAGIC), Some(option), Some(kind), Some(length)) = fields else {
            return Err(PeerMisbehaved::BadOptionReplyMagic.into());
        };
        if option != self.option_of(phase) {
            return Err(PeerMisbehaved::ReplyForOtherOption.into());
        }
        if length > MAX_REPLY {
            return Err(PeerMisbehaved::ReplyTooLong.into());
        }
        self.count_reply(phase, length)?;
        self.state = State::ReplyData { phase, kind, length };
        Ok(())
    }

    /// Sends an option and waits for replies to it.
    pub(super) fn send_option(&mut self, phase: Phase, data: &[u8], out: &mut Vec<u8>) {
        put_option(self.option_of(phase), data, out);
        self.state = State::ReplyHeader(phase);
        self.told = ExportInfo::default();
        self.names.clear();
        self.replies = 0;
        self.reply_bytes = 0;
    }

    /// The session that follows from what was negotiated and told.
    pub(super) fn session(
        &self,
        export: String,
        told: ExportInfo,
    ) -> Result<Negotiated, PeerMisbehaved> {
        let (size, flags) = told.size_and_flags.ok_or(PeerMisbehaved::ExportInfoMissing)?;
        if flags == 0 {
            return Err(PeerMisbehaved::NoTransmissionFlags);
        }
        if size > MAX_EXPORT_SIZE {
            return Err(PeerMisbehaved::SizeTooLarge);
        }
        let blocks = told.blocks.filter(BlockConstraints::is_valid);
        Ok(Negotiated {
            mode: self.mode,
            size,
            flags: TransmissionFlags(flags).consistent(self.mode),
            blocks: blocks.unwrap_or_default(),
            blocks_advertised: blocks.is_some(),
            contexts: self.contexts.clone(),
            export,
            canonical_name: told.name,
            description: told.description,
            available_contexts: self.available.clone(),
            protocol: self.protocol,
            tls: self.tls,
        })
    }

    /// Sends ABORT where that is still possible: not to a server that breaks the protocol.
    fn give_up(&mut self, error: &HandshakeError, out: &mut Vec<u8>) {
        let negotiating = matches!(self.state, State::ReplyHeader(_) | State::ReplyData { .. });
        if negotiating && !matches!(error, HandshakeError::PeerMisbehaved(_)) {
            put_option(option::ABORT, &[], out);
        }
        self.state = State::Over;
    }
}

/// Appends an option of a client. Data are names and queries, which were checked to be short.
pub fn put_option(option: u32, data: &[u8], out: &mut Vec<u8>) {
    put_u64(out, IHAVEOPT);
    put_u32(out, option);
    put_u32(out, crate::codec::len32(data.len()));
    out.extend_from_slice(data);
}

/// The data of INFO and GO, with the number and the ids of the information wanted.
pub(super) fn info_data(name: &str) -> Vec<u8> {
    let mut data = Vec::with_capacity(12 + name.len());
    crate::codec::put_counted(&mut data, name);
    let wanted = [3, info::NAME, info::DESCRIPTION, info::BLOCK_SIZE];
    wanted.iter().for_each(|field| put_u16(&mut data, *field));
    data
}

/// The data of the context options.
pub(super) fn context_data(name: &str, queries: &[String]) -> Vec<u8> {
    let mut data = Vec::new();
    crate::codec::put_counted(&mut data, name);
    put_u32(&mut data, crate::codec::len32(queries.len()));
    queries.iter().for_each(|query| crate::codec::put_counted(&mut data, query));
    data
}

/// A received name, if it is a proper one.
pub(super) fn received_name(bytes: &[u8]) -> Option<String> {
    text(bytes).filter(|name| name.len() <= MAX_STRING).map(str::to_owned)
}
