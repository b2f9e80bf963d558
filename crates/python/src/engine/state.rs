//! The states of a connection, with libnbd's names; and what may be called when.

use rustix::io::Errno;

use super::fault::EngineError;

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum State {
    #[default]
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
    Always,
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
    /// The states, and in libnbd's words.
    const fn states(self) -> (&'static [State], &'static str) {
        use State::{Closed, Connecting, Created, Dead, Negotiating, Ready, Talking};
        match self {
            Self::Always => {
                (&[Created, Connecting, Talking, Negotiating, Ready, Closed, Dead], "there")
            }
            Self::Created => (&[Created], "newly created"),
            Self::CreatedOrNegotiating => {
                (&[Created, Negotiating], "newly created, or negotiating")
            }
            Self::Negotiating => (&[Negotiating], "negotiating"),
            Self::Known => (
                &[Negotiating, Ready, Closed],
                "negotiating, or connected with the server, or shut down",
            ),
            Self::Open => (&[Negotiating, Ready], "negotiating, or connected with the server"),
            Self::Connected => (&[Ready], "connected with the server"),
            Self::Used => {
                (&[Ready, Closed, Dead], "connected with the server, or shut down, or dead")
            }
            Self::Begun => (
                &[Connecting, Talking, Negotiating, Ready, Closed, Dead],
                "connecting, or negotiating, or connected with the server, or shut down, or dead",
            ),
        }
    }

    /// Refuses a call that makes no sense now.
    pub(crate) fn check(self, state: State) -> Result<(), EngineError> {
        let (states, words) = self.states();
        if states.contains(&state) {
            return Ok(());
        }
        let errno = if state == State::Created { Errno::NOTCONN } else { Errno::INVAL };
        let name = state.name();
        Err(EngineError::new(errno, format!("invalid state: {name}: the handle must be {words}")))
    }
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        self.described().split(':').next().unwrap_or_default()
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
