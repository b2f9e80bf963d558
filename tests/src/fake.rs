//! A server written for one purpose: to misbehave towards our client.
//!
//! Left alone it is an honest, complete server of a small disk in memory: all three reply
//! forms, block status, every command. A test hooks into it at the greeting, at an option or
//! at a request, and does there what the hostile peer of the check does. Whatever the client
//! sends is recorded and judged by `rules`.

mod peer;

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

pub use self::peer::{Peer, chunk_bytes, greeting, option_reply, simple};
use crate::nbd::{FIXED_NEWSTYLE, NO_ZEROES, rep, tflag};
use crate::rules::Seen;
use crate::session::Mode;
use crate::temp::{TempDir, pattern};
use crate::{GUARD, index};

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
    /// Minimum, preferred and maximum block size, advertised to clients that ask.
    pub block_sizes: Option<(u32, u32, u32)>,
    /// The disk: as many bytes as there are, zeroes after them.
    pub disk: Vec<u8>,
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

    /// The same with a hook at each request of one command.
    #[must_use]
    pub fn at(
        self,
        command: u16,
        hook: impl Fn(&mut Peer, &Seen) -> Step + Send + Sync + 'static,
    ) -> Self {
        self.on_request(
            move |peer, request, _| {
                if request.command == command { hook(peer, request) } else { Step::Honest }
            },
        )
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
        crate::wait_for(what, || condition(&self.record()));
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
