//! Requesting bytes: one connection at a time, until the head of an answer announces them.
//!
//! Obstacles between a request and its bytes are handled here: a connection that had ended
//! unnoticed, redirects, signatures that expired, headers that a server refuses. Other failures are
//! a [`Trouble`]: transient or permanent.

use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::Duration;

use device::{Error, ErrorKind, Fault};
use hyper::{Method, Response};

use super::answer::{Validators, Verdict, content_length, is_throttled, judge, protocol};
use super::connection::{HttpConnection, Needed};
use super::dial::Dialer;
use super::origin::{HOPS, Origin, changed};
use super::url::Url;

/// What follows the head of an answer.
#[derive(Debug)]
pub(super) enum Answer {
    /// This many of the requested bytes, from the first one on; and the size, if given.
    Part(u64, Option<u64>),
    /// The object from its beginning, and its size, if given.
    Whole(Option<u64>),
    /// Nothing: the size of the object, if given.
    Beyond(Option<u64>),
}

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

/// A thread that asks. It holds at most one connection.
pub(super) struct Asker {
    origin: Arc<Origin>,
    dialer: Arc<Dialer>,
    connection: Option<HttpConnection>,
    needed: Option<Needed>,
    /// Whether a server has answered at all.
    answered: bool,
    /// From the last answer with bytes.
    validators: Validators,
}

impl Asker {
    pub(super) fn new(origin: Arc<Origin>, dialer: Arc<Dialer>) -> Self {
        Self {
            origin,
            dialer,
            connection: None,
            needed: None,
            answered: false,
            validators: Validators::default(),
        }
    }

    /// The identity of the object by the last answer with bytes.
    pub(super) fn validators(&self) -> &Validators {
        &self.validators
    }

    /// Whether any server has answered anything.
    pub(super) fn has_been_answered(&self) -> bool {
        self.answered
    }

    /// Ends the connection: its remaining bytes are not wanted.
    pub(super) fn hang_up(&mut self) {
        self.connection = None;
    }

    /// Asks for the bytes `start..end` (not empty), or for the whole object. An earlier body is
    /// dropped.
    pub(super) fn ask(&mut self, start: u64, end: u64, whole: bool) -> Result<Answer, Trouble> {
        let range = (!whole).then(|| format!("{start}-{}", end.saturating_sub(1)));
        let mut url = self.origin.current();
        let (mut hops, mut walked_again, mut renewed, mut unmatched) = (0, false, false, false);
        loop {
            let matched = self.origin.matches();
            let head = self.exchange(&Method::GET, &url, range.as_deref())?;
            let found = |this: &mut Self, size| {
                this.validators = Validators::of(head.headers());
                this.origin.check(size, head.headers()).map_err(|e| {
                    this.hang_up();
                    Trouble::lasting(e)
                })?;
                this.origin.remember(&url);
                if matched {
                    this.origin.match_was_taken();
                }
                Ok(())
            };
            match judge(&head, start, end) {
                Verdict::Part { .. } if whole => {
                    self.hang_up();
                    let action = "GET: a part came, and no range was asked for";
                    return Err(Trouble::lasting(protocol(action)));
                }
                Verdict::Part { len, size } => {
                    found(self, size)?;
                    return Ok(Answer::Part(len, size));
                }
                Verdict::Whole(size) => {
                    found(self, size)?;
                    return Ok(Answer::Whole(size));
                }
                Verdict::Beyond(size) => {
                    self.finish();
                    return Ok(Answer::Beyond(size));
                }
                Verdict::Changed(why) => {
                    self.finish();
                    return Err(Trouble::lasting(changed(&why)));
                }
                Verdict::Redirect(location) => {
                    self.finish();
                    hops += 1;
                    if hops > HOPS {
                        let action = format!("GET: more than {HOPS} redirects");
                        let error = Error::new(ErrorKind::Limit, Fault::Peer, action);
                        return Err(Trouble::lasting(error));
                    }
                    let next = self.origin.follow(&url, &location).map_err(Trouble::lasting)?;
                    url = Arc::new(next);
                }
                Verdict::Forbidden(error) => {
                    self.finish();
                    if !walked_again && *url != *self.origin.original() {
                        walked_again = true;
                        hops = 0;
                        url = Arc::new(self.origin.original().clone());
                    } else if matched && !unmatched && self.origin.match_was_refused() {
                        unmatched = true;
                    } else if !renewed && self.origin.renew() {
                        renewed = true;
                    } else {
                        if unmatched {
                            // It was not because of that.
                            self.origin.match_again();
                        }
                        return Err(Trouble::lasting(error));
                    }
                }
                Verdict::Later(error, wait) => {
                    self.finish();
                    let throttled = is_throttled(head.status());
                    return Err(Trouble { error, may_pass: true, wait, throttled });
                }
                Verdict::No(error) => {
                    self.hang_up();
                    return Err(Trouble::lasting(error));
                }
            }
        }
    }

    /// The size by a request for the last byte, or else by HEAD: for servers that do not give it
    /// with a range.
    pub(super) fn size(&mut self) -> Result<Option<u64>, Trouble> {
        let url = self.origin.current();
        let head = self.exchange(&Method::GET, &url, Some("-1"))?;
        let range = head.headers().get(hyper::header::CONTENT_RANGE);
        let range = range.and_then(|value| value.to_str().ok());
        let range = range.and_then(super::answer::ContentRange::parse);
        let is_part = head.status() == hyper::StatusCode::PARTIAL_CONTENT;
        self.finish();
        if let Some(range) = range.filter(|_| is_part) {
            let size = range.size.or(range.bytes.and_then(|(_, last)| last.checked_add(1)));
            if size.is_some() {
                return Ok(size);
            }
        }
        let head = self.exchange(&Method::HEAD, &url, None)?;
        self.finish();
        let size = content_length(head.headers()).filter(|size| i64::try_from(*size).is_ok());
        Ok(size.filter(|_| head.status() == hyper::StatusCode::OK))
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

    /// Receives the next bytes of what was asked for, into these places in turn: how many; 0 at the
    /// end.
    pub(super) fn fill(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize, Trouble> {
        let Some(connection) = &mut self.connection else { return Ok(0) };
        connection.fill(into).map_err(|e| {
            self.connection = None;
            Self::trouble(e)
        })
    }

    /// One request and the head of its answer.
    fn exchange(
        &mut self,
        method: &Method,
        url: &Url,
        range: Option<&str>,
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
            let request = self.origin.request(method.clone(), url, &self.dialer, range);
            let request = request.map_err(Trouble::lasting)?;
            let was_used = connection.is_used();
            match connection.ask(request) {
                Ok(head) => {
                    self.connection = Some(connection);
                    self.answered = true;
                    return Ok(head);
                }
                // The server closed it while the request was sent: that is no failure of the
                // server.
                Err(e) if was_used && e.kind() == ErrorKind::Disconnected => {}
                Err(e) => return Err(Self::trouble(e)),
            }
        }
    }

    /// Reads a body that is not wanted, if that is worth it.
    fn finish(&mut self) {
        if !self.connection.as_mut().is_some_and(HttpConnection::drain) {
            self.connection = None;
        }
    }

    fn trouble(error: Error) -> Trouble {
        let lasting = matches!(
            error.kind(),
            ErrorKind::PermissionDenied | ErrorKind::InvalidInput | ErrorKind::Cancelled
        );
        Trouble { may_pass: !lasting, ..Trouble::passing(error) }
    }
}
