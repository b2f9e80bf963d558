//! Ways to a socket that is connected to a server.

use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use net::{Stream, Tuning, Until};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use wire::Transport;

use super::process::Process;
use super::{Engine, EngineError, State, When, given};

/// How long a socket may take that is connected while the caller waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// What leads to a server, before anything is connected.
#[derive(Debug)]
pub(crate) enum Destination {
    /// By a host's addresses, in turn.
    Tcp { host: String, port: String, addresses: Vec<SocketAddr> },
    /// By an address of another kind, which is waited for; and what came of that, if it was tried:
    /// [`Destination::dialled`].
    Other(Transport, Option<Result<Stream, EngineError>>),
    /// Over a connected socket, which is taken over.
    Socket(RawFd),
    /// To a program that speaks on its standard input and output, or listens as systemd has it
    /// listen.
    Program { words: Vec<String>, listens: bool },
}

impl From<Transport> for Destination {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Tcp { host, port } => {
                Self::Tcp { host, port: port.to_string(), addresses: Vec::new() }
            }
            other => Self::Other(other, None),
        }
    }
}

impl Destination {
    /// Connects, if that waits for an answer. Call it without a lock.
    pub(crate) fn dialled(self) -> Self {
        match self {
            Self::Other(transport, None) => {
                let dialled = dial(&transport);
                Self::Other(transport, Some(dialled))
            }
            other => other,
        }
    }
}

/// A TCP connection that is being made to a host, by its addresses in turn.
#[derive(Debug)]
pub(super) struct Dialling {
    host: String,
    port: String,
    addresses: Vec<SocketAddr>,
    socket: Arc<Stream>,
}

impl Dialling {
    pub(super) fn socket(&self) -> Arc<Stream> {
        self.socket.clone()
    }
}

fn dial(transport: &Transport) -> Result<Stream, EngineError> {
    let until = Until::within(PATIENCE);
    let dialled = match transport {
        Transport::Tcp { host, port } => Stream::dial_tcp(host, *port, until),
        Transport::Unix { path } => Stream::dial_unix(path, until),
        Transport::UnixAbstract { name } => Stream::dial_abstract(name, until),
        Transport::Vsock { cid, port } => Stream::dial_vsock(*cid, *port, until),
    };
    dialled
        .map_err(|e| EngineError::number(e.raw_os_error().unwrap_or(e.kind().errno().0), "connect"))
}

/// Begins to connect; the socket does not block.
fn begin(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(e) => Err(e),
    }
}

impl<K> Engine<K> {
    /// Connects, or begins to.
    pub(crate) fn connect(&mut self, way: Destination) -> Result<(), EngineError> {
        When::Created.check(self.state)?;
        match way {
            Destination::Tcp { host, port, mut addresses } => {
                if let Some(first) = addresses.first() {
                    let place = Transport::Tcp { host: host.clone(), port: first.port() };
                    self.place = Some(place);
                }
                addresses.reverse();
                self.settings.tls_hostname.get_or_insert_with(|| host.clone());
                self.or_die(|engine| engine.next_address(host, port, addresses, None))
            }
            Destination::Other(transport, dialled) => {
                let dialled = dialled.unwrap_or_else(|| dial(&transport));
                self.place = Some(transport);
                self.or_die(|engine| engine.begin(dialled?))
            }
            Destination::Socket(number) => {
                let stream = Stream::new(given::take(number)?);
                let say = |e| EngineError::new(e, "fcntl: set O_NONBLOCK");
                self.or_die(|engine| engine.begin(stream.map_err(say)?))
            }
            Destination::Program { words, listens } => {
                if words.is_empty() {
                    return Err(EngineError::invalid("missing command name in argv list"));
                }
                self.or_die(|engine| {
                    let name = listens.then_some(&*engine.settings.activation_name);
                    let (process, stream) = Process::start(&words, name)?;
                    engine.process = Some(process);
                    engine.begin(stream)
                })
            }
        }
    }

    fn next_address(
        &mut self,
        host: String,
        port: String,
        mut addresses: Vec<SocketAddr>,
        mut last: Option<Errno>,
    ) -> Result<(), EngineError> {
        while let Some(address) = addresses.pop() {
            match begin(address).map(Stream::dialling) {
                Ok(socket) => {
                    let socket = Arc::new(socket);
                    self.dialling = Some(Dialling { host, port, addresses, socket });
                    self.state = State::Connecting;
                    return Ok(());
                }
                Err(e) => last = Some(e),
            }
        }
        let text = format!("connect: {host}:{port}: could not connect to remote host");
        Err(EngineError::number(last.map_or(0, Errno::raw_os_error), text))
    }

    /// One of the addresses has answered, or not.
    pub(super) fn dialled(&mut self) -> Result<(), EngineError> {
        let Some(Dialling { host, port, addresses, socket }) = self.dialling.take() else {
            return Ok(());
        };
        match sockopt::socket_error(&*socket) {
            Ok(Ok(())) => self.begin_shared(socket),
            Ok(Err(e)) | Err(e) => self.next_address(host, port, addresses, Some(e)),
        }
    }

    fn begin(&mut self, stream: Stream) -> Result<(), EngineError> {
        self.begin_shared(Arc::new(stream))
    }

    fn begin_shared(&mut self, stream: Arc<Stream>) -> Result<(), EngineError> {
        stream.tune(Tuning { send_buffer: true, receive_buffer: true, patience: None });
        self.stream = Some(stream);
        self.state = State::Talking;
        self.talk.begin();
        self.talk_on()
    }
}
