//! A handshake, over a stream that does not encrypt yet.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use device::{Error, ErrorKind, Fault, Identity, Result};
use s2n_tls::connection::Connection;
use s2n_tls::enums::Mode;

use super::demands::Demands;
use super::memory::Plumbing;
use super::session::TlsSession;
use super::{FailedHandshake, HandshakeProgress, names};
use crate::stream::{Received, Stream};

/// Bytes that a peer may send in one handshake: a chain of certificates is a few thousand.
const MOST: usize = 64 << 10;
/// Bytes received at once.
const PIECE: usize = 8 << 10;

/// One handshake. It never waits: its caller bounds the time, too.
pub struct Handshake {
    /// Before the plumbing, which must outlive it. `None` once the session has it.
    connection: Option<Connection>,
    plumbing: Plumbing,
    demands: Demands,
    received: usize,
}

runtime::debug_as!(Handshake, |it| "Handshake({} bytes received)", it.received);

impl Handshake {
    pub(super) fn new(mut connection: Connection, demands: Demands) -> Result<Self> {
        let plumbing = Plumbing::default();
        plumbing.connect(&mut connection).map_err(|e| {
            Error::new(ErrorKind::NoMemory, Fault::Us, "set up TLS").with_source(e.to_string())
        })?;
        Ok(Self { connection: Some(connection), plumbing, demands, received: 0 })
    }

    /// Continues as far as it can. After [`HandshakeProgress::Done`] the stream encrypts.
    ///
    /// # Errors
    /// The peer failed to prove its identity, or the connection is broken. Only
    /// [`Handshake::farewell`] may be used afterwards.
    pub fn advance(
        &mut self,
        stream: &Stream,
    ) -> std::result::Result<HandshakeProgress, FailedHandshake> {
        loop {
            let Some(connection) = &mut self.connection else { return Ok(HandshakeProgress::Done) };
            let before = self.plumbing.inlet.lock().left();
            self.plumbing.inlet.lock().allow(before);
            let polled = connection.poll_negotiate().map_ok(|_| ());
            let delay = connection.remaining_blinding_delay().unwrap_or_default();
            // Always: an alert has to be sent, too.
            let pushed = self.push(stream);
            match polled {
                Poll::Ready(Err(e)) => {
                    return Err(FailedHandshake { why: not_agreed(&e.to_string()), delay });
                }
                Poll::Ready(Ok(())) => {
                    if pushed? {
                        return self.establish(stream);
                    }
                    return Ok(HandshakeProgress::Waits { room: true });
                }
                Poll::Pending => _ = pushed?,
            }
            let left = self.plumbing.inlet.lock().left();
            if left > 0 && left < before {
                continue;
            }
            let mut piece = [0; PIECE];
            match stream.receive(&mut piece).map_err(broken)? {
                Received::Bytes(n) => {
                    self.received += n;
                    if self.received > MOST {
                        return Err(not_agreed("the peer sends more than a handshake takes").into());
                    }
                    self.plumbing.inlet.lock().put(piece.get(..n).unwrap_or_default());
                }
                Received::Nothing => {
                    let room = !self.plumbing.outlet.lock().waiting().is_empty();
                    return Ok(HandshakeProgress::Waits { room });
                }
                Received::End => return Err(ended().into()),
            }
        }
    }

    /// Sends what waits. Returns whether all has left.
    fn push(&self, stream: &Stream) -> std::result::Result<bool, FailedHandshake> {
        let mut outlet = self.plumbing.outlet.lock();
        while !outlet.waiting().is_empty() {
            match stream.send(outlet.waiting()).map_err(broken)? {
                0 => return Ok(false),
                n => outlet.sent(n),
            }
        }
        drop(outlet.take_memory());
        Ok(true)
    }

    /// Checks what was negotiated, and makes the stream encrypt.
    fn establish(
        &mut self,
        stream: &Stream,
    ) -> std::result::Result<HandshakeProgress, FailedHandshake> {
        let Some(connection) = &self.connection else { return Ok(HandshakeProgress::Done) };
        let user = user(connection);
        self.demands.check(connection, user.as_deref()).map_err(|why| not_agreed(&why))?;
        // Not before: `farewell` needs it.
        let Some(connection) = self.connection.take() else { return Ok(HandshakeProgress::Done) };
        let identity = match connection.mode() {
            Mode::Server => Identity { user, ..names::of_client(&connection) },
            Mode::Client => Identity { user, ..Identity::default() },
        };
        let session = TlsSession::new(connection, self.plumbing.clone(), Arc::new(identity));
        stream.encrypt(session);
        Ok(HandshakeProgress::Done)
    }

    /// Tells the peer that it failed, once the delay is over, as far as the socket takes it.
    pub fn farewell(&mut self, stream: &Stream) {
        if let Some(connection) = &mut self.connection {
            let _ = connection.poll_shutdown_send();
            // The connection ends whether the peer gets that or not.
            let _ = self.push(stream);
        }
    }
}

/// The user whose key was used.
fn user(connection: &Connection) -> Option<String> {
    let len = connection.negotiated_psk_identity_length().ok().filter(|len| *len > 0)?;
    let mut name = vec![0; len.min(usize::from(u16::MAX))];
    connection.negotiated_psk_identity(&mut name).ok()?;
    String::from_utf8(name).ok()
}

fn not_agreed(why: &str) -> Error {
    let action = "TLS: the peer is not trusted, or no TLS version or cipher is common";
    Error::new(ErrorKind::PermissionDenied, Fault::Peer, action).with_source(why.to_owned())
}

fn ended() -> Error {
    let action = "TLS: the peer closed the connection during the handshake; it may not trust us";
    Error::new(ErrorKind::Disconnected, Fault::Peer, action)
}

fn broken(e: rustix::io::Errno) -> FailedHandshake {
    Error::os("TLS handshake", e).into()
}

/// A failure that may be reported at once.
impl From<Error> for FailedHandshake {
    fn from(why: Error) -> Self {
        Self { why, delay: Duration::ZERO }
    }
}
