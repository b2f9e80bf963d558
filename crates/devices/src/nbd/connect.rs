//! From a URI to a connection in transmission: dialling and the handshake.
//!
//! All of it together must end before a deadline, whatever the server does. A handshake reads at
//! most what its state machine asks for (`wire::ClientHandshake` has the limits).

use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Fault, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recv, send,
    socket_with, sockopt,
};
use wire::{
    ClientHandshake, ClientPolicy, ClientStep, Command, CommandFlags, ListedExport, Session,
    Transport, Uri, encode_request,
};

use super::{failure, vsock};

/// How long dialling and the handshake may take together.
const DEADLINE: Duration = Duration::from_secs(30);
/// What a Unix socket holds on its way to the server, in bytes, where the system allows.
const SOCKET_BUFFER: usize = 4 << 20;
/// How soon a Unix socket is dialled again whose queue of arrivals is full.
const BUSY: Duration = Duration::from_millis(10);
/// When a silent TCP peer is asked whether it is still there, how often, and how many times.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(10), 6);
/// How long sent bytes may stay unacknowledged by the peer's system, in milliseconds.
const UNACKNOWLEDGED: u32 = 120_000;

/// A connection on which requests may be sent.
#[derive(Debug)]
pub(crate) struct Connected {
    /// Non-blocking.
    pub(crate) socket: OwnedFd,
    pub(crate) session: Session,
    /// What the server sent beyond the handshake.
    pub(crate) leftover: Vec<u8>,
}

/// Connects to an export for use, with its map or without.
pub(crate) fn connect(uri: &Uri, map: bool) -> Result<Connected> {
    let map = map.then(|| wire::constants::BASE_ALLOCATION.to_owned());
    let policy = ClientPolicy {
        export: uri.export.clone(),
        contexts: map.into_iter().collect(),
        describe: true,
        ..ClientPolicy::default()
    };
    let (socket, answer, leftover) = converse(uri, policy).map_err(|e| e.on(uri))?;
    match answer {
        Answer::Session(session) => Ok(Connected { socket, session: *session, leftover }),
        Answer::List(_) => Err(confused().on(uri)),
    }
}

/// Connects, asks about an export, and says goodbye.
pub(crate) fn inspect(uri: &Uri, policy: ClientPolicy) -> Result<Session> {
    match converse(uri, policy).map_err(|e| e.on(uri))? {
        (socket, Answer::Session(session), _) => {
            let mut goodbye = Vec::new();
            let none = CommandFlags::NONE;
            // A server that is gone already need not be told; a length of 0 fits every framing.
            let _ = encode_request(session.mode, Command::Disconnect, none, 0, 0, 0, &mut goodbye);
            let _ = send(&socket, &goodbye, SendFlags::NOSIGNAL);
            Ok(*session)
        }
        (_, Answer::List(_), _) => Err(confused().on(uri)),
    }
}

/// Connects, asks for the exports, and says goodbye.
pub(crate) fn list(uri: &Uri, policy: ClientPolicy) -> Result<Vec<ListedExport>> {
    match converse(uri, policy).map_err(|e| e.on(uri))?.1 {
        Answer::List(list) => Ok(list),
        Answer::Session(_) => Err(confused().on(uri)),
    }
}

/// What a handshake ends with.
enum Answer {
    List(Vec<ListedExport>),
    Session(Box<Session>),
}

fn confused() -> Error {
    Error::new(ErrorKind::Protocol, Fault::Us, "connect: the handshake ended oddly; a defect")
}

fn converse(uri: &Uri, policy: ClientPolicy) -> Result<(OwnedFd, Answer, Vec<u8>)> {
    if uri.tls {
        return Err(Error::unsupported(
            "connect: TLS is not supported yet; use a URI without the `s` (nbd, nbd+unix)",
        ));
    }
    let until = Until(Instant::now() + DEADLINE);
    let socket = dial(&uri.transport, until)?;
    rustix::io::ioctl_fionbio(&socket, true).map_err(|e| Error::os("connect", e))?;
    tune(&socket);
    let (answer, leftover) = handshake(&socket, policy, until)?;
    Ok((socket, answer, leftover))
}

fn handshake(socket: &OwnedFd, policy: ClientPolicy, until: Until) -> Result<(Answer, Vec<u8>)> {
    let mut handshake = ClientHandshake::new(policy);
    let mut input = vec![0; 16 << 10];
    loop {
        until.wait(socket, PollFlags::IN)?;
        let n = match recv(socket, &mut input[..], RecvFlags::empty()) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => {
                return Err(failure::handshake(handshake.closed()));
            }
            Ok((_, n)) => n,
            Err(Errno::AGAIN | Errno::INTR) => continue,
            Err(e) => return Err(Error::os("connect", e)),
        };
        let arrived = input.get(..n).unwrap_or_default();
        let mut out = Vec::new();
        let (consumed, step) = handshake.advance(arrived, &mut out);
        let sent = send_all(socket, &out, until);
        let leftover = arrived.get(consumed..).unwrap_or_default();
        match step {
            ClientStep::NeedMore => sent?,
            ClientStep::Ready(session) => {
                sent?;
                return Ok((Answer::Session(session), leftover.to_vec()));
            }
            // What was sent last is only a goodbye.
            ClientStep::Listed(list) => return Ok((Answer::List(list), Vec::new())),
            ClientStep::Failed(e) => return Err(failure::handshake(e)),
            ClientStep::StartTls => return Err(confused()),
        }
    }
}

fn send_all(socket: &OwnedFd, bytes: &[u8], until: Until) -> Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match send(socket, rest, SendFlags::NOSIGNAL) {
            Ok(n) => rest = rest.get(n..).unwrap_or_default(),
            Err(Errno::AGAIN) => until.wait(socket, PollFlags::OUT)?,
            Err(Errno::INTR) => {}
            Err(e) => return Err(Error::os("connect", e)),
        }
    }
    Ok(())
}

/// The deadline.
#[derive(Clone, Copy)]
struct Until(Instant);

impl Until {
    fn left(self) -> Result<Duration> {
        match self.0.saturating_duration_since(Instant::now()) {
            Duration::ZERO => {
                let action = format!("connect: no answer within {} seconds", DEADLINE.as_secs());
                Err(Error::new(ErrorKind::TimedOut, Fault::Peer, action))
            }
            left => Ok(left),
        }
    }

    fn wait(self, socket: &OwnedFd, flags: PollFlags) -> Result<()> {
        loop {
            let left = Timespec::try_from(self.left()?).map_err(|_| confused())?;
            match poll(&mut [PollFd::new(socket, flags)], Some(&left)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(e) => return Err(Error::os("connect", e)),
            }
        }
    }
}

fn dial(transport: &Transport, until: Until) -> Result<OwnedFd> {
    match transport {
        Transport::Tcp { host, port } => dial_tcp(host, *port, until),
        Transport::Unix { path } => {
            let address =
                SocketAddrUnix::new(path.as_slice()).map_err(|e| Error::os("connect", e))?;
            dial_unix(&address, until)
        }
        Transport::UnixAbstract { name } => {
            let address =
                SocketAddrUnix::new_abstract_name(name).map_err(|e| Error::os("connect", e))?;
            dial_unix(&address, until)
        }
        Transport::Vsock { cid, port } => {
            vsock::connect(*cid, *port).map_err(|e| Error::os("connect", e))
        }
    }
}

/// Tries every address of the host in turn.
fn dial_tcp(host: &str, port: u16, until: Until) -> Result<OwnedFd> {
    let addresses = (host, port).to_socket_addrs().map_err(|e| {
        let action = format!("connect: look up the host {host:?}");
        Error::new(ErrorKind::NotFound, Fault::User, action).with_source(e)
    })?;
    let mut last = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, until.left()?) {
            Ok(stream) => return Ok(stream.into()),
            Err(e) => last = Some(Error::os(format!("connect to {address}"), e)),
        }
    }
    Err(last.unwrap_or_else(|| {
        let action = format!("connect: the host {host:?} has no address");
        Error::new(ErrorKind::NotFound, Fault::User, action)
    }))
}

/// A blocking connect would wait for ever for a listener that accepts nobody.
fn dial_unix(address: &SocketAddrUnix, until: Until) -> Result<OwnedFd> {
    let say = |e: Errno| Error::os("connect", e);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(say)?;
    loop {
        match rustix::net::connect(&socket, address) {
            Ok(()) => return Ok(socket),
            Err(Errno::AGAIN) => std::thread::sleep(until.left()?.min(BUSY)),
            Err(Errno::INTR) => {}
            Err(e) => return Err(say(e)),
        }
    }
}

/// Options that help; none is essential.
fn tune(socket: &OwnedFd) {
    let fd = socket.as_fd();
    if sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX) {
        let _ = sockopt::set_socket_send_buffer_size(fd, SOCKET_BUFFER);
        let _ = sockopt::set_socket_recv_buffer_size(fd, SOCKET_BUFFER);
        return;
    }
    // TCP sizes its own buffers. A peer whose machine has gone is noticed after some minutes.
    let (idle, interval, count) = KEEPALIVE;
    let _ = sockopt::set_tcp_nodelay(fd, true);
    let _ = sockopt::set_socket_keepalive(fd, true);
    let _ = sockopt::set_tcp_keepidle(fd, idle);
    let _ = sockopt::set_tcp_keepintvl(fd, interval);
    let _ = sockopt::set_tcp_keepcnt(fd, count);
    let _ = sockopt::set_tcp_user_timeout(fd, UNACKNOWLEDGED);
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A handshake with a server that says `greeting` and then nothing, or closes.
    fn greeted_by(greeting: &[u8], closes: bool) -> Error {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.write_all(greeting).unwrap();
        let kept = (!closes).then_some(theirs);
        let until = Until(Instant::now() + Duration::from_millis(if closes { 60_000 } else { 20 }));
        let ended = handshake(&ours.into(), ClientPolicy::default(), until);
        drop(kept);
        ended.err().unwrap()
    }

    const GREETING: [u8; 18] = *b"NBDMAGICIHAVEOPT\0\x03";

    #[test]
    fn check_1_a_greeting_cut_at_any_byte_is_an_error_and_no_hang() {
        for cut in 0..=GREETING.len() {
            let part = &GREETING[..cut];
            assert_eq!(greeted_by(part, true).kind(), ErrorKind::Disconnected, "{cut}");
            assert_eq!(greeted_by(part, false).kind(), ErrorKind::TimedOut, "{cut}");
        }
    }

    #[test]
    fn a_server_of_something_else_is_told_apart() {
        let error = greeted_by(b"SSH-2.0-OpenSSH_9.9\r\n", false);
        assert_eq!((error.kind(), error.fault()), (ErrorKind::Protocol, Fault::Peer));
        assert!(error.to_string().contains("not that of an NBD server"), "{error}");
    }

    #[test]
    fn what_has_no_tls_yet_says_so_before_it_connects() {
        let uri: Uri = "nbds://nowhere.invalid/".parse().unwrap();
        assert_eq!(connect(&uri, true).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_listener_that_is_not_there_is_named() {
        let uri: Uri = "nbd+unix:///?socket=/nonexistent/socket".parse().unwrap();
        let error = connect(&uri, true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().starts_with("nbd+unix:///?socket=/nonexistent/socket: connect"));
    }
}
