//! The server's side of the handshake: from the greeting to the first request.
//!
//! [`ServerHandshake`] is fed what the client sent and appends what to send back. It keeps the
//! option that is not complete yet itself, so the caller never needs a buffer of its own; it reads
//! no clock, so the caller must bound the time.
//!
//! The oldstyle handshake is one greeting with the default export in it, and nothing to negotiate.
//!
//! Limits: 64 KiB of data in one option (more is read past and refused, more than 32 MiB ends
//! the connection), a few dozen options, a few lists, a thousand context queries.

use crate::codec::{Reader, len32, put_u16, put_u32, put_u64};
use crate::constants::{
    BASE_ALLOCATION, Framing, IHAVEOPT, MAX_EXPORT_SIZE, MAX_STRING, NBDMAGIC, OPTION_HEADER_LEN,
    OPTION_REPLY_MAGIC, TransmissionFlags, handshake_flags, option, reply,
};
use crate::error::PeerMisbehaved;
use crate::handshake::fill;
use crate::session::{BlockConstraints, Negotiated, Protocol};

/// Longest option data that are kept, in bytes. Only a context query with a thousand names comes
/// near; any client that can connect may make a server keep so much.
const MAX_OPTION_DATA: u32 = 64 << 10;
/// Longest option data that are read past without closing, in bytes.
const MAX_DRAINED_OPTION: u32 = 32 << 20;
/// Options before the connection is closed; a list adds as many for each export it names.
const MAX_OPTIONS: u64 = 32;

/// What a server has to offer. Called during handshakes, so the methods must not wait for long.
pub trait ExportCatalog {
    /// The names and descriptions to list. May leave out what needs TLS before `tls`.
    ///
    /// # Errors
    ///
    /// The refusal to send: they are not known.
    fn list(&self) -> Result<Vec<(String, String)>, OptionRefusal>;

    /// Whether [`ExportCatalog::list`] can answer now. If not, the handshake stops with
    /// [`ServerStep::Wait`] before the option, and asks again when it is advanced again.
    fn is_listed(&self) -> bool {
        true
    }

    /// Opens the export a client chose (an empty name asks for the default one).
    ///
    /// Called for INFO, GO and EXPORT_NAME only: no backend is touched for a mere name.
    ///
    /// # Errors
    ///
    /// The refusal to send.
    fn open(&self, name: &str) -> Result<ExportOffer, OptionRefusal>;

    /// Whether [`ExportCatalog::open`] can answer for `name` now. If not, the handshake stops with
    /// [`ServerStep::Wait`] before the option, and asks again when it is advanced again.
    fn is_ready(&self, name: &str) -> bool {
        let _ = name;
        true
    }

    /// The contexts of an export, for the options that come before it is opened. Must agree with
    /// [`ExportOffer::contexts`]; what `open` does not confirm is dropped.
    ///
    /// # Errors
    ///
    /// The refusal to send, for a server that wants to answer unknown names with one.
    fn contexts(&self, name: &str) -> Result<Vec<String>, OptionRefusal> {
        let _ = name;
        Ok(vec![BASE_ALLOCATION.to_owned()])
    }
}

/// An export as it is offered to one client.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ExportOffer {
    /// The canonical name.
    pub name: String,
    /// Text for people; empty for none.
    pub description: String,
    /// Bytes, below 2^63.
    pub size: u64,
    /// Abilities; what does not fit the negotiated framing is masked out here, HAS_FLAGS added.
    pub flags: TransmissionFlags,
    /// Constraints to advertise and enforce; `None` for the protocol's defaults.
    pub blocks: Option<BlockConstraints>,
    /// Context names that block status can report.
    pub contexts: Vec<String>,
}

/// An option's refusal: an error reply and some words.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OptionRefusal {
    /// One of the `ERR_` constants of [`crate::constants::reply`].
    pub reply: u32,
    /// A short text for people; may be empty.
    pub message: String,
}

impl OptionRefusal {
    /// A refusal with `reply`, an `ERR_` constant of [`crate::constants::reply`].
    pub fn new(reply: u32, message: impl Into<String>) -> Self {
        Self { reply: reply | reply::ERROR_BIT, message: message.into() }
    }

    /// There is no such export.
    pub fn unknown() -> Self {
        Self::new(reply::ERR_UNKNOWN, "no such export")
    }

    /// The server will not, for a reason of its own.
    pub fn policy(message: impl Into<String>) -> Self {
        Self::new(reply::ERR_POLICY, message)
    }

    /// The server cannot at present.
    pub fn platform(message: impl Into<String>) -> Self {
        Self::new(reply::ERR_PLATFORM, message)
    }

    /// This export is for clients under TLS only. Must not be used once TLS is established.
    pub fn tls_required() -> Self {
        Self::new(reply::ERR_TLS_REQD, "this export needs TLS")
    }

    /// The server is shutting down.
    pub fn shutdown() -> Self {
        Self::new(reply::ERR_SHUTDOWN, "server is shutting down")
    }

    pub(crate) fn invalid(message: &'static str) -> Self {
        Self::new(reply::ERR_INVALID, message)
    }
}

/// How a server deals with TLS.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum ServerTls {
    /// No TLS.
    #[default]
    Off,
    /// For clients that want it.
    On,
    /// Nothing is said before it.
    Require,
}

/// What a server is willing to negotiate. The defaults are everything but TLS.
#[derive(Clone, Debug)]
pub struct ServerPolicy {
    /// TLS.
    pub tls: ServerTls,
    /// Speak the oldstyle protocol instead: the default export, simple replies, no options and no
    /// TLS. Nothing else here but `tls` matters then.
    pub oldstyle: bool,
    /// Offer fixed newstyle; without it clients can only use EXPORT_NAME.
    pub fixed_newstyle: bool,
    /// Offer to leave out the zeroes after EXPORT_NAME.
    pub no_zeroes: bool,
    /// Agree on structured replies.
    pub structured: bool,
    /// Agree on extended headers.
    pub extended: bool,
    /// Answer context queries.
    pub meta_contexts: bool,
}

impl Default for ServerPolicy {
    fn default() -> Self {
        Self {
            tls: ServerTls::Off,
            oldstyle: false,
            fixed_newstyle: true,
            no_zeroes: true,
            structured: true,
            extended: true,
            meta_contexts: true,
        }
    }
}

/// What comes next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ServerStep {
    /// Send what was appended, then close.
    Close(CloseReason),
    /// Send what was appended, then wait for more input.
    NeedMore,
    /// Send what was appended, run the TLS handshake, call [`ServerHandshake::tls_established`],
    /// go on with what arrives through TLS.
    StartTls,
    /// Send what was appended; input that was not consumed belongs to the transmission phase.
    Transmit(Box<Negotiated>),
    /// Send what was appended; go on (with input that was not consumed, or none) once the export
    /// that the client chose is ready: see [`ExportCatalog::is_ready`].
    Wait,
}

/// Why the handshake ended without an export.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CloseReason {
    /// The client has aborted the handshake: not an error.
    Abort,
    /// The client broke the protocol or went beyond a limit.
    Misbehaved(PeerMisbehaved),
    /// EXPORT_NAME has no other way to say no.
    Unavailable(OptionRefusal),
}

impl std::fmt::Display for CloseReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Abort => f.write_str("client ended the handshake"),
            Self::Misbehaved(reason) => write!(f, "client broke the protocol: {reason}"),
            Self::Unavailable(refusal) => write!(f, "export refused: {}", refusal.message),
        }
    }
}

/// What the handshake waits for.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Oldstyle: the greeting is still to be sent, and the client has nothing to say.
    Oldstyle,
    ClientFlags,
    Header,
    Data {
        option: u32,
        length: u32,
    },
    /// Data too long to keep, being read past.
    Drain {
        option: u32,
        left: u32,
    },
    /// STARTTLS was agreed to.
    Tls,
    Over,
}

/// The server's side of one handshake.
#[derive(Debug)]
pub struct ServerHandshake {
    pub(super) policy: ServerPolicy,
    state: State,
    /// The part of a message that has arrived.
    partial: Vec<u8>,
    fixed: bool,
    no_zeroes: bool,
    pub(super) tls: bool,
    pub(super) mode: Framing,
    /// Export name and contexts of the last successful SET_META_CONTEXT.
    pub(super) selected: Option<(String, Vec<String>)>,
    options_left: u64,
    pub(super) lists: u32,
}

impl ServerHandshake {
    /// A handshake under `policy`; send [`ServerHandshake::greeting`] first, and go on with
    /// [`ServerHandshake::advance`], also before anything has arrived.
    pub fn new(policy: ServerPolicy) -> Self {
        let state = if policy.oldstyle { State::Oldstyle } else { State::ClientFlags };
        Self {
            policy,
            state,
            partial: Vec::new(),
            fixed: false,
            no_zeroes: false,
            tls: false,
            mode: Framing::Simple,
            selected: None,
            options_left: MAX_OPTIONS,
            lists: 0,
        }
    }

    /// Bytes of memory kept of an option that is not complete.
    pub fn held(&self) -> usize {
        self.partial.capacity()
    }

    /// The 18 bytes to send as soon as a client has connected. None for oldstyle: its greeting
    /// has an export in it, so [`ServerHandshake::advance`] makes it.
    pub fn greeting(&self) -> Vec<u8> {
        if self.policy.oldstyle {
            return Vec::new();
        }
        let mut out = Vec::with_capacity(18);
        put_u64(&mut out, NBDMAGIC);
        put_u64(&mut out, IHAVEOPT);
        put_u16(&mut out, self.offered());
        out
    }

    fn offered(&self) -> u16 {
        let fixed = if self.policy.fixed_newstyle { handshake_flags::FIXED_NEWSTYLE } else { 0 };
        let no_zeroes = if self.policy.no_zeroes { handshake_flags::NO_ZEROES } else { 0 };
        fixed | no_zeroes
    }

    /// Takes what the client sent; appends what to send to `out`. Gives the bytes consumed: all of
    /// them, unless the step says [`ServerStep::Transmit`], [`ServerStep::Close`] or
    /// [`ServerStep::Wait`].
    pub fn advance(
        &mut self,
        input: &[u8],
        exports: &dyn ExportCatalog,
        out: &mut Vec<u8>,
    ) -> (usize, ServerStep) {
        let mut rest = input;
        let step = loop {
            match self.step(&mut rest, exports, out) {
                Ok(Some(ServerStep::NeedMore)) => {}
                Ok(None) => break ServerStep::NeedMore,
                Ok(Some(ServerStep::StartTls)) if rest.is_empty() => {
                    self.state = State::Tls;
                    break ServerStep::StartTls;
                }
                // Plain text sent ahead of TLS would be taken for authentic afterwards. Nothing
                // that was promised in plain text is to be sent after an injection.
                Ok(Some(ServerStep::StartTls)) => {
                    out.clear();
                    break self.misbehaved(PeerMisbehaved::DataAfterStartTls);
                }
                Ok(Some(ServerStep::Wait)) => break ServerStep::Wait,
                Ok(Some(end)) => {
                    self.state = State::Over;
                    break end;
                }
                Err(reason) => break self.misbehaved(reason),
            }
        };
        (input.len() - rest.len(), step)
    }

    fn misbehaved(&mut self, reason: PeerMisbehaved) -> ServerStep {
        self.state = State::Over;
        ServerStep::Close(CloseReason::Misbehaved(reason))
    }

    /// The TLS handshake that [`ServerStep::StartTls`] asked for has succeeded. What was agreed on
    /// before is forgotten, as the client may not have been the one that agreed.
    pub fn tls_established(&mut self) {
        if matches!(self.state, State::Tls) {
            self.tls = true;
            self.state = State::Header;
            self.partial.clear();
        }
    }

    /// Takes one message off the input, or as much of one as there is (`None`);
    /// [`ServerStep::NeedMore`] says to go on.
    fn step(
        &mut self,
        rest: &mut &[u8],
        exports: &dyn ExportCatalog,
        out: &mut Vec<u8>,
    ) -> Result<Option<ServerStep>, PeerMisbehaved> {
        match self.state {
            State::Oldstyle if !exports.is_ready("") => return Ok(Some(ServerStep::Wait)),
            State::Oldstyle => return Ok(Some(self.oldstyle(exports, out))),
            State::ClientFlags => {
                if !fill(&mut self.partial, rest, 4) {
                    return Ok(None);
                }
                self.client_flags()?;
            }
            State::Header => {
                if !fill(&mut self.partial, rest, OPTION_HEADER_LEN) {
                    return Ok(None);
                }
                self.header()?;
            }
            State::Data { option, length } => {
                let wanted = usize::try_from(length).unwrap_or(usize::MAX);
                if !fill(&mut self.partial, rest, wanted) {
                    return Ok(None);
                }
                let chosen = super::server_options::chosen_export(option, &self.partial);
                if !self.tls_missing() && chosen.is_some_and(|name| !exports.is_ready(name)) {
                    return Ok(Some(ServerStep::Wait));
                }
                let lists = option == option::LIST && self.may_list();
                if lists && !exports.is_listed() {
                    return Ok(Some(ServerStep::Wait));
                }
                let data = std::mem::take(&mut self.partial);
                self.state = State::Header;
                return Ok(Some(self.option(option, &data, exports, out)));
            }
            State::Drain { option, left } => {
                let skip = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                *rest = rest.get(skip..).unwrap_or_default();
                let left = left - len32(skip);
                if left > 0 {
                    self.state = State::Drain { option, left };
                    return Ok(None);
                }
                self.state = State::Header;
                self.oversized(option, out);
            }
            State::Tls => return Err(PeerMisbehaved::DataAfterStartTls),
            State::Over => return Ok(None),
        }
        Ok(Some(ServerStep::NeedMore))
    }

    fn client_flags(&mut self) -> Result<(), PeerMisbehaved> {
        let flags = Reader::new(&self.partial).u32().unwrap_or_default();
        self.partial.clear();
        let unknown = PeerMisbehaved::UnknownClientFlags;
        let flags = u16::try_from(flags).map_err(|_| unknown)?;
        if flags & !self.offered() != 0 {
            return Err(unknown);
        }
        self.fixed = flags & handshake_flags::FIXED_NEWSTYLE != 0;
        self.no_zeroes = flags & handshake_flags::NO_ZEROES != 0;
        self.state = State::Header;
        Ok(())
    }

    fn header(&mut self) -> Result<(), PeerMisbehaved> {
        let mut reader = Reader::new(&self.partial);
        let fields = (reader.u64(), reader.u32(), reader.u32());
        self.partial.clear();
        let (Some(IHAVEOPT), Some(option), Some(length)) = fields else {
            return Err(PeerMisbehaved::BadOptionMagic);
        };
        self.options_left =
            self.options_left.checked_sub(1).ok_or(PeerMisbehaved::TooManyOptions)?;
        if option == option::EXPORT_NAME && length > len32(MAX_STRING) {
            return Err(PeerMisbehaved::ExportNameTooLong);
        }
        if option != option::EXPORT_NAME && !self.fixed {
            return Err(PeerMisbehaved::OptionBeforeFixed);
        }
        self.state = match length {
            length if length <= MAX_OPTION_DATA => State::Data { option, length },
            length if length <= MAX_DRAINED_OPTION => State::Drain { option, left: length },
            _ => return Err(PeerMisbehaved::OptionTooLong),
        };
        Ok(())
    }

    fn oversized(&mut self, option: u32, out: &mut Vec<u8>) {
        if option == option::SET_META_CONTEXT {
            self.selected = None;
        }
        let refusal = if self.tls_missing() {
            OptionRefusal::new(reply::ERR_TLS_REQD, "TLS is required")
        } else {
            OptionRefusal::new(reply::ERR_TOO_BIG, "option is too long")
        };
        put_refusal(option, &refusal, out);
    }

    /// Whether nothing may be said before TLS.
    pub(super) fn tls_missing(&self) -> bool {
        self.policy.tls == ServerTls::Require && !self.tls
    }

    /// Lets a list of `exports` be followed by options about each of them; only once.
    pub(super) fn grant_options(&mut self, exports: usize) {
        if self.lists == 1 {
            self.options_left += MAX_OPTIONS.saturating_mul(len32(exports).into());
        }
    }

    /// Forgets what was agreed on in plain text.
    pub(super) fn reset(&mut self) {
        self.mode = Framing::Simple;
        self.selected = None;
        self.lists = 0;
        self.options_left = MAX_OPTIONS;
    }

    /// The session that begins with `offer`, as asked for under `name`.
    pub(super) fn session(
        &self,
        name: &str,
        offer: ExportOffer,
    ) -> Result<Negotiated, OptionRefusal> {
        if offer.size > MAX_EXPORT_SIZE {
            return Err(OptionRefusal::platform("export is too large"));
        }
        let selected = self.selected.as_ref().filter(|(export, _)| export == name);
        let contexts = selected.map(|(_, contexts)| contexts.as_slice()).unwrap_or_default();
        let contexts = contexts
            .iter()
            .zip(1_u32..)
            .filter(|(context, _)| offer.contexts.contains(context))
            .map(|(context, id)| (id, context.clone()))
            .collect();
        Ok(Negotiated {
            mode: self.mode,
            size: offer.size,
            flags: offer.flags.consistent(self.mode),
            blocks: offer.blocks.filter(BlockConstraints::is_valid).unwrap_or_default(),
            blocks_advertised: false,
            contexts,
            export: name.to_owned(),
            canonical_name: Some(offer.name),
            description: Some(offer.description).filter(|text| !text.is_empty()),
            available_contexts: None,
            protocol: self.protocol(),
            tls: self.tls,
        })
    }

    fn protocol(&self) -> Protocol {
        match (self.policy.oldstyle, self.fixed) {
            (true, _) => Protocol::Oldstyle,
            (false, true) => Protocol::NewstyleFixed,
            (false, false) => Protocol::Newstyle,
        }
    }

    pub(super) fn wants_zeroes(&self) -> bool {
        !self.no_zeroes
    }
}

/// Appends an option reply.
pub(super) fn put_reply(option: u32, kind: u32, data: &[u8], out: &mut Vec<u8>) {
    put_u64(out, OPTION_REPLY_MAGIC);
    put_u32(out, option);
    put_u32(out, kind);
    put_u32(out, len32(data.len()));
    out.extend_from_slice(data);
}

/// Appends an error reply with a message of a bounded length.
pub(super) fn put_refusal(option: u32, refusal: &OptionRefusal, out: &mut Vec<u8>) {
    let message = crate::codec::clipped(&refusal.message, crate::constants::MAX_SENT_MESSAGE);
    put_reply(option, refusal.reply | reply::ERROR_BIT, message.as_bytes(), out);
}
