//! One connection of the fake server: an honest server's side of the protocol, with the hooks of
//! the script called on the way.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::RecvFlags;

use super::{Record, Shared, Step};
use crate::conformance::replies::CONTEXT;
use crate::nbd::{
    BASE_ALLOCATION, CHUNK, Cursor, EXT_CHUNK, EXT_REQUEST, FIXED_NEWSTYLE, IHAVEOPT, Message,
    NBDMAGIC, NO_ZEROES, OPTION_REPLY, REQUEST, SIMPLE_REPLY, chunk, cmd, err, info, opt, rep,
    tflag,
};
use crate::rules::{Seen, Terms, violations};
use crate::session::Mode;
use crate::{index, length};

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
    pub(super) fn new(stream: UnixStream, shared: Arc<Shared>) -> Self {
        let terms = Terms { size: shared.script.size, ..Terms::default() };
        Self { stream, mode: Mode::Simple, terms, held: Vec::new(), shared, no_zeroes: false }
    }

    /// Sends bytes; what a client that hung up does not take is lost.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// The disk's bytes.
    pub fn disk(&self) -> std::sync::MutexGuard<'_, Vec<u8>> {
        self.shared.disk.lock().unwrap()
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

    pub(super) fn serve(mut self) {
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
            let id = if option == opt::SET_META_CONTEXT { CONTEXT } else { 0 };
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
        if ids.iter().enumerate().any(|(n, id)| ids[..n].contains(id)) {
            self.blame(format!("an id twice in option {option}: {ids:?}"));
        }
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
        let mut open = shared.sessions.fetch_add(1, Ordering::SeqCst) + 1;
        let alone = self.terms.flags & tflag::CAN_MULTI_CONN == 0;
        // The end of an earlier connection may not have been seen yet: give it time.
        let begun = Instant::now();
        while alone && open > 1 && begun.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(2));
            open = shared.sessions.load(Ordering::SeqCst);
        }
        self.record(|record| record.most_sessions = record.most_sessions.max(open));
        if open > 1 && alone {
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
        let reply = self.read_reply(request, data);
        self.send(&reply);
    }

    /// The reply to a READ.
    pub fn read_reply(&self, request: &Seen, data: &[u8]) -> Vec<u8> {
        if self.mode == Mode::Simple {
            return [&simple(0, request.cookie), data].concat();
        }
        let payload = Message::new().u64(request.offset).bytes(data).0;
        chunk_bytes(self.mode, request, chunk::DONE, chunk::OFFSET_DATA, &payload)
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
        let payload = self.status_payload(CONTEXT, extents);
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
