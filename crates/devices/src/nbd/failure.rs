//! What the peer did wrong, or said was wrong, as the errors of devices.

use device::{Error, ErrorKind, Fault};
use wire::constants::reply;
use wire::{Command, ErrorCode, Fatal, HandshakeError, PeerIncompatible, Refusal, ReplyError};

/// A handshake that came to nothing.
pub(crate) fn handshake(e: HandshakeError) -> Error {
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

/// The stream of replies makes no sense any more.
pub(crate) fn fatal(e: Fatal) -> Error {
    Error::new(ErrorKind::Protocol, Fault::Peer, "talk to the server").with_source(e)
}

/// The server closed the connection.
pub(crate) fn closed() -> Error {
    let action = "the server closed the connection";
    Error::new(ErrorKind::Disconnected, Fault::Peer, action)
}

/// A request that we must not send.
pub(crate) fn refused(command: Command, e: Refusal) -> Error {
    let kind = match e.error {
        ErrorCode::EPERM => ErrorKind::ReadOnly,
        ErrorCode::ENOSPC => ErrorKind::OutOfBounds,
        _ => ErrorKind::InvalidInput,
    };
    Error::new(kind, Fault::User, command.name()).with_source(e)
}

/// A reply that says no, or makes no sense.
pub(crate) fn reply(command: Command, e: ReplyError) -> Error {
    let kind = match &e {
        ReplyError::Protocol(_) => ErrorKind::Protocol,
        ReplyError::Remote(e) => match e.code {
            // It is no leave to do something else, save where it was expected.
            ErrorCode::ENOTSUP => ErrorKind::Io,
            code => ErrorKind::from_errno(code.to_errno()),
        },
    };
    Error::new(kind, Fault::Peer, command.name()).with_source(e)
}
