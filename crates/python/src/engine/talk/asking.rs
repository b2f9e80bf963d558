//! Options, one after the other: those that lead to an export, and those that a user asks for.

use wire::constants::{info, option};
use wire::{Framing, put_option};

use super::{Option, Phase, counted};
use crate::engine::{Engine, EngineError, State, When};
use rustix::io::Errno;

impl<K> Engine<K> {
    /// Asks for what comes after one of the options on the way to an export.
    pub(super) fn go_on(&mut self, after: u32) {
        let settings = &self.settings;
        let structured = settings.request_structured && self.mode == Framing::Simple;
        match after {
            option::STARTTLS if settings.request_extended => {
                self.ask(option::EXTENDED_HEADERS, &[]);
            }
            option::STARTTLS | option::EXTENDED_HEADERS if structured => {
                self.ask(option::STRUCTURED_REPLY, &[]);
            }
            _ if settings.opt_mode => self.state = State::Negotiating,
            _ => self.ask_for_contexts(option::GO),
        }
    }

    pub(super) fn forget_contexts(&mut self) {
        self.contexts.clear();
        self.contexts_valid = false;
    }

    /// The contexts, if some are wanted, and then `goal`, GO or INFO.
    pub(super) fn ask_for_contexts(&mut self, goal: u32) {
        self.talk.goal = goal;
        self.forget_export();
        if self.settings.request_meta {
            self.forget_contexts();
            if self.mode != Framing::Simple && !self.settings.contexts.is_empty() {
                let queries = self.settings.contexts.clone();
                return self.ask_contexts(option::SET_META_CONTEXT, &queries);
            }
        }
        self.ask_with_infos();
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
        self.talk.by_user = true;
        match wanted {
            Option::Go if self.protocol == "oldstyle" => {
                self.talk.goal = option::GO;
                self.enter()?;
            }
            Option::Go if !self.talk.is_fixed() => self.ask_by_name(),
            Option::Go => self.ask_for_contexts(option::GO),
            Option::Info => self.ask_for_contexts(option::INFO),
            Option::Plain(option) => {
                self.talk.goal = option;
                self.ask(option, &[]);
            }
            Option::Contexts(option, own) => {
                let queries = own.unwrap_or_else(|| self.settings.contexts.clone());
                if option == option::SET_META_CONTEXT {
                    self.forget_contexts();
                }
                self.talk.goal = option;
                self.ask_contexts(option, &queries);
            }
        }
        self.or_die(|engine| if engine.state == State::Talking { engine.talk_on() } else { Ok(()) })
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
