//! The client's options in their order, and what their replies mean.

use crate::codec::Reader;
use crate::constants::{Framing, info, option, reply};
use crate::error::{HandshakeError, PeerIncompatible, PeerMisbehaved, cleaned};
use crate::handshake::client::{
    ClientHandshake, ClientStep, ListedExport, context_data, info_data, put_option, received_name,
};
use crate::session::{BlockConstraints, Negotiated};

/// Most replies to an option that is not LIST.
const MAX_REPLIES: u32 = 4096;
/// Most replies to LIST.
const MAX_LISTED: u32 = 65_536;
/// Most bytes of replies to one option.
const MAX_REPLY_BYTES: u64 = 32 << 20;
/// Most contexts that are selected only because the server has them.
const MAX_SELECTED: usize = 64;

/// The options that may be in flight, in their order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    StartTls,
    Extended,
    Structured,
    List,
    /// INFO about the export at this place of the list.
    ListedInfo(usize),
    /// The contexts of the export at this place of the list.
    ListedContexts(usize),
    AvailableContexts,
    SelectContexts,
    Export,
}

/// What the information replies to one option have told.
#[derive(Debug, Default)]
pub(crate) struct ExportInfo {
    pub(crate) size_and_flags: Option<(u64, u16)>,
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) blocks: Option<BlockConstraints>,
}

impl ClientHandshake {
    /// The option that a phase sends.
    pub(super) fn option_of(&self, phase: Phase) -> u32 {
        match phase {
            Phase::StartTls => option::STARTTLS,
            Phase::Extended => option::EXTENDED_HEADERS,
            Phase::Structured => option::STRUCTURED_REPLY,
            Phase::List => option::LIST,
            Phase::ListedInfo(_) => option::INFO,
            Phase::ListedContexts(_) | Phase::AvailableContexts => option::LIST_META_CONTEXT,
            Phase::SelectContexts => option::SET_META_CONTEXT,
            Phase::Export => option::GO,
        }
    }

    /// Sends the option of `phase`, or of the first phase after it that applies.
    pub(super) fn begin(&mut self, mut phase: Phase, out: &mut Vec<u8>) -> ClientStep {
        loop {
            let data = match phase {
                Phase::StartTls if self.policy.tls => Some(Vec::new()),
                Phase::Extended if self.policy.extended => Some(Vec::new()),
                Phase::Structured if self.policy.structured && self.mode == Framing::Simple => {
                    Some(Vec::new())
                }
                Phase::List if self.policy.lists => Some(Vec::new()),
                Phase::ListedInfo(at) => match self.listed.get(at) {
                    Some(listed) => Some(info_data(&listed.name)),
                    None => return self.finish_list(out),
                },
                // Contexts mean nothing without chunks, and some servers refuse the question.
                Phase::ListedContexts(at) if self.mode != Framing::Simple => {
                    self.listed.get(at).map(|listed| context_data(&listed.name, &[]))
                }
                Phase::AvailableContexts
                    if self.lists_contexts() && self.mode != Framing::Simple =>
                {
                    Some(context_data(&self.policy.export, &[]))
                }
                Phase::SelectContexts if self.wants_contexts() => {
                    Some(context_data(&self.policy.export, &self.policy.contexts))
                }
                Phase::Export => Some(info_data(&self.policy.export)),
                _ => None,
            };
            if let Some(data) = data {
                self.send_option(phase, &data, out);
                return ClientStep::NeedMore;
            }
            phase = after(phase);
        }
    }

    fn lists_contexts(&self) -> bool {
        self.policy.list_contexts || self.policy.all_contexts
    }

    fn wants_contexts(&self) -> bool {
        self.mode != Framing::Simple && !self.policy.contexts.is_empty()
    }

    fn finish_list(&mut self, out: &mut Vec<u8>) -> ClientStep {
        put_option(option::ABORT, &[], out);
        ClientStep::Listed(std::mem::take(&mut self.listed))
    }

    /// Counts a reply to the option in flight, so that a server cannot go on for ever.
    pub(super) fn count_reply(&mut self, phase: Phase, length: u32) -> Result<(), PeerMisbehaved> {
        self.replies += 1;
        self.reply_bytes += u64::from(length);
        let most = if phase == Phase::List { MAX_LISTED } else { MAX_REPLIES };
        if self.replies > most || self.reply_bytes > MAX_REPLY_BYTES {
            return Err(PeerMisbehaved::TooManyReplies);
        }
        Ok(())
    }

    /// One whole reply.
    pub(super) fn reply(
        &mut self,
        phase: Phase,
        kind: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<ClientStep, HandshakeError> {
        if kind & reply::ERROR_BIT != 0 {
            return self.refused(phase, kind, data, out);
        }
        match (kind, phase) {
            (reply::ACK, _) if !data.is_empty() => return Err(PeerMisbehaved::AckWithData.into()),
            (reply::ACK, _) => return self.acknowledged(phase, out),
            (reply::SERVER, Phase::List) => self.server(data)?,
            (reply::INFO, Phase::ListedInfo(_) | Phase::Export) => self.info_reply(data)?,
            (
                reply::META_CONTEXT,
                Phase::ListedContexts(_) | Phase::AvailableContexts | Phase::SelectContexts,
            ) => self.context(phase, data)?,
            _ => return Err(PeerMisbehaved::ReplyUnexpected.into()),
        }
        Ok(ClientStep::NeedMore)
    }

    fn acknowledged(
        &mut self,
        phase: Phase,
        out: &mut Vec<u8>,
    ) -> Result<ClientStep, HandshakeError> {
        match phase {
            Phase::StartTls => return Ok(ClientStep::StartTls),
            Phase::Extended => self.mode = Framing::Extended,
            Phase::Structured => self.mode = Framing::Structured,
            Phase::ListedInfo(at) => {
                let told = std::mem::take(&mut self.told);
                let name = self.listed.get(at).map(|listed| listed.name.clone());
                let session = self.session(name.unwrap_or_default(), told)?;
                self.note_details(at, Ok(session));
            }
            Phase::ListedContexts(at) => {
                let names = std::mem::take(&mut self.names);
                if let Some(Some(Ok(session))) =
                    self.listed.get_mut(at).map(|listed| listed.details.as_mut())
                {
                    session.available_contexts = Some(names);
                }
            }
            Phase::AvailableContexts => {
                let names = std::mem::take(&mut self.names);
                if self.policy.all_contexts {
                    let wanted = &mut self.policy.contexts;
                    let others = names.iter().filter(|name| !wanted.contains(name));
                    let others: Vec<_> = others.take(MAX_SELECTED).cloned().collect();
                    wanted.extend(others);
                }
                self.available = Some(names);
            }
            Phase::List => return Ok(self.begin(Phase::ListedInfo(0), out)),
            Phase::SelectContexts => {}
            Phase::Export => {
                let told = std::mem::take(&mut self.told);
                return self.ready(told);
            }
        }
        Ok(self.begin(after(phase), out))
    }

    /// An error reply: go on without what was refused, or fail.
    fn refused(
        &mut self,
        phase: Phase,
        kind: u32,
        message: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<ClientStep, HandshakeError> {
        let refusal = HandshakeError::Refused {
            option: self.option_of(phase),
            reply: kind,
            message: cleaned(message),
        };
        if kind == reply::ERR_SHUTDOWN {
            return Err(refusal);
        }
        if let Phase::ListedInfo(at) = phase {
            self.note_details(at, Err(refusal));
            return Ok(self.begin(Phase::ListedInfo(at + 1), out));
        }
        if kind == reply::ERR_TLS_REQD && !self.tls && phase != Phase::StartTls {
            return Err(PeerIncompatible::TlsRequired.into());
        }
        match phase {
            Phase::Export if kind == reply::ERR_UNSUP && self.mode != Framing::Extended => {
                self.send_export_name(out);
                return Ok(ClientStep::NeedMore);
            }
            Phase::StartTls | Phase::List | Phase::Export => return Err(refusal),
            Phase::SelectContexts => self.contexts.clear(),
            _ => {}
        }
        Ok(self.begin(after(phase), out))
    }

    fn note_details(&mut self, at: usize, details: Result<Negotiated, HandshakeError>) {
        if let Some(listed) = self.listed.get_mut(at) {
            listed.details = Some(details);
        }
    }

    fn server(&mut self, data: &[u8]) -> Result<(), PeerMisbehaved> {
        let mut reader = Reader::new(data);
        let name = reader.counted().ok_or(PeerMisbehaved::ReplyTooShort)?;
        let name = received_name(name).ok_or(PeerMisbehaved::NameInvalid)?;
        let description = cleaned(reader.rest());
        self.listed.push(ListedExport { name, description, details: None });
        Ok(())
    }

    /// One piece of information; unknown ones are skipped.
    fn info_reply(&mut self, data: &[u8]) -> Result<(), PeerMisbehaved> {
        let mut reader = Reader::new(data);
        let bad = PeerMisbehaved::BadInfoLength;
        let id = reader.u16().ok_or(bad)?;
        match id {
            info::EXPORT => {
                let size = reader.u64().ok_or(bad)?;
                self.told.size_and_flags = Some((size, reader.u16().ok_or(bad)?));
            }
            info::BLOCK_SIZE => {
                let (minimum, preferred, maximum) = (reader.u32(), reader.u32(), reader.u32());
                self.told.blocks = Some(BlockConstraints {
                    minimum: minimum.ok_or(bad)?,
                    preferred: preferred.ok_or(bad)?,
                    maximum: maximum.ok_or(bad)?,
                });
            }
            info::NAME => {
                self.told.name = received_name(reader.rest());
                return Ok(());
            }
            info::DESCRIPTION => {
                self.told.description = Some(cleaned(reader.rest()));
                return Ok(());
            }
            _ => return Ok(()),
        }
        if reader.is_empty() { Ok(()) } else { Err(bad) }
    }

    /// One context. What was not asked for is not used: a server must not make us rely on it.
    fn context(&mut self, phase: Phase, data: &[u8]) -> Result<(), PeerMisbehaved> {
        let mut reader = Reader::new(data);
        let id = reader.u32().ok_or(PeerMisbehaved::ReplyTooShort)?;
        let Some(name) = received_name(reader.rest()).filter(|name| !name.is_empty()) else {
            return Ok(());
        };
        if phase != Phase::SelectContexts {
            self.names.push(name);
            return Ok(());
        }
        let known = self.contexts.iter().any(|(_, selected)| *selected == name);
        if known || !self.policy.contexts.contains(&name) {
            return Ok(());
        }
        if self.contexts.iter().any(|(selected, _)| *selected == id) {
            return Err(PeerMisbehaved::DuplicateContextId);
        }
        self.contexts.push((id, name));
        Ok(())
    }
}

/// The phase after `phase`, whether it applies or not.
fn after(phase: Phase) -> Phase {
    match phase {
        Phase::StartTls => Phase::Extended,
        Phase::Extended => Phase::Structured,
        Phase::Structured => Phase::List,
        Phase::List => Phase::AvailableContexts,
        Phase::ListedInfo(at) => Phase::ListedContexts(at),
        Phase::ListedContexts(at) => Phase::ListedInfo(at + 1),
        Phase::AvailableContexts => Phase::SelectContexts,
        Phase::SelectContexts | Phase::Export => Phase::Export,
    }
}
