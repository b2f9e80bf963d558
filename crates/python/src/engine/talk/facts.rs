//! What the server's replies say of an export.

use rustix::io::Errno;
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
        let wrong = |name: &str| {
            Err(EngineError::plain(format!("handshake: incorrect {name} option reply length")))
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

    pub(super) fn set_size_and_flags(&mut self, size: u64, flags: u16) -> Result<(), EngineError> {
        self.debug(|| format!("exportsize: {size} eflags: {flags:#x}"));
        if flags == 0 {
            let text = "handshake: invalid eflags == 0 from server";
            return Err(EngineError::new(Errno::INVAL, text));
        }
        let mut flags = TransmissionFlags(flags);
        let mut ignore = |engine: &mut Self, flag: TransmissionFlags, why: &str| {
            if flags.contains(flag) {
                engine.debug(|| why.to_owned());
                flags = flags.without(flag);
            }
            flags
        };
        if self.mode == Framing::Simple {
            let why = "server lacks structured replies, ignoring claim of df";
            ignore(self, TransmissionFlags::SEND_DF, why);
        }
        if self.mode != Framing::Extended {
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
        if self.talk.goal == option::LIST_META_CONTEXT || self.talk.goal == option::SET_META_CONTEXT
        {
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
