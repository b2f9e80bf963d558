//! Replies to options, and what follows from them.

use rustix::io::Errno;
use wire::Framing;
use wire::constants::{MAX_STRING, OPTION_REPLY_MAGIC, option, reply};

use super::{Fields, Phase, Talk, text};
use crate::engine::settings::tls::REQUIRE;
use crate::engine::{Engine, EngineError, Event, State};

/// Longest reply to an option that is parsed, in bytes; a longer one is skipped.
const LONGEST: usize = 64 << 10;
/// Longest reply that is skipped, in bytes.
const MAX_SKIPPED: u32 = 64 << 20;
/// Most replies to one option.
const MOST_REPLIES: u32 = 1 << 17;

impl<K> Engine<K> {
    pub(super) fn reply_header(&mut self, mut fields: Fields<'_>) -> Result<(), EngineError> {
        let (magic, option) = (fields.number(8), fields.u32());
        let (kind, len) = (fields.u32(), fields.u32());
        self.stats.chunks_received += 1;
        if magic != OPTION_REPLY_MAGIC || option != self.talk.option {
            return Err(EngineError::plain("handshake: invalid option reply magic or option"));
        }
        let wrong = |what: &str| Err(EngineError::plain(format!("handshake: {what}")));
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

    /// A reply was too long to be parsed.
    pub(super) fn passed_over(&mut self, kind: u32) -> Result<(), EngineError> {
        if kind & reply::ERROR_BIT != 0 {
            return Err(EngineError::plain("handshake: option error string too long"));
        }
        self.talk.phase = Phase::ReplyHeader;
        Ok(())
    }

    pub(super) fn reply(&mut self, kind: u32, fields: Fields<'_>) -> Result<(), EngineError> {
        if kind & reply::ERROR_BIT != 0 {
            if fields.0.len() > MAX_STRING {
                return Err(EngineError::plain("handshake: option error string too long"));
            }
            if !fields.0.is_empty() {
                self.debug(|| format!("handshake: server error message: {}", text(fields.0)));
            }
            return self.refused(kind);
        }
        // The option goes on until its last reply.
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
                Err(EngineError::plain(text))
            }
        }
    }

    pub(super) fn acknowledged(&mut self) -> Result<(), EngineError> {
        let (option, simple) = (self.talk.option, self.mode == Framing::Simple);
        match option {
            option::STARTTLS => return self.start_tls(),
            option::EXTENDED_HEADERS => self.mode = Framing::Extended,
            option::STRUCTURED_REPLY if simple => self.mode = Framing::Structured,
            option::SET_META_CONTEXT => self.contexts_valid = true,
            option::GO | option::INFO => self.contexts_valid |= self.settings.request_meta,
            _ => {}
        }
        match option {
            option::GO => return self.enter(),
            option::SET_META_CONTEXT if self.talk.goal != option => self.ask_with_infos(),
            option::EXTENDED_HEADERS | option::STRUCTURED_REPLY if !self.talk.by_user => {
                self.go_on(option);
            }
            _ => self.option_done(0),
        }
        Ok(())
    }

    /// The option in flight was refused.
    pub(super) fn refused(&mut self, kind: u32) -> Result<(), EngineError> {
        let fault = refusal(kind, &self.settings.export);
        let (option, by_user) = (self.talk.option, self.talk.by_user);
        match option {
            option::STARTTLS if !by_user && self.settings.tls == REQUIRE => {
                let text = "handshake: server refused TLS, \
                            but handle TLS setting is 'require' (2)";
                return Err(EngineError::new(Errno::NOTSUP, text));
            }
            option::STARTTLS | option::EXTENDED_HEADERS | option::STRUCTURED_REPLY if !by_user => {
                let why = if kind == reply::ERR_POLICY { "policy" } else { "not supported" };
                if option == option::STARTTLS {
                    self.debug(|| {
                        format!(
                            "server refused TLS ({why}), continuing with unencrypted connection"
                        )
                    });
                }
                self.go_on(option);
            }
            option::SET_META_CONTEXT if self.talk.goal != option => {
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
                    // The server's reply to that does not matter any more.
                    self.ask(option::ABORT, &[]);
                    let _ = self.send();
                    return Err(fault);
                }
            }
            _ => self.option_done(fault.errno),
        }
        Ok(())
    }

    /// An option of the user has ended.
    pub(in crate::engine) fn option_done(&mut self, errno: i32) {
        if self.state == State::Talking {
            self.state = State::Negotiating;
        }
        self.talk.goal = 0;
        self.talk.phase = Phase::Idle;
        self.events.push_back(Event::OptionDone(errno));
    }

    /// Transmission begins.
    pub(super) fn enter(&mut self) -> Result<(), EngineError> {
        if self.export.known.is_none() {
            return Err(EngineError::plain(
                "handshake: server did not tell the size of the export",
            ));
        }
        if self.talk.by_user {
            self.option_done(0);
        }
        self.talk = Talk { flags: self.talk.flags, ..Talk::default() };
        self.state = State::Ready;
        Ok(())
    }
}

/// An error reply in words, with the number that it stands for.
fn refusal(kind: u32, export: &str) -> EngineError {
    let unknown = format!("the server has no export named '{export}'");
    let other = format!("handshake: unknown reply from the server: {kind:#x}");
    let (errno, text) = match kind {
        reply::ERR_UNSUP => (Errno::NOTSUP, "the operation is not supported by the server"),
        reply::ERR_POLICY => (Errno::PERM, "server policy prevents the operation"),
        reply::ERR_PLATFORM => {
            (Errno::NOTSUP, "the operation is not supported by the server platform")
        }
        reply::ERR_INVALID => (Errno::INVAL, "the server rejected this operation as invalid"),
        reply::ERR_TOO_BIG => (Errno::INVAL, "the operation is too large to process"),
        reply::ERR_TLS_REQD => (Errno::NOTSUP, "the server requires TLS encryption first"),
        reply::ERR_UNKNOWN => (Errno::NOENT, &*unknown),
        reply::ERR_SHUTDOWN => (Errno::SHUTDOWN, "the server is shutting down"),
        reply::ERR_BLOCK_SIZE_REQD => (Errno::INVAL, "the server requires specific block sizes"),
        _ => (Errno::NOTSUP, &*other),
    };
    EngineError::new(errno, text)
}
