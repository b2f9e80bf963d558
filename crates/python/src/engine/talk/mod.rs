//! The handshake: greeting, options and their replies.
//!
//! Without option mode the engine sends the options that the settings ask for, one after the other,
//! and ends in transmission or dead. In option mode it stops after TLS and the form of replies
//! ([`State::Negotiating`]), and each option is the user's.
//!
//! - `asking.rs`: options out. `answers.rs`: replies in. `facts.rs`: what they say. `tls.rs`:
//!   encrypting.

mod answers;
mod asking;
mod facts;
mod tls;

use net::tls::Handshake;
use rustix::io::Errno;
use wire::constants::{
    IHAVEOPT, NBDMAGIC, OLDSTYLE_MAGIC, OPTION_REPLY_HEADER_LEN, handshake_flags, option,
};

use super::settings::tls::{DISABLE, REQUIRE};
use super::{Engine, EngineError, State};

/// What the engine waits for.
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

/// An option that a user may ask for.
#[derive(Clone, Debug)]
pub(crate) enum Option {
    Go,
    Info,
    /// One without data, by its number.
    Plain(u32),
    /// One about contexts: its number, and the queries; none: those of the settings.
    Contexts(u32, std::option::Option<Vec<String>>),
}

#[derive(Debug, Default)]
pub(super) struct Talk {
    phase: Phase,
    /// Handshake flags that both sides have.
    flags: u32,
    /// The option in flight.
    option: u32,
    /// The user asked for it, in option mode; else the engine did, on the way to an export.
    by_user: bool,
    /// What the user asked for, of which that option is a part.
    goal: u32,
    replies: u32,
    partial: Vec<u8>,
}

impl Talk {
    pub(super) fn begin(&mut self) {
        self.phase = Phase::Greeting;
    }

    /// Whether the engine waits for room in the socket.
    pub(super) const fn wants_room(&self, has_output: bool) -> bool {
        has_output || matches!(self.phase, Phase::Tls(_, true))
    }

    /// Whether a user waits for the end of an option.
    pub(super) fn is_asking(&self) -> bool {
        self.by_user && self.goal != 0
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

fn no_tls(what: &str) -> EngineError {
    let text = format!("handshake: server is {what}, but handle TLS setting is 'require' (2)");
    EngineError::new(Errno::NOTSUP, text)
}

impl<K> Engine<K> {
    /// Goes on with the handshake as far as what was received allows.
    pub(super) fn talk_on(&mut self) -> Result<(), EngineError> {
        loop {
            self.send()?;
            if self.state != State::Talking {
                // Bytes behind the last reply belong to the next phase.
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

    /// Whether the next message has arrived as a whole.
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

    fn message(&mut self, message: &[u8]) -> Result<(), EngineError> {
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

    fn greeting(&mut self, mut fields: Fields<'_>) -> Result<(), EngineError> {
        let (magic, version) = (fields.number(8), fields.number(8));
        if magic != NBDMAGIC {
            return Err(EngineError::plain("handshake: server did not send expected NBD magic"));
        }
        let requires = self.settings.tls == REQUIRE;
        self.talk.phase = match version {
            IHAVEOPT => Phase::Flags,
            OLDSTYLE_MAGIC if requires => return Err(no_tls("oldstyle")),
            OLDSTYLE_MAGIC => Phase::Oldstyle,
            _ => {
                let text =
                    "handshake: server is not either an oldstyle or fixed newstyle NBD server";
                return Err(EngineError::plain(text));
            }
        };
        Ok(())
    }

    fn oldstyle(&mut self, mut fields: Fields<'_>) -> Result<(), EngineError> {
        let (size, general, flags) = (fields.number(8), fields.u16(), fields.u16());
        if general != 0 {
            return Err(EngineError::plain("handshake: oldstyle server should not set gflags"));
        }
        self.protocol = "oldstyle";
        self.set_size_and_flags(size, flags)?;
        if self.settings.opt_mode {
            self.state = State::Negotiating;
            return Ok(());
        }
        self.enter()
    }

    fn server_flags(&mut self, flags: u16) -> Result<(), EngineError> {
        self.talk.flags = self.settings.handshake_flags & u32::from(flags);
        if !self.talk.is_fixed() && self.settings.tls == REQUIRE {
            return Err(no_tls("not using fixed newstyle"));
        }
        self.protocol = if self.talk.is_fixed() { "newstyle-fixed" } else { "newstyle" };
        let flags = self.talk.flags.to_be_bytes();
        self.put(|out| out.extend_from_slice(&flags));
        self.talk.by_user = false;
        match (self.talk.is_fixed(), self.settings.opt_mode) {
            (true, _) if self.settings.tls != DISABLE => self.ask(option::STARTTLS, &[]),
            (true, _) => self.go_on(option::STARTTLS),
            (false, true) => self.state = State::Negotiating,
            (false, false) => self.ask_by_name(),
        }
        Ok(())
    }
}
