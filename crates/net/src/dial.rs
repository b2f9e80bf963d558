//! Dialling: a connected stream, before a deadline.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Fault, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, sockopt};

use crate::{Stream, socket, vsock};

/// How soon a Unix socket is dialled again whose queue of arrivals is full.
const BUSY: Duration = Duration::from_millis(10);

/// A deadline for a connection, and how long that was at first. Errors say "connect".
#[derive(Clone, Copy, Debug)]
pub struct Until(Instant, Duration);

impl Until {
    /// This long from now on; at most a year.
    #[must_use]
    pub fn within(limit: Duration) -> Self {
        Self(Instant::now() + limit, limit)
    }

    /// The time that is left.
    ///
    /// # Errors
    /// None is left: `TimedOut`.
    pub fn left(self) -> Result<Duration> {
        match self.0.saturating_duration_since(Instant::now()) {
            Duration::ZERO => {
                let action = format!("connect: no answer within {} seconds", self.1.as_secs_f64());
                Err(Error::new(ErrorKind::TimedOut, Fault::Peer, action))
            }
            left => Ok(left),
        }
    }

    /// Waits until something can be received.
    ///
    /// # Errors
    /// `TimedOut`.
    pub fn readable(self, stream: &Stream) -> Result<()> {
        self.wait(stream, PollFlags::IN)
    }

    /// Waits until something can be sent.
    ///
    /// # Errors
    /// `TimedOut`.
    pub fn writable(self, stream: &Stream) -> Result<()> {
        self.wait(stream, PollFlags::OUT)
    }

    fn wait(self, stream: &Stream, flags: PollFlags) -> Result<()> {
        loop {
            let left = Timespec::try_from(self.left()?)
                .map_err(|_| Error::invalid("connect: the deadline is too far away"))?;
            match poll(&mut [PollFd::new(stream, flags)], Some(&left)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(e) => return Err(Error::os("connect", e)),
            }
        }
    }
}

/// Ways to a connected stream. All fail when the deadline is over. Their errors do not name the
/// peer, except TCP addresses.
impl Stream {
    /// Tries every address of the host in turn.
    ///
    /// # Errors
    /// It has no address, or none accepts the connection.
    pub fn dial_tcp(host: &str, port: u16, until: Until) -> Result<Self> {
        let mut last = None;
        for address in look_up(host, port, until)? {
            let connected = TcpStream::connect_timeout(&address, until.left()?);
            match connected.and_then(|stream| Ok(Self::new(stream.into())?)) {
                Ok(stream) => return Ok(stream),
                Err(e) => last = Some(unreachable(format!("connect to {address}"), e)),
            }
        }
        Err(last.unwrap_or_else(|| {
            let action = format!("connect: the host {host:?} has no address");
            Error::new(ErrorKind::Disconnected, Fault::Peer, action)
        }))
    }

    /// To a Unix socket by its path.
    ///
    /// # Errors
    /// There is no listener.
    pub fn dial_unix(path: &[u8], until: Until) -> Result<Self> {
        dial_unix(&SocketAddrUnix::new(path).map_err(|e| Error::os("connect", e))?, until)
    }

    /// To a Unix socket by its name in Linux's abstract namespace.
    ///
    /// # Errors
    /// There is no listener.
    pub fn dial_abstract(name: &[u8], until: Until) -> Result<Self> {
        let address = socket::abstract_name(name);
        dial_unix(&address.map_err(|e| Error::os("connect", e))?, until)
    }

    /// To a port of a virtual machine, or of its host.
    ///
    /// # Errors
    /// There is no listener, or the system has no vsock.
    pub fn dial_vsock(cid: u32, port: u32, until: Until) -> Result<Self> {
        let socket = vsock::start(cid, port).map_err(|e| unreachable("connect", e))?;
        let stream = Self::ready(socket);
        until.writable(&stream)?;
        match sockopt::socket_error(&stream) {
            Ok(Ok(())) => Ok(stream),
            Ok(Err(e)) | Err(e) => Err(unreachable("connect", e)),
        }
    }
}

/// The addresses of a host. The system's look-up has no deadline; a thread runs it, and ends when
/// it does, however long it takes.
fn look_up(host: &str, port: u16, until: Until) -> Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let (tell, told) = channel();
    let name = host.to_owned();
    std::thread::Builder::new()
        .name("look-up".into())
        .spawn(move || {
            let found = (name.as_str(), port).to_socket_addrs();
            // The caller may have given up.
            let _ = tell.send(found.map(Vec::from_iter));
        })
        .map_err(|e| Error::os("start a thread", e))?;
    let action = || format!("connect: look up the host {host:?}");
    match told.recv_timeout(until.left()?) {
        Ok(Ok(addresses)) => Ok(addresses),
        Ok(Err(e)) => {
            let kind = ErrorKind::Disconnected;
            Err(Error::new(kind, Fault::Peer, action()).with_source(e))
        }
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

/// A blocking connect would wait for ever for a listener that accepts no connection.
fn dial_unix(address: &SocketAddrUnix, until: Until) -> Result<Stream> {
    let say = |e: Errno| Error::os("connect", e);
    let socket = socket::nonblocking(AddressFamily::UNIX).map_err(say)?;
    loop {
        match rustix::net::connect(&socket, address) {
            Ok(()) => return Ok(Stream::ready(socket)),
            Err(Errno::AGAIN) => std::thread::sleep(until.left()?.min(BUSY)),
            Err(Errno::INTR) => {}
            Err(e) => return Err(unreachable("connect", e)),
        }
    }
}

/// The error of a connection that was not made. A server that is not there is one that may come
/// back, whatever the system calls it: a socket's file that is missing, a port that is closed, a
/// host without a route. Everything else (no permission, no such address family) keeps its kind.
fn unreachable(action: impl Into<String>, source: impl Into<io::Error>) -> Error {
    let source = source.into();
    let kind = match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(
            Errno::NOENT
            | Errno::NOTDIR
            | Errno::NODEV
            | Errno::ADDRNOTAVAIL
            | Errno::CONNABORTED
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
            | Errno::NETDOWN
            | Errno::NETRESET
            | Errno::NETUNREACH,
        ) => ErrorKind::Disconnected,
        None if source.kind() == io::ErrorKind::TimedOut => ErrorKind::TimedOut,
        _ => return Error::os(action, source),
    };
    Error::new(kind, Fault::Peer, action).with_source(source)
}

#[cfg(test)]
mod tests {
    use device::ErrorClass;

    use super::*;

    #[test]
    fn a_server_that_is_not_there_may_come_back_however_it_is_missing() {
        let class = |e: io::Error| unreachable("connect", e).class();
        for errno in [
            Errno::NOENT,
            Errno::NOTDIR,
            Errno::NODEV,
            Errno::CONNREFUSED,
            Errno::CONNRESET,
            Errno::HOSTUNREACH,
            Errno::NETUNREACH,
            Errno::TIMEDOUT,
        ] {
            assert_eq!(class(errno.into()), ErrorClass::Transient, "{errno}");
        }
        assert_eq!(class(io::ErrorKind::TimedOut.into()), ErrorClass::Transient);
        for errno in [Errno::ACCESS, Errno::PERM, Errno::AFNOSUPPORT, Errno::MFILE] {
            assert_ne!(class(errno.into()), ErrorClass::Transient, "{errno}");
        }
        let missing = std::env::temp_dir().join("diskferry-no-such-directory/socket");
        let until = Until::within(std::time::Duration::from_secs(1));
        let path = std::os::unix::ffi::OsStrExt::as_bytes(missing.as_os_str());
        let error = Stream::dial_unix(path, until).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Transient, "{error}");
    }
}
