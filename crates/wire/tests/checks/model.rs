//! A small server over a sparse disk: the crate's server side, driven as an engine would drive it.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex};

use blackbox::conformance::{Host, Running, Target};
use blackbox::index;
use blackbox::socket::{Line, Socket};
use wire::constants::allocation;
use wire::{
    After, BlockConstraints, Command, CommandFlags, ErrorCode, ExportCatalog, ExportOffer,
    Negotiated, OptionRefusal, ReplyWriter, Request, ServerHandshake, ServerPolicy, ServerStep,
    StatusExtent, TransmissionFlags, parse_request, request_header_len,
};

/// Unit of the disk and of its map, in bytes.
const BLOCK: u64 = 64 << 10;

/// The blocks that were written, by number.
type Blocks = BTreeMap<u64, Vec<u8>>;

/// The crate's server side, with what is served and what its clients may do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) policy: ServerPolicy,
    pub(crate) contexts: Vec<String>,
}

impl Model {
    /// With one context.
    pub(crate) fn new(policy: ServerPolicy) -> Self {
        Self { policy, contexts: vec!["base:allocation".to_owned()] }
    }
}

impl Target for Model {
    fn serve(&self, host: Host) -> Box<dyn Running> {
        Box::new(Served { model: self.clone(), host, disk: Arc::default() })
    }
}

struct Served {
    model: Model,
    host: Host,
    disk: Arc<Mutex<Blocks>>,
}

impl Running for Served {
    fn connect(&self) -> Socket {
        let handshake = ServerHandshake::new(self.model.policy.clone());
        let out = handshake.greeting();
        let menu = Menu { host: self.host, contexts: self.model.contexts.clone(), tls: false };
        let disk = Arc::clone(&self.disk);
        let (session, input, closed) = (None, Vec::new(), false);
        let mut connection =
            Connection { menu, handshake, session, disk, input, out, told: 0, closed };
        // What is said before anything was heard.
        connection.hear();
        Socket::Line(Box::new(connection))
    }
}

/// What is served on one connection. An export `secret` is for TLS alone.
#[derive(Debug)]
pub(crate) struct Menu {
    pub(crate) host: Host,
    pub(crate) contexts: Vec<String>,
    pub(crate) tls: bool,
}

/// Everything but several connections and changes of the size.
pub(crate) const ALL_FLAGS: TransmissionFlags = TransmissionFlags(0b1_1100_1110_1101);

impl Menu {
    /// An export of 1 MiB with three contexts.
    pub(crate) fn of_three() -> Self {
        let contexts = ["base:allocation", "test:numbers", "test:other"].map(str::to_owned);
        Self { host: blackbox::conformance::NAMED, contexts: contexts.to_vec(), tls: false }
    }
}

impl ExportCatalog for Menu {
    fn list(&self) -> Result<Vec<(String, String)>, OptionRefusal> {
        let names = if self.host.named { &["alpha", "beta"][..] } else { &[""] };
        Ok(names.iter().map(|name| ((*name).to_owned(), format!("about {name}"))).collect())
    }

    fn open(&self, name: &str) -> Result<ExportOffer, OptionRefusal> {
        let host = &self.host;
        let size = match name {
            "secret" if !self.tls => return Err(OptionRefusal::tls_required()),
            "secret" | "" => host.size,
            "alpha" if host.named => host.size,
            "beta" if host.named => 2 * host.size,
            _ => return Err(OptionRefusal::unknown()),
        };
        let flags = TransmissionFlags(ALL_FLAGS.0 & !host.without);
        let read_only = TransmissionFlags::READ_ONLY;
        let (minimum, maximum) = host.blocks;
        Ok(ExportOffer {
            name: name.into(),
            description: "a disk for tests".into(),
            size,
            flags: if host.read_only { flags.with(read_only) } else { flags },
            blocks: Some(BlockConstraints { minimum, preferred: 4096, maximum }),
            contexts: self.contexts.clone(),
        })
    }

    fn contexts(&self, _name: &str) -> Result<Vec<String>, OptionRefusal> {
        Ok(self.contexts.clone())
    }
}

/// One connection: bytes that are written to it are answered at once.
#[derive(Debug)]
struct Connection {
    menu: Menu,
    handshake: ServerHandshake,
    session: Option<Negotiated>,
    disk: Arc<Mutex<Blocks>>,
    input: Vec<u8>,
    out: Vec<u8>,
    /// How much of `out` was read.
    told: usize,
    closed: bool,
}

impl Line for Connection {}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.input.extend_from_slice(bytes);
        self.hear();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.told == self.out.len() && !self.closed {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = (&self.out[self.told..]).read(buffer)?;
        self.told += count;
        if self.told == self.out.len() {
            self.out.clear();
            self.told = 0;
        }
        Ok(count)
    }
}

impl Connection {
    fn hear(&mut self) {
        if self.session.is_none() {
            let input = std::mem::take(&mut self.input);
            let (consumed, step) = self.handshake.advance(&input, &self.menu, &mut self.out);
            match step {
                ServerStep::NeedMore | ServerStep::Wait => assert_eq!(consumed, input.len()),
                // The test goes on as if TLS carried what follows.
                ServerStep::StartTls => {
                    self.menu.tls = true;
                    self.handshake.tls_established();
                }
                ServerStep::Transmit(session) => self.session = Some(*session),
                ServerStep::Close(_) => self.closed = true,
            }
            self.input = input[consumed..].to_vec();
        }
        while !self.closed && self.session.is_some() && self.serve() {}
    }

    /// Serves one request, if it has arrived whole.
    fn serve(&mut self) -> bool {
        let session = self.session.clone().unwrap();
        let request = match parse_request(session.mode, &self.input) {
            Ok(Some(request)) => request,
            Ok(None) => return false,
            Err(_) => {
                self.closed = true;
                return false;
            }
        };
        let checked = session.check(&request);
        if checked.is_err_and(|refusal| refusal.after == After::Disconnect) {
            self.closed = true;
            return false;
        }
        let header = request_header_len(session.mode);
        let whole = header + index(request.payload);
        if self.input.len() < whole {
            return false;
        }
        let message: Vec<u8> = self.input.drain(..whole).collect();
        let reply = ReplyWriter::new(session.mode, &request);
        match checked {
            Err(refusal) => reply.refuse(&refusal, &mut self.out),
            Ok(()) => self.perform(&session, &request, &message[header..], reply),
        }
        true
    }

    fn perform(
        &mut self,
        session: &Negotiated,
        request: &Request,
        payload: &[u8],
        reply: ReplyWriter,
    ) {
        match request.kind().unwrap() {
            Command::Read => return self.read(request, reply),
            Command::Write => self.put(request.offset, payload),
            Command::WriteZeroes if request.flags.contains(CommandFlags::FAST_ZERO) => {
                return reply.error(ErrorCode::ENOTSUP, "not fast", &mut self.out);
            }
            Command::WriteZeroes => self.zero(request.offset, request.length),
            Command::BlockStatus => return self.status(session, request, payload, reply),
            Command::Disconnect => {
                self.closed = true;
                return;
            }
            _ => {}
        }
        reply.done(&mut self.out);
    }

    fn put(&self, mut at: u64, mut bytes: &[u8]) {
        let mut disk = self.disk.lock().unwrap();
        while !bytes.is_empty() {
            let block = disk.entry(at / BLOCK).or_insert_with(|| vec![0; index(BLOCK)]);
            let start = index(at % BLOCK);
            let (now, rest) = bytes.split_at(bytes.len().min(block.len() - start));
            block[start..start + now.len()].copy_from_slice(now);
            at += now.len() as u64;
            bytes = rest;
        }
    }

    fn zero(&self, offset: u64, length: u64) {
        let end = offset + length;
        for (number, block) in self.disk.lock().unwrap().range_mut(offset / BLOCK..) {
            let place = |at: u64| index(at.saturating_sub(number * BLOCK).min(BLOCK));
            block[place(offset)..place(end)].fill(0);
        }
    }

    /// The bytes of a range that lies in one block; `None` where all are zeroes.
    fn data(&self, offset: u64, length: u64) -> Option<Vec<u8>> {
        let start = index(offset % BLOCK);
        let disk = self.disk.lock().unwrap();
        let bytes = &disk.get(&(offset / BLOCK))?[start..start + index(length)];
        bytes.iter().any(|byte| *byte != 0).then(|| bytes.to_vec())
    }

    fn read(&mut self, request: &Request, reply: ReplyWriter) {
        let (mut at, end) = (request.offset, request.offset + request.length);
        let is_whole = !reply.may_fragment() && at < end;
        if is_whole {
            reply.read_data(at, u32::try_from(end - at).unwrap(), true, &mut self.out);
        }
        while at < end {
            let length = (BLOCK - at % BLOCK).min(end - at);
            let narrow = u32::try_from(length).unwrap();
            let bytes = self.data(at, length);
            match &bytes {
                _ if is_whole => {}
                Some(_) => reply.read_data(at, narrow, false, &mut self.out),
                None => reply.read_hole(at, narrow, false, &mut self.out),
            }
            if is_whole || bytes.is_some() {
                self.out.extend(bytes.unwrap_or_else(|| vec![0; index(length)]));
            }
            at += length;
        }
        if !is_whole {
            reply.done(&mut self.out);
        }
    }

    fn status(
        &mut self,
        session: &Negotiated,
        request: &Request,
        payload: &[u8],
        reply: ReplyWriter,
    ) {
        let query = match session.status_query(request, payload) {
            Ok(query) => query,
            Err(refusal) => return reply.refuse(&refusal, &mut self.out),
        };
        let reply = reply.with_length(query.length);
        let last = query.contexts.last().copied();
        for id in &query.contexts {
            let extents = self.extents(session.size, request.offset);
            reply.block_status(*id, extents, 1 << 20, Some(*id) == last, &mut self.out);
        }
    }

    /// Extents from an offset to the end of the export: a block is data or one hole.
    fn extents(&self, size: u64, mut at: u64) -> Vec<StatusExtent> {
        let hole = allocation::HOLE | allocation::ZERO;
        let mut extents = Vec::new();
        let mut add = |from: u64, to: u64, flags| {
            if to > from {
                extents.push(StatusExtent { length: to - from, flags });
            }
        };
        for (number, block) in self.disk.lock().unwrap().range(at / BLOCK..) {
            if block.iter().any(|byte| *byte != 0) {
                let end = ((number + 1) * BLOCK).min(size);
                add(at, number * BLOCK, hole);
                add(at.max(number * BLOCK), end, 0);
                at = at.max(end);
            }
        }
        add(at, size, hole);
        extents
    }
}
