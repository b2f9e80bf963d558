//! The states of a connection, with libnbd's names; and what may be called when.

use rustix::io::Errno;

use super::fault::EngineError;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum State {
    Created,
    /// Over TCP, to the next of the addresses.
    Connecting,
    /// The handshake goes on, and the user has nothing to decide.
    Talking,
    /// In option mode: the user chooses the next option.
    Negotiating,
    Ready,
    Closed,
    Dead,
}

/// When a call makes sense: any of these.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    Created,
    CreatedOrNegotiating,
    Negotiating,
    /// Negotiating, connected or closed.
    Known,
    /// Negotiating or connected.
    Open,
    Connected,
    /// Connected, closed or dead.
    Used,
    /// Anything but created.
    Begun,
}

impl When {
    const fn has(self, state: State) -> bool {
        use State::{Closed, Connecting, Created, Dead, Negotiating, Ready, Talking};
        match self {
            Self::Created => matches!(state, Created),
            Self::CreatedOrNegotiating => matches!(state, Created | Negotiating),
            Self::Negotiating => matches!(state, Negotiating),
            Self::Known => matches!(state, Negotiating | Ready | Closed),
            Self::Open => matches!(state, Negotiating | Ready),
            Self::Connected => matches!(state, Ready),
            Self::Used => matches!(state, Ready | Closed | Dead),
            Self::Begun => {
                matches!(state, Connecting | Talking | Negotiating | Ready | Closed | Dead)
            }
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Created => "newly created",
            Self::CreatedOrNegotiating => "newly created, or negotiating",
            Self::Negotiating => "negotiating",
            Self::Known => "negotiating, or connected with the server, or shut down",
            Self::Open => "negotiating, or connected with the server",
            Self::Connected => "connected with the server",
            Self::Used => "connected with the server, or shut down, or dead",
            Self::Begun => {
                "connecting, or negotiating, or connected with the server, or shut down, or dead"
            }
        }
    }

    /// Refuses a call that makes no sense now.
    pub(crate) fn check(self, state: State) -> Result<(), EngineError> {
        if self.has(state) {
            return Ok(());
        }
        let errno = if state == State::Created { Errno::NOTCONN } else { Errno::INVAL };
        let (name, words) = (state.name(), self.words());
        Err(EngineError::new(errno, format!("invalid state: {name}: the handle must be {words}")))
    }
}

impl State {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Created => "START",
            Self::Connecting => "CONNECT_TCP.CONNECTING",
            Self::Talking => "NEWSTYLE.START",
            Self::Negotiating => "NEGOTIATING",
            Self::Ready => "READY",
            Self::Closed => "CLOSED",
            Self::Dead => "DEAD",
        }
    }

    /// The name, and what it means.
    pub(crate) const fn described(self) -> &'static str {
        match self {
            Self::Created => "START: Handle after being initially created",
            Self::Connecting => {
                "CONNECT_TCP.CONNECTING: Connecting to the remote server over a TCP socket"
            }
            Self::Talking => "NEWSTYLE.START: Talking with the server before the export is used",
            Self::Negotiating => "NEGOTIATING: Connection is ready to negotiate an NBD option",
            Self::Ready => "READY: Connection is ready to process NBD commands",
            Self::Closed => "CLOSED: Connection is closed",
            Self::Dead => "DEAD: Connection is in an unrecoverable error state, can only be closed",
        }
    }
}
