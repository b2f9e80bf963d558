//! A connection: bytes in and out, never waiting.
//!
//! A stream begins plain, and the system moves the bytes. After a successful TLS handshake (`tls`)
//! it encrypts, behind the same methods; bytes that the system would move by itself, from a file or
//! into a device's memory, then pass through our memory.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use device::{Error, Identity, Peer, Place, Window};
use rustix::io::{Errno, Result, ioctl_fionbio, ioctl_fionread, readv};
use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketType, recv, send,
    sendmsg, shutdown,
};

use crate::socket;
use crate::tls::TlsSession;

/// How many pieces are gathered at most.
const PIECES: usize = 64;
/// How much is decrypted at once into a device's memory, in bytes.
const PIECE: usize = 64 << 10;
/// What a Unix socket holds, in bytes, where the system allows.
const SOCKET_BUFFER: usize = 4 << 20;
/// When a silent TCP peer is asked whether it is still there, how often, and how many times: one
/// whose machine has gone is noticed after two minutes. Servers and clients ask alike.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(10), 6);

/// A connected stream socket. Its descriptor may only be polled.
#[derive(Debug)]
pub struct Stream {
    socket: OwnedFd,
    /// The TLS session, once it encrypts.
    tls: OnceLock<Box<TlsSession>>,
}

/// The result of an attempt to receive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Received {
    /// This many bytes, at least one.
    Bytes(usize),
    /// The peer sends nothing more.
    End,
    /// Nothing is there now.
    Nothing,
}

/// The result of an attempt to send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sent {
    /// This many bytes were sent, at least one.
    Bytes(u64),
    /// The socket has no room.
    Full,
    /// The file has become shorter: the bytes are not there.
    Short,
    /// The file system or the socket does not support it; the bytes must be read and sent.
    Unable,
}

/// Tuning of a connection; none of it is essential.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tuning {
    /// A larger send buffer for a Unix socket, which is memory of the system.
    pub send_buffer: bool,
    /// A larger receive buffer.
    pub receive_buffer: bool,
    /// How long TCP waits for the peer to acknowledge what was sent, or to answer a probe. Without
    /// it a healthy peer may read nothing for as long as it likes.
    pub patience: Option<Duration>,
}

impl Stream {
    /// Takes a connected stream socket.
    ///
    /// # Errors
    /// It is something else.
    pub fn new(socket: OwnedFd) -> Result<Self> {
        if sockopt::socket_type(&socket)? != SocketType::STREAM {
            return Err(Errno::PROTOTYPE);
        }
        rustix::net::getpeername(&socket)?;
        ioctl_fionbio(&socket, true)?;
        Ok(Self::ready(socket))
    }

    /// Takes a stream socket that is being connected, and does not block. It can be used once it
    /// can be written and has no error.
    #[must_use]
    pub fn dialling(socket: OwnedFd) -> Self {
        Self::ready(socket)
    }

    /// Takes one that is known to be connected and nonblocking.
    pub(crate) fn ready(socket: OwnedFd) -> Self {
        socket::without_signal(&socket);
        Self { socket, tls: OnceLock::new() }
    }

    /// Encrypts from now on; only the first time counts.
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "nothing else calls it"))]
    pub(crate) fn encrypt(&self, session: TlsSession) {
        let _ = self.tls.set(Box::new(session));
    }

    fn tls(&self) -> Option<&TlsSession> {
        self.tls.get().map(|session| &**session)
    }

    /// Whether it encrypts.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.tls().is_some()
    }

    /// The identity that the peer has shown, if the stream encrypts.
    #[must_use]
    pub fn identity(&self) -> Option<Arc<Identity>> {
        self.tls().map(|session| session.identity().clone())
    }

    /// The version of TLS and the ciphers that were negotiated, if the stream encrypts; for people.
    #[must_use]
    pub fn agreed(&self) -> Option<&str> {
        self.tls().map(TlsSession::agreed)
    }

    /// Whether bytes have come that the descriptor does not report: receive again before polling
    /// it.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.tls().is_some_and(TlsSession::holds)
    }

    /// The error of a call that failed with `e`, with the cause that TLS knows.
    #[must_use]
    pub fn failure(&self, action: &str, e: Errno) -> Error {
        match self.why() {
            Some(why) => Error::os(action, e).with_source(why),
            None => Error::os(action, e),
        }
    }

    /// The cause of its failure that TLS knows.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        self.tls().and_then(TlsSession::why).map(|why| format!("TLS: {why}"))
    }

    /// Applies the tuning.
    pub fn tune(&self, tuning: Tuning) {
        if socket::family(self) == Ok(AddressFamily::UNIX) {
            if tuning.send_buffer {
                let _ = sockopt::set_socket_send_buffer_size(self, SOCKET_BUFFER);
            }
            if tuning.receive_buffer {
                let _ = sockopt::set_socket_recv_buffer_size(self, SOCKET_BUFFER);
            }
            return;
        }
        // TCP sizes its own buffers.
        let (idle, interval, count) = KEEPALIVE;
        let _ = sockopt::set_tcp_nodelay(self, true);
        let _ = sockopt::set_socket_keepalive(self, true);
        let _ = sockopt::set_tcp_keepidle(self, idle);
        let _ = sockopt::set_tcp_keepintvl(self, interval);
        let _ = sockopt::set_tcp_keepcnt(self, count);
        if let Some(patience) = tuning.patience {
            let millis = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
            let _ = socket::set_tcp_user_timeout(self, millis);
        }
    }

    /// The address of the peer.
    #[must_use]
    pub fn peer(&self) -> Peer {
        crate::peer::of(self.as_fd())
    }

    /// Receives what is there, as much as fits in `into` (not empty).
    ///
    /// # Errors
    /// The connection is broken.
    pub fn receive(&self, into: &mut [u8]) -> Result<Received> {
        if let Some(tls) = self.tls() {
            return tls.receive(&self.socket, into);
        }
        received(|| recv(self, &mut *into, RecvFlags::DONTWAIT).map(|(n, _)| n))
    }

    /// The same into several buffers, filled in turn.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn receive_scattered(&self, into: &mut [IoSliceMut<'_>]) -> Result<Received> {
        if let Some(tls) = self.tls() {
            return tls.receive_scattered(&self.socket, into);
        }
        received(|| readv(self, into))
    }

    /// The same into a device's own memory, from byte `at` of the window on.
    ///
    /// # Errors
    /// The connection is broken, or the system has no memory for the bytes.
    pub fn receive_into(&self, window: &Window, at: usize) -> Result<Received> {
        let errno = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        if let Some(tls) = self.tls() {
            let mut piece = vec![0; window.len().saturating_sub(at).min(PIECE)];
            let got = tls.receive(&self.socket, &mut piece)?;
            if let Received::Bytes(n) = got {
                window.put(at, piece.get(..n).unwrap_or_default()).map_err(errno)?;
            }
            return Ok(got);
        }
        received(|| window.receive(at, self.as_fd()).map_err(errno))
    }

    /// Sends what the socket takes of `bytes`; 0 means that it has no room.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send(&self, bytes: &[u8]) -> Result<usize> {
        self.send_gathered([bytes], 0, 1)
    }

    /// Sends what the socket takes of `pieces`, but for the first `skip` bytes, which are in the
    /// first one; as many as one call gathers. Sets MSG_MORE if that is fewer than `count`. 0 means
    /// that the socket has no room; then the same bytes must come first the next time, for they may
    /// be encrypted already.
    ///
    /// # Errors
    /// The connection is broken; or fewer bytes are offered than were encrypted before and have
    /// left now (`EPROTO`).
    pub fn send_gathered<'a>(
        &self,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        mut skip: usize,
        count: usize,
    ) -> Result<usize> {
        if let Some(tls) = self.tls() {
            return tls.send_gathered(&self.socket, pieces, skip);
        }
        let mut slices = [IoSlice::new(&[]); PIECES];
        let mut taken = 0;
        for (slot, piece) in slices.iter_mut().zip(pieces) {
            *slot = IoSlice::new(piece.get(skip..).unwrap_or_default());
            skip = 0;
            taken += 1;
        }
        let mut flags = socket::NO_SIGNAL | SendFlags::DONTWAIT;
        if count > taken {
            flags |= socket::MORE;
        }
        match slices.get(..taken) {
            Some([one]) => sent(|| send(self, one, flags)),
            Some(many) => sent(|| sendmsg(self, many, &mut SendAncillaryBuffer::default(), flags)),
            None => Ok(0),
        }
    }

    /// Sends at most `len` (> 0) bytes from their place, `skip` bytes on in `place`. Waits for the
    /// disk if they are not in memory. A stream that encrypts cannot.
    ///
    /// # Errors
    /// The connection is broken, or the bytes cannot be read (`EIO`).
    pub fn send_from(&self, place: &Place, skip: u64, len: u64) -> Result<Sent> {
        if self.is_secure() {
            return Ok(Sent::Unable);
        }
        let want = usize::try_from(len).unwrap_or(usize::MAX);
        loop {
            let mut offset = place.offset() + skip;
            return match socket::sendfile(self, place.fd(), Some(&mut offset), want) {
                Ok(0) => Ok(Sent::Short),
                Ok(n) => Ok(Sent::Bytes(n as u64)),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Ok(Sent::Full),
                Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(Sent::Unable),
                Err(e) => Err(e),
            };
        }
    }

    /// The memory of bytes that were sent and that the peer has not received, in bytes: at least
    /// their number, and 0 when all is delivered. `None` where that cannot be known.
    #[must_use]
    pub fn undelivered(&self) -> Option<u64> {
        crate::delivery::undelivered(self.as_fd())
    }

    /// What the peer has not received: a number that changes when it reads, and means nothing else.
    #[must_use]
    pub fn on_the_way(&self) -> u64 {
        crate::delivery::on_the_way(self.as_fd()).unwrap_or(0)
    }

    /// How many bytes of ciphertext wait for the socket to take them. The plaintext does not count
    /// as sent yet.
    #[must_use]
    pub fn unsent(&self) -> u64 {
        self.tls().map_or(0, TlsSession::unsent)
    }

    /// How many bytes of ciphertext have gone over the socket so far, either way: they move while
    /// the plaintext of their record does not count as sent or received yet. 0 in clear text, where
    /// what is sent and received is all.
    #[must_use]
    pub fn carried(&self) -> u64 {
        self.tls().map_or(0, TlsSession::carried)
    }

    /// How many bytes have come and were not received; if they are encrypted, an upper bound.
    #[must_use]
    pub fn unread(&self) -> u64 {
        ioctl_fionread(self).unwrap_or(0) + self.tls().map_or(0, TlsSession::held)
    }

    /// Sends nothing more; the peer sees the end when it has received the rest.
    pub fn end(&self) {
        if let Some(tls) = self.tls() {
            tls.end(&self.socket);
        }
        // It fails only when the connection is gone.
        let _ = shutdown(self, Shutdown::Write);
    }

    /// Sends and receives nothing more.
    pub fn close(&self) {
        let _ = shutdown(self, Shutdown::Both);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

pub(crate) fn received(mut receive: impl FnMut() -> Result<usize>) -> Result<Received> {
    loop {
        return match receive() {
            Ok(0) => Ok(Received::End),
            Ok(n) => Ok(Received::Bytes(n)),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Ok(Received::Nothing),
            Err(e) => Err(e),
        };
    }
}

pub(crate) fn sent(mut send: impl FnMut() -> Result<usize>) -> Result<usize> {
    loop {
        return match send() {
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Ok(0),
            done => done,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::*;

    fn pair() -> (Stream, Stream) {
        let (a, b) = UnixStream::pair().unwrap();
        (Stream::new(a.into()).unwrap(), Stream::new(b.into()).unwrap())
    }

    #[test]
    fn what_is_no_connected_stream_is_refused() {
        let (datagrams, _) = std::os::unix::net::UnixDatagram::pair().unwrap();
        assert_eq!(Stream::new(datagrams.into()).unwrap_err(), Errno::PROTOTYPE);
        assert_eq!(
            Stream::new(File::open("/dev/null").unwrap().into()).unwrap_err(),
            Errno::NOTSOCK
        );
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(Stream::new(listener.into()).unwrap_err(), Errno::NOTCONN);
    }

    #[test]
    fn nothing_waits_and_the_end_is_told_apart_from_nothing() {
        let (ours, theirs) = pair();
        let mut bytes = [0; 8];
        assert_eq!(ours.receive(&mut bytes), Ok(Received::Nothing));
        assert_eq!(theirs.send(b"abc"), Ok(3));
        assert_eq!((ours.unread(), ours.receive(&mut bytes)), (3, Ok(Received::Bytes(3))));
        while theirs.send(&[0; 65_536]) != Ok(0) {}
        drop(ours);
        assert_eq!(theirs.send(b"abc"), Err(Errno::PIPE));
        let (ours, theirs) = pair();
        theirs.end();
        assert_eq!(ours.receive(&mut bytes), Ok(Received::End));
        assert_eq!(ours.send(b"still"), Ok(5));
    }

    #[test]
    fn pieces_are_gathered_and_scattered_in_order() {
        let (ours, theirs) = pair();
        let pieces: Vec<Vec<u8>> = (0..100).map(|i| vec![i; 3]).collect();
        let sent = theirs.send_gathered(pieces.iter().map(Vec::as_slice), 2, 100).unwrap();
        assert_eq!(sent, PIECES * 3 - 2, "as many as one call takes");
        let (mut one, mut two) = ([9; 4], [9; 4]);
        let mut both = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
        assert_eq!(ours.receive_scattered(&mut both), Ok(Received::Bytes(8)));
        assert_eq!((one, two), ([0, 1, 1, 1], [2, 2, 2, 3]));
        assert_eq!(theirs.send_gathered([], 0, 0), Ok(0));
    }

    #[test]
    fn bytes_leave_from_their_place_and_what_is_not_there_is_short() {
        let (ours, theirs) = pair();
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        File::from(file.try_clone().unwrap()).write_all(b"0123456789").unwrap();
        let place = Place::new(Arc::new(file), 2);
        assert_eq!(theirs.send_from(&place, 3, 100), Ok(Sent::Bytes(5)));
        let mut bytes = [0; 8];
        assert_eq!(ours.receive(&mut bytes), Ok(Received::Bytes(5)));
        assert_eq!(&bytes[..5], b"56789");
        assert_eq!(theirs.send_from(&place, 8, 1), Ok(Sent::Short));
        // A pipe has no offsets.
        let (pipe, _) = std::io::pipe().unwrap();
        let pipe = Place::new(Arc::new(pipe.into()), 0);
        assert!(!matches!(theirs.send_from(&pipe, 0, 1), Ok(Sent::Bytes(_))));
    }
}
