//! The numbered checks as data: what a client sends to a server, and what it must see; and what a
//! server may reply, and what a client must make of it.
//!
//! Those of a server are stated once and run by two drivers: over a socket against the program
//! (`tests/wire/server_conformance`), and over bytes alone against `wire`
//! (`crates/wire/tests/checks`). The bytes are this package's own, so that a mistake in `wire` is
//! not repeated in its test. A driver is a [`Target`]; whatever connects to it is a [`Haggler`] and
//! a [`Session`], which hold every answer against the protocol besides.

pub mod handshakes;
pub mod options;
pub mod replies;
pub mod requests;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::MIB;
use crate::haggle::{Haggler, option_bytes, parse_export};
use crate::nbd::{Cursor, alloc, cflag, cmd, context_data, err, go_data, opt, rep, tflag};
use crate::session::{Answer, Mode, Request, Session};
use crate::socket::Socket;
use crate::{index, length};

/// The largest disk whose every byte is held against what was done.
const WATCHED: u64 = 4 * MIB;

/// What is served: an empty disk, that can do everything.
#[derive(Debug, Clone, Copy)]
pub struct Host {
    /// Size in bytes.
    pub size: u64,
    /// Whether there are two exports, `alpha`, which is the default, and `beta` of twice the size.
    pub named: bool,
    /// Whether nothing may be written.
    pub read_only: bool,
    /// Transmission flags that are not offered.
    pub without: u16,
    /// Minimum and maximum block size, in bytes.
    pub blocks: (u32, u32),
}

/// An empty disk of this many bytes.
pub const fn disk(size: u64) -> Host {
    Host { size, named: false, read_only: false, without: 0, blocks: (1, 32 << 20) }
}

/// Two exports.
pub const NAMED: Host = Host { named: true, ..disk(MIB) };
/// An export that permits no change.
pub const READ_ONLY: Host = Host { read_only: true, ..disk(MIB) };
/// Every reply form.
pub const ALL: &[Mode] = &[Mode::Simple, Mode::Structured, Mode::Extended];
/// The reply forms with chunks.
pub const CHUNKED: &[Mode] = &[Mode::Structured, Mode::Extended];

/// What is tested.
pub trait Target {
    /// Starts serving this.
    fn serve(&self, host: Host) -> Box<dyn Running>;
}

/// A server that runs until it is dropped.
pub trait Running {
    /// A new connection, of which nothing was read.
    fn connect(&self) -> Socket;

    /// The most memory that it has held so far, in bytes; 0 where that cannot be told.
    fn peak_memory(&self) -> u64 {
        0
    }
}

type OnServer = Box<dyn Fn(&dyn Running)>;
type OnOptions = Box<dyn Fn(&mut Haggler)>;
type OnSession = Box<dyn Fn(&mut Session)>;

/// One step of a client.
enum Step {
    /// A new connection, with these client flags.
    Connect(u32),
    /// Bytes as they are; a server that closes amid them may.
    Send(Vec<u8>),
    /// Nothing more comes but the close.
    Closed,
    /// An option, and the types of its replies.
    Option(u32, Vec<u8>, Vec<u32>),
    /// An option, and the one reply, an error, that it may get.
    Refused(u32, Vec<u8>, Vec<u32>),
    /// A metadata option for an export, its queries, and the names that it gets.
    Contexts(u32, &'static str, Vec<&'static str>, Vec<&'static str>),
    /// EXPORT_NAME, and how many zeroes end its reply.
    ExportName(&'static str, usize),
    /// A request, and the errors that it may get, 0 for success.
    Ask(Request, Vec<u32>),
    /// What only code can say.
    Haggle(OnOptions),
    /// What only code can say.
    Session(OnSession),
}

/// One check of the list.
pub struct Check {
    /// `server_check_NN_rule`.
    pub name: &'static str,
    host: Host,
    modes: &'static [Mode],
    memory: u64,
    steps: Vec<Step>,
    code: Option<OnServer>,
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// A check that begins with fixed newstyle agreed, on an empty disk of 1 MiB.
pub fn check(name: &'static str) -> Check {
    let (modes, memory) = (&[][..], u64::MAX);
    Check { name, host: disk(MIB), modes, memory, steps: Vec::new(), code: None }
}

#[allow(missing_docs, reason = "the steps say what they are")]
impl Check {
    /// Serves something else.
    pub fn on(mut self, host: Host) -> Self {
        self.host = host;
        self
    }

    /// Begins in transmission, on the default export: once in each of these reply forms.
    pub fn modes(mut self, modes: &'static [Mode]) -> Self {
        self.modes = modes;
        self
    }

    /// Costs the server less than this, in bytes.
    pub fn memory(mut self, limit: u64) -> Self {
        self.memory = limit;
        self
    }

    fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    pub fn flags(self, flags: u32) -> Self {
        self.step(Step::Connect(flags))
    }

    pub fn send(self, bytes: impl AsRef<[u8]>) -> Self {
        self.step(Step::Send(bytes.as_ref().to_vec()))
    }

    pub fn closed(self) -> Self {
        self.step(Step::Closed)
    }

    /// Sends this to a new connection, which is closed at it.
    pub fn hangs_up(self, flags: u32, bytes: impl AsRef<[u8]>) -> Self {
        self.flags(flags).send(bytes).closed()
    }

    pub fn option(self, option: u32, data: impl AsRef<[u8]>, replies: &[u32]) -> Self {
        self.step(Step::Option(option, data.as_ref().to_vec(), replies.to_vec()))
    }

    pub fn refused(self, option: u32, data: impl AsRef<[u8]>, by: &[u32]) -> Self {
        self.step(Step::Refused(option, data.as_ref().to_vec(), by.to_vec()))
    }

    pub fn structured(self) -> Self {
        self.option(opt::STRUCTURED_REPLY, [], &[rep::ACK])
    }

    pub fn extended(self) -> Self {
        self.option(opt::EXTENDED_HEADERS, [], &[rep::ACK])
    }

    pub fn listed(self, queries: &[&'static str], names: &[&'static str]) -> Self {
        self.step(Step::Contexts(opt::LIST_META_CONTEXT, "", queries.into(), names.into()))
    }

    pub fn selected(
        self,
        export: &'static str,
        queries: &[&'static str],
        names: &[&'static str],
    ) -> Self {
        self.step(Step::Contexts(opt::SET_META_CONTEXT, export, queries.into(), names.into()))
    }

    pub fn export_name(self, name: &'static str, zeroes: usize) -> Self {
        self.step(Step::ExportName(name, zeroes))
    }

    pub fn go(self, name: &str) -> Self {
        self.option(opt::GO, go_data(name.as_bytes(), &[]), &[rep::INFO, rep::ACK])
    }

    pub fn ask(self, request: Request, errors: &[u32]) -> Self {
        self.step(Step::Ask(request, errors.to_vec()))
    }

    pub fn asks(self, requests: impl IntoIterator<Item = Request>, errors: &[u32]) -> Self {
        requests.into_iter().fold(self, |check, request| check.ask(request, errors))
    }

    pub fn write(self, offset: u64, data: &[u8]) -> Self {
        self.ask(Request::write(offset, data), &[0])
    }

    /// These steps for each item.
    pub fn each<T>(
        self,
        items: impl IntoIterator<Item = T>,
        steps: impl Fn(Self, T) -> Self,
    ) -> Self {
        items.into_iter().fold(self, steps)
    }

    pub fn haggle(self, code: impl Fn(&mut Haggler) + 'static) -> Self {
        self.step(Step::Haggle(Box::new(code)))
    }

    pub fn session(self, code: impl Fn(&mut Session) + 'static) -> Self {
        self.step(Step::Session(Box::new(code)))
    }

    /// The whole check in code, for what needs several connections.
    pub fn code(mut self, code: impl Fn(&dyn Running) + 'static) -> Self {
        self.code = Some(Box::new(code));
        self
    }
}

/// Runs checks; panics with the names of those that failed.
pub fn run(checks: &[Check], target: &dyn Target) {
    let failed: Vec<_> = checks
        .iter()
        .filter(|check| {
            eprintln!("{}", check.name);
            catch_unwind(AssertUnwindSafe(|| check.run(target))).is_err()
        })
        .collect();
    assert!(failed.is_empty(), "{} of {} failed: {failed:#?}", failed.len(), checks.len());
}

/// A session on an export, with base:allocation where the mode has contexts.
pub fn session(server: &dyn Running, mode: Mode, export: &str) -> Session {
    Haggler::new(server.connect()).session(mode, export)
}

impl Check {
    fn run(&self, target: &dyn Target) {
        let server = target.serve(self.host);
        let before = server.peak_memory();
        if let Some(code) = &self.code {
            code(&*server);
        } else if self.modes.is_empty() {
            Client::new(&*server).run(self);
        }
        for mode in self.modes {
            let mut client = Client::new(&*server);
            client.begin(session(&*server, *mode, ""), self.host);
            client.run(self);
        }
        let grown = server.peak_memory() - before;
        assert!(grown <= self.memory, "{grown} bytes of memory");
    }
}

/// How far a connection is.
enum Link {
    Closed,
    Haggling(Haggler),
    Transmitting(Session),
}

/// A client that takes the steps of a check.
struct Client<'a> {
    server: &'a dyn Running,
    link: Link,
    /// What the disk holds, if it is small enough.
    disk: Vec<u8>,
}

impl<'a> Client<'a> {
    fn new(server: &'a dyn Running) -> Self {
        Self { server, link: Link::Closed, disk: Vec::new() }
    }

    fn begin(&mut self, mut session: Session, host: Host) {
        if host.size <= WATCHED {
            self.disk = session.read(0, host.size).unwrap();
        }
        self.link = Link::Transmitting(session);
    }

    fn run(&mut self, check: &Check) {
        for step in &check.steps {
            self.take(step);
        }
        match &mut self.link {
            Link::Closed => {}
            Link::Haggling(haggler) => haggler.assert_alive(),
            Link::Transmitting(session) => {
                session.assert_alive();
                if !self.disk.is_empty() {
                    let seen = session.read(0, length(&self.disk)).unwrap();
                    assert!(seen == self.disk, "the disk is not as it was written");
                }
            }
        }
        if let Link::Transmitting(session) = std::mem::replace(&mut self.link, Link::Closed) {
            session.disconnect();
        }
    }

    fn socket(&mut self) -> &mut Socket {
        if matches!(self.link, Link::Transmitting(_)) {
            return &mut self.session_of().socket;
        }
        &mut self.haggler().socket
    }

    fn haggler(&mut self) -> &mut Haggler {
        if matches!(self.link, Link::Closed) {
            self.link = Link::Haggling(Haggler::new(self.server.connect()));
        }
        let Link::Haggling(haggler) = &mut self.link else { panic!("in transmission") };
        haggler
    }

    fn session_of(&mut self) -> &mut Session {
        let Link::Transmitting(session) = &mut self.link else { panic!("not in transmission") };
        session
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Connect(flags) => {
                self.link = Link::Haggling(Haggler::with_flags(self.server.connect(), *flags));
            }
            Step::Send(bytes) => {
                self.socket().offer(bytes);
            }
            Step::Closed => {
                self.socket().assert_closed();
                self.link = Link::Closed;
            }
            Step::Option(option, data, replies) => self.option(*option, data, replies),
            Step::Refused(option, data, by) => {
                let haggler = self.haggler();
                let replies = haggler.ask(*option, data);
                let is_one = replies.len() == 1 && by.contains(&replies[0].kind);
                assert!(is_one, "option {option}: {replies:02x?}");
                haggler.assert_alive();
            }
            Step::Contexts(option, export, queries, names) => {
                let haggler = self.haggler();
                let found = haggler.contexts(*option, export, queries).unwrap();
                let told: Vec<&str> = found.iter().map(|(_, name)| name.as_str()).collect();
                assert_eq!(told, *names, "{queries:?}");
                if *option == opt::SET_META_CONTEXT {
                    haggler.contexts = found;
                } else {
                    assert!(found.iter().all(|(id, _)| *id == 0), "the id is reserved in a list");
                }
            }
            Step::ExportName(name, zeroes) => {
                let mut haggler = self.leave_haggling();
                haggler.send(opt::EXPORT_NAME, name.as_bytes());
                let reply = haggler.socket.receive(10 + zeroes, "the reply to EXPORT_NAME");
                let mut cursor = Cursor(&reply);
                let (size, flags) = (cursor.u64(), cursor.u16());
                assert!(cursor.0.iter().all(|b| *b == 0), "the padding is zeroes: {reply:02x?}");
                let export = crate::haggle::Export { size, flags, ..Default::default() };
                self.link = Link::Transmitting(haggler.into_session(export));
            }
            Step::Ask(request, errors) => self.ask(request, errors),
            Step::Haggle(code) => code(self.haggler()),
            Step::Session(code) => code(self.session_of()),
        }
    }

    fn leave_haggling(&mut self) -> Haggler {
        self.haggler();
        let link = std::mem::replace(&mut self.link, Link::Closed);
        let Link::Haggling(haggler) = link else { panic!("in transmission") };
        haggler
    }

    fn option(&mut self, option: u32, data: &[u8], expected: &[u32]) {
        let haggler = self.haggler();
        let replies = haggler.ask(option, data);
        let kinds: Vec<u32> = replies.iter().map(|reply| reply.kind).collect();
        assert_eq!(kinds, expected, "option {option}: {replies:02x?}");
        let is_agreed = expected.last() == Some(&rep::ACK);
        match option {
            opt::STRUCTURED_REPLY if is_agreed => haggler.mode = Mode::Structured,
            opt::EXTENDED_HEADERS if is_agreed => haggler.mode = Mode::Extended,
            opt::STARTTLS if is_agreed => {
                haggler.mode = Mode::Simple;
                haggler.contexts.clear();
            }
            opt::ABORT => {
                haggler.socket.assert_closed();
                self.link = Link::Closed;
            }
            opt::INFO if is_agreed => {
                parse_export(&replies[..replies.len() - 1]);
            }
            opt::GO if is_agreed => {
                let export = parse_export(&replies[..replies.len() - 1]);
                let session = self.leave_haggling().into_session(export);
                self.link = Link::Transmitting(session);
            }
            _ => {}
        }
    }

    fn ask(&mut self, request: &Request, errors: &[u32]) {
        let session = self.session_of();
        let answer = session.ask(request);
        let is_refused = answer.error != 0;
        // What is not offered is invalid, whatever else it is. A memory disk has nothing to cache.
        let is_offered = request.command != cmd::CACHE || session.has(tflag::SEND_CACHE);
        let is_one = if is_offered { errors } else { &[err::EINVAL] }.contains(&answer.error);
        let (mode, error) = (session.mode, answer.error);
        let Request { command, flags, offset, length, .. } = *request;
        assert!(
            is_one,
            "{mode:?}: command {command}, flags {flags:#x}, {length} at {offset}: error {error}"
        );
        if is_refused {
            let is_chunked = mode == Mode::Extended
                || mode == Mode::Structured && matches!(command, cmd::READ | cmd::BLOCK_STATUS);
            assert!(!is_chunked || !answer.simple, "command {command}: a simple error");
            session.assert_alive();
        } else if !self.disk.is_empty() && length > 0 {
            self.done(request, &answer);
        }
    }

    /// Holds what was answered against the disk, and notes what was changed.
    fn done(&mut self, request: &Request, answer: &Answer) {
        let (from, count) = (index(request.offset), index(request.length));
        match request.command {
            cmd::READ => {
                assert!(answer.data == self.disk[from..from + count], "{count} at {from}");
                let is_whole = request.flags & cflag::DF != 0;
                assert!(!is_whole || answer.content_chunks() == 1, "{answer:?}");
            }
            cmd::WRITE => self.disk[from..from + count].copy_from_slice(&request.payload),
            cmd::WRITE_ZEROES => self.disk[from..from + count].fill(0),
            cmd::TRIM => {
                // Whatever is there now may stay.
                let now = self.session_of().read(request.offset, request.length).unwrap();
                self.disk[from..from + count].copy_from_slice(&now);
            }
            cmd::BLOCK_STATUS => self.status(request, answer),
            _ => {}
        }
    }

    fn status(&self, request: &Request, answer: &Answer) {
        for extents in answer.extents.values() {
            let mut at = request.offset;
            for (size, flags) in extents {
                assert_eq!(flags & !(alloc::HOLE | alloc::ZERO), 0, "{extents:?}");
                let end = at + size;
                assert!(end <= length(&self.disk), "past the end of the export: {extents:?}");
                let zero = self.disk[index(at)..index(end)].iter().all(|b| *b == 0);
                assert!(zero || flags & alloc::ZERO == 0, "data called zero: {extents:?}");
                at = end;
            }
            let one = extents.len() == 1 && extents[0].0 <= request.length;
            assert!(one || request.flags & cflag::REQ_ONE == 0, "{extents:?}");
        }
    }
}

/// The bytes of an option.
fn option(number: u32, data: &[u8]) -> Vec<u8> {
    option_bytes(number, data)
}

/// The data of INFO or GO for an export.
fn named(name: &str, ids: &[u16]) -> Vec<u8> {
    go_data(name.as_bytes(), ids)
}

/// The data of a metadata option for the default export.
fn queries(queries: &[&str]) -> Vec<u8> {
    context_data("", queries)
}
