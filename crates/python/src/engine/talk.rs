//! What is said until an export is used: greeting, options and their replies.
//!
//! Without option mode the engine asks for what the settings say, one option after the other, and ends in transmission or
//! dead. In option mode it stops after TLS and the form of replies ([`State::Negotiating`]), and each option is the user's.

use net::tls::{Calling, Connector, Handshake, Progress};
use rustix::io::Errno;
use wire::constants::{
    IHAVEOPT, MAX_STRING, NBDMAGIC, OLDSTYLE_MAGIC, OPTION_REPLY_HEADER_LEN, OPTION_REPLY_MAGIC,
    handshake_flags, info, option, reply,
};
use wire::{Mode, TransmissionFlags};

use super::settings::tls;
use super::{Engine, Event, Export, Fault, State, When};

/// Longest reply to an option that is looked at, in bytes; a longer one is passed over.
const LONGEST: usize = 64 << 10;
/// Longest reply that is passed over, in bytes.
const MAX_SKIPPED: u32 = 64 << 20;
/// Most replies to one option.
const MOST_REPLIES: u32 = 1 << 17;
/// Most contexts that are kept.
const MOST_CONTEXTS: usize = 1024;

/// What is waited for.
#[derive(Debug, Default)]
enum Phase {
    #[default]
    Idle,
    Greeting,
    Flags,
    Oldstyle,
    ReplyHeader,
    Reply {
        kind: u32,
        len: u32,
    },
    Skipping {
        left: u32,
        kind: u32,
    },
    ExportName,
    Tls(Box<Handshake>, bool),
}

/// Who asked.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Asker {
    /// The engine itself, on the way to an export.
    #[default]
    Engine,
    /// The user, in option mode.
    User,
}

/// An option that a user may ask for.
#[derive(Clone, Debug)]
pub(crate) enum Option {
    Go,
    Info,
    List,
    StartTls,
    ExtendedHeaders,
    StructuredReply,
    /// The queries; none: those of the settings.
    ListContexts(std::option::Option<Vec<String>>),
    SetContexts(std::option::Option<Vec<String>>),
}

#[derive(Debug, Default)]
pub(super) struct Talk {
    phase: Phase,
    /// Handshake flags that both sides have.
    flags: u32,
    /// The option in flight, and who asked for it.
    option: u32,
    asker: Asker,
    /// What the user asked for, of which that option is a part.
    goal: u32,
    replies: u32,
    partial: Vec<u8>,
}

impl Talk {
    pub(super) fn begin(&mut self) {
        self.phase = Phase::Greeting;
    }

    /// Whether it is waited for room in the socket.
    pub(super) const fn wants_room(&self, has_output: bool) -> bool {
        has_output || matches!(self.phase, Phase::Tls(_, true))
    }

    /// Whether a user waits for the end of an option.
    pub(super) fn is_asking(&self) -> bool {
        self.asker == Asker::User && self.goal != 0
    }

    const fn is_fixed(&self) -> bool {
        self.flags & handshake_flags::FIXED_NEWSTYLE as u32 != 0
    }

    /// Bytes that the next step needs.
    fn wanted(&self) -> usize {
        match self.phase {
            Phase::Idle | Phase::Tls(..) | Phase::Skipping { .. } => 0,
            Phase::Greeting => 16,
            Phase::Flags => 2,
            Phase::Oldstyle => 136,
            Phase::ReplyHeader => OPTION_REPLY_HEADER_LEN,
            Phase::Reply { len, .. } => usize::try_from(len).unwrap_or(usize::MAX),
            Phase::ExportName if self.flags & handshake_flags::NO_ZEROES as u32 != 0 => 10,
            Phase::ExportName => 134,
        }
    }
}

/// Fields of a message that is complete.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        head
    }

    fn number(&mut self, bytes: usize) -> u64 {
        self.take(bytes).iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
    }

    fn u16(&mut self) -> u16 {
        u16::try_from(self.number(2)).unwrap_or_default()
    }

    fn u32(&mut self) -> u32 {
        u32::try_from(self.number(4)).unwrap_or_default()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn counted(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

impl<K> Engine<K> {
    /// Goes on with the handshake as far as what was received allows.
    pub(super) fn talk_on(&mut self) -> Result<(), Fault> {
        loop {
            self.send()?;
            if self.state != State::Talking {
                // What came behind the last reply belongs to what follows.
                return Ok(());
            }
            if let Phase::Tls(..) = self.talk.phase {
                if !self.handshake()? {
                    return Ok(());
                }
                continue;
            }
            if !self.collect() {
                if !self.receive()? {
                    return Ok(());
                }
                continue;
            }
            let message = std::mem::take(&mut self.talk.partial);
            self.message(&message)?;
        }
    }

    /// Whether the next message is there as a whole.
    fn collect(&mut self) -> bool {
        if let Phase::Skipping { left, .. } = &mut self.talk.phase {
            let some = self.inbox.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
            self.inbox.take(some);
            *left -= u32::try_from(some).unwrap_or_default();
            return *left == 0;
        }
        let missing = self.talk.wanted().saturating_sub(self.talk.partial.len());
        let some = missing.min(self.inbox.len());
        self.talk.partial.extend_from_slice(self.inbox.filled().get(..some).unwrap_or_default());
        self.inbox.take(some);
        some == missing
    }

    fn message(&mut self, message: &[u8]) -> Result<(), Fault> {
        let mut fields = Fields(message);
        match std::mem::take(&mut self.talk.phase) {
            Phase::Greeting => self.greeting(fields),
            Phase::Flags => self.server_flags(fields.u16()),
            Phase::Oldstyle => self.oldstyle(fields),
            Phase::ReplyHeader => self.reply_header(fields),
            Phase::Reply { kind, .. } => self.reply(kind, fields),
            Phase::Skipping { kind, .. } => {
                self.debug(|| "skipping a reply that is too long".to_owned());
                self.passed_over(kind)
            }
            Phase::ExportName => {
                let (size, flags) = (fields.number(8), fields.u16());
                self.set_size_and_flags(size, flags)?;
                self.enter()
            }
            Phase::Idle | Phase::Tls(..) => Ok(()),
        }
    }

    fn greeting(&mut self, mut fields: Fields<'_>) -> Result<(), Fault> {
        let (magic, version) = (fields.number(8), fields.number(8));
        if magic != NBDMAGIC {
            return Err(Fault::plain("handshake: server did not send expected NBD magic"));
        }
        self.talk.phase = match version {
            IHAVEOPT => Phase::Flags,
            OLDSTYLE_MAGIC if self.settings.tls == tls::REQUIRE => {
                let text = "handshake: server is oldstyle, but handle TLS setting is 'require' (2)";
                return Err(Fault::new(Errno::NOTSUP, text));
            }
            OLDSTYLE_MAGIC => Phase::Oldstyle,
            _ => {
                let text =
                    "handshake: server is not either an oldstyle or fixed newstyle NBD server";
                return Err(Fault::plain(text));
            }
        };
        Ok(())
    }

    fn oldstyle(&mut self, mut fields: Fields<'_>) -> Result<(), Fault> {
        let (size, general, flags) = (fields.number(8), fields.u16(), fields.u16());
        if general != 0 {
            return Err(Fault::plain("handshake: oldstyle server should not set gflags"));
        }
        self.protocol = "oldstyle";
        self.set_size_and_flags(size, flags)?;
        if self.settings.opt_mode {
            self.state = State::Negotiating;
            return Ok(());
        }
        self.enter()
    }

    fn server_flags(&mut self, flags: u16) -> Result<(), Fault> {
        self.talk.flags = self.settings.handshake_flags & u32::from(flags);
        if !self.talk.is_fixed() && self.settings.tls == tls::REQUIRE {
            let text = "handshake: server is not using fixed newstyle, \
                        but handle TLS setting is 'require' (2)";
            return Err(Fault::new(Errno::NOTSUP, text));
        }
        self.protocol = if self.talk.is_fixed() { "newstyle-fixed" } else { "newstyle" };
        self.put(&self.talk.flags.to_be_bytes());
        self.talk.asker = Asker::Engine;
        match (self.talk.is_fixed(), self.settings.opt_mode) {
            (true, _) if self.settings.tls != tls::DISABLE => {
                self.ask(option::STARTTLS, &[]);
            }
            (true, _) => self.ask_for_headers(),
            (false, true) => self.state = State::Negotiating,
            (false, false) => self.ask_by_name(),
        }
        Ok(())
    }

    /// After TLS, or without it.
    fn ask_for_headers(&mut self) {
        if self.settings.request_extended {
            self.ask(option::EXTENDED_HEADERS, &[]);
        } else {
            self.ask_for_structure();
        }
    }

    fn ask_for_structure(&mut self) {
        if self.settings.request_structured && self.mode == Mode::Simple {
            self.ask(option::STRUCTURED_REPLY, &[]);
        } else {
            self.ask_for_export();
        }
    }

    fn ask_for_export(&mut self) {
        if self.settings.opt_mode {
            self.state = State::Negotiating;
        } else {
            self.talk.goal = option::GO;
            self.ask_for_contexts();
        }
    }

    /// The contexts, if some are wanted, and then the export.
    fn ask_for_contexts(&mut self) {
        self.forget_export();
        let wanted = self.mode != Mode::Simple && !self.settings.contexts.is_empty();
        if self.settings.request_meta {
            self.contexts.clear();
            self.contexts_valid = false;
        }
        if self.settings.request_meta && wanted {
            let queries = self.settings.contexts.clone();
            self.ask_contexts(option::SET_META_CONTEXT, &queries);
        } else {
            self.ask_with_infos();
        }
    }

    fn ask_contexts(&mut self, option: u32, queries: &[String]) {
        let mut data = Vec::new();
        counted(&mut data, &self.settings.export);
        data.extend_from_slice(&u32::try_from(queries.len()).unwrap_or(u32::MAX).to_be_bytes());
        queries.iter().for_each(|query| counted(&mut data, query));
        self.ask(option, &data);
    }

    /// GO or INFO.
    fn ask_with_infos(&mut self) {
        let mut infos = Vec::new();
        if self.settings.request_block_size {
            infos.push(info::BLOCK_SIZE);
        }
        if self.settings.full_info {
            infos.extend([info::NAME, info::DESCRIPTION]);
        }
        let mut data = Vec::new();
        counted(&mut data, &self.settings.export);
        data.extend_from_slice(&u16::try_from(infos.len()).unwrap_or_default().to_be_bytes());
        infos.iter().for_each(|info| data.extend_from_slice(&info.to_be_bytes()));
        self.ask(self.talk.goal, &data);
    }

    fn ask_by_name(&mut self) {
        self.talk.goal = option::GO;
        let name = self.settings.export.clone();
        self.ask(option::EXPORT_NAME, name.as_bytes());
        self.talk.phase = Phase::ExportName;
    }

    fn ask(&mut self, option: u32, data: &[u8]) {
        let mut message = IHAVEOPT.to_be_bytes().to_vec();
        message.extend_from_slice(&option.to_be_bytes());
        message.extend_from_slice(&u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes());
        message.extend_from_slice(data);
        self.put(&message);
        self.talk.option = option;
        self.talk.replies = 0;
        self.talk.phase = Phase::ReplyHeader;
        self.state = State::Talking;
    }

    /// An option of the user's.
    pub(crate) fn opt(&mut self, wanted: Option) -> Result<(), Fault> {
        When::Negotiating.check(self.state)?;
        if !self.talk.is_fixed() && !matches!(wanted, Option::Go) {
            return Err(Fault::new(Errno::NOTSUP, "server is not using fixed newstyle protocol"));
        }
        self.talk.asker = Asker::User;
        let queries = |own: std::option::Option<Vec<String>>, all: &[String]| {
            own.unwrap_or_else(|| all.to_vec())
        };
        match wanted {
            Option::Go if self.protocol == "oldstyle" => {
                self.talk.goal = option::GO;
                self.enter()?;
            }
            Option::Go if !self.talk.is_fixed() => self.ask_by_name(),
            Option::Go => {
                self.talk.goal = option::GO;
                self.ask_for_contexts();
            }
            Option::Info => {
                self.talk.goal = option::INFO;
                self.ask_for_contexts();
            }
            Option::List => self.ask_alone(option::LIST),
            Option::StartTls => self.ask_alone(option::STARTTLS),
            Option::ExtendedHeaders => self.ask_alone(option::EXTENDED_HEADERS),
            Option::StructuredReply => self.ask_alone(option::STRUCTURED_REPLY),
            Option::ListContexts(own) => {
                let queries = queries(own, &self.settings.contexts);
                self.talk.goal = option::LIST_META_CONTEXT;
                self.ask_contexts(option::LIST_META_CONTEXT, &queries);
            }
            Option::SetContexts(own) => {
                let queries = queries(own, &self.settings.contexts);
                self.contexts.clear();
                self.contexts_valid = false;
                self.talk.goal = option::SET_META_CONTEXT;
                self.ask_contexts(option::SET_META_CONTEXT, &queries);
            }
        }
        self.or_die(Self::talk_on_if_talking)
    }

    fn talk_on_if_talking(&mut self) -> Result<(), Fault> {
        if self.state == State::Talking { self.talk_on() } else { Ok(()) }
    }

    fn ask_alone(&mut self, option: u32) {
        self.talk.goal = option;
        self.ask(option, &[]);
    }

    /// Says goodbye in option mode.
    pub(crate) fn opt_abort(&mut self) -> Result<(), Fault> {
        When::Negotiating.check(self.state)?;
        if self.talk.is_fixed() {
            self.ask(option::ABORT, &[]);
            // The server may be gone already, which is as good.
            let _ = self.send();
        }
        if let Some(stream) = &self.stream {
            stream.end();
        }
        self.ended_by_server();
        Ok(())
    }

    fn reply_header(&mut self, mut fields: Fields<'_>) -> Result<(), Fault> {
        let (magic, option) = (fields.number(8), fields.u32());
        let (kind, len) = (fields.u32(), fields.u32());
        self.stats.chunks_received += 1;
        if magic != OPTION_REPLY_MAGIC || option != self.talk.option {
            return Err(Fault::plain("handshake: invalid option reply magic or option"));
        }
        let wrong = |what: &str| Err(Fault::plain(format!("handshake: {what}")));
        match kind {
            reply::ACK if len != 0 => return wrong("invalid NBD_REP_ACK option reply length"),
            reply::INFO if len < 2 => return wrong("NBD_REP_INFO reply length too small"),
            reply::META_CONTEXT if len <= 4 => {
                return wrong("invalid NBD_REP_META_CONTEXT reply length");
            }
            _ if len > MAX_SKIPPED => return wrong("invalid option reply length"),
            _ => {}
        }
        self.talk.replies += 1;
        if self.talk.replies > MOST_REPLIES {
            return wrong("there is no end of replies to an option");
        }
        let short = usize::try_from(len).is_ok_and(|len| len <= LONGEST);
        self.talk.phase =
            if short { Phase::Reply { kind, len } } else { Phase::Skipping { left: len, kind } };
        Ok(())
    }

    /// A reply was too long to be looked at.
    fn passed_over(&mut self, kind: u32) -> Result<(), Fault> {
        if kind & reply::ERROR_BIT != 0 {
            return Err(Fault::plain("handshake: option error string too long"));
        }
        self.talk.phase = Phase::ReplyHeader;
        Ok(())
    }

    fn reply(&mut self, kind: u32, fields: Fields<'_>) -> Result<(), Fault> {
        if kind & reply::ERROR_BIT != 0 {
            if fields.0.len() > MAX_STRING {
                return Err(Fault::plain("handshake: option error string too long"));
            }
            if !fields.0.is_empty() {
                self.debug(|| format!("handshake: server error message: {}", text(fields.0)));
            }
            return self.refused(kind);
        }
        // Until its end is there, the option goes on.
        self.talk.phase = Phase::ReplyHeader;
        match (kind, self.talk.option) {
            (reply::ACK, _) => self.acknowledged(),
            (reply::INFO, option::GO | option::INFO) => self.info(fields),
            (reply::META_CONTEXT, option::SET_META_CONTEXT | option::LIST_META_CONTEXT) => {
                self.context(fields);
                Ok(())
            }
            (reply::SERVER, option::LIST) => self.listed(fields),
            _ => {
                let text = format!("handshake: unexpected option reply type {kind}");
                Err(Fault::plain(text))
            }
        }
    }

    fn acknowledged(&mut self) -> Result<(), Fault> {
        let by_user = self.talk.asker == Asker::User;
        match self.talk.option {
            option::STARTTLS => return self.start_tls(),
            option::EXTENDED_HEADERS | option::STRUCTURED_REPLY => {
                let extended = self.talk.option == option::EXTENDED_HEADERS;
                if extended {
                    self.mode = Mode::Extended;
                } else if self.mode == Mode::Simple {
                    self.mode = Mode::Structured;
                }
                if by_user {
                    self.option_done(0);
                } else {
                    self.ask_for_export();
                }
            }
            option::SET_META_CONTEXT => {
                self.contexts_valid = true;
                if self.talk.goal == option::SET_META_CONTEXT {
                    self.option_done(0);
                } else {
                    self.ask_with_infos();
                }
            }
            option::GO => {
                self.contexts_valid |= self.settings.request_meta;
                return self.enter();
            }
            option::INFO => {
                self.contexts_valid |= self.settings.request_meta;
                self.option_done(0);
            }
            _ => self.option_done(0),
        }
        Ok(())
    }

    /// The option in flight was refused.
    fn refused(&mut self, kind: u32) -> Result<(), Fault> {
        let fault = refusal(kind, &self.settings.export);
        let by_user = self.talk.asker == Asker::User;
        match self.talk.option {
            option::STARTTLS if !by_user && self.settings.tls == tls::REQUIRE => {
                let text = "handshake: server refused TLS, \
                            but handle TLS setting is 'require' (2)";
                return Err(Fault::new(Errno::NOTSUP, text));
            }
            option::STARTTLS if !by_user => {
                self.debug(|| {
                    let why = if kind == reply::ERR_POLICY { "policy" } else { "not supported" };
                    format!("server refused TLS ({why}), continuing with unencrypted connection")
                });
                self.ask_for_headers();
            }
            option::EXTENDED_HEADERS if !by_user => self.ask_for_structure(),
            option::STRUCTURED_REPLY if !by_user => self.ask_for_export(),
            option::SET_META_CONTEXT if self.talk.goal != option::SET_META_CONTEXT => {
                self.debug(|| {
                    format!(
                        "handshake: ignoring unexpected error from \
                             NBD_OPT_SET_META_CONTEXT ({kind})"
                    )
                });
                self.ask_with_infos();
            }
            option::GO if kind == reply::ERR_UNSUP => {
                self.debug(|| "server is confused by NBD_OPT_GO, continuing anyway".into());
                self.ask_by_name();
            }
            option::GO | option::INFO => {
                self.forget_export();
                self.contexts_valid = false;
                if by_user {
                    self.option_done(fault.errno);
                } else {
                    // What the server says to that does not matter any more.
                    self.ask(option::ABORT, &[]);
                    let _ = self.send();
                    return Err(fault);
                }
            }
            _ => self.option_done(fault.errno),
        }
        Ok(())
    }

    /// An option of the user's has come to its end.
    pub(super) fn option_done(&mut self, errno: i32) {
        if self.state == State::Talking {
            self.state = State::Negotiating;
        }
        self.talk.goal = 0;
        self.talk.phase = Phase::Idle;
        self.events.push_back(Event::OptionDone(errno));
    }

    /// Transmission begins.
    fn enter(&mut self) -> Result<(), Fault> {
        if self.export.known.is_none() {
            return Err(Fault::plain("handshake: server did not tell the size of the export"));
        }
        if self.talk.asker == Asker::User {
            self.option_done(0);
        }
        self.talk = Talk { flags: self.talk.flags, ..Talk::default() };
        self.state = State::Ready;
        Ok(())
    }

    fn forget_export(&mut self) {
        self.export = Export::default();
    }

    fn info(&mut self, mut fields: Fields<'_>) -> Result<(), Fault> {
        let wrong = |name: &str| {
            Err(Fault::plain(format!("handshake: incorrect {name} option reply length")))
        };
        let kind = fields.u16();
        let len = fields.0.len();
        match kind {
            info::EXPORT if len != 10 => wrong("NBD_INFO_EXPORT"),
            info::EXPORT => {
                let (size, flags) = (fields.number(8), fields.u16());
                self.set_size_and_flags(size, flags)
            }
            info::BLOCK_SIZE if len != 12 => wrong("NBD_INFO_BLOCK_SIZE"),
            info::BLOCK_SIZE => {
                let blocks = [fields.u32(), fields.u32(), fields.u32()];
                self.set_blocks(blocks);
                Ok(())
            }
            info::NAME if len > MAX_STRING => wrong("NBD_INFO_NAME"),
            info::NAME => {
                self.export.canonical = Some(text(fields.0));
                Ok(())
            }
            info::DESCRIPTION if len > MAX_STRING => wrong("NBD_INFO_DESCRIPTION"),
            info::DESCRIPTION => {
                self.export.description = Some(text(fields.0));
                Ok(())
            }
            _ => {
                self.debug(|| format!("skipping unknown NBD_REP_INFO type {kind}"));
                Ok(())
            }
        }
    }

    fn set_size_and_flags(&mut self, size: u64, flags: u16) -> Result<(), Fault> {
        self.debug(|| format!("exportsize: {size} eflags: {flags:#x}"));
        if flags == 0 {
            let text = "handshake: invalid eflags == 0 from server";
            return Err(Fault::new(Errno::INVAL, text));
        }
        let mut flags = TransmissionFlags(flags);
        let mut ignore = |engine: &mut Self, flag: TransmissionFlags, why: &str| {
            if flags.contains(flag) {
                engine.debug(|| why.to_owned());
                flags = flags.without(flag);
            }
            flags
        };
        if self.mode == Mode::Simple {
            let why = "server lacks structured replies, ignoring claim of df";
            ignore(self, TransmissionFlags::SEND_DF, why);
        }
        if self.mode != Mode::Extended {
            let why = "server lacks extended headers, ignoring claim of block status payload";
            ignore(self, TransmissionFlags::BLOCK_STATUS_PAYLOAD, why);
        }
        let zeroes = TransmissionFlags::SEND_WRITE_ZEROES;
        if !ignore(self, TransmissionFlags(0x8000), "").contains(zeroes) {
            let why = "server lacks write zeroes, ignoring claim of fast zero";
            ignore(self, TransmissionFlags::SEND_FAST_ZERO, why);
        }
        self.export.known = Some((size, flags));
        Ok(())
    }

    fn set_blocks(&mut self, blocks: [u32; 3]) {
        let [minimum, preferred, maximum] = blocks;
        self.debug(|| {
            format!(
                "server block size constraints: min: {minimum} preferred: {preferred} \
                     max: {maximum}"
            )
        });
        let sane = minimum.is_power_of_two()
            && minimum <= 64 << 10
            && preferred.is_power_of_two()
            && preferred >= 512.max(minimum)
            && preferred <= 32 << 20
            && maximum >= minimum
            && (maximum == u32::MAX || maximum.is_multiple_of(minimum));
        if sane {
            self.export.blocks = Some(blocks);
        } else {
            self.debug(|| "ignoring improper server size constraints".to_owned());
        }
    }

    fn context(&mut self, mut fields: Fields<'_>) {
        let id = fields.u32();
        let name = text(fields.0);
        if fields.0.len() > MAX_STRING {
            return self.debug(|| "skipping too large meta context".to_owned());
        }
        if self.talk.goal == option::LIST_META_CONTEXT || self.talk.goal == option::SET_META_CONTEXT
        {
            self.events.push_back(Event::Context(name.clone()));
        }
        if self.talk.option == option::SET_META_CONTEXT && self.contexts.len() < MOST_CONTEXTS {
            self.debug(|| format!("negotiated {name} with context ID {id}"));
            self.contexts.push((id, name));
        }
    }

    fn listed(&mut self, mut fields: Fields<'_>) -> Result<(), Fault> {
        let len = usize::try_from(fields.u32()).unwrap_or(usize::MAX);
        if len > MAX_STRING || len > fields.0.len() {
            return Err(Fault::plain("handshake: invalid option reply length"));
        }
        let name = text(fields.take(len));
        self.events.push_back(Event::Listed(name, text(fields.0)));
        Ok(())
    }

    /// The server will encrypt.
    fn start_tls(&mut self) -> Result<(), Fault> {
        // Plain text ahead of TLS would be taken for authentic afterwards.
        if self.inbox.len() > 0 {
            return Err(Fault::plain("handshake: server sent data before TLS began"));
        }
        let calling = self.calling();
        let say = |e: device::Error| Fault::plain(e.to_string());
        let handshake = Connector::new(&calling).and_then(|c| c.connect()).map_err(say)?;
        self.talk.phase = Phase::Tls(Box::new(handshake), false);
        Ok(())
    }

    fn calling(&self) -> Calling {
        let settings = &self.settings;
        if let Some(file) = settings.tls_psk_file.clone() {
            return Calling::Keys { file, user: settings.tls_username.clone() };
        }
        Calling::Certificates {
            directory: settings.tls_certificates.clone(),
            host: settings.tls_hostname.clone(),
            verify_peer: settings.tls_verify_peer,
        }
    }

    /// Goes on with the handshake of TLS; whether it is done.
    fn handshake(&mut self) -> Result<bool, Fault> {
        let Some(stream) = self.stream.clone() else { return Ok(false) };
        let Phase::Tls(handshake, room) = &mut self.talk.phase else { return Ok(false) };
        match handshake.advance(&stream) {
            Ok(Progress::Waits { room: wanted }) => {
                *room = wanted;
                Ok(false)
            }
            Ok(Progress::Done) => {
                // What was agreed on in clear text counts no more.
                self.mode = Mode::Simple;
                self.contexts.clear();
                self.contexts_valid = false;
                if self.talk.asker == Asker::User {
                    self.option_done(0);
                } else {
                    self.ask_for_headers();
                }
                Ok(true)
            }
            Err(failed) => {
                if failed.delay.is_zero() {
                    handshake.farewell(&stream);
                }
                Err(Fault::plain(failed.why.to_string()))
            }
        }
    }
}

/// An error reply in words, with the number that it stands for.
fn refusal(kind: u32, export: &str) -> Fault {
    let (errno, text) = match kind {
        reply::ERR_UNSUP => (Errno::NOTSUP, "the operation is not supported by the server"),
        reply::ERR_POLICY => (Errno::PERM, "server policy prevents the operation"),
        reply::ERR_PLATFORM => {
            (Errno::NOTSUP, "the operation is not supported by the server platform")
        }
        reply::ERR_INVALID => (Errno::INVAL, "the server rejected this operation as invalid"),
        reply::ERR_TOO_BIG => (Errno::INVAL, "the operation is too large to process"),
        reply::ERR_TLS_REQD => (Errno::NOTSUP, "the server requires TLS encryption first"),
        reply::ERR_UNKNOWN => {
            let text = format!("the server has no export named '{export}'");
            return Fault::new(Errno::NOENT, text);
        }
        reply::ERR_SHUTDOWN => (Errno::SHUTDOWN, "the server is shutting down"),
        reply::ERR_BLOCK_SIZE_REQD => (Errno::INVAL, "the server requires specific block sizes"),
        _ => {
            let text = format!("handshake: unknown reply from the server: {kind:#x}");
            return Fault::new(Errno::NOTSUP, text);
        }
    };
    Fault::new(errno, text)
}
