//! One request at a time over a connection that is kept, until the head of its answer, and then its
//! body.
//!
//! A connection that had ended unnoticed is replaced. Other failures are a [`Trouble`]: transient
//! or permanent.

use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::Duration;

use device::{Error, ErrorKind, Result as Answered};
use hyper::{Request, Response};

use super::connection::{HttpConnection, Needed};
use super::dial::Dialer;
use super::payload::Payload;
use super::url::Url;

/// Why bytes did not come.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) error: Error,
    /// Whether another try may help.
    pub(super) may_pass: bool,
    /// How long the server asked us to wait.
    pub(super) wait: Option<Duration>,
    /// It is overloaded.
    pub(super) throttled: bool,
}

impl Trouble {
    pub(super) fn passing(error: Error) -> Self {
        Self { error, may_pass: true, wait: None, throttled: false }
    }

    pub(super) fn lasting(error: Error) -> Self {
        Self { error, may_pass: false, wait: None, throttled: false }
    }
}

/// See the module. It holds at most one connection.
pub(super) struct Caller {
    dialer: Arc<Dialer>,
    connection: Option<HttpConnection>,
    needed: Option<Needed>,
}

impl Caller {
    pub(super) fn new(dialer: Arc<Dialer>) -> Self {
        Self { dialer, connection: None, needed: None }
    }

    /// Sends what `request` makes, for each try anew, and waits for the head of the answer.
    pub(super) fn call(
        &mut self,
        url: &Url,
        mut request: impl FnMut(&Dialer) -> Answered<Request<Payload>>,
    ) -> Result<Response<()>, Trouble> {
        let to = self.dialer.to(url);
        loop {
            let kept = self.connection.take();
            let kept = kept.and_then(|mut kept| kept.is_ready_for(&to).then_some(kept));
            let mut connection = match kept {
                Some(connection) => connection,
                None => self.dialer.dial(url).map_err(Self::trouble)?,
            };
            connection.while_needed(self.needed.clone());
            let request = request(&self.dialer).map_err(Trouble::lasting)?;
            let was_used = connection.is_used();
            match connection.ask(request) {
                Ok(head) => {
                    self.connection = Some(connection);
                    return Ok(head);
                }
                // The server closed it while the request was sent: that is no failure of the
                // server.
                Err(e) if was_used && e.kind() == ErrorKind::Disconnected => {}
                Err(e) => return Err(Self::trouble(e)),
            }
        }
    }

    /// Ends the connection: its remaining bytes are not wanted.
    pub(super) fn hang_up(&mut self) {
        self.connection = None;
    }

    /// Whether the body of the last answer has a length, so that its first bytes can be used at
    /// once.
    pub(super) fn has_length(&self) -> bool {
        self.connection.as_ref().is_some_and(HttpConnection::has_length)
    }

    /// From now on waits are given up when their result is not needed any more.
    pub(super) fn while_needed(&mut self, needed: Needed) {
        if let Some(connection) = &mut self.connection {
            connection.while_needed(Some(needed.clone()));
        }
        self.needed = Some(needed);
    }

    /// Receives the next bytes of the body, into these places in turn: how many; 0 at the end.
    pub(super) fn fill(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize, Trouble> {
        let Some(connection) = &mut self.connection else { return Ok(0) };
        connection.fill(into).map_err(|e| {
            self.connection = None;
            Self::trouble(e)
        })
    }

    /// Receives a body, up to one piece more than `most` bytes.
    pub(super) fn body(&mut self, most: u64) -> Result<Vec<u8>, Trouble> {
        let mut all = Vec::new();
        let mut piece = vec![0; 64 << 10];
        while all.len() as u64 <= most {
            match self.fill(&mut [IoSliceMut::new(&mut piece)])? {
                0 => break,
                n => all.extend_from_slice(piece.get(..n).unwrap_or_default()),
            }
        }
        Ok(all)
    }

    /// Reads a body that is not wanted, if that is worth it.
    pub(super) fn finish(&mut self) {
        if !self.connection.as_mut().is_some_and(HttpConnection::drain) {
            self.connection = None;
        }
    }

    pub(super) fn trouble(error: Error) -> Trouble {
        let lasting = matches!(
            error.kind(),
            ErrorKind::PermissionDenied | ErrorKind::InvalidInput | ErrorKind::Cancelled
        );
        Trouble { may_pass: !lasting, ..Trouble::passing(error) }
    }
}
