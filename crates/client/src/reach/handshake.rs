//! The handshake: from a route to a connection in transmission.
//!
//! All of it together must end before a deadline, whatever the server does. A handshake reads at
//! most what its state machine asks for (`wire::ClientHandshake` has the limits).

use std::time::Duration;

use device::{Error, ErrorKind, Fault, Result};
use net::tls::Connector;
use net::{Received, Stream, Tuning, Until};
use rustix::io::Errno;
use wire::constants::reply;
use wire::{
    ClientHandshake, ClientPolicy, ClientStep, Command, CommandFlags, HandshakeError, ListedExport,
    Negotiated, PeerIncompatible, encode_request,
};

use super::route::Route;
use super::target::ExportSpec;

/// How long dialling and the handshake may take together, by default.
const DEADLINE: Duration = Duration::from_secs(30);

/// A connection on which requests may be sent.
#[derive(Debug)]
pub struct ReadyConnection {
    pub(crate) stream: Stream,
    pub(crate) session: Negotiated,
    /// Bytes that the server sent after the handshake.
    pub(crate) leftover: Vec<u8>,
}

impl ReadyConnection {
    /// How the server describes the export, and what was negotiated.
    #[must_use]
    pub fn session(&self) -> &Negotiated {
        &self.session
    }

    /// Whether the server is on this machine.
    #[must_use]
    pub fn is_near(&self) -> bool {
        matches!(self.stream.peer(), device::Peer::Unix { .. })
    }
}

/// Connects to the export that `target` names, for use; within `limit`, if that is shorter than the
/// target's. `extended` headers are not asked for again in vain: each option costs a round trip,
/// because the reply to the one before has to come first.
pub(crate) fn connect(
    route: &Route,
    target: &ExportSpec,
    limit: Option<Duration>,
    extended: bool,
) -> Result<ReadyConnection> {
    let map = target.map.then(|| wire::constants::BASE_ALLOCATION.to_owned());
    let policy = ClientPolicy {
        export: target.export.clone(),
        contexts: map.into_iter().collect(),
        all_contexts: target.contexts,
        extended,
        ..ClientPolicy::default()
    };
    let timeout = target.timeout.unwrap_or(DEADLINE);
    session(route, policy, Some(limit.map_or(timeout, |limit| limit.min(timeout))))
}

/// Connects, asks about an export, and disconnects.
pub(crate) fn inspect(
    route: &Route,
    policy: ClientPolicy,
    timeout: Option<Duration>,
) -> Result<Negotiated> {
    let ReadyConnection { stream, session, .. } = session(route, policy, timeout)?;
    let mut request = Vec::new();
    // A server that is gone already need not be told; a length of 0 fits every framing.
    let (command, none) = (Command::Disconnect, CommandFlags::NONE);
    let _ = encode_request(session.mode, command, none, 0, 0, 0, &mut request);
    let _ = stream.send(&request);
    stream.end();
    Ok(session)
}

fn session(
    route: &Route,
    policy: ClientPolicy,
    timeout: Option<Duration>,
) -> Result<ReadyConnection> {
    match converse(route, policy, timeout)? {
        (stream, ClientStep::Ready(session), leftover) => {
            Ok(ReadyConnection { stream, session: *session, leftover })
        }
        _ => Err(confused().on(route)),
    }
}

/// Connects, asks for the exports, and disconnects.
pub(crate) fn list(
    route: &Route,
    policy: ClientPolicy,
    timeout: Option<Duration>,
) -> Result<Vec<ListedExport>> {
    match converse(route, policy, timeout)?.1 {
        ClientStep::Listed(list) => Ok(list),
        _ => Err(confused().on(route)),
    }
}

fn confused() -> Error {
    Error::new(
        ErrorKind::Protocol,
        Fault::Us,
        "connect: the handshake ended without a result; this is a defect",
    )
}

/// Connects, and negotiates: the last step, and the bytes that came after it.
fn converse(
    route: &Route,
    policy: ClientPolicy,
    timeout: Option<Duration>,
) -> Result<(Stream, ClientStep, Vec<u8>)> {
    let until = Until::within(timeout.unwrap_or(DEADLINE));
    let policy = ClientPolicy { tls: route.tls().is_some(), ..policy };
    let try_to_converse = || {
        let stream = route.connect(until)?;
        // No limit: a healthy server may read nothing for a while.
        stream.tune(Tuning { send_buffer: true, receive_buffer: true, patience: None });
        let (answer, leftover) = handshake(&stream, policy, route.tls(), until)?;
        Ok((stream, answer, leftover))
    };
    try_to_converse().map_err(|e| route.explain(e))
}

fn handshake(
    stream: &Stream,
    policy: ClientPolicy,
    tls: Option<&Connector>,
    until: Until,
) -> Result<(ClientStep, Vec<u8>)> {
    let mut handshake = ClientHandshake::new(policy);
    let mut input = vec![0; 16 << 10];
    // Under TLS a server that does not trust us says so only then, or just closes.
    let mut is_trusted = false;
    loop {
        if !stream.holds() {
            until.readable(stream)?;
        }
        let n = match stream.receive(&mut input) {
            Ok(Received::Bytes(n)) => n,
            Ok(Received::Nothing) => continue,
            Err(e) if stream.is_secure() => return Err(refused(stream.failure("connect", e))),
            Ok(Received::End) if stream.is_secure() && !is_trusted => {
                return Err(distrusted(ErrorKind::Disconnected, failed(handshake.closed())));
            }
            Ok(Received::End) | Err(Errno::CONNRESET) => return Err(failed(handshake.closed())),
            Err(e) => return Err(Error::os("connect", e)),
        };
        is_trusted = stream.is_secure();
        let arrived = input.get(..n).unwrap_or_default();
        let mut out = Vec::new();
        let (consumed, step) = handshake.advance(arrived, &mut out);
        let sent = send_all(stream, &out, until).map_err(|e| left(stream, e));
        let leftover = arrived.get(consumed..).unwrap_or_default();
        match step {
            ClientStep::NeedMore => sent?,
            ClientStep::Ready(_) => {
                sent?;
                return Ok((step, leftover.to_vec()));
            }
            // The last bytes sent are only the end of the handshake.
            ClientStep::Listed(_) => {
                stream.end();
                return Ok((step, Vec::new()));
            }
            ClientStep::Failed(e) => return Err(failed(e)),
            ClientStep::StartTls => {
                sent?;
                tls.ok_or_else(confused)?.encrypt(stream, until)?;
                let mut next = Vec::new();
                handshake.tls_established(&mut next);
                send_all(stream, &next, until).map_err(|e| left(stream, e))?;
            }
        }
    }
}

/// An error under TLS before anything was negotiated: a server that asks for a certificate and
/// rejects it says so only then.
fn refused(e: Error) -> Error {
    distrusted(ErrorKind::PermissionDenied, e)
}

/// The same, with a kind.
fn distrusted(kind: ErrorKind, e: Error) -> Error {
    let action = "connect: the server ended the encrypted connection; it may not trust us";
    Error::new(kind, Fault::Peer, action).with_source(e)
}

/// An error of sending: a server that closed under TLS may not trust us.
fn left(stream: &Stream, e: Error) -> Error {
    let closed = stream.is_secure() && e.kind() == ErrorKind::Disconnected;
    if closed { refused(e) } else { e }
}

fn send_all(stream: &Stream, bytes: &[u8], until: Until) -> Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match stream.send(rest).map_err(|e| Error::os("connect", e))? {
            0 => until.writable(stream)?,
            n => rest = rest.get(n..).unwrap_or_default(),
        }
    }
    Ok(())
}

/// A handshake that failed.
fn failed(e: HandshakeError) -> Error {
    let (kind, fault) = match &e {
        HandshakeError::Closed { .. } => (ErrorKind::Disconnected, Fault::Peer),
        HandshakeError::Ours(_) => (ErrorKind::InvalidInput, Fault::User),
        HandshakeError::PeerIncompatible(PeerIncompatible::TlsRequired) => {
            (ErrorKind::Unsupported, Fault::User)
        }
        HandshakeError::PeerIncompatible(_) => (ErrorKind::Unsupported, Fault::Peer),
        HandshakeError::Refused { reply, .. } => match *reply {
            reply::ERR_UNKNOWN => (ErrorKind::NotFound, Fault::User),
            reply::ERR_POLICY => (ErrorKind::PermissionDenied, Fault::User),
            reply::ERR_SHUTDOWN => (ErrorKind::Shutdown, Fault::Peer),
            reply::ERR_TOO_BIG => (ErrorKind::Limit, Fault::Peer),
            _ => (ErrorKind::Unsupported, Fault::Peer),
        },
        _ => (ErrorKind::Protocol, Fault::Peer),
    };
    Error::new(kind, fault, "connect").with_source(e)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use wire::Uri;

    /// A handshake with a server that sends `greeting` and then nothing, or closes.
    fn greeted_by(greeting: &[u8], closes: bool) -> Error {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(greeting).unwrap();
        let kept = (!closes).then_some(theirs);
        let limit = Duration::from_millis(if closes { 60_000 } else { 20 });
        let ours = Stream::new(ours.into()).unwrap();
        let ended = handshake(&ours, ClientPolicy::default(), None, Until::within(limit));
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
    fn a_refusal_says_whose_fault_it_is() {
        for (reply, kind, fault) in [
            (reply::ERR_UNKNOWN, ErrorKind::NotFound, Fault::User),
            (reply::ERR_POLICY, ErrorKind::PermissionDenied, Fault::User),
            (reply::ERR_SHUTDOWN, ErrorKind::Shutdown, Fault::Peer),
            (reply::ERR_UNSUP, ErrorKind::Unsupported, Fault::Peer),
        ] {
            let error = failed(HandshakeError::Refused { option: 7, reply, message: "no".into() });
            assert_eq!((error.kind(), error.fault()), (kind, fault));
        }
    }

    #[test]
    fn a_client_that_must_encrypt_without_credentials_does_not_connect() {
        let uri: Uri = "nbds://nowhere.invalid/".parse().unwrap();
        let error = Route::open(&uri.into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn a_listener_that_is_not_there_is_named() {
        let uri: Uri = "nbd+unix:///?socket=/nonexistent/socket".parse().unwrap();
        let target = uri.into();
        let error = connect(&Route::open(&target).unwrap(), &target, None, true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Disconnected);
        assert!(error.to_string().starts_with("nbd+unix:///?socket=/nonexistent/socket: connect"));
    }
}
