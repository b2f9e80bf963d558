//! The client's side of the transmission phase, for testing servers.
//!
//! Replies are matched by cookie, in any order, and every rule that a server must obey is
//! asserted on the way: the reply form that was negotiated, chunks inside the request, full
//! coverage without overlap, DONE exactly once, known error values, short error messages.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use crate::haggle::Export;
use crate::nbd::{
    CHUNK, Cursor, EXT_CHUNK, EXT_REQUEST, Message, REQUEST, SIMPLE_REPLY, cflag, chunk, cmd, err,
    tflag,
};
use crate::socket::Socket;
use crate::temp::pattern;
use crate::{index, length};

/// What was negotiated for replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Compact requests, simple replies.
    Simple,
    /// Compact requests; READ and BLOCK_STATUS answered in chunks.
    Structured,
    /// Extended requests and chunks.
    Extended,
}

/// A request, as the caller wants it, valid or not.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Command flags.
    pub flags: u16,
    /// Command.
    pub command: u16,
    /// First byte.
    pub offset: u64,
    /// Length on the wire, in bytes.
    pub length: u64,
    /// What follows the header.
    pub payload: Vec<u8>,
}

impl Request {
    /// A request without payload.
    pub fn new(command: u16, offset: u64, length: u64) -> Self {
        Self { command, offset, length, ..Self::default() }
    }

    /// A WRITE of `payload`.
    pub fn write(offset: u64, payload: &[u8]) -> Self {
        Self {
            command: cmd::WRITE,
            offset,
            length: length(payload),
            payload: payload.to_vec(),
            ..Self::default()
        }
    }

    /// The same with these flags added.
    #[must_use]
    pub fn flags(mut self, flags: u16) -> Self {
        self.flags |= flags;
        self
    }
}

/// One chunk of a reply.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Its type.
    pub kind: u16,
    /// Its flags.
    pub flags: u16,
    /// What follows the header.
    pub payload: Vec<u8>,
}

/// A complete reply.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// The first error, or 0.
    pub error: u32,
    /// Whether it came as a simple reply.
    pub simple: bool,
    /// The chunks it came in, without the bytes of a READ.
    pub chunks: Vec<Chunk>,
    /// The bytes of a READ.
    pub data: Vec<u8>,
    /// Extents (length, flags) for each context of a BLOCK_STATUS.
    pub extents: BTreeMap<u32, Vec<(u64, u64)>>,
}

impl Answer {
    /// The number of content chunks of a READ.
    pub fn content_chunks(&self) -> usize {
        let content = |c: &&Chunk| matches!(c.kind, chunk::OFFSET_DATA | chunk::OFFSET_HOLE);
        self.chunks.iter().filter(content).count()
    }
}

/// A request whose reply is not complete.
#[derive(Debug)]
struct Pending {
    request: Request,
    answer: Answer,
    /// The parts of a READ that came, as (start, end).
    covered: Vec<(u64, u64)>,
}

/// A connection in the transmission phase.
#[derive(Debug)]
pub struct Session {
    /// The connection.
    pub socket: Socket,
    /// What was negotiated.
    pub mode: Mode,
    /// The export.
    pub export: Export,
    /// The contexts selected: id and name.
    pub contexts: Vec<(u32, String)>,
    next_cookie: u64,
    pending: HashMap<u64, VecDeque<Pending>>,
    done: HashMap<u64, VecDeque<Answer>>,
}

impl Session {
    /// A session that begins now.
    pub fn new(socket: Socket, mode: Mode, export: Export, contexts: Vec<(u32, String)>) -> Self {
        // Cookies are opaque: let them look like nothing in particular.
        let next_cookie = 0xfeed_0000_0000_0001;
        let (pending, done) = (HashMap::new(), HashMap::new());
        Self { socket, mode, export, contexts, next_cookie, pending, done }
    }

    /// Whether the export has all of these transmission flags.
    pub fn has(&self, flags: u16) -> bool {
        self.export.flags & flags == flags
    }

    /// The id of a selected context.
    pub fn context(&self, name: &str) -> u32 {
        let found = self.contexts.iter().find(|(_, n)| n == name);
        found.unwrap_or_else(|| panic!("no context {name}: {:?}", self.contexts)).0
    }

    /// A request as it stands on the wire.
    pub fn bytes(&self, request: &Request, cookie: u64) -> Vec<u8> {
        let mut flags = request.flags;
        let head = match self.mode {
            Mode::Extended => {
                if request.command == cmd::WRITE {
                    flags |= cflag::PAYLOAD_LEN;
                }
                Message::new().u32(EXT_REQUEST)
            }
            _ => Message::new().u32(REQUEST),
        };
        let head = head.u16(flags).u16(request.command).u64(cookie).u64(request.offset);
        let head = match self.mode {
            Mode::Extended => head.u64(request.length),
            _ => head.u32(request.length.try_into().expect("a compact length is 32 bits")),
        };
        head.bytes(&request.payload).0
    }

    /// Registers a request that the caller sends by its own means; returns its cookie.
    pub fn register(&mut self, request: &Request) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.register_as(request, cookie);
        cookie
    }

    /// As `register`, with a cookie of the caller's choice.
    pub fn register_as(&mut self, request: &Request, cookie: u64) {
        let mut request = request.clone();
        request.payload.clear();
        let pending = Pending { request, answer: Answer::default(), covered: Vec::new() };
        self.pending.entry(cookie).or_default().push_back(pending);
    }

    /// Sends a request; returns its cookie.
    pub fn send(&mut self, request: &Request) -> u64 {
        let cookie = self.register(request);
        let bytes = self.bytes(request, cookie);
        self.socket.send(&bytes);
        cookie
    }

    /// Sends a request and waits for its answer.
    pub fn ask(&mut self, request: &Request) -> Answer {
        let cookie = self.send(request);
        self.wait(cookie)
    }

    /// Waits for the answer to a request sent earlier.
    pub fn wait(&mut self, cookie: u64) -> Answer {
        loop {
            if let Some(answer) = self.done.get_mut(&cookie).and_then(VecDeque::pop_front) {
                return answer;
            }
            assert!(self.pending.contains_key(&cookie), "nothing pending for {cookie:#x}");
            self.frame();
        }
    }

    /// How many requests still wait for an answer.
    pub fn outstanding(&self) -> usize {
        self.pending.values().map(VecDeque::len).sum()
    }

    /// Takes an answer that has come already.
    pub fn take(&mut self, cookie: u64) -> Option<Answer> {
        self.done.get_mut(&cookie)?.pop_front()
    }

    /// Reads one simple reply or one chunk. Returns the cookie that it answers.
    pub fn frame(&mut self) -> u64 {
        let magic = self.socket.receive(4, "the magic of a reply");
        self.frame_after(u32::from_be_bytes(magic.try_into().unwrap()))
    }

    /// As `frame`, when the magic has been read.
    pub fn frame_after(&mut self, magic: u32) -> u64 {
        match (magic, self.mode) {
            (SIMPLE_REPLY, Mode::Simple | Mode::Structured) => self.simple_reply(),
            (CHUNK, Mode::Structured) | (EXT_CHUNK, Mode::Extended) => self.reply_chunk(),
            _ => panic!("reply magic {magic:#x} in mode {:?}", self.mode),
        }
    }

    fn simple_reply(&mut self) -> u64 {
        let head = self.socket.receive(12, "a simple reply");
        let mut cursor = Cursor(&head);
        let (error, cookie) = (cursor.u32(), cursor.u64());
        let mode = self.mode;
        let mut pending = self.finish(cookie);
        let request = &pending.request;
        assert!(
            mode == Mode::Simple || request.command != cmd::READ,
            "a simple reply to READ although chunks were negotiated: {request:?}"
        );
        assert!(pending.answer.chunks.is_empty(), "a simple reply amid chunks: {request:?}");
        pending.answer.simple = true;
        pending.answer.error = error;
        if error == 0 {
            assert_ne!(request.command, cmd::BLOCK_STATUS, "simple success of BLOCK_STATUS");
            if request.command == cmd::READ {
                pending.answer.data = self.socket.receive(index(request.length), "read data");
            }
        } else {
            check_error(error, request);
        }
        self.done.entry(cookie).or_default().push_back(pending.answer);
        cookie
    }

    fn finish(&mut self, cookie: u64) -> Pending {
        let queue = self.pending.get_mut(&cookie);
        let queue = queue.unwrap_or_else(|| panic!("a reply to {cookie:#x}, never asked"));
        let pending = queue.pop_front().unwrap();
        if queue.is_empty() {
            self.pending.remove(&cookie);
        }
        pending
    }

    fn reply_chunk(&mut self) -> u64 {
        let extended = self.mode == Mode::Extended;
        let head = self.socket.receive(if extended { 28 } else { 16 }, "a chunk header");
        let mut cursor = Cursor(&head);
        let (flags, kind, cookie) = (cursor.u16(), cursor.u16(), cursor.u64());
        let offset = if extended { Some(cursor.u64()) } else { None };
        let size = if extended { cursor.u64() } else { cursor.u32().into() };
        assert!(size <= 80 << 20, "a chunk of {size} bytes");
        let payload = self.socket.receive(index(size), "a chunk's payload");
        assert_eq!(flags & !chunk::DONE, 0, "unknown chunk flags {flags:#x}");

        let queue = self.pending.get_mut(&cookie);
        let queue = queue.unwrap_or_else(|| panic!("a chunk for {cookie:#x}, never asked"));
        let pending = queue.front_mut().unwrap();
        if let Some(offset) = offset {
            assert_eq!(offset, pending.request.offset, "an extended chunk has another offset");
        }
        pending.take(Chunk { kind, flags, payload }, extended);
        if flags & chunk::DONE != 0 {
            let pending = self.finish(cookie);
            pending.check_complete(&self.contexts);
            self.done.entry(cookie).or_default().push_back(pending.answer);
        }
        cookie
    }

    /// READ: the bytes, or the error.
    pub fn read(&mut self, offset: u64, length: u64) -> Result<Vec<u8>, u32> {
        let answer = self.ask(&Request::new(cmd::READ, offset, length));
        if answer.error == 0 { Ok(answer.data) } else { Err(answer.error) }
    }

    /// Any command whose answer is success (0) or an error.
    pub fn error_of(&mut self, request: &Request) -> u32 {
        self.ask(request).error
    }

    /// WRITE; panics when it fails.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let error = self.error_of(&Request::write(offset, data));
        assert_eq!(error, 0, "WRITE {} bytes at {offset}", data.len());
    }

    /// Writes a block of 4 KiB and reads it again, with other bytes each time, until `is_over`:
    /// what a client notices while something beside it changes. Counts in `requests`.
    pub fn verify(&mut self, block: u64, is_over: &AtomicBool, requests: &AtomicU64) {
        let mut round = 0;
        while !is_over.load(SeqCst) {
            round += 1;
            let wanted = pattern(round * 4096, 4096);
            self.write(block * 4096, &wanted);
            assert!(self.read(block * 4096, 4096).unwrap() == wanted, "block {block}, {round}");
            requests.fetch_add(2, SeqCst);
        }
    }

    /// FLUSH; panics when it fails.
    pub fn flush(&mut self) {
        assert!(self.has(tflag::SEND_FLUSH), "FLUSH is not offered");
        assert_eq!(self.error_of(&Request::new(cmd::FLUSH, 0, 0)), 0, "FLUSH");
    }

    /// BLOCK_STATUS: extents (length, flags) per context, or the error.
    pub fn status(
        &mut self,
        offset: u64,
        length: u64,
        flags: u16,
    ) -> Result<BTreeMap<u32, Vec<(u64, u64)>>, u32> {
        let answer = self.ask(&Request::new(cmd::BLOCK_STATUS, offset, length).flags(flags));
        if answer.error == 0 { Ok(answer.extents) } else { Err(answer.error) }
    }

    /// The whole map of the first selected context, asked for piece by piece, with neighbours
    /// of equal flags joined: (length, flags).
    pub fn map(&mut self) -> Vec<(u64, u64)> {
        let id = self.contexts.first().expect("a context").0;
        let mut joined: Vec<(u64, u64)> = Vec::new();
        let mut at = 0;
        while at < self.export.size {
            let longest = if self.mode == Mode::Extended { u64::MAX } else { 0xffff_fe00 };
            let want = (self.export.size - at).min(longest);
            let extents = self.status(at, want, 0).unwrap().remove(&id).unwrap();
            for (size, flags) in extents {
                let size = size.min(self.export.size - at);
                at += size;
                match joined.last_mut() {
                    Some(last) if last.1 == flags => last.0 += size,
                    _ => joined.push((size, flags)),
                }
            }
        }
        joined
    }

    /// Panics unless an ordinary read still works: the server is alive and in step.
    pub fn assert_alive(&mut self) {
        let size = self.export.size.min(512);
        assert_eq!(self.read(0, size).map(|d| length(&d)), Ok(size), "no longer in step");
    }

    /// Sends DISC. The server must close without a reply.
    pub fn disconnect(mut self) {
        let request = Request::new(cmd::DISC, 0, 0);
        let bytes = self.bytes(&request, 0);
        self.socket.send(&bytes);
        self.socket.assert_closed();
    }
}

impl Pending {
    fn take(&mut self, mut chunk: Chunk, extended: bool) {
        let (request, payload) = (&self.request, &chunk.payload);
        let content = matches!(chunk.kind, chunk::OFFSET_DATA | chunk::OFFSET_HOLE);
        if content {
            assert_eq!(request.command, cmd::READ, "content in answer to {request:?}");
        }
        match chunk.kind {
            chunk::NONE => {
                assert!(payload.is_empty(), "NONE with payload: {chunk:?}");
                assert_ne!(chunk.flags & chunk::DONE, 0, "NONE without DONE");
            }
            chunk::OFFSET_DATA => self.data(&mut chunk.payload),
            chunk::OFFSET_HOLE => self.hole(payload),
            chunk::BLOCK_STATUS | chunk::BLOCK_STATUS_EXT => self.status(&chunk, extended),
            chunk::ERROR | chunk::ERROR_OFFSET => self.error(&chunk),
            kind => panic!("unknown chunk type {kind} in answer to {request:?}"),
        }
        self.answer.chunks.push(chunk);
    }

    fn data(&mut self, payload: &mut Vec<u8>) {
        assert!(payload.len() >= 9, "OFFSET_DATA of {} bytes", payload.len());
        let bytes = payload.split_off(8);
        let offset = Cursor(payload).u64();
        let at = self.cover(offset, length(&bytes));
        self.answer.data[at..at + bytes.len()].copy_from_slice(&bytes);
    }

    fn hole(&mut self, payload: &[u8]) {
        assert_eq!(payload.len(), 12, "OFFSET_HOLE: {payload:02x?}");
        let mut cursor = Cursor(payload);
        let (offset, size) = (cursor.u64(), cursor.u32());
        assert_ne!(self.request.flags & cflag::DF, cflag::DF, "a hole although DF was set");
        assert_ne!(size, 0, "an empty hole");
        self.cover(offset, size.into());
    }

    /// Notes that a part of a READ came; returns where it begins in the data.
    fn cover(&mut self, offset: u64, size: u64) -> usize {
        let request = &self.request;
        let start = offset.checked_sub(request.offset).expect("content before the request");
        let inside = start <= request.length && size <= request.length - start;
        assert!(inside, "content past the request: {size} at {offset} for {request:?}");
        let overlaps = self.covered.iter().any(|(s, e)| start < *e && *s < start + size);
        assert!(!overlaps, "content came twice: {size} at {offset} for {request:?}");
        self.covered.push((start, start + size));
        self.answer.data.resize(index(request.length), 0);
        index(start)
    }

    fn status(&mut self, chunk: &Chunk, extended: bool) {
        let request = &self.request;
        assert_eq!(request.command, cmd::BLOCK_STATUS, "status in answer to {request:?}");
        let wide = chunk.kind == chunk::BLOCK_STATUS_EXT;
        assert_eq!(wide, extended, "the wrong kind of status chunk: {}", chunk.kind);
        let mut cursor = Cursor(&chunk.payload);
        let id = cursor.u32();
        let width = if wide { 16 } else { 8 };
        let told = if wide { Some(cursor.u32()) } else { None };
        assert_eq!(cursor.0.len() % width, 0, "a status chunk of odd length");
        let count = cursor.0.len() / width;
        assert!((1..=1 << 20).contains(&count), "{count} extents in a chunk");
        if let Some(told) = told {
            assert_eq!(u64::from(told), u64::try_from(count).unwrap(), "extent count");
        }
        let extents: Vec<(u64, u64)> = (0..count)
            .map(|_| match wide {
                true => (cursor.u64(), cursor.u64()),
                false => (cursor.u32().into(), cursor.u32().into()),
            })
            .collect();
        assert!(extents.iter().all(|(size, _)| *size > 0), "an empty extent: {extents:?}");
        let before_last: u64 = extents[..count - 1].iter().map(|(size, _)| size).sum();
        let within = before_last < self.request.length;
        assert!(within, "extents past the request: {:?} {extents:?}", self.request);
        let earlier = self.answer.extents.insert(id, extents);
        assert!(earlier.is_none(), "two chunks for context {id}");
    }

    fn error(&mut self, chunk: &Chunk) {
        let payload = &chunk.payload;
        // qemu's client hangs up on anything longer that is not data.
        assert!(payload.len() <= 1000, "an error chunk of {} bytes", payload.len());
        let mut cursor = Cursor(payload);
        let (error, size) = (cursor.u32(), cursor.u16());
        let message = cursor.bytes(size.into());
        assert!(std::str::from_utf8(message).is_ok(), "message not UTF-8: {message:02x?}");
        let rest = if chunk.kind == chunk::ERROR_OFFSET { 8 } else { 0 };
        assert_eq!(cursor.0.len(), rest, "an error chunk of odd length: {payload:02x?}");
        check_error(error, &self.request);
        if self.answer.error == 0 {
            self.answer.error = error;
        }
    }

    fn check_complete(&self, contexts: &[(u32, String)]) {
        let request = &self.request;
        if self.answer.error != 0 {
            return;
        }
        if request.command == cmd::READ {
            let came: u64 = self.covered.iter().map(|(start, end)| end - start).sum();
            assert_eq!(came, request.length, "a READ is not covered: {request:?}");
        }
        if request.command == cmd::BLOCK_STATUS {
            let came: Vec<u32> = self.answer.extents.keys().copied().collect();
            assert!(!came.is_empty(), "BLOCK_STATUS succeeded without extents: {request:?}");
            let known = |id: &u32| contexts.iter().any(|(known, _)| known == id);
            assert!(came.iter().all(known), "unknown contexts {came:?} of {contexts:?}");
            if request.flags & cflag::PAYLOAD_LEN == 0 {
                assert_eq!(came.len(), contexts.len(), "a chunk for each context: {came:?}");
            }
        }
    }
}

/// Panics unless the value is one that may be in a reply to this request.
fn check_error(error: u32, request: &Request) {
    assert!(err::ALL.contains(&error), "error {error} is not in the protocol: {request:?}");
    if error == err::ENOTSUP {
        let fast = request.command == cmd::WRITE_ZEROES && request.flags & cflag::FAST_ZERO != 0;
        assert!(fast, "ENOTSUP is for FAST_ZERO alone: {request:?}");
    }
}
