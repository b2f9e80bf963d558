//! Ways to a socket that is connected to a server.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use net::{Stream, Tuning, Until};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};
use wire::Transport;

use super::process::Process;
use super::{Engine, EngineError, PeerAddress, State, When};

/// How long connecting to a port of a virtual machine may take.
const VSOCK: Duration = Duration::from_secs(60);

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
    /// To a Unix socket.
    pub(crate) fn connect_unix(
        &mut self,
        path: &[u8],
        place: Transport,
    ) -> Result<(), EngineError> {
        When::Created.check(self.state)?;
        self.place = PeerAddress::Known(place);
        self.or_die(|engine| {
            let say = |e| EngineError::new(e, "connect");
            let address = match path {
                [0, name @ ..] => SocketAddrUnix::new_abstract_name(name),
                path => SocketAddrUnix::new(path),
            };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
            let socket = socket.map_err(|e| EngineError::new(e, "socket"))?;
            connect(&socket, &address.map_err(say)?).map_err(say)?;
            engine.begin(Stream::new(socket).map_err(say)?)
        })
    }

    /// To the addresses of a host, in turn.
    pub(crate) fn connect_tcp(
        &mut self,
        host: &str,
        port: &str,
        mut addresses: Vec<SocketAddr>,
    ) -> Result<(), EngineError> {
        When::Created.check(self.state)?;
        if let Some(first) = addresses.first() {
            let place = Transport::Tcp { host: host.to_owned(), port: first.port() };
            self.place = PeerAddress::Known(place);
        }
        addresses.reverse();
        if self.settings.tls_hostname.is_none() {
            self.settings.tls_hostname = Some(host.to_owned());
        }
        self.or_die(|engine| engine.next_address(host.into(), port.into(), addresses, None))
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

    /// To a port of a virtual machine or its host; waits until it answers.
    pub(crate) fn connect_vsock(&mut self, cid: u32, port: u32) -> Result<(), EngineError> {
        When::Created.check(self.state)?;
        self.place = PeerAddress::Known(Transport::Vsock { cid, port });
        self.or_die(|engine| {
            let dialled = Stream::dial_vsock(cid, port, Until::within(VSOCK));
            engine.begin(dialled.map_err(|e| EngineError::number(e.kind().errno().0, "connect"))?)
        })
    }

    /// Over a connected socket.
    pub(crate) fn connect_socket(&mut self, socket: OwnedFd) -> Result<(), EngineError> {
        When::Created.check(self.state)?;
        self.or_die(|engine| {
            let stream =
                Stream::new(socket).map_err(|e| EngineError::new(e, "fcntl: set O_NONBLOCK"))?;
            engine.begin(stream)
        })
    }

    /// To a program that speaks on its standard input and output, or listens as systemd has it
    /// listen.
    pub(crate) fn connect_program(
        &mut self,
        words: &[String],
        listens: bool,
    ) -> Result<(), EngineError> {
        When::Created.check(self.state)?;
        if words.is_empty() {
            return Err(EngineError::new(Errno::INVAL, "missing command name in argv list"));
        }
        self.or_die(|engine| {
            let (process, stream) = if listens {
                Process::activated(words, &engine.settings.activation_name)?
            } else {
                Process::on_socket(words)?
            };
            engine.process = Some(process);
            engine.begin(stream)
        })
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
