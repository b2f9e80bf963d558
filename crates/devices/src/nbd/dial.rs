//! Dialling: a connected socket, before a deadline.

use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Fault, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, sockopt};
use wire::Transport;

use super::vsock;

/// How long dialling and the handshake may take together, if nobody says otherwise.
const DEADLINE: Duration = Duration::from_secs(30);
/// What a Unix socket holds on its way to the server, in bytes, where the system allows.
const SOCKET_BUFFER: usize = 4 << 20;
/// How soon a Unix socket is dialled again whose queue of arrivals is full.
const BUSY: Duration = Duration::from_millis(10);
/// When a silent TCP peer is asked whether it is still there, how often, and how many times.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(10), 6);

/// The deadline, and how long that was at first.
#[derive(Clone, Copy)]
pub(crate) struct Until(Instant, Duration);

impl Until {
    /// From now on, for a connection and its handshake; at most a year.
    pub(crate) fn within(limit: Option<Duration>) -> Self {
        let limit = limit.unwrap_or(DEADLINE);
        Self(Instant::now() + limit, limit)
    }

    /// What is left; an error when that is nothing.
    pub(crate) fn left(self) -> Result<Duration> {
        match self.0.saturating_duration_since(Instant::now()) {
            Duration::ZERO => {
                let action = format!("connect: no answer within {} seconds", self.1.as_secs_f64());
                Err(Error::new(ErrorKind::TimedOut, Fault::Peer, action))
            }
            left => Ok(left),
        }
    }

    /// Waits for the socket.
    pub(crate) fn wait(self, socket: &OwnedFd, flags: PollFlags) -> Result<()> {
        loop {
            let left = Timespec::try_from(self.left()?)
                .map_err(|_| Error::invalid("connect: the deadline is too far away"))?;
            match poll(&mut [PollFd::new(socket, flags)], Some(&left)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(e) => return Err(Error::os("connect", e)),
            }
        }
    }
}

/// A socket that is connected to `transport`. It may be blocking.
pub(crate) fn dial(transport: &Transport, until: Until) -> Result<OwnedFd> {
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
            let socket = vsock::start(*cid, *port).map_err(|e| Error::os("connect", e))?;
            until.wait(&socket, PollFlags::OUT)?;
            match sockopt::socket_error(&socket) {
                Ok(Ok(())) => Ok(socket),
                Ok(Err(e)) | Err(e) => Err(Error::os("connect", e)),
            }
        }
    }
}

/// The addresses of a host. The system's look-up knows no deadline; a thread waits for one that
/// takes too long, and ends with it.
fn look_up(host: &str, port: u16, until: Until) -> Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let (tell, told) = channel();
    let name = host.to_owned();
    std::thread::Builder::new()
        .name("nbd-look-up".into())
        .spawn(move || {
            let found = (name.as_str(), port).to_socket_addrs();
            // Whoever asked may have given up.
            let _ = tell.send(found.map(Vec::from_iter));
        })
        .map_err(|e| Error::os("start a thread", e))?;
    let action = || format!("connect: look up the host {host:?}");
    match told.recv_timeout(until.left()?) {
        Ok(Ok(addresses)) => Ok(addresses),
        Ok(Err(e)) => Err(Error::new(ErrorKind::NotFound, Fault::User, action()).with_source(e)),
        Err(RecvTimeoutError::Timeout) => {
            let action =
                format!("{}: no answer within {} seconds", action(), until.1.as_secs_f64());
            Err(Error::new(ErrorKind::TimedOut, Fault::Peer, action))
        }
        Err(RecvTimeoutError::Disconnected) => {
            let action = format!("{}: its thread has gone; a defect", action());
            Err(Error::new(ErrorKind::Io, Fault::Us, action))
        }
    }
}

/// Tries every address of the host in turn.
fn dial_tcp(host: &str, port: u16, until: Until) -> Result<OwnedFd> {
    let mut last = None;
    for address in look_up(host, port, until)? {
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
pub(crate) fn tune(socket: &OwnedFd) {
    let fd = socket.as_fd();
    if sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX) {
        let _ = sockopt::set_socket_send_buffer_size(fd, SOCKET_BUFFER);
        let _ = sockopt::set_socket_recv_buffer_size(fd, SOCKET_BUFFER);
        return;
    }
    // TCP sizes its own buffers. A peer whose machine has gone is noticed after some minutes. There
    // is no TCP_USER_TIMEOUT: it would also end a healthy server that takes nothing for a while.
    let (idle, interval, count) = KEEPALIVE;
    let _ = sockopt::set_tcp_nodelay(fd, true);
    let _ = sockopt::set_socket_keepalive(fd, true);
    let _ = sockopt::set_tcp_keepidle(fd, idle);
    let _ = sockopt::set_tcp_keepintvl(fd, interval);
    let _ = sockopt::set_tcp_keepcnt(fd, count);
}
