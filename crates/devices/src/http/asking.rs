//! Requesting bytes: one connection at a time, until the head of an answer announces them.
//!
//! Obstacles between a request and its bytes are handled here: redirects, signatures that expired,
//! headers that a server refuses. Other failures are a [`Trouble`]: transient or permanent.

use std::io::IoSliceMut;
use std::sync::Arc;

use device::{Error, ErrorKind, Fault};
use hyper::{Method, Response};

use super::answer::{Validators, Verdict, content_length, is_throttled, judge, protocol};
use super::calling::{Caller, Trouble};
use super::connection::Needed;
use super::dial::Dialer;
use super::origin::{HOPS, Origin, changed};
use super::url::Url;

/// Bytes of a refusal that are looked at.
const TOLD: u64 = 8 << 10;

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

/// A thread that asks. It holds at most one connection.
pub(super) struct Asker {
    origin: Arc<Origin>,
    caller: Caller,
    /// Whether a server has answered at all.
    answered: bool,
    /// From the last answer with bytes.
    validators: Validators,
}

impl Asker {
    pub(super) fn new(origin: Arc<Origin>, dialer: Arc<Dialer>) -> Self {
        let caller = Caller::new(dialer);
        Self { origin, caller, answered: false, validators: Validators::default() }
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
        self.caller.hang_up();
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
                    let action = "GET: a partial response, though no range was requested";
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
                    if self.origin.signer().is_some() {
                        let error = self.origin.follow(&url, &location).err();
                        let error = error.unwrap_or_else(|| protocol("GET: a redirect"));
                        return Err(Trouble::lasting(self.explained(error, &head)));
                    }
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
                    let error = self.explained(error, &head);
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
                    let error = self.explained(error, &head);
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
        self.caller.has_length()
    }

    /// From now on waits are given up when their result is not needed any more.
    pub(super) fn while_needed(&mut self, needed: Needed) {
        self.caller.while_needed(needed);
    }

    /// Receives the next bytes of what was asked for, into these places in turn: how many; 0 at the
    /// end.
    pub(super) fn fill(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize, Trouble> {
        self.caller.fill(into)
    }

    /// Receives a body, up to one piece more than `most` bytes.
    pub(super) fn body(&mut self, most: u64) -> Result<Vec<u8>, Trouble> {
        self.caller.body(most)
    }

    /// One request and the head of its answer.
    fn exchange(
        &mut self,
        method: &Method,
        url: &Url,
        range: Option<&str>,
    ) -> Result<Response<()>, Trouble> {
        let origin = &self.origin;
        let head =
            self.caller.call(url, |dialer| origin.request(method.clone(), url, dialer, range))?;
        self.answered = true;
        Ok(head)
    }

    /// A refusal, with what its signer knows of it.
    fn explained(&mut self, error: Error, head: &Response<()>) -> Error {
        let Some(signer) = self.origin.signer() else { return error };
        let body = self.caller.body(TOLD).unwrap_or_default();
        match signer.explain(head.status(), head.headers(), &body) {
            Some(why) => error.with_source(why),
            None => error,
        }
    }

    /// Reads a body that is not wanted, if that is worth it.
    fn finish(&mut self) {
        self.caller.finish();
    }
}
