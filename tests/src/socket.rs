//! A connected socket, Unix or TCP, whose reads and writes give up after a minute; or a line to a
//! server that runs in the test itself, without a socket.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::GUARD;

/// A connection without a socket: what is written is answered at once. A read gives what was
/// answered; then nothing, once the far end has closed, or [`ErrorKind::WouldBlock`].
pub trait Line: Read + Write + std::fmt::Debug + Send {}

/// One end of a connection.
#[derive(Debug)]
pub enum Socket {
    /// Over the loopback interface.
    Tcp(TcpStream),
    /// Over a path.
    Unix(UnixStream),
    /// Inside of the test.
    Line(Box<dyn Line>),
}

impl Socket {
    /// Connects to a Unix socket.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let socket = Self::Unix(UnixStream::connect(path)?);
        socket.set_timeout(GUARD);
        Ok(socket)
    }

    /// Connects to a TCP port.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let socket = Self::Tcp(stream);
        socket.set_timeout(GUARD);
        Ok(socket)
    }

    /// Sets how long a read or a write may wait.
    pub fn set_timeout(&self, limit: Duration) {
        match self {
            Self::Tcp(s) => {
                s.set_read_timeout(Some(limit)).unwrap();
                s.set_write_timeout(Some(limit)).unwrap();
            }
            Self::Unix(s) => {
                s.set_read_timeout(Some(limit)).unwrap();
                s.set_write_timeout(Some(limit)).unwrap();
            }
            Self::Line(_) => {}
        }
    }

    /// A second handle of the same connection, to write from another thread.
    pub fn duplicate(&self) -> Self {
        match self {
            Self::Tcp(s) => Self::Tcp(s.try_clone().unwrap()),
            Self::Unix(s) => Self::Unix(s.try_clone().unwrap()),
            Self::Line(_) => panic!("a line has one handle"),
        }
    }

    /// How many bytes have come and were not received yet.
    pub fn waiting(&self) -> u64 {
        match self {
            Self::Tcp(s) => rustix::io::ioctl_fionread(s),
            Self::Unix(s) => rustix::io::ioctl_fionread(s),
            Self::Line(_) => panic!("a line does not tell"),
        }
        .unwrap()
    }

    /// Sends everything; panics when the peer does not take it.
    pub fn send(&mut self, bytes: &[u8]) {
        if let Err(e) = self.write_all(bytes) {
            panic!("sending {} bytes: {e}", bytes.len());
        }
    }

    /// Sends what a peer, which may close at any byte, takes. False when it closed.
    pub fn offer(&mut self, bytes: &[u8]) -> bool {
        match self.write_all(bytes) {
            Ok(()) => true,
            Err(e) if is_close(e.kind()) => false,
            Err(e) => panic!("offering {} bytes: {e}", bytes.len()),
        }
    }

    /// Receives exactly `count` bytes; panics with `what` when they do not come.
    pub fn receive(&mut self, count: usize, what: &str) -> Vec<u8> {
        let mut buffer = vec![0; count];
        if let Err(e) = self.read_exact(&mut buffer) {
            panic!("reading {what} ({count} bytes): {e}");
        }
        buffer
    }

    /// Says that nothing more will be sent.
    pub fn finish_sending(&self) {
        let _ = match self {
            Self::Tcp(s) => s.shutdown(std::net::Shutdown::Write),
            Self::Unix(s) => s.shutdown(std::net::Shutdown::Write),
            Self::Line(_) => Ok(()),
        };
    }

    /// Reads until the peer closes and returns what came before. Panics if it does not close.
    pub fn drain(&mut self) -> Vec<u8> {
        let mut seen = Vec::new();
        let mut buffer = vec![0; 65536];
        loop {
            match self.read(&mut buffer) {
                Ok(0) => return seen,
                Ok(n) => seen.extend(&buffer[..n]),
                Err(e) if is_close(e.kind()) => return seen,
                Err(e) => panic!("the peer should close, but: {e} ({} bytes came)", seen.len()),
            }
        }
    }

    /// Panics unless the peer closes without sending anything more.
    pub fn assert_closed(&mut self) {
        let seen = self.drain();
        assert!(seen.is_empty(), "bytes before the close: {seen:02x?}");
    }

    /// Panics if the peer sends anything, or closes, within `time`.
    pub fn assert_silent(&mut self, time: Duration) {
        self.set_timeout(time);
        let mut buffer = [0; 64];
        match self.read(&mut buffer) {
            Ok(0) => panic!("closed instead of waiting"),
            Ok(n) => panic!("unexpected bytes: {:02x?}", &buffer[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => panic!("the peer should wait, but: {e}"),
        }
        self.set_timeout(GUARD);
    }

    /// Drops the connection the rude way: TCP sends RST; a Unix peer gets ECONNRESET if bytes
    /// that it sent were still unread.
    pub fn reset(self) {
        if let Self::Tcp(stream) = &self {
            rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
        }
    }
}

/// How the far end's close may show: end of file aside, a reset or a broken pipe.
fn is_close(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
            | ErrorKind::ConnectionAborted
            | ErrorKind::NotConnected
    )
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(s) => s.read(buffer),
            Self::Unix(s) => s.read(buffer),
            Self::Line(s) => s.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(s) => s.write(buffer),
            Self::Unix(s) => s.write(buffer),
            Self::Line(s) => s.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
