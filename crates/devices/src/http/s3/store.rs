//! Requests that change a store: each signed, and sent again after what may pass.
//!
//! A failure of the connection, 429, 500, 502, 503, 504, a body that was damaged on the way, and an
//! error inside of an answer of 200 are tried again, with pauses that grow, until `retry` failures
//! in a row. Every request here may be repeated: a part is the same part, and who creates an object
//! marks it (`upload`).

use std::sync::Arc;
use std::time::Duration;

use device::{Error, ErrorKind, Fault, Result};
use hyper::body::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use runtime::{Bell, Condvar, Mutex};

use super::super::answer::retry_after;
use super::super::calling::{Caller, Trouble};
use super::super::dial::{Dialer, Ways};
use super::super::origin::Origin;
use super::super::params::HttpParams;
use super::super::payload::Payload;
use super::super::shared::back_off;
use super::super::url::Url;
use super::super::xml;

/// Bytes of an answer, at most.
const LONGEST: u64 = 1 << 20;
/// Codes of errors that may pass.
const PASSING: [&str; 9] = [
    "BadDigest",
    "IncompleteBody",
    "InternalError",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
];

/// A request for the object.
#[derive(Clone, Debug)]
pub(super) struct StoreRequest {
    pub(super) method: Method,
    /// What is asked of it; nothing: the object itself.
    pub(super) query: String,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Bytes,
}

impl StoreRequest {
    pub(super) fn new(method: Method, query: impl Into<String>) -> Self {
        Self { method, query: query.into(), headers: Vec::new(), body: Bytes::new() }
    }
}

/// An answer that is one: done, or refused.
#[derive(Debug)]
pub(super) struct StoreAnswer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
    /// The code of its error.
    pub(super) code: Option<String>,
}

impl StoreAnswer {
    pub(super) fn is_done(&self) -> bool {
        self.status.is_success() && self.code.is_none()
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Whether another try may help.
    fn may_pass(&self) -> bool {
        let status = matches!(self.status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504);
        status || self.code.as_deref().is_some_and(|code| PASSING.contains(&code))
    }
}

/// See the module.
pub(super) struct ObjectStore {
    origin: Origin,
    ways: Ways,
    dialer: Arc<Dialer>,
    bell: Arc<Bell>,
    retries: u32,
    closed: Mutex<bool>,
    closing: Condvar,
}

impl ObjectStore {
    pub(super) fn new(wanted: HttpParams) -> Result<Self> {
        let HttpParams { url, credentials, manners, ways, retries, .. } = wanted;
        let bell = Arc::new(Bell::new().map_err(|e| Error::os("open", e))?);
        let dialer = Arc::new(Dialer::new(ways.clone(), bell.clone()));
        dialer.prepare(&url)?;
        let origin = Origin::new(url, credentials, manners);
        let (closed, closing) = (Mutex::new(false), Condvar::new());
        Ok(Self { origin, ways, dialer, bell, retries, closed, closing })
    }

    /// What asks, over a connection of its own.
    pub(super) fn caller(&self) -> Caller {
        Caller::new(self.dialer.clone())
    }

    /// The same, also when requests have been given up.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn last_caller(&self, patience: Duration) -> Result<Caller> {
        let bell = Arc::new(Bell::new().map_err(|e| Error::os("open", e))?);
        let ways = Ways { patience: self.ways.patience.min(patience), ..self.ways.clone() };
        Ok(Caller::new(Arc::new(Dialer::new(ways, bell))))
    }

    /// Gives up all requests, now and later.
    pub(super) fn close(&self) {
        *self.closed.lock() = true;
        self.bell.ring();
        self.closing.notify_all();
    }

    /// Asks until there is an answer.
    ///
    /// # Errors
    /// None came, or only those that may pass.
    pub(super) fn ask(
        &self,
        caller: &mut Caller,
        action: &str,
        request: &StoreRequest,
    ) -> Result<StoreAnswer> {
        self.ask_at_most(self.retries, caller, action, request)
    }

    pub(super) fn ask_at_most(
        &self,
        retries: u32,
        caller: &mut Caller,
        action: &str,
        request: &StoreRequest,
    ) -> Result<StoreAnswer> {
        let (mut failures, mut renewed) = (0, false);
        loop {
            let trouble = match self.try_once(caller, request) {
                Ok(answer) if answer.may_pass() => Trouble {
                    wait: retry_after(&answer.headers),
                    ..Trouble::passing(self.refusal(action, &answer))
                },
                Ok(answer) if answer.status == StatusCode::FORBIDDEN && !renewed => {
                    renewed = true;
                    if self.origin.renew() {
                        continue;
                    }
                    return Ok(answer);
                }
                Ok(answer) => return Ok(answer),
                Err(trouble) => trouble,
            };
            failures += 1;
            caller.hang_up();
            if !trouble.may_pass || failures > retries {
                return Err(trouble.error);
            }
            let wait = trouble.wait.unwrap_or_else(|| back_off(failures, u64::from(failures)));
            let closed = self.closed.lock();
            let (closed, _) = self.closing.wait_timeout_while(closed, wait, |closed| !*closed);
            if *closed {
                return Err(trouble.error);
            }
        }
    }

    fn try_once(
        &self,
        caller: &mut Caller,
        request: &StoreRequest,
    ) -> std::result::Result<StoreAnswer, Trouble> {
        let object = self.origin.original();
        let target = match request.query.as_str() {
            "" => object.target.clone(),
            query => format!("{}?{query}", object.target),
        };
        let url = Url { target, ..object.clone() };
        let head = caller.call(&url, |dialer| {
            let headers = request.headers.iter().map(|(name, text)| {
                let value = HeaderValue::from_str(text);
                let value = value.map_err(|_| Error::invalid("a header is not text"))?;
                Ok((HeaderName::from_static(name), value))
            });
            let headers = headers.collect::<Result<Vec<_>>>()?;
            let body = Payload::of(request.body.clone());
            self.origin.compose(request.method.clone(), &url, dialer, (headers, body))
        })?;
        let body = if request.method == Method::HEAD {
            caller.finish();
            Vec::new()
        } else {
            caller.body(LONGEST)?
        };
        let (code, (head, ())) = (xml::code(&body), head.into_parts());
        Ok(StoreAnswer { status: head.status, headers: head.headers, body, code })
    }

    /// What an answer that is no success means.
    pub(super) fn refusal(&self, action: &str, answer: &StoreAnswer) -> Error {
        let kind = match answer.status.as_u16() {
            401 | 403 => ErrorKind::PermissionDenied,
            404 => ErrorKind::NotFound,
            507 => ErrorKind::NoSpace,
            _ => ErrorKind::Io,
        };
        let reason = answer.status.canonical_reason().unwrap_or("an unknown status");
        let status = answer.status.as_u16();
        let action = format!("{action}: the store answers {status} ({reason})");
        let error = Error::new(kind, Fault::Peer, action);
        let signer = self.origin.signer();
        match signer.and_then(|it| it.explain(answer.status, &answer.headers, &answer.body)) {
            Some(why) => error.with_source(why),
            None => error,
        }
    }
}
