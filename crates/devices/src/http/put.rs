//! An object as the target of a copy: one PUT of all of it, to a presigned URL, say.
//!
//! The bytes are sent as they come, so nothing can be sent again: a failure is the end. A server
//! that gets less than the length that was announced has no object to keep. No redirect is
//! followed.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use device::{Error, ErrorKind, Fault, Params, Result};
use hyper::Method;
use hyper::body::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use runtime::{Bell, Context, Mutex};

use super::calling::Caller;
use super::dial::Dialer;
use super::origin::Origin;
use super::params::HttpParams;
use super::payload::Payload;
use crate::upwards::{OrderedSink, upwards};
use crate::{Created, Creation, Holds};

/// Bytes of a piece, and pieces that wait, at most.
const PIECE: usize = 1 << 20;
const WAITING: usize = 8;
/// Bytes of an answer that are read.
const TOLD: u64 = 8 << 10;

/// What sends it.
struct PutSink {
    name: String,
    size: u64,
    request: Arc<PutRequest>,
    state: Mutex<State>,
}

/// The request that all goes into.
struct PutRequest {
    origin: Origin,
    dialer: Arc<Dialer>,
    is_new: bool,
}

#[derive(Default)]
struct State {
    pieces: Option<SyncSender<Bytes>>,
    thread: Option<JoinHandle<Result<()>>>,
    begun: bool,
}

/// Makes a target of what `params` name. Nothing is sent before there are bytes.
///
/// # Errors
/// The parameters make no sense, or the length is not known.
pub(crate) fn create(params: &Params, creation: &Creation, context: &Context) -> Result<Created> {
    let HttpParams { url, credentials, manners, ways, .. } = HttpParams::parse(params)?;
    let name = url.to_string();
    if creation.grows {
        let action = "create: PUT announces the length, and the length of an image or a pipe is \
                      unknown before its end; create a file, and copy that";
        return Err(Error::new(ErrorKind::Unsupported, Fault::User, action).on(name));
    }
    let bell = Arc::new(Bell::new().map_err(|e| Error::os("open", e))?);
    let dialer = Arc::new(Dialer::new(ways, bell));
    dialer.prepare(&url)?;
    let origin = Origin::new(url, credentials, manners);
    let request = Arc::new(PutRequest { origin, dialer, is_new: creation.options.new });
    let sink = PutSink { name, size: creation.size, request, state: Mutex::default() };
    let device = upwards(Box::new(sink), creation, &context.pool);
    Ok(Created::new(device, Holds::Old, context))
}

impl PutSink {
    fn begin(&self, state: &mut State) -> Result<()> {
        if state.begun {
            return Ok(());
        }
        let (give, pieces) = sync_channel(WAITING);
        let (request, size) = (self.request.clone(), self.size);
        let work = move || match runtime::contained("a PUT", || request.send(pieces, size)) {
            Ok(done) => done,
            Err(panic) => Err(Error::from(panic)),
        };
        let started = std::thread::Builder::new().name("http".into()).spawn(work);
        state.thread = Some(started.map_err(|e| Error::os("start a thread", e))?);
        (state.pieces, state.begun) = (Some(give), true);
        Ok(())
    }

    /// What came of it.
    fn outcome(state: &mut State) -> Result<()> {
        state.pieces = None;
        let ended = state.thread.take().map(JoinHandle::join);
        let gone = || Error::new(ErrorKind::Io, Fault::Us, "PUT: it has ended");
        ended.and_then(std::result::Result::ok).unwrap_or_else(|| Err(gone()))
    }
}

impl OrderedSink for PutSink {
    fn name(&self) -> &str {
        &self.name
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        let state = &mut *self.state.lock();
        self.begin(state)?;
        for piece in bytes.chunks(PIECE) {
            let given = state.pieces.as_ref().map(|give| give.send(Bytes::copy_from_slice(piece)));
            if !matches!(given, Some(Ok(()))) {
                // An answer has come that did not wait for all bytes: it is none of success.
                let early = || Err(Error::new(ErrorKind::Io, Fault::Peer, "PUT: it ended early"));
                return Self::outcome(state).and_then(|()| early()).map_err(|e| e.on(&self.name));
            }
        }
        Ok(())
    }

    fn end(&self) -> Result<()> {
        let state = &mut *self.state.lock();
        self.begin(state)?;
        Self::outcome(state)
    }
}

impl PutRequest {
    fn send(&self, pieces: Receiver<Bytes>, size: u64) -> Result<()> {
        let url = self.origin.original().clone();
        let mut caller = Caller::new(self.dialer.clone());
        let mut pieces = Some(pieces);
        let called = caller.call(&url, |dialer| {
            let once = || Error::new(ErrorKind::Disconnected, Fault::Peer, "PUT: it broke off");
            let body = Payload::coming(pieces.take().ok_or_else(once)?, size);
            let mut headers: Vec<(HeaderName, HeaderValue)> =
                vec![(header::CONTENT_LENGTH, HeaderValue::from(size))];
            if self.is_new {
                headers.push((header::IF_NONE_MATCH, HeaderValue::from_static("*")));
            }
            self.origin.compose(Method::PUT, &url, dialer, (headers, body))
        });
        let head = called.map_err(|trouble| trouble.error)?;
        let status = head.status();
        if status.is_success() {
            return Ok(());
        }
        let code = caller.body(TOLD).ok().and_then(|body| super::xml::code(&body));
        let code = code.map(|code| format!(", {code}")).unwrap_or_default();
        let reason = status.canonical_reason().unwrap_or("an unknown status");
        let action = format!("PUT: the server answers {} ({reason}{code})", status.as_u16());
        let kind = match status.as_u16() {
            401 | 403 => ErrorKind::PermissionDenied,
            404 => ErrorKind::NotFound,
            507 => ErrorKind::NoSpace,
            _ => ErrorKind::Io,
        };
        Err(Error::new(kind, Fault::Peer, action))
    }
}

#[cfg(test)]
mod tests {
    use super::super::site::{Asked, Reply, Site, Step, content, plain, status};
    use super::*;
    use crate::OpenOptions;

    fn put(
        answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
        len: usize,
        told: usize,
    ) -> (Site, Result<()>) {
        let site = Site::new(answer);
        let params = format!("url={}", site.url("/disk?sig=secret"));
        let params = Params::parse([&*params, "user=me", "password=secret"]).unwrap();
        let creation = Creation::of(told as u64, OpenOptions::read_write());
        let created = create(&params, &creation, &Context::default()).unwrap();
        let written = if len > 0 { created.edge.write(&content(len), 0, false) } else { Ok(()) };
        let done = written.and_then(|()| created.edge.device().finish());
        (site, done)
    }

    #[test]
    fn all_of_it_goes_in_one_request_with_its_length() {
        for len in [0, 1, 5_000_001] {
            let (site, done) = put(|_| plain("201 Created", &["Content-Length: 0"], b""), len, len);
            done.unwrap();
            let [asked] = &site.asked()[..] else { panic!("{:?}", site.asked()) };
            assert_eq!((asked.method.as_str(), asked.path.as_str()), ("PUT", "/disk?sig=secret"));
            assert!(asked.body == content(len));
            assert_eq!(asked.header("content-length"), Some(&*len.to_string()));
        }
    }

    #[test]
    fn what_is_refused_breaks_off_or_is_incomplete_is_a_failure_that_shows_no_secret() {
        let redirect = ["Location: http://127.0.0.1:1/"];
        let code = b"<Error><Code>AccessDenied</Code></Error>";
        for (answer, why) in [
            (plain("403 Forbidden", &["Content-Length: 40"], code), "AccessDenied"),
            (status("307 Temporary Redirect", &redirect), "307"),
            (vec![Step::Close], ""),
        ] {
            let (site, done) = put(move |_| answer.clone(), 5_000_000, 5_000_000);
            let error = done.unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
            assert_eq!(site.asked().len(), 1);
        }
        let (site, done) = put(|_| status("200 OK", &[]), 1000, 2000);
        assert!(done.unwrap_err().to_string().contains("incomplete"));
        assert!(site.asked().is_empty());
    }
}
