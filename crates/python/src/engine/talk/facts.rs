//! What the server's replies say of an export.

use wire::constants::{MAX_STRING, info, option};
use wire::{Framing, TransmissionFlags};

use super::{Fields, text};
use crate::engine::{Engine, EngineError, Event, ExportFacts};

/// Most contexts that are kept.
const MOST_CONTEXTS: usize = 1024;

impl<K> Engine<K> {
    pub(super) fn forget_export(&mut self) {
        self.export = ExportFacts::default();
    }

    pub(super) fn info(&mut self, mut fields: Fields<'_>) -> Result<(), EngineError> {
        let kind = fields.u16();
        let len = fields.0.len();
        let (name, right) = match kind {
            info::EXPORT => ("EXPORT", len == 10),
            info::BLOCK_SIZE => ("BLOCK_SIZE", len == 12),
            info::NAME => ("NAME", len <= MAX_STRING),
            info::DESCRIPTION => ("DESCRIPTION", len <= MAX_STRING),
            _ => {
                self.debug(|| format!("skipping unknown NBD_REP_INFO type {kind}"));
                return Ok(());
            }
        };
        if !right {
            let text = format!("handshake: incorrect NBD_INFO_{name} option reply length");
            return Err(EngineError::plain(text));
        }
        match kind {
            info::EXPORT => return self.set_size_and_flags(fields.number(8), fields.u16()),
            info::BLOCK_SIZE => self.set_blocks([fields.u32(), fields.u32(), fields.u32()]),
            info::NAME => self.export.canonical = Some(text(fields.0)),
            _ => self.export.description = Some(text(fields.0)),
        }
        Ok(())
    }

    pub(super) fn set_size_and_flags(&mut self, size: u64, flags: u16) -> Result<(), EngineError> {
        self.debug(|| format!("exportsize: {size} eflags: {flags:#x}"));
        if flags == 0 {
            return Err(EngineError::invalid("handshake: invalid eflags == 0 from server"));
        }
        let mut flags = TransmissionFlags(flags);
        for (lacks, flag, what) in [
            (
                self.mode == Framing::Simple,
                TransmissionFlags::SEND_DF,
                "structured replies, ignoring claim of df",
            ),
            (
                self.mode != Framing::Extended,
                TransmissionFlags::BLOCK_STATUS_PAYLOAD,
                "extended headers, ignoring claim of block status payload",
            ),
            (
                !flags.contains(TransmissionFlags::SEND_WRITE_ZEROES),
                TransmissionFlags::SEND_FAST_ZERO,
                "write zeroes, ignoring claim of fast zero",
            ),
        ] {
            if lacks && flags.contains(flag) {
                self.debug(|| format!("server lacks {what}"));
                flags = flags.without(flag);
            }
        }
        self.export.known = Some((size, flags));
        Ok(())
    }

    pub(super) fn set_blocks(&mut self, blocks: [u32; 3]) {
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

    pub(super) fn context(&mut self, mut fields: Fields<'_>) {
        let id = fields.u32();
        let name = text(fields.0);
        if fields.0.len() > MAX_STRING {
            return self.debug(|| "skipping too large meta context".to_owned());
        }
        if matches!(self.talk.goal, option::LIST_META_CONTEXT | option::SET_META_CONTEXT) {
            self.events.push_back(Event::Context(name.clone()));
        }
        if self.talk.option == option::SET_META_CONTEXT && self.contexts.len() < MOST_CONTEXTS {
            self.debug(|| format!("negotiated {name} with context ID {id}"));
            self.contexts.push((id, name));
        }
    }

    pub(super) fn listed(&mut self, mut fields: Fields<'_>) -> Result<(), EngineError> {
        let len = usize::try_from(fields.u32()).unwrap_or(usize::MAX);
        if len > MAX_STRING || len > fields.0.len() {
            return Err(EngineError::plain("handshake: invalid option reply length"));
        }
        let name = text(fields.take(len));
        self.events.push_back(Event::Listed(name, text(fields.0)));
        Ok(())
    }
}
