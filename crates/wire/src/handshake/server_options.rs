//! What the server answers to each option, once its data have arrived whole.

use crate::codec::{Reader, len64, put_counted, put_u16, put_u32, put_u64, text};
use crate::constants::{Framing, info, option, reply};
use crate::constants::{MAX_STRING, NBDMAGIC, OLDSTYLE_MAGIC, TransmissionFlags};
use crate::error::PeerMisbehaved;
use crate::handshake::server::{
    CloseReason, ExportCatalog, OptionRefusal, ServerHandshake, ServerStep, ServerTls, put_refusal,
    put_reply,
};
use crate::session::Negotiated;

/// Lists answered in one handshake; each may be long.
const MAX_LISTS: u32 = 4;
/// Exports named in one list, at most.
const MAX_LISTED: usize = 10_000;
/// Queries in one context option, at most.
const MAX_QUERIES: u32 = 1024;

/// The parts of INFO and GO.
struct InfoRequest<'a> {
    name: &'a str,
    ids: Vec<u16>,
}

/// The parts of LIST_META_CONTEXT and SET_META_CONTEXT.
struct MetaRequest<'a> {
    name: &'a str,
    queries: Vec<&'a [u8]>,
}

impl ServerHandshake {
    /// Answers an option. Errors that the protocol has a reply for never end the connection.
    pub(super) fn option(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn ExportCatalog,
        out: &mut Vec<u8>,
    ) -> ServerStep {
        if option == option::EXPORT_NAME {
            return self.export_name(data, exports, out);
        }
        if option == option::ABORT {
            put_reply(option, reply::ACK, &[], out);
            return ServerStep::Close(CloseReason::Abort);
        }
        if self.tls_missing() && option != option::STARTTLS {
            let refusal = OptionRefusal::new(reply::ERR_TLS_REQD, "TLS is required");
            put_refusal(option, &refusal, out);
            return ServerStep::NeedMore;
        }
        let start = out.len();
        let result = match option {
            option::LIST => self.list(data, exports, out),
            option::STARTTLS => self.start_tls(data, out),
            option::INFO | option::GO => self.info(option, data, exports, out),
            option::STRUCTURED_REPLY => self.structured_reply(data, out),
            option::EXTENDED_HEADERS => self.extended_headers(data, out),
            option::LIST_META_CONTEXT => self.list_contexts(data, exports, out),
            option::SET_META_CONTEXT => self.set_contexts(data, exports, out),
            _ => Err(OptionRefusal::new(reply::ERR_UNSUP, "option is not supported")),
        };
        result.unwrap_or_else(|refusal| {
            out.truncate(start);
            put_refusal(option, &self.sayable(refusal), out);
            ServerStep::NeedMore
        })
    }

    /// TLS_REQD may not be said by a server without TLS, nor once TLS is there.
    fn sayable(&self, refusal: OptionRefusal) -> OptionRefusal {
        let pointless = self.tls || self.policy.tls == ServerTls::Off;
        if refusal.reply == reply::ERR_TLS_REQD && pointless {
            return OptionRefusal::policy("export is not available on this connection");
        }
        refusal
    }

    /// The oldstyle greeting: the default export, or a silent close: the protocol has no reply for
    /// a refusal here.
    pub(super) fn oldstyle(&self, exports: &dyn ExportCatalog, out: &mut Vec<u8>) -> ServerStep {
        let close = |refusal| ServerStep::Close(CloseReason::Unavailable(refusal));
        if self.policy.tls == ServerTls::Require {
            return close(OptionRefusal::policy("the oldstyle protocol has no TLS"));
        }
        match exports.open("").and_then(|offer| self.session("", offer)) {
            Ok(session) => {
                put_u64(out, NBDMAGIC);
                put_u64(out, OLDSTYLE_MAGIC);
                put_u64(out, session.size);
                put_u32(out, u32::from(session.flags.0));
                out.extend_from_slice(&[0; 124]);
                ServerStep::Transmit(Box::new(session))
            }
            Err(refusal) => close(refusal),
        }
    }

    fn export_name(
        &self,
        data: &[u8],
        exports: &dyn ExportCatalog,
        out: &mut Vec<u8>,
    ) -> ServerStep {
        let close = |refusal| ServerStep::Close(CloseReason::Unavailable(refusal));
        if self.tls_missing() {
            return close(OptionRefusal::tls_required());
        }
        if self.mode == Framing::Extended {
            return close(OptionRefusal::invalid("EXPORT_NAME with extended headers"));
        }
        let Some(name) = text(data) else {
            return ServerStep::Close(CloseReason::Misbehaved(PeerMisbehaved::NameInvalid));
        };
        match exports.open(name).and_then(|offer| self.session(name, offer)) {
            Ok(session) => {
                put_u64(out, session.size);
                put_u16(out, session.flags.0);
                if self.wants_zeroes() {
                    out.extend_from_slice(&[0; 124]);
                }
                ServerStep::Transmit(Box::new(session))
            }
            Err(refusal) => close(refusal),
        }
    }

    /// Whether a list would be given.
    pub(super) fn may_list(&self) -> bool {
        self.lists < MAX_LISTS && !self.tls_missing()
    }

    fn list(
        &mut self,
        data: &[u8],
        exports: &dyn ExportCatalog,
        out: &mut Vec<u8>,
    ) -> Result<ServerStep, OptionRefusal> {
        no_data(data)?;
        if self.lists >= MAX_LISTS {
            return Err(OptionRefusal::invalid("exports were listed already"));
        }
        self.lists += 1;
        let mut listed = exports.list()?;
        listed.truncate(MAX_LISTED);
        for (name, description) in &listed {
            let mut entry = Vec::with_capacity(4 + name.len() + description.len());
            put_counted(&mut entry, name);
            let description = crate::codec::clipped(description, MAX_STRING);
            entry.extend_from_slice(description.as_bytes());
            put_reply(option::LIST, reply::SERVER, &entry, out);
        }
        put_reply(option::LIST, reply::ACK, &[], out);
        self.grant_options(listed.len());
        Ok(ServerStep::NeedMore)
    }

    fn start_tls(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<ServerStep, OptionRefusal> {
        no_data(data)?;
        if self.tls {
            return Err(OptionRefusal::invalid("TLS is established already"));
        }
        if self.policy.tls == ServerTls::Off {
            return Err(OptionRefusal::policy("TLS is not enabled"));
        }
        put_reply(option::STARTTLS, reply::ACK, &[], out);
        self.reset();
        Ok(ServerStep::StartTls)
    }

    fn structured_reply(
        &mut self,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<ServerStep, OptionRefusal> {
        no_data(data)?;
        match self.mode {
            _ if !self.policy.structured => {
                Err(OptionRefusal::new(reply::ERR_UNSUP, "structured replies are disabled"))
            }
            Framing::Simple => {
                self.mode = Framing::Structured;
                put_reply(option::STRUCTURED_REPLY, reply::ACK, &[], out);
                Ok(ServerStep::NeedMore)
            }
            Framing::Structured => {
                Err(OptionRefusal::invalid("structured replies were negotiated already"))
            }
            Framing::Extended => Err(OptionRefusal::new(
                reply::ERR_EXT_HEADER_REQD,
                "extended headers were negotiated already",
            )),
        }
    }

    fn extended_headers(
        &mut self,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<ServerStep, OptionRefusal> {
        no_data(data)?;
        if !self.policy.extended {
            return Err(OptionRefusal::new(reply::ERR_UNSUP, "extended headers are disabled"));
        }
        if self.mode == Framing::Extended {
            return Err(OptionRefusal::invalid("extended headers were negotiated already"));
        }
        self.mode = Framing::Extended;
        put_reply(option::EXTENDED_HEADERS, reply::ACK, &[], out);
        Ok(ServerStep::NeedMore)
    }

    fn info(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn ExportCatalog,
        out: &mut Vec<u8>,
    ) -> Result<ServerStep, OptionRefusal> {
        let request = info_request(data)?;
        let offer = exports.open(request.name)?;
        let mut session = self.session(request.name, offer)?;
        session.blocks_advertised = request.ids.contains(&info::BLOCK_SIZE);
        put_infos(option, &request.ids, &session, out);
        put_reply(option, reply::ACK, &[], out);
        if option == option::GO {
            return Ok(ServerStep::Transmit(Box::new(session)));
        }
        Ok(ServerStep::NeedMore)
    }

    fn list_contexts(
        &self,
        data: &[u8],
        exports: &dyn ExportCatalog,
        out: &mut Vec<u8>,
    ) -> Result<ServerStep, OptionRefusal> {
        let option = option::LIST_META_CONTEXT;
        let request = self.meta_request(data)?;
        let contexts = exports.contexts(request.name)?;
        let all = request.queries.is_empty();
        let wanted = |name: &str| {
            all || request.queries.iter().any(|query| {
                let wildcard = query.ends_with(b":") && name.as_bytes().starts_with(query);
                wildcard || *query == name.as_bytes()
            })
        };
        for context in contexts.iter().filter(|name| wanted(name)) {
            put_context(option, 0, context, out);
        }
        put_reply(option, reply::ACK, &[], out);
        Ok(ServerStep::NeedMore)
    }

    fn set_contexts(
        &mut self,
        data: &[u8],
        exports: &dyn ExportCatalog,
        out: &mut Vec<u8>,
    ) -> Result<ServerStep, OptionRefusal> {
        let option = option::SET_META_CONTEXT;
        // The earlier selection is gone even if this one fails.
        self.selected = None;
        let request = self.meta_request(data)?;
        if self.mode == Framing::Simple {
            return Err(OptionRefusal::invalid("structured replies must be negotiated first"));
        }
        let mut chosen = exports.contexts(request.name)?;
        chosen.retain(|name| request.queries.contains(&name.as_bytes()));
        for (context, id) in chosen.iter().zip(1_u32..) {
            put_context(option, id, context, out);
        }
        put_reply(option, reply::ACK, &[], out);
        self.selected = Some((request.name.to_owned(), chosen));
        Ok(ServerStep::NeedMore)
    }

    fn meta_request<'a>(&self, data: &'a [u8]) -> Result<MetaRequest<'a>, OptionRefusal> {
        if !self.policy.meta_contexts {
            return Err(OptionRefusal::new(reply::ERR_UNSUP, "metadata contexts are disabled"));
        }
        let malformed = || OptionRefusal::invalid("option is malformed");
        let mut reader = Reader::new(data);
        let name = export_name(reader.counted().ok_or_else(malformed)?)?;
        let count = reader.u32().ok_or_else(malformed)?;
        // Each query has at least its length: checked before any memory is spent on the count.
        if u64::from(count) > len64(reader.len()) / 4 {
            return Err(malformed());
        }
        if count > MAX_QUERIES {
            return Err(OptionRefusal::new(reply::ERR_TOO_BIG, "too many queries"));
        }
        let mut queries = Vec::new();
        for _ in 0..count {
            let query = reader.counted().ok_or_else(malformed)?;
            if query.len() > MAX_STRING {
                return Err(OptionRefusal::new(reply::ERR_TOO_BIG, "query is too long"));
            }
            queries.push(query);
        }
        if reader.is_empty() { Ok(MetaRequest { name, queries }) } else { Err(malformed()) }
    }
}

/// The export that INFO, GO or EXPORT_NAME is about, if the option is one of them and well formed.
pub(super) fn chosen_export(option: u32, data: &[u8]) -> Option<&str> {
    match option {
        option::EXPORT_NAME => text(data),
        option::INFO | option::GO => info_request(data).ok().map(|request| request.name),
        _ => None,
    }
}

fn no_data(data: &[u8]) -> Result<(), OptionRefusal> {
    if data.is_empty() { Ok(()) } else { Err(OptionRefusal::invalid("option takes no data")) }
}

fn export_name(bytes: &[u8]) -> Result<&str, OptionRefusal> {
    if bytes.len() > MAX_STRING {
        return Err(OptionRefusal::new(reply::ERR_TOO_BIG, "export name is too long"));
    }
    text(bytes).ok_or_else(|| OptionRefusal::invalid("export name is not UTF-8 or contains NUL"))
}

fn info_request(data: &[u8]) -> Result<InfoRequest<'_>, OptionRefusal> {
    let malformed = || OptionRefusal::invalid("option is malformed");
    let mut reader = Reader::new(data);
    let name = reader.counted().ok_or_else(malformed)?;
    let count = reader.u16().ok_or_else(malformed)?;
    if reader.len() != usize::from(count) * 2 {
        return Err(malformed());
    }
    let name = export_name(name)?;
    let ids = std::iter::from_fn(|| reader.u16()).collect();
    Ok(InfoRequest { name, ids })
}

/// Appends the information replies: size and flags always, the others when asked for.
fn put_infos(option: u32, ids: &[u16], session: &Negotiated, out: &mut Vec<u8>) {
    debug_assert!(session.flags.contains(TransmissionFlags::HAS_FLAGS));
    let mut put = |id: u16, fill: &dyn Fn(&mut Vec<u8>)| {
        let mut data = Vec::with_capacity(14);
        put_u16(&mut data, id);
        fill(&mut data);
        put_reply(option, reply::INFO, &data, out);
    };
    put(info::EXPORT, &|data| {
        put_u64(data, session.size);
        put_u16(data, session.flags.0);
    });
    if let Some(name) = session.canonical_name.as_deref().filter(|_| ids.contains(&info::NAME)) {
        put(info::NAME, &|data| data.extend_from_slice(clip(name)));
    }
    if let Some(text) = session.description.as_deref().filter(|_| ids.contains(&info::DESCRIPTION))
    {
        put(info::DESCRIPTION, &|data| data.extend_from_slice(clip(text)));
    }
    if ids.contains(&info::BLOCK_SIZE) {
        put(info::BLOCK_SIZE, &|data| {
            put_u32(data, session.blocks.minimum);
            put_u32(data, session.blocks.preferred);
            put_u32(data, session.blocks.maximum);
        });
    }
}

fn clip(text: &str) -> &[u8] {
    crate::codec::clipped(text, MAX_STRING).as_bytes()
}

fn put_context(option: u32, id: u32, name: &str, out: &mut Vec<u8>) {
    let mut data = Vec::with_capacity(4 + name.len());
    put_u32(&mut data, id);
    data.extend_from_slice(name.as_bytes());
    put_reply(option, reply::META_CONTEXT, &data, out);
}
