//! Protocol violations and error replies of the peer, as errors of devices.

use device::{Error, ErrorKind, Fault};
use wire::{Command, ErrorCode, Fatal, Refusal, ReplyError};

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

/// A reply that is an error, or makes no sense.
pub(crate) fn reply(command: Command, e: ReplyError) -> Error {
    let kind = match &e {
        ReplyError::Protocol(_) => ErrorKind::Protocol,
        ReplyError::Remote(e) => match e.code {
            // It does not allow a fallback, except where it was expected.
            ErrorCode::ENOTSUP => ErrorKind::Io,
            code => ErrorKind::from_peers_errno(code.to_errno()),
        },
    };
    Error::new(kind, Fault::Peer, command.name()).with_source(e)
}

/// Whether a reply says that the server is shutting down, and nothing else.
pub(crate) fn is_leaving<T>(answer: &std::result::Result<T, ReplyError>) -> bool {
    matches!(answer, Err(ReplyError::Remote(e)) if e.code == ErrorCode::ESHUTDOWN)
}
