//! One connection to an NBD server, as in libnbd: every step of the handshake and every command is
//! the user's to choose, and with strict mode off also what a server should never be sent.
//!
//! It never waits. Its caller reports that the socket is readable or writable
//! ([`Engine::readable`], [`Engine::writable`]); it goes as far as it can, and queues an [`Event`]
//! for whatever the user has to know. A call that blocks is the same with poll(2) around it, in the
//! caller.
//!
//! It promises that no server can make it write outside a buffer, take a read for complete that was
//! not answered in full, or spend more memory than was asked for; and that a buffer is given back
//! only when nothing will touch it. It knows nothing of Python: what a user keeps with a command is
//! a `K`.
//!
//! - `talk.rs`: the handshake. `reach.rs`: ways to a connected socket.
//! - `commands.rs`: commands out, checked as strict mode says. `replies.rs`: replies in.

mod commands;
mod fault;
mod given;
mod inbox;
mod memory;
mod process;
mod reach;
mod replies;
mod settings;
mod state;
mod talk;

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;

use net::{Outgoing, Received, Stream};
use rustix::io::Errno;
use wire::{Framing, TransmissionFlags};

pub(crate) use commands::{CommandSpec, Submitted};
pub(crate) use fault::EngineError;
pub(crate) use given::lend as lent_descriptor;
use inbox::Inbox;
pub(crate) use memory::PythonMemory;
pub(crate) use process::Process;
pub(crate) use reach::Destination;
use reach::Dialling;
use replies::Reading;
pub(crate) use settings::{HANDSHAKE_MASK, Settings, strict, transport};
pub(crate) use state::{State, When};
pub(crate) use talk::Option as TalkOption;
use talk::Talk;

/// What the user has to know, in the order in which it came.
#[derive(Debug)]
pub(crate) enum Event {
    /// A part of a structured read: where in its buffer, and whether it is data, a hole or an
    /// error.
    Chunk { cookie: u64, start: usize, len: usize, status: u32, errno: i32 },
    /// Extents of one context, from the offset of the command on: their lengths and flags.
    Extents { cookie: u64, context: String, offset: u64, extents: Vec<(u64, u64)> },
    /// A command has ended: its completion is called.
    Completed { cookie: u64, errno: i32 },
    /// The name and the description of an export of a list.
    Listed(String, String),
    /// The name of a context.
    Context(String),
    /// The option in flight is done; 0, or why not.
    OptionDone(i32),
    /// A debug message.
    Debug(String),
}

/// What is known of the export.
#[derive(Debug, Default)]
pub(crate) struct ExportFacts {
    /// Size in bytes and flags, once the server has told them.
    pub(crate) known: Option<(u64, TransmissionFlags)>,
    /// Minimum, preferred, maximum; if the server told them.
    pub(crate) blocks: Option<[u32; 3]>,
    pub(crate) canonical: Option<String>,
    pub(crate) description: Option<String>,
}

/// Bytes and messages that went either way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) bytes_sent: u64,
    pub(crate) chunks_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) chunks_received: u64,
}

/// One connection.
#[derive(Debug, Default)]
pub(crate) struct Engine<K> {
    pub(crate) settings: Settings,
    pub(crate) export: ExportFacts,
    pub(crate) stats: Stats,
    /// Contexts that were negotiated, with their ids; valid if the server took the last request for
    /// them.
    pub(crate) contexts: Vec<(u32, String)>,
    pub(crate) contexts_valid: bool,
    pub(crate) protocol: &'static str,
    /// Where it leads, if that has an address.
    pub(crate) place: Option<wire::Transport>,
    pub(crate) process: Option<Process>,
    state: State,
    mode: Framing,
    stream: Option<Arc<Stream>>,
    dialling: Option<Dialling>,
    talk: Talk,
    inbox: Inbox,
    outgoing: Outgoing<PythonMemory>,
    /// Nothing more will be sent.
    is_last: bool,
    commands: HashMap<u64, Submitted<K>>,
    /// Those that have ended and were not retired, in the order in which they ended.
    ended: VecDeque<u64>,
    /// Writes with a reply that came before all of the payload was sent.
    early: Vec<u64>,
    in_flight: usize,
    /// How many there were; the last one's cookie.
    count: u64,
    disconnecting: bool,
    reading: Reading,
    events: VecDeque<Event>,
    /// Why the connection is dead.
    death: Option<EngineError>,
    /// Whether an event was queued since [`Engine::readable`] was called.
    progressed: bool,
}

impl<K> Engine<K> {
    pub(crate) fn new(name: String) -> Self
    where
        K: Default,
    {
        let mut engine = Self::default();
        engine.settings.name = name;
        engine
    }

    pub(crate) const fn state(&self) -> State {
        self.state
    }

    /// How requests and replies are framed.
    pub(crate) const fn mode(&self) -> Framing {
        self.mode
    }

    /// Whether a command or reply is partly sent or received.
    pub(crate) fn is_processing(&self) -> bool {
        self.state == State::Ready && (!self.outgoing.is_empty() || self.reading.is_begun())
    }

    /// Whether a disconnect request was sent.
    pub(crate) const fn is_leaving(&self) -> bool {
        self.disconnecting
    }

    /// Whether the connection is encrypted.
    pub(crate) fn is_secure(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.is_secure())
    }

    /// The socket, while there is one.
    pub(crate) fn socket(&self) -> Result<Arc<Stream>, EngineError> {
        let dialled = self.dialling.as_ref().map(Dialling::socket);
        let none = || EngineError::invalid("connection is not in a connected state");
        self.stream.clone().or(dialled).ok_or_else(none)
    }

    /// The events of the socket to wait for: bit 0 readable, bit 1 writable.
    pub(crate) fn direction(&self) -> u32 {
        let out = !self.outgoing.is_empty();
        match self.state {
            State::Created | State::Negotiating | State::Closed | State::Dead => 0,
            State::Connecting => 2,
            State::Talking if self.talk.wants_room(out) => 2,
            State::Talking => 1,
            State::Ready if out => 3,
            State::Ready => 1,
        }
    }

    /// Whether there are received bytes that polling the socket does not show.
    pub(crate) fn has_received(&self) -> bool {
        let waits = matches!(self.state, State::Talking | State::Ready);
        waits && self.stream.as_ref().is_some_and(|stream| stream.holds())
    }

    /// Why the connection is dead, if it is.
    pub(crate) fn death(&self) -> Option<EngineError> {
        self.death.clone()
    }

    /// The next event for the user.
    pub(crate) fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The socket is readable.
    pub(crate) fn readable(&mut self) -> Result<(), EngineError> {
        self.allowed(0, 1)?;
        self.progressed = false;
        self.or_die(|engine| match engine.state {
            State::Connecting => Ok(()),
            State::Talking => engine.talk_on(),
            _ => {
                engine.send()?;
                engine.receive_replies()
            }
        })
    }

    /// The socket is writable.
    pub(crate) fn writable(&mut self) -> Result<(), EngineError> {
        self.allowed(1, 2)?;
        self.or_die(|engine| match engine.state {
            State::Connecting => engine.dialled(),
            State::Talking => {
                engine.send()?;
                engine.talk_on()
            }
            _ => engine.send(),
        })
    }

    fn allowed(&self, event: u32, bit: u32) -> Result<(), EngineError> {
        let now = self.state;
        let busy = matches!(now, State::Connecting | State::Talking | State::Ready);
        if busy || self.direction() & bit != 0 {
            return Ok(());
        }
        Err(EngineError::invalid(format!(
            "external event {event} is invalid in state {}",
            now.name()
        )))
    }

    /// Runs a step after whose failure the connection cannot be used any more.
    fn or_die<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let result = work(self);
        if let Err(fault) = &result {
            self.die(fault.clone());
        }
        result
    }

    /// The connection cannot be used any more, and what is in flight fails.
    fn die(&mut self, fault: EngineError) {
        if self.state == State::Dead {
            return;
        }
        self.debug(|| format!("handle dead: {}", fault.text));
        let errno = fault.errno;
        self.death = Some(fault);
        self.abandon(State::Dead);
        if self.talk.is_asking() {
            let errno = if errno == 0 { Errno::NOTCONN.raw_os_error() } else { errno };
            self.option_done(errno);
        }
    }

    /// Ends the connection, and all that is in flight with it.
    fn abandon(&mut self, state: State) {
        self.state = state;
        if let Some(stream) = self.stream.take() {
            // Another thread may still wait for it.
            stream.close();
        }
        self.dialling = None;
        self.outgoing.clear();
        self.inbox.clear();
        self.reading = Reading::default();
        self.fail_all();
    }

    /// The rest of a reply that was begun will not come.
    fn ended_by_server(&mut self) {
        self.abandon(State::Closed);
    }

    /// Queues a debug message.
    fn debug(&mut self, text: impl FnOnce() -> String) {
        if self.settings.debug {
            self.events.push_back(Event::Debug(text()));
        }
    }

    /// Queues a message to be sent, which `write` appends.
    fn put(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.stats.chunks_sent += 1;
        let Ok(()) = self.outgoing.head(|out| {
            write(out);
            Ok::<(), Infallible>(())
        });
    }

    /// Sends as much of the queue as the socket takes.
    fn send(&mut self) -> Result<(), EngineError> {
        let Some(stream) = self.stream.clone() else { return Ok(()) };
        let before = self.outgoing.unsent();
        let sent = self.outgoing.send(&stream);
        self.stats.bytes_sent += before - self.outgoing.unsent();
        sent.map_err(|e| EngineError::new(e, "send"))?;
        for cookie in std::mem::take(&mut self.early) {
            self.finish(cookie);
        }
        if self.is_last && self.outgoing.is_empty() {
            self.is_last = false;
            stream.end();
        }
        Ok(())
    }

    /// Receives into the inbox; false: there are no bytes now, or the connection has ended (the
    /// state says so).
    fn receive(&mut self) -> Result<bool, EngineError> {
        let Some(stream) = self.stream.clone() else { return Ok(false) };
        match stream.receive(self.inbox.room()) {
            Ok(Received::Bytes(count)) => {
                self.stats.bytes_received += count as u64;
                self.inbox.came(count);
                Ok(true)
            }
            Ok(Received::Nothing) => Ok(false),
            Ok(Received::End) => {
                if self.state == State::Ready && !self.reading.is_begun() && self.inbox.len() == 0 {
                    self.ended_by_server();
                    return Ok(false);
                }
                Err(EngineError::plain("recv: server disconnected unexpectedly"))
            }
            // After a disconnect request the server may close the connection in any way.
            Err(_) if self.state == State::Ready && self.disconnecting && self.in_flight == 0 => {
                self.ended_by_server();
                Ok(false)
            }
            Err(e) => Err(EngineError::new(e, "recv")),
        }
    }
}

impl<K> Drop for Engine<K> {
    fn drop(&mut self) {
        // Wakes another thread that polls the socket.
        if let Some(stream) = self.stream.take().filter(|stream| Arc::strong_count(stream) > 1) {
            stream.close();
        }
        if let Some(process) = self.process.take() {
            process.end();
        }
    }
}
