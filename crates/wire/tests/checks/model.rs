//! A small server over a byte array: the crate's server side, driven as an engine would drive it.

use wire::constants::allocation;
use wire::{
    After, BlockConstraints, CloseReason, Command, CommandFlags, ErrorCode, ExportCatalog,
    ExportOffer, Framing, Negotiated, OptionRefusal, ReplyWriter, Request, ServerHandshake,
    ServerPolicy, ServerStep, StatusExtent, TransmissionFlags, parse_request, request_header_len,
};

use crate::bytes::{self, Answer, Bytes};

pub(crate) const SIZE: usize = 256 << 10;
/// Unit of the model's map.
pub(crate) const BLOCK: usize = 4096;

/// Everything that a server can support.
pub(crate) fn all_flags() -> TransmissionFlags {
    TransmissionFlags(0b1_1101_1110_1101)
}

/// The exports of the model: a default one, `disk`, `ro`, `secret` (TLS only).
#[derive(Debug)]
pub(crate) struct Menu {
    pub(crate) flags: TransmissionFlags,
    pub(crate) blocks: BlockConstraints,
    pub(crate) size: u64,
    pub(crate) tls: bool,
}

impl Default for Menu {
    fn default() -> Self {
        let blocks = BlockConstraints { minimum: 1, preferred: 4096, maximum: 1 << 20 };
        Self { flags: all_flags(), blocks, size: SIZE as u64, tls: false }
    }
}

impl ExportCatalog for Menu {
    fn list(&self) -> Result<Vec<(String, String)>, OptionRefusal> {
        Ok(["", "disk", "ro"].map(|name| (name.to_owned(), format!("about {name}"))).to_vec())
    }

    fn open(&self, name: &str) -> Result<ExportOffer, OptionRefusal> {
        let flags = match name {
            "ro" => self.flags.with(TransmissionFlags::READ_ONLY),
            "secret" if !self.tls => return Err(OptionRefusal::tls_required()),
            "" | "disk" | "secret" => self.flags,
            _ => return Err(OptionRefusal::unknown()),
        };
        Ok(ExportOffer {
            name: if name.is_empty() { "disk".into() } else { name.into() },
            description: "a disk for tests".into(),
            size: self.size,
            flags,
            blocks: Some(self.blocks),
            contexts: contexts(),
        })
    }

    fn contexts(&self, _name: &str) -> Result<Vec<String>, OptionRefusal> {
        Ok(contexts())
    }
}

fn contexts() -> Vec<String> {
    ["base:allocation", "test:numbers", "test:other"].map(str::to_owned).to_vec()
}

/// One connection to the model.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) menu: Menu,
    handshake: ServerHandshake,
    pub(crate) session: Option<Negotiated>,
    pub(crate) disk: Vec<u8>,
    input: Vec<u8>,
    pub(crate) closed: Option<String>,
    pub(crate) aborted: bool,
    pub(crate) starts_tls: bool,
}

impl Connection {
    /// Connects; the greeting has been read, nothing has been sent.
    pub(crate) fn raw(policy: ServerPolicy) -> Self {
        let handshake = ServerHandshake::new(policy);
        let mut disk = vec![0; SIZE];
        // Data in every other sixteen blocks.
        for (index, byte) in disk.iter_mut().enumerate() {
            if (index / BLOCK / 16).is_multiple_of(2) {
                *byte = u8::try_from(index % 251).unwrap() + 1;
            }
        }
        Self {
            menu: Menu::default(),
            handshake,
            session: None,
            disk,
            input: Vec::new(),
            closed: None,
            aborted: false,
            starts_tls: false,
        }
    }

    /// Connects and negotiates fixed newstyle without zeroes.
    pub(crate) fn new() -> Self {
        Self::with(ServerPolicy::default())
    }

    pub(crate) fn with(policy: ServerPolicy) -> Self {
        let mut connection = Self::raw(policy);
        assert_eq!(connection.send(Bytes::new().u32(3)), b"");
        connection
    }

    /// In transmission, in `mode`, with every context if the mode has them.
    pub(crate) fn transmitting(mode: Framing) -> Self {
        Self::transmitting_with(mode, Menu::default(), "disk")
    }

    pub(crate) fn transmitting_with(mode: Framing, menu: Menu, export: &str) -> Self {
        let mut connection = Self::new();
        connection.menu = menu;
        let option = match mode {
            Framing::Simple => None,
            Framing::Structured => Some(8),
            Framing::Extended => Some(11),
        };
        if let Some(option) = option {
            let agreed = connection.send(bytes::option(option, []));
            assert_eq!(bytes::kinds(&agreed), [bytes::ACK]);
            let all = ["base:allocation", "test:numbers", "test:other"];
            connection.send(bytes::meta(10, export, &all));
        }
        connection.send(bytes::info(7, export, &[3]));
        assert_eq!(connection.session().mode, mode);
        connection
    }

    pub(crate) fn session(&self) -> &Negotiated {
        self.session.as_ref().expect("in transmission")
    }

    pub(crate) fn is_open(&self) -> bool {
        self.closed.is_none()
    }

    pub(crate) fn tls_established(&mut self) {
        assert!(std::mem::take(&mut self.starts_tls), "TLS was agreed to");
        self.menu.tls = true;
        self.handshake.tls_established();
    }

    /// Sends bytes; returns all replies.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> Vec<u8> {
        let mut out = Vec::new();
        if self.closed.is_some() {
            return out;
        }
        self.input.extend_from_slice(bytes.as_ref());
        if self.session.is_none() && !self.starts_tls {
            let input = std::mem::take(&mut self.input);
            let (consumed, step) = self.handshake.advance(&input, &self.menu, &mut out);
            match step {
                ServerStep::NeedMore | ServerStep::Wait => assert_eq!(consumed, input.len()),
                ServerStep::StartTls => self.starts_tls = true,
                ServerStep::Transmit(session) => {
                    self.input = input[consumed..].to_vec();
                    self.session = Some(*session);
                }
                ServerStep::Close(reason) => {
                    self.aborted = reason == CloseReason::Abort;
                    self.closed = Some(reason.to_string());
                }
            }
        }
        while self.closed.is_none() && self.session.is_some() && self.serve(&mut out) {}
        out
    }

    /// Sends a request and its payload; returns the replies.
    pub(crate) fn ask(&mut self, ask: bytes::Ask, payload: &[u8]) -> Vec<Answer> {
        let read = ask.command == 0;
        let data = if read { ask.length.try_into().unwrap_or(0) } else { 0 };
        bytes::answers(&self.send(ask.bytes().raw(payload)), data)
    }

    /// Whether a valid request still works.
    pub(crate) fn is_alive(&mut self) -> bool {
        if !self.is_open() {
            return false;
        }
        let extended = self.session().mode == Framing::Extended;
        let ask = bytes::Ask { extended, length: 1, cookie: 0xa11e, ..bytes::Ask::default() };
        let answers = self.ask(ask, &[]);
        answers.iter().all(|answer| answer.cookie() == 0xa11e && answer.error() == 0)
            && !answers.is_empty()
    }

    /// Serves one request, if it has arrived whole.
    fn serve(&mut self, out: &mut Vec<u8>) -> bool {
        let session = self.session.clone().unwrap();
        let request = match parse_request(session.mode, &self.input) {
            Ok(Some(request)) => request,
            Ok(None) => return false,
            Err(fatal) => {
                self.closed = Some(fatal.to_string());
                return false;
            }
        };
        let checked = session.check(&request);
        if checked.is_err_and(|refusal| refusal.after == After::Disconnect) {
            self.closed = Some("payload is too large".into());
            return false;
        }
        let header = request_header_len(session.mode);
        let whole = header + usize::try_from(request.payload).unwrap();
        if self.input.len() < whole {
            return false;
        }
        let message: Vec<u8> = self.input.drain(..whole).collect();
        let reply = ReplyWriter::new(session.mode, &request);
        match checked {
            Err(refusal) => reply.refuse(&refusal, out),
            Ok(()) => self.perform(&session, &request, &message[header..], reply, out),
        }
        true
    }

    fn perform(
        &mut self,
        session: &Negotiated,
        request: &Request,
        payload: &[u8],
        reply: ReplyWriter,
        out: &mut Vec<u8>,
    ) {
        let from = usize::try_from(request.offset).unwrap_or(usize::MAX);
        let to = || from + usize::try_from(request.length).unwrap();
        match request.kind().unwrap() {
            Command::Read => self.read(request, reply, out),
            Command::Write => {
                self.disk[from..to()].copy_from_slice(payload);
                reply.done(out);
            }
            Command::WriteZeroes if request.flags.contains(CommandFlags::FAST_ZERO) => {
                reply.error(ErrorCode::ENOTSUP, "not fast", out);
            }
            Command::WriteZeroes => {
                // Sizes above the array's are for tests that only watch the protocol.
                let end = to().min(SIZE);
                self.disk[from.min(SIZE)..end].fill(0);
                reply.done(out);
            }
            Command::BlockStatus => self.status(session, request, payload, reply, out),
            Command::Disconnect => self.closed = Some("client disconnected".into()),
            _ => reply.done(out),
        }
    }

    /// Whether the block at an offset is data, and where the next block begins.
    fn block(&self, offset: usize) -> (bool, usize) {
        let end = (offset / BLOCK + 1) * BLOCK;
        (self.disk[offset..end].iter().any(|byte| *byte != 0), end)
    }

    fn read(&self, request: &Request, reply: ReplyWriter, out: &mut Vec<u8>) {
        let mut at = usize::try_from(request.offset).unwrap();
        let end = at + usize::try_from(request.length).unwrap();
        if at == end {
            return reply.done(out);
        }
        if !reply.may_fragment() {
            let length = u32::try_from(end - at).unwrap();
            reply.read_data(request.offset, length, true, out);
            return out.extend_from_slice(&self.disk[at..end]);
        }
        while at < end {
            let (data, next) = self.block(at);
            let next = next.min(end);
            let length = u32::try_from(next - at).unwrap();
            if data {
                reply.read_data(at as u64, length, false, out);
                out.extend_from_slice(&self.disk[at..next]);
            } else {
                reply.read_hole(at as u64, length, false, out);
            }
            at = next;
        }
        reply.done(out);
    }

    fn status(
        &self,
        session: &Negotiated,
        request: &Request,
        payload: &[u8],
        reply: ReplyWriter,
        out: &mut Vec<u8>,
    ) {
        let query = match session.status_query(request, payload) {
            Ok(query) => query,
            Err(refusal) => return reply.refuse(&refusal, out),
        };
        let reply = reply.with_length(query.length);
        let last = query.contexts.last().copied();
        for id in &query.contexts {
            let extents = self.extents(session, request.offset);
            reply.block_status(*id, extents, 1 << 20, Some(*id) == last, out);
        }
    }

    /// Extents to the end of the export; beyond the array everything is one hole.
    fn extents(&self, session: &Negotiated, offset: u64) -> Vec<StatusExtent> {
        let hole = allocation::HOLE | allocation::ZERO;
        let mut extents = Vec::new();
        let mut at = usize::try_from(offset).unwrap();
        while at < SIZE {
            let (data, next) = self.block(at);
            let flags = if data { 0 } else { hole };
            extents.push(StatusExtent { length: (next - at) as u64, flags });
            at = next;
        }
        let rest = session.size.saturating_sub(at as u64);
        if rest > 0 {
            extents.push(StatusExtent { length: rest, flags: hole });
        }
        extents
    }
}
