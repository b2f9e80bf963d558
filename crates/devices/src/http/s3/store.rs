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
use super::params::encoded;

/// Bytes of an answer, at most.
pub(super) const LONGEST: u64 = 1 << 20;
/// How long what is asked last may take, and how often it is tried again.
const LAST_PATIENCE: Duration = Duration::from_secs(10);
const LAST_TRIES: u32 = 4;
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
    /// The bucket is asked, not the object.
    pub(super) of_bucket: bool,
    /// Another object is asked: the one of this name below the key.
    pub(super) below: Option<String>,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Bytes,
}

impl StoreRequest {
    pub(super) fn new(method: Method, query: impl Into<String>) -> Self {
        let (query, headers, body) = (query.into(), Vec::new(), Bytes::new());
        Self { method, query, of_bucket: false, below: None, headers, body }
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
    key: String,
    ways: Ways,
    dialer: Arc<Dialer>,
    bell: Arc<Bell>,
    retries: u32,
    closed: Mutex<bool>,
    closing: Condvar,
}

impl ObjectStore {
    pub(super) fn new(wanted: HttpParams, key: String) -> Result<Self> {
        let HttpParams { url, credentials, manners, ways, retries, .. } = wanted;
        let bell = Arc::new(Bell::new().map_err(|e| Error::os("open", e))?);
        let dialer = Arc::new(Dialer::new(ways.clone(), bell.clone()));
        dialer.prepare(&url)?;
        let origin = Origin::new(url, credentials, manners);
        let (closed, closing) = (Mutex::new(false), Condvar::new());
        Ok(Self { origin, key, ways, dialer, bell, retries, closed, closing })
    }

    /// The key of the object.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// What asks, over a connection of its own.
    pub(super) fn caller(&self) -> Caller {
        Caller::new(self.dialer.clone())
    }

    /// From now on no request is made again, but those of [`ask_last`](Self::ask_last).
    pub(super) fn stop_trying(&self) {
        *self.closed.lock() = true;
        self.closing.notify_all();
    }

    /// Gives up all requests, now and later, but those of [`ask_last`](Self::ask_last).
    pub(super) fn close(&self) {
        self.stop_trying();
        self.bell.ring();
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
        self.ask_counting(&mut 0, caller, action, request)
    }

    /// The same; counts the tries of which it is not known whether the store has done them.
    ///
    /// # Errors
    /// As of [`ask`](Self::ask).
    pub(super) fn ask_counting(
        &self,
        failures: &mut u32,
        caller: &mut Caller,
        action: &str,
        request: &StoreRequest,
    ) -> Result<StoreAnswer> {
        let pause = |wait| {
            let closed = self.closed.lock();
            let (closed, _) = self.closing.wait_timeout_while(closed, wait, |closed| !*closed);
            !*closed
        };
        self.ask_until((failures, self.retries, &pause), caller, action, request)
    }

    /// Asks a few times, also when all requests have been given up.
    ///
    /// # Errors
    /// As of [`ask`](Self::ask).
    pub(super) fn ask_last(&self, action: &str, request: &StoreRequest) -> Result<StoreAnswer> {
        let bell = Arc::new(Bell::new().map_err(|e| Error::os("open", e))?);
        let ways = Ways { patience: self.ways.patience.min(LAST_PATIENCE), ..self.ways.clone() };
        let mut caller = Caller::new(Arc::new(Dialer::new(ways, bell)));
        let pause = |wait| {
            std::thread::sleep(wait);
            true
        };
        self.ask_until((&mut 0, LAST_TRIES, &pause), &mut caller, action, request)
    }

    /// Asks until there is an answer, or there were more failures than that, or `pause` says that
    /// it is not wanted any more.
    fn ask_until(
        &self,
        (failures, retries, pause): (&mut u32, u32, &dyn Fn(Duration) -> bool),
        caller: &mut Caller,
        action: &str,
        request: &StoreRequest,
    ) -> Result<StoreAnswer> {
        let mut renewed = false;
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
            *failures += 1;
            caller.hang_up();
            let wait = trouble.wait.unwrap_or_else(|| back_off(*failures, u64::from(*failures)));
            if !trouble.may_pass || *failures > retries || !pause(wait) {
                return Err(trouble.error);
            }
        }
    }

    /// The path of the bucket: that of the object, without the key.
    fn bucket(&self) -> &str {
        let path = &self.origin.original().target;
        let bucket = path.strip_suffix(&encoded(&self.key, true)).unwrap_or(path);
        // A bucket that is in the name of the host has `/` for a path.
        bucket.strip_suffix('/').filter(|bucket| !bucket.is_empty()).unwrap_or("/")
    }

    fn try_once(
        &self,
        caller: &mut Caller,
        request: &StoreRequest,
    ) -> std::result::Result<StoreAnswer, Trouble> {
        let object = self.origin.original();
        let path = match &request.below {
            Some(name) => {
                let key = object.target.trim_end_matches('/');
                format!("{key}/{}", encoded(name, false))
            }
            None if request.of_bucket => self.bucket().to_owned(),
            None => object.target.clone(),
        };
        let target = match request.query.as_str() {
            "" => path,
            query => format!("{path}?{query}"),
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
        let (head, ()) = head.into_parts();
        // What an object holds is no answer of the store.
        let is_content =
            request.method == Method::GET && request.below.is_some() && head.status.is_success();
        let code = if is_content { None } else { xml::code(&body) };
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
