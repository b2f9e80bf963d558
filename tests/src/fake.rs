//! A server written for one purpose: to misbehave towards our client.
//!
//! Left alone it is an honest, complete server of a small disk in memory: all three reply
//! forms, block status, every command. A test hooks into it at the greeting, at an option or
//! at a request, and does there what the hostile peer of the check does. Whatever the client
//! sends is recorded and judged by `rules`.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::RecvFlags;

use crate::nbd::{
    BASE_ALLOCATION, CHUNK, Cursor, EXT_CHUNK, EXT_REQUEST, FIXED_NEWSTYLE, IHAVEOPT, Message,
    NBDMAGIC, NO_ZEROES, OPTION_REPLY, REQUEST, SIMPLE_REPLY, chunk, cmd, err, info, opt, rep,
    tflag,
};
use crate::rules::{Seen, Terms, violations};
use crate::session::Mode;
use crate::temp::{TempDir, pattern};
use crate::{GUARD, index, length};

/// What a hook did with what it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing: the fake goes on as an honest server.
    Honest,
    /// Everything that there was to do.
    Done,
    /// The same, at GO: transmission begins.
    Transmission,
    /// The connection is over.
    Close,
}

type ConnectHook = Box<dyn Fn(&mut Peer) -> Step + Send + Sync>;
type OptionHook = Box<dyn Fn(&mut Peer, u32, &[u8]) -> Step + Send + Sync>;
type RequestHook = Box<dyn Fn(&mut Peer, &Seen, &[u8]) -> Step + Send + Sync>;

/// What the fake offers, and where it stops being honest.
pub struct Script {
    /// Handshake flags of the greeting.
    pub handshake: u16,
    /// Size of the export, in bytes.
    pub size: u64,
    /// Transmission flags of the export; SEND_DF is dropped by itself under simple replies.
    pub flags: u16,
    /// ACK, or the error that STRUCTURED_REPLY gets.
    pub structured: u32,
    /// ACK, or the error that EXTENDED_HEADERS gets.
    pub extended: u32,
    /// ACK, or the error that the metadata options get.
    pub contexts: u32,
    /// ACK, or the error that INFO and GO get.
    pub go: u32,
    /// Minimum, preferred and maximum block size, told to whoever asks.
    pub block_sizes: Option<(u32, u32, u32)>,
    /// The disk: as many bytes as there are, zeroes after them.
    pub disk: Vec<u8>,
    /// The context's id.
    pub context_id: u32,
    /// Called before the greeting.
    pub on_connect: Option<ConnectHook>,
    /// Called with each option.
    pub on_option: Option<OptionHook>,
    /// Called with each request.
    pub on_request: Option<RequestHook>,
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Script").field("size", &self.size).finish_non_exhaustive()
    }
}

/// Transmission flags of everything that the fake can do, save multi-conn.
pub const ALL_FLAGS: u16 = tflag::HAS_FLAGS
    | tflag::SEND_FLUSH
    | tflag::SEND_FUA
    | tflag::SEND_TRIM
    | tflag::SEND_WRITE_ZEROES
    | tflag::SEND_DF
    | tflag::SEND_CACHE
    | tflag::SEND_FAST_ZERO;

impl Script {
    /// An honest server of `size` bytes of pattern.
    pub fn new(size: u64) -> Self {
        Self {
            handshake: FIXED_NEWSTYLE | NO_ZEROES,
            size,
            flags: ALL_FLAGS,
            structured: rep::ACK,
            extended: rep::ACK,
            contexts: rep::ACK,
            go: rep::ACK,
            block_sizes: Some((1, 4096, 32 << 20)),
            disk: pattern(0, index(size)),
            context_id: 0x5a5a_0001,
            on_connect: None,
            on_option: None,
            on_request: None,
        }
    }

    /// An honest server that is empty, of any size: reads are zeroes, writes are kept up to the
    /// size of `disk`.
    pub fn empty(size: u64) -> Self {
        Self { size, disk: Vec::new(), ..Self::new(0) }
    }

    /// The same, limited to this reply form.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        let unsup = |allowed| if allowed { rep::ACK } else { rep::UNSUP };
        self.extended = unsup(mode == Mode::Extended);
        self.structured = unsup(mode != Mode::Simple);
        self
    }

    /// The same with a hook before the greeting.
    #[must_use]
    pub fn on_connect(mut self, hook: impl Fn(&mut Peer) -> Step + Send + Sync + 'static) -> Self {
        self.on_connect = Some(Box::new(hook));
        self
    }

    /// The same with a hook at each option.
    #[must_use]
    pub fn on_option(
        mut self,
        hook: impl Fn(&mut Peer, u32, &[u8]) -> Step + Send + Sync + 'static,
    ) -> Self {
        self.on_option = Some(Box::new(hook));
        self
    }

    /// The same with a hook at each request.
    #[must_use]
    pub fn on_request(
        mut self,
        hook: impl Fn(&mut Peer, &Seen, &[u8]) -> Step + Send + Sync + 'static,
    ) -> Self {
        self.on_request = Some(Box::new(hook));
        self
    }

    /// Starts it.
    pub fn start(self) -> Fake {
        Fake::start(self)
    }
}

/// Everything that clients sent.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// Client flags, one for each connection that came that far.
    pub client_flags: Vec<u32>,
    /// Options with their data.
    pub options: Vec<(u32, Vec<u8>)>,
    /// Requests.
    pub requests: Vec<Seen>,
    /// Sentences about what a client must not do.
    pub violations: Vec<String>,
    /// How many connections ended, on whichever side.
    pub closed: usize,
    /// The most connections in transmission at one time.
    pub most_sessions: usize,
}

impl Record {
    /// Whether a client sent this command.
    pub fn asked(&self, command: u16) -> bool {
        self.requests.iter().any(|request| request.command == command)
    }

    /// Whether a client sent this option.
    pub fn haggled(&self, option: u32) -> bool {
        self.options.iter().any(|(number, _)| *number == option)
    }
}

/// What the connections of a fake share.
#[derive(Debug)]
pub struct Shared {
    script: Script,
    /// The disk's bytes.
    pub disk: Mutex<Vec<u8>>,
    record: Mutex<Record>,
    sessions: AtomicUsize,
    stop: AtomicBool,
}

/// A running fake server.
#[derive(Debug)]
pub struct Fake {
    shared: Arc<Shared>,
    socket: PathBuf,
    acceptor: Option<JoinHandle<()>>,
    _temp: TempDir,
}

impl Fake {
    fn start(mut script: Script) -> Self {
        let temp = TempDir::new();
        let socket = temp.join("f");
        let listener = UnixListener::bind(&socket).unwrap();
        let disk = Mutex::new(std::mem::take(&mut script.disk));
        let shared = Arc::new(Shared {
            script,
            disk,
            record: Mutex::default(),
            sessions: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        let acceptor = Some(thread::spawn(move || accept(&listener, &theirs)));
        Self { shared, socket, acceptor, _temp: temp }
    }

    /// The URI of an export.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    /// The path of its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The disk as it is now.
    pub fn disk(&self) -> Vec<u8> {
        self.shared.disk.lock().unwrap().clone()
    }

    /// What clients sent so far.
    pub fn record(&self) -> Record {
        self.shared.record.lock().unwrap().clone()
    }

    /// Waits until what clients sent fulfils a condition; panics after a minute.
    #[track_caller]
    pub fn wait_until(&self, what: &str, condition: impl Fn(&Record) -> bool) {
        let begun = Instant::now();
        while !condition(&self.record()) {
            assert!(begun.elapsed() < GUARD, "never seen: {what}: {:#?}", self.record());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Panics if a client did what it must not; returns what it sent.
    #[track_caller]
    pub fn finish(&self) -> Record {
        let record = self.record();
        assert!(record.violations.is_empty(), "the client: {:#?}", record.violations);
        record
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Wakes the acceptor up.
        let _ = UnixStream::connect(&self.socket);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { return };
        stream.set_read_timeout(Some(GUARD)).unwrap();
        stream.set_write_timeout(Some(GUARD)).unwrap();
        let shared = Arc::clone(shared);
        thread::spawn(move || Peer::new(stream, shared).serve());
    }
}

/// One connection of the fake.
#[derive(Debug)]
pub struct Peer {
    /// The connection itself, for what no method sends.
    pub stream: UnixStream,
    /// What is agreed for replies.
    pub mode: Mode,
    /// What binds the client.
    pub terms: Terms,
    /// Requests that a hook keeps for later.
    pub held: Vec<(Seen, Vec<u8>)>,
    shared: Arc<Shared>,
    no_zeroes: bool,
}

/// The connection is over: the client closed, or sent what cannot be understood.
#[derive(Debug)]
struct Over;

impl Peer {
    fn new(stream: UnixStream, shared: Arc<Shared>) -> Self {
        let terms = Terms { size: shared.script.size, ..Terms::default() };
        Self { stream, mode: Mode::Simple, terms, held: Vec::new(), shared, no_zeroes: false }
    }

    /// Sends bytes; what a client that hung up does not take is lost.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Notes that the client did something forbidden.
    pub fn blame(&self, what: impl Into<String>) {
        self.record(|record| record.violations.push(what.into()));
    }

    fn record(&self, change: impl FnOnce(&mut Record)) {
        change(&mut self.shared.record.lock().unwrap());
    }

    fn receive(&mut self, count: usize) -> Result<Vec<u8>, Over> {
        let mut buffer = vec![0; count];
        self.stream.read_exact(&mut buffer).map_err(|_| Over)?;
        Ok(buffer)
    }

    /// Whether the client sends something more within a short time. Used to find out how many
    /// requests it keeps in flight, so a wrong "no" only makes a test weaker.
    pub fn more_comes(&self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(30) {
            if self.has_more() {
                return true;
            }
            thread::sleep(Duration::from_millis(1));
        }
        false
    }

    /// Whether the client has sent something that was not read yet.
    pub fn has_more(&self) -> bool {
        let mut byte = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        matches!(rustix::net::recv(&self.stream, &mut byte[..], flags), Ok((_, n)) if n > 0)
    }

    fn serve(mut self) {
        let _ = self.greet_and_haggle();
        self.record(|record| record.closed += 1);
    }

    fn greet_and_haggle(&mut self) -> Result<(), Over> {
        let shared = Arc::clone(&self.shared);
        let script = &shared.script;
        match script.on_connect.as_ref().map_or(Step::Honest, |hook| hook(self)) {
            Step::Honest => {}
            // The hook spoke for the whole handshake.
            Step::Done | Step::Transmission => return self.transmission(),
            Step::Close => return Ok(()),
        }
        self.send(&greeting(script.handshake));
        let flags = self.receive(4)?;
        let flags = Cursor(&flags).u32();
        self.record(|record| record.client_flags.push(flags));
        if flags & !u32::from(script.handshake & 3) != 0 {
            self.blame(format!("client flags {flags:#x}, offered {:#x}", script.handshake));
        }
        self.no_zeroes = flags & u32::from(NO_ZEROES) != 0;
        loop {
            let head = self.receive(16)?;
            let mut cursor = Cursor(&head);
            if cursor.u64() != IHAVEOPT {
                self.blame(format!("an option without its magic: {head:02x?}"));
                return Err(Over);
            }
            let (option, size) = (cursor.u32(), cursor.u32());
            let data = self.receive(usize::try_from(size).unwrap())?;
            self.record(|record| record.options.push((option, data.clone())));
            if self.has_more() {
                self.blame(format!("more came before the reply to option {option}"));
            }
            if script.handshake & FIXED_NEWSTYLE == 0 && option != opt::EXPORT_NAME {
                self.blame(format!("option {option} without fixed newstyle"));
            }
            let step = script.on_option.as_ref().map_or(Step::Honest, |h| h(self, option, &data));
            match step {
                Step::Done => continue,
                Step::Transmission => return self.transmission(),
                Step::Close => return Ok(()),
                Step::Honest => {}
            }
            if self.option(option, &data)? {
                return self.transmission();
            }
        }
    }

    /// Answers an option honestly. True when transmission begins.
    fn option(&mut self, option: u32, data: &[u8]) -> Result<bool, Over> {
        let shared = Arc::clone(&self.shared);
        let script = &shared.script;
        match option {
            opt::EXPORT_NAME => {
                if self.mode == Mode::Extended {
                    self.blame("EXPORT_NAME after extended headers");
                    return Err(Over);
                }
                let mut reply = Message::new().u64(script.size).u16(self.flags()).0;
                if !self.no_zeroes {
                    reply.extend([0; 124]);
                }
                self.send(&reply);
                self.terms.flags = self.flags();
                return Ok(true);
            }
            opt::ABORT => {
                self.reply(option, rep::ACK, &[]);
                return Err(Over);
            }
            opt::LIST => {
                self.reply(option, rep::SERVER, &Message::new().counted(b"").bytes(b"fake").0);
                self.reply(option, rep::ACK, &[]);
            }
            opt::STRUCTURED_REPLY => {
                if script.structured == rep::ACK && self.mode == Mode::Simple {
                    self.mode = Mode::Structured;
                }
                self.reply(option, script.structured, &[]);
            }
            opt::EXTENDED_HEADERS => {
                if script.extended == rep::ACK {
                    self.mode = Mode::Extended;
                    self.terms.extended = true;
                }
                self.reply(option, script.extended, &[]);
            }
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => self.context_option(option, data),
            opt::INFO | opt::GO => return Ok(self.info_option(option, data)),
            _ => self.reply(option, rep::UNSUP, &[]),
        }
        Ok(false)
    }

    fn context_option(&mut self, option: u32, data: &[u8]) {
        if self.mode == Mode::Simple {
            self.blame(format!("option {option} without structured replies"));
        }
        let kind = self.shared.script.contexts;
        let wanted = data.windows(BASE_ALLOCATION.len()).any(|w| w == BASE_ALLOCATION.as_bytes());
        let all = option == opt::LIST_META_CONTEXT && data.ends_with(&[0; 4]);
        if kind == rep::ACK && (wanted || all) {
            let id =
                if option == opt::SET_META_CONTEXT { self.shared.script.context_id } else { 0 };
            let reply = Message::new().u32(id).bytes(BASE_ALLOCATION.as_bytes()).0;
            self.reply(option, rep::META_CONTEXT, &reply);
        }
        if option == opt::SET_META_CONTEXT {
            self.terms.contexts = kind == rep::ACK && wanted;
        }
        self.reply(option, kind, &[]);
    }

    /// Answers INFO or GO. True when transmission begins.
    fn info_option(&mut self, option: u32, data: &[u8]) -> bool {
        let kind = self.shared.script.go;
        if kind != rep::ACK {
            self.reply(option, kind, b"not here");
            return false;
        }
        let mut cursor = Cursor(data);
        let size = usize::try_from(cursor.u32()).unwrap();
        cursor.bytes(size);
        let count = cursor.u16();
        let ids: Vec<u16> = (0..count).map(|_| cursor.u16()).collect();
        if !cursor.0.is_empty() {
            self.blame(format!("bytes left over in option {option}: {data:02x?}"));
        }
        self.export_info(option);
        if let Some((min, preferred, max)) = self.shared.script.block_sizes
            && ids.contains(&info::BLOCK_SIZE)
        {
            let message = Message::new().u16(info::BLOCK_SIZE).u32(min).u32(preferred).u32(max);
            self.reply(option, rep::INFO, &message.0);
            self.terms.block_sizes = Some((min, max));
        }
        self.reply(option, rep::ACK, &[]);
        self.terms.flags = self.flags();
        option == opt::GO
    }

    /// Tells size and flags.
    pub fn export_info(&mut self, option: u32) {
        let size = self.shared.script.size;
        let message = Message::new().u16(info::EXPORT).u64(size).u16(self.flags());
        self.reply(option, rep::INFO, &message.0);
    }

    /// The transmission flags under what was agreed.
    pub fn flags(&self) -> u16 {
        let flags = self.shared.script.flags;
        if self.mode == Mode::Simple { flags & !tflag::SEND_DF } else { flags }
    }

    /// Replies to an option.
    pub fn reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        self.send(&option_reply(option, kind, data));
    }

    fn transmission(&mut self) -> Result<(), Over> {
        let shared = Arc::clone(&self.shared);
        let open = shared.sessions.fetch_add(1, Ordering::SeqCst) + 1;
        self.record(|record| record.most_sessions = record.most_sessions.max(open));
        if open > 1 && self.terms.flags & tflag::CAN_MULTI_CONN == 0 {
            self.blame(format!("{open} connections without multi-conn"));
        }
        let result = self.requests();
        shared.sessions.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn requests(&mut self) -> Result<(), Over> {
        let shared = Arc::clone(&self.shared);
        loop {
            let (request, payload) = self.request()?;
            for broken in violations(&request, &self.terms) {
                self.blame(broken);
            }
            self.record(|record| record.requests.push(request.clone()));
            if request.command == cmd::DISC {
                let mut rest = Vec::new();
                match self.stream.read_to_end(&mut rest) {
                    Ok(0) => {}
                    Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
                    other => self.blame(format!("after DISC: {other:?} {rest:02x?}")),
                }
                return Ok(());
            }
            let hook = shared.script.on_request.as_ref();
            match hook.map_or(Step::Honest, |hook| hook(self, &request, &payload)) {
                Step::Honest => self.honest(&request, &payload),
                Step::Done | Step::Transmission => {}
                Step::Close => return Ok(()),
            }
        }
    }

    fn request(&mut self) -> Result<(Seen, Vec<u8>), Over> {
        let extended = self.mode == Mode::Extended;
        let head = self.receive(if extended { 32 } else { 28 })?;
        let mut cursor = Cursor(&head);
        let magic = cursor.u32();
        if magic != if extended { EXT_REQUEST } else { REQUEST } {
            self.blame(format!("request magic {magic:#x} in mode {:?}", self.mode));
            return Err(Over);
        }
        let (flags, command, cookie, offset) =
            (cursor.u16(), cursor.u16(), cursor.u64(), cursor.u64());
        let size = if extended { cursor.u64() } else { cursor.u32().into() };
        let payload = match command {
            cmd::WRITE if size <= 64 << 20 => self.receive(index(size))?,
            cmd::WRITE => {
                self.blame(format!("a WRITE of {size} bytes"));
                return Err(Over);
            }
            _ => Vec::new(),
        };
        Ok((Seen { flags, command, cookie, offset, length: size }, payload))
    }

    /// Does what the request asks, and answers it.
    pub fn honest(&mut self, request: &Seen, payload: &[u8]) {
        match request.command {
            cmd::READ => {
                let data = self.bytes(request.offset, request.length);
                self.answer_read(request, &data);
            }
            cmd::WRITE => {
                self.store(request.offset, payload);
                self.answer(request, 0);
            }
            cmd::WRITE_ZEROES | cmd::TRIM => {
                let kept = self.shared.disk.lock().unwrap().len();
                let end = (request.offset + request.length).min(kept.try_into().unwrap());
                let size = end.saturating_sub(request.offset);
                self.store(request.offset, &vec![0; index(size)]);
                self.answer(request, 0);
            }
            cmd::BLOCK_STATUS => self.answer_status(request, &[(request.length, 0)]),
            cmd::FLUSH | cmd::CACHE => self.answer(request, 0),
            _ => self.answer(request, err::EINVAL),
        }
    }

    /// The disk's bytes at a range.
    pub fn bytes(&self, offset: u64, size: u64) -> Vec<u8> {
        let disk = self.shared.disk.lock().unwrap();
        let kept = length(&disk);
        let (start, end) = (offset.min(kept), (offset + size).min(kept));
        let mut data = disk[index(start)..index(end)].to_vec();
        data.resize(index(size), 0);
        data
    }

    fn store(&self, offset: u64, data: &[u8]) {
        let mut disk = self.shared.disk.lock().unwrap();
        let kept = length(&disk);
        let (start, end) = (offset.min(kept), (offset + length(data)).min(kept));
        let count = index(end - start);
        disk[index(start)..index(end)].copy_from_slice(&data[..count]);
    }

    /// Answers a READ with its bytes.
    pub fn answer_read(&mut self, request: &Seen, data: &[u8]) {
        if self.mode == Mode::Simple {
            let mut reply = simple(0, request.cookie);
            reply.extend(data);
            self.send(&reply);
            return;
        }
        let payload = Message::new().u64(request.offset).bytes(data).0;
        self.chunk(request, chunk::DONE, chunk::OFFSET_DATA, &payload);
    }

    /// Answers anything else: success or an error.
    pub fn answer(&mut self, request: &Seen, error: u32) {
        match self.mode {
            Mode::Structured if request.command == cmd::READ => {
                let payload = Message::new().u32(error).u16(0).0;
                self.chunk(request, chunk::DONE, chunk::ERROR, &payload);
            }
            Mode::Simple | Mode::Structured => self.send(&simple(error, request.cookie)),
            Mode::Extended if error == 0 => self.chunk(request, chunk::DONE, chunk::NONE, &[]),
            Mode::Extended => {
                let payload = Message::new().u32(error).u16(0).0;
                self.chunk(request, chunk::DONE, chunk::ERROR, &payload);
            }
        }
    }

    /// Answers BLOCK_STATUS with extents.
    pub fn answer_status(&mut self, request: &Seen, extents: &[(u64, u64)]) {
        let id = self.shared.script.context_id;
        let payload = self.status_payload(id, extents);
        let kind = self.status_kind();
        self.chunk(request, chunk::DONE, kind, &payload);
    }

    /// The type of a status chunk under what was agreed.
    pub fn status_kind(&self) -> u16 {
        if self.mode == Mode::Extended { chunk::BLOCK_STATUS_EXT } else { chunk::BLOCK_STATUS }
    }

    /// The payload of a status chunk under what was agreed.
    pub fn status_payload(&self, id: u32, extents: &[(u64, u64)]) -> Vec<u8> {
        let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let wide = self.mode == Mode::Extended;
        let mut message = Message::new().u32(id);
        if wide {
            message = message.u32(u32::try_from(extents.len()).unwrap());
        }
        for (size, flags) in extents {
            message = match wide {
                true => message.u64(*size).u64(*flags),
                false => message.u32(narrow(*size)).u32(narrow(*flags)),
            };
        }
        message.0
    }

    /// Sends one chunk.
    pub fn chunk(&mut self, request: &Seen, flags: u16, kind: u16, payload: &[u8]) {
        let bytes = chunk_bytes(self.mode, request, flags, kind, payload);
        self.send(&bytes);
    }
}

/// A newstyle greeting.
pub fn greeting(flags: u16) -> Vec<u8> {
    Message::new().u64(NBDMAGIC).u64(IHAVEOPT).u16(flags).0
}

/// An option reply.
pub fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    Message::new().u64(OPTION_REPLY).u32(option).u32(kind).counted(data).0
}

/// A simple reply without data.
pub fn simple(error: u32, cookie: u64) -> Vec<u8> {
    Message::new().u32(SIMPLE_REPLY).u32(error).u64(cookie).0
}

/// One chunk in the form that was agreed.
pub fn chunk_bytes(mode: Mode, request: &Seen, flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    let size = length(payload);
    let head = match mode {
        Mode::Extended => Message::new().u32(EXT_CHUNK).u16(flags).u16(kind),
        _ => Message::new().u32(CHUNK).u16(flags).u16(kind),
    };
    let head = head.u64(request.cookie);
    let head = match mode {
        Mode::Extended => head.u64(request.offset).u64(size),
        _ => head.u32(size.try_into().unwrap()),
    };
    head.bytes(payload).0
}
