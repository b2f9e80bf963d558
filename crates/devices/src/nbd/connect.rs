//! From the way to a server to a connection in transmission: the handshake.
//!
//! All of it together must end before a deadline, whatever the server does. A handshake reads at
//! most what its state machine asks for (`wire::ClientHandshake` has the limits).

use std::os::fd::OwnedFd;

use device::{Error, ErrorKind, Fault, Result};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use wire::{
    ClientHandshake, ClientPolicy, ClientStep, Command, CommandFlags, ListedExport, Session,
    encode_request,
};

use super::dial::{Until, tune};
use super::failure;
use super::route::Route;

/// A connection on which requests may be sent.
#[derive(Debug)]
pub(crate) struct Connected {
    /// Non-blocking.
    pub(crate) socket: OwnedFd,
    pub(crate) session: Session,
    /// What the server sent beyond the handshake.
    pub(crate) leftover: Vec<u8>,
}

/// Connects to an export for use, with its map or without, before the deadline.
pub(crate) fn connect(route: &Route, export: &str, map: bool, until: Until) -> Result<Connected> {
    let map = map.then(|| wire::constants::BASE_ALLOCATION.to_owned());
    let policy = ClientPolicy {
        export: export.to_owned(),
        contexts: map.into_iter().collect(),
        describe: true,
        ..ClientPolicy::default()
    };
    let (socket, answer, leftover) = converse(route, policy, until)?;
    match answer {
        Answer::Session(session) => Ok(Connected { socket, session: *session, leftover }),
        Answer::List(_) => Err(confused().on(route)),
    }
}

/// Connects, asks about an export, and says goodbye.
pub(crate) fn inspect(route: &Route, policy: ClientPolicy, until: Until) -> Result<Session> {
    match converse(route, policy, until)? {
        (socket, Answer::Session(session), _) => {
            let mut goodbye = Vec::new();
            let none = CommandFlags::NONE;
            // A server that is gone already need not be told; a length of 0 fits every framing.
            let _ = encode_request(session.mode, Command::Disconnect, none, 0, 0, 0, &mut goodbye);
            let _ = send(&socket, &goodbye, SendFlags::NOSIGNAL);
            Ok(*session)
        }
        (_, Answer::List(_), _) => Err(confused().on(route)),
    }
}

/// Connects, asks for the exports, and says goodbye.
pub(crate) fn list(route: &Route, policy: ClientPolicy, until: Until) -> Result<Vec<ListedExport>> {
    match converse(route, policy, until)?.1 {
        Answer::List(list) => Ok(list),
        Answer::Session(_) => Err(confused().on(route)),
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

type Conversation = (OwnedFd, Answer, Vec<u8>);

fn converse(route: &Route, policy: ClientPolicy, until: Until) -> Result<Conversation> {
    try_to_converse(route, policy, until).map_err(|e| route.explain(e))
}

fn try_to_converse(route: &Route, policy: ClientPolicy, until: Until) -> Result<Conversation> {
    let socket = route.connect(until)?;
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;
    use wire::Uri;

    /// A handshake with a server that says `greeting` and then nothing, or closes.
    fn greeted_by(greeting: &[u8], closes: bool) -> Error {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.write_all(greeting).unwrap();
        let kept = (!closes).then_some(theirs);
        let limit = Duration::from_millis(if closes { 60_000 } else { 20 });
        let until = Until::within(Some(limit));
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
        assert_eq!(Route::to(&uri).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_listener_that_is_not_there_is_named() {
        let uri: Uri = "nbd+unix:///?socket=/nonexistent/socket".parse().unwrap();
        let until = Until::within(None);
        let error = connect(&Route::to(&uri).unwrap(), "", true, until).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().starts_with("nbd+unix:///?socket=/nonexistent/socket: connect"));
    }
}
