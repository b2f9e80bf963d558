//! Options, one after the other: those that lead to an export, and those that a user asks for.

use wire::constants::{info, option};
use wire::{Framing, put_option};

use super::{Asker, Option, Phase, counted};
use crate::engine::{Engine, EngineError, State, When};
use rustix::io::Errno;

impl<K> Engine<K> {
    /// After TLS, or without it.
    pub(super) fn ask_for_headers(&mut self) {
        if self.settings.request_extended {
            self.ask(option::EXTENDED_HEADERS, &[]);
        } else {
            self.ask_for_structure();
        }
    }

    pub(super) fn ask_for_structure(&mut self) {
        if self.settings.request_structured && self.mode == Framing::Simple {
            self.ask(option::STRUCTURED_REPLY, &[]);
        } else {
            self.ask_for_export();
        }
    }

    pub(super) fn ask_for_export(&mut self) {
        if self.settings.opt_mode {
            self.state = State::Negotiating;
        } else {
            self.talk.goal = option::GO;
            self.ask_for_contexts();
        }
    }

    /// The contexts, if some are wanted, and then the export.
    pub(super) fn ask_for_contexts(&mut self) {
        self.forget_export();
        let wanted = self.mode != Framing::Simple && !self.settings.contexts.is_empty();
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

    pub(super) fn ask_contexts(&mut self, option: u32, queries: &[String]) {
        let mut data = Vec::new();
        counted(&mut data, &self.settings.export);
        data.extend_from_slice(&u32::try_from(queries.len()).unwrap_or(u32::MAX).to_be_bytes());
        queries.iter().for_each(|query| counted(&mut data, query));
        self.ask(option, &data);
    }

    /// GO or INFO.
    pub(super) fn ask_with_infos(&mut self) {
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

    pub(super) fn ask_by_name(&mut self) {
        self.talk.goal = option::GO;
        let name = self.settings.export.clone();
        self.ask(option::EXPORT_NAME, name.as_bytes());
        self.talk.phase = Phase::ExportName;
    }

    pub(super) fn ask(&mut self, option: u32, data: &[u8]) {
        self.put(|out| put_option(option, data, out));
        self.talk.option = option;
        self.talk.replies = 0;
        self.talk.phase = Phase::ReplyHeader;
        self.state = State::Talking;
    }

    /// An option that the user asks for.
    pub(crate) fn opt(&mut self, wanted: Option) -> Result<(), EngineError> {
        When::Negotiating.check(self.state)?;
        if !self.talk.is_fixed() && !matches!(wanted, Option::Go) {
            return Err(EngineError::new(
                Errno::NOTSUP,
                "server is not using fixed newstyle protocol",
            ));
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

    pub(super) fn talk_on_if_talking(&mut self) -> Result<(), EngineError> {
        if self.state == State::Talking { self.talk_on() } else { Ok(()) }
    }

    pub(super) fn ask_alone(&mut self, option: u32) {
        self.talk.goal = option;
        self.ask(option, &[]);
    }

    /// Aborts the handshake in option mode.
    pub(crate) fn opt_abort(&mut self) -> Result<(), EngineError> {
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
}
