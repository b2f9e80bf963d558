//! One HTTP/1.1 connection: a request at a time, and the body of its answer as it comes.
//!
//! hyper speaks HTTP: it sends requests, parses the heads of answers and decodes chunked bodies. A
//! body whose length is known does not pass through it: after the head the connection is taken
//! apart, and the bytes are received into their destination. This thread drives all of it and waits
//! with poll(2), for the socket, for the end of the device, or for a limit: a server that owes
//! something may be silent only for so long, and a body must not be too slow. A connection that
//! failed in any way is not used again.

use std::future::Future;
use std::io::IoSliceMut;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Fault, Result};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::answer::{keeps_alive, protocol};
use super::pace::Pace;
use super::payload::Payload;
use super::transport::{HttpTransport, Line};
use runtime::{Bell, to_usize};

/// Bytes of the head of an answer, at most.
const HEAD: usize = 64 << 10;
/// Headers of an answer, at most.
const HEADERS: usize = 100;
/// Bytes that may come until there is a head, including interim answers (103) and the part of the
/// body that comes with it.
const AHEAD: u64 = 512 << 10;
/// What hyper reads at once of a body without a length, in bytes, at most.
const PIECE: usize = 256 << 10;
/// A body that is not wanted is read to its end, so that the connection can be used again, if it is
/// no longer than this.
const DRAINED: u64 = 256 << 10;
/// How long that may take.
const DRAIN: Duration = Duration::from_secs(2);
/// How long an idle connection is kept: servers close theirs sooner or later.
pub(super) const IDLE: Duration = Duration::from_secs(15);
/// How often to check, while nothing comes, whether the result is still needed.
const LOOK: Duration = Duration::from_millis(500);

/// Whether the bytes of a connection are still needed.
pub(super) type Needed = Arc<dyn Fn() -> bool + Send + Sync>;

/// See the module.
pub(super) struct HttpConnection {
    /// The server that it leads to.
    to: String,
    line: Arc<Line>,
    state: State,
    bell: Arc<Bell>,
    /// How long the server may be silent.
    patience: Duration,
    needed: Option<Needed>,
    /// Requests that were answered.
    answered: u32,
    used: Instant,
    pace: Pace,
    /// Where the search for a head must end.
    head_ends: u64,
    /// The request has a body, so what is sent shows that something moves.
    sends: bool,
}

/// The rest of the previous answer.
enum State {
    /// Nothing: it waits for a request.
    Quiet(HttpTransport),
    /// A body of a known length.
    Straight(Straight),
    /// A body that hyper takes apart.
    Framed(Box<Framed>),
    /// It cannot be used again.
    Over,
}

struct Straight {
    transport: HttpTransport,
    /// Came with the head.
    begun: Bytes,
    /// Bytes of the body that have not been given, those that have begun among them.
    left: u64,
    keeps: bool,
}

struct Framed {
    speech: Speech,
    body: Incoming,
    /// Bytes that came last, and were not read yet.
    piece: Bytes,
    keeps: bool,
}

/// hyper's side of it.
struct Speech {
    sender: http1::SendRequest<Payload>,
    driver: http1::Connection<HttpTransport, Payload>,
    /// The driver has ended.
    over: bool,
}

/// A flag that hyper sets when there is something to do.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl HttpConnection {
    /// Starts HTTP over a stream that is ready for it.
    pub(super) fn new(
        to: String,
        (transport, line): (HttpTransport, Arc<Line>),
        bell: &Arc<Bell>,
        patience: Duration,
    ) -> Self {
        let (bell, used) = (bell.clone(), Instant::now());
        Self {
            to,
            line,
            state: State::Quiet(transport),
            bell,
            patience,
            needed: None,
            answered: 0,
            used,
            pace: Pace::new(used, 0),
            head_ends: u64::MAX,
            sends: false,
        }
    }

    /// From now on waits are given up when their result is not needed any more.
    pub(super) fn while_needed(&mut self, needed: Option<Needed>) {
        self.needed = needed;
    }

    /// Whether another request can go over it to `to`: it is not closed, and nothing is left of
    /// the answer before.
    pub(super) fn is_ready_for(&mut self, to: &str) -> bool {
        let State::Quiet(transport) = &mut self.state else { return false };
        // Unrequested bytes are the end, or not HTTP.
        self.to == to && self.used.elapsed() <= IDLE && transport.receive(&mut [0]).is_pending()
    }

    /// Whether it has answered before: its end may have been on its way when the next request was.
    pub(super) fn is_used(&self) -> bool {
        self.answered > 0
    }

    /// Sends a request and waits for the head of its answer, whose body is then there to be read.
    ///
    /// # Errors
    /// The connection ended, the answer is not HTTP, or it took too long.
    pub(super) fn ask(&mut self, request: Request<Payload>) -> Result<Response<()>> {
        let waiting = "wait for the response";
        let State::Quiet(transport) = std::mem::replace(&mut self.state, State::Over) else {
            let action = "send the request: the previous response was not read";
            return Err(Error::new(ErrorKind::Io, Fault::Us, action));
        };
        let mut speech = Speech::begin(transport)?;
        let body = request.body().len();
        self.sends = body > 0;
        self.pace = Pace::new(Instant::now(), self.moved());
        // Under TLS what is sent counts, too, with what encrypting it adds.
        self.head_ends = self.line.received().saturating_add(AHEAD).saturating_add(2 * body);
        self.drive(&mut speech, waiting, |sender, cx| sender.poll_ready(cx))?
            .map_err(|e| broken("send the request", &e))?;
        let mut sending = Box::pin(speech.sender.send_request(request));
        let answer = self.drive(&mut speech, waiting, |_, cx| sending.as_mut().poll(cx))?;
        let answer = answer.map_err(|e| broken(waiting, &e))?;
        self.head_ends = u64::MAX;
        self.answered += 1;
        self.used = Instant::now();
        // An answer may come before the request has left, with a body most of all where it refuses
        // it: hyper's rest of it is lost below.
        let sent = self.line.has_sent_all() && (body == 0 || answer.status().is_success());
        let keeps = keeps_alive(&answer) && sent;
        let (head, body) = answer.into_parts();
        self.state = match body.size_hint().exact() {
            Some(len) => straight(speech, body, len, keeps)?,
            None => State::Framed(Box::new(Framed { speech, body, piece: Bytes::new(), keeps })),
        };
        self.settle();
        Ok(Response::from_parts(head, ()))
    }

    /// Whether the body that is there to be read has a length of its own.
    pub(super) fn has_length(&self) -> bool {
        !matches!(self.state, State::Framed(_))
    }

    /// Receives the next bytes of the body into these places (none of them empty), filled in turn:
    /// how many. 0 at its end.
    ///
    /// # Errors
    /// As for `ask`; also that the body ended too early, or that it is not needed any more.
    pub(super) fn fill(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize> {
        self.fill_within(into, self.patience)
    }

    fn fill_within(&mut self, into: &mut [IoSliceMut<'_>], patience: Duration) -> Result<usize> {
        let mut state = std::mem::replace(&mut self.state, State::Over);
        self.pace.begin(Instant::now());
        let filled = match &mut state {
            State::Straight(body) => self.fill_straight(body, into, patience),
            State::Framed(body) => self.fill_framed(body, into, patience),
            State::Quiet(_) | State::Over => Ok(0),
        };
        let now = Instant::now();
        self.pace.end(now);
        self.used = now;
        // One that failed is over.
        let n = filled?;
        self.state = match state {
            State::Framed(body) if n == 0 => body.end(),
            state => state,
        };
        self.settle();
        Ok(n)
    }

    /// A body that was read to its end leaves nothing.
    fn settle(&mut self) {
        if matches!(&self.state, State::Straight(body) if body.left == 0)
            && let State::Straight(body) = std::mem::replace(&mut self.state, State::Over)
            && body.keeps
        {
            self.state = State::Quiet(body.transport);
        }
    }

    fn fill_straight(
        &mut self,
        body: &mut Straight,
        into: &mut [IoSliceMut<'_>],
        patience: Duration,
    ) -> Result<usize> {
        let doing = "receive the body";
        let n = if body.begun.is_empty() {
            loop {
                self.line.wait_for_nothing();
                match body.transport.receive_at_most(into, body.left) {
                    Poll::Ready(Ok(n)) => break n,
                    Poll::Ready(Err(e)) => {
                        return Err(disconnected(format!("{doing}: {e}")));
                    }
                    Poll::Pending => self.wait_on(doing, patience)?,
                }
            }
        } else {
            let (now, later) = cut(&body.begun, into);
            body.begun = later;
            now
        };
        if n == 0 {
            return Err(disconnected(format!("{doing}: it ended {} bytes early", body.left)));
        }
        body.left = body.left.saturating_sub(n as u64);
        Ok(n)
    }

    fn fill_framed(
        &mut self,
        framed: &mut Framed,
        into: &mut [IoSliceMut<'_>],
        patience: Duration,
    ) -> Result<usize> {
        let doing = "receive the body";
        while framed.piece.is_empty() {
            let body = &mut framed.body;
            let poll = |_: &mut http1::SendRequest<Payload>, cx: &mut Context<'_>| {
                Pin::new(&mut *body).poll_frame(cx)
            };
            match self.drive_within(&mut framed.speech, doing, patience, poll)? {
                None => return Ok(0),
                Some(Err(e)) => return Err(broken(doing, &e)),
                // Trailers are ignored.
                Some(Ok(frame)) => framed.piece = frame.into_data().unwrap_or_default(),
            }
        }
        let (n, later) = cut(&framed.piece, into);
        framed.piece = later;
        Ok(n)
    }

    /// Reads an unwanted body to its end, if that is near. Returns whether the connection can be
    /// used again.
    pub(super) fn drain(&mut self) -> bool {
        if matches!(&self.state, State::Straight(body) if body.left > DRAINED) {
            return false;
        }
        let (mut left, begun) = (DRAINED, Instant::now());
        let mut unwanted = vec![0; 16 << 10];
        loop {
            let into = &mut [IoSliceMut::new(&mut unwanted)];
            let patience = self.patience.min(DRAIN.saturating_sub(begun.elapsed()));
            match self.fill_within(into, patience) {
                Ok(0) => return matches!(self.state, State::Quiet(_)),
                Ok(n) => match left.checked_sub(n as u64) {
                    Some(less) => left = less,
                    None => return false,
                },
                Err(_) => return false,
            }
        }
    }

    /// Drives hyper until `poll` is ready.
    fn drive<T>(
        &mut self,
        speech: &mut Speech,
        doing: &str,
        poll: impl FnMut(&mut http1::SendRequest<Payload>, &mut Context<'_>) -> Poll<T>,
    ) -> Result<T> {
        self.pace.begin(Instant::now());
        let done = self.drive_within(speech, doing, self.patience, poll);
        self.pace.end(Instant::now());
        done
    }

    fn drive_within<T>(
        &mut self,
        speech: &mut Speech,
        doing: &str,
        patience: Duration,
        mut poll: impl FnMut(&mut http1::SendRequest<Payload>, &mut Context<'_>) -> Poll<T>,
    ) -> Result<T> {
        let flag = Arc::new(Flag(AtomicBool::new(false)));
        let waker = Waker::from(flag.clone());
        let mut context = Context::from_waker(&waker);
        loop {
            flag.0.store(false, Ordering::Release);
            if let Poll::Ready(done) = poll(&mut speech.sender, &mut context) {
                return Ok(done);
            }
            self.line.wait_for_nothing();
            speech.carry_on(&mut context);
            if let Poll::Ready(done) = poll(&mut speech.sender, &mut context) {
                return Ok(done);
            }
            if self.line.received() > self.head_ends {
                return Err(protocol(format!("{doing}: the server sends data, but no reply")));
            }
            if flag.0.load(Ordering::Acquire) {
                continue;
            }
            if speech.over {
                return Err(disconnected(format!("{doing}: the connection ended")));
            }
            self.wait_on(doing, patience)?;
        }
    }

    /// Bytes that show that something moves.
    fn moved(&self) -> u64 {
        self.line.received() + if self.sends { self.line.sent() } else { 0 }
    }

    /// Waits for more, for no longer than the server may be silent.
    fn wait_on(&mut self, doing: &str, patience: Duration) -> Result<()> {
        let left = self.pace.left(Instant::now(), self.moved(), patience);
        let left = left.map_err(|why| {
            Error::new(ErrorKind::TimedOut, Fault::Peer, format!("{doing}: {why}"))
        })?;
        self.wait(left)
    }

    /// Waits until something can be done, at most this long.
    fn wait(&self, left: Duration) -> Result<()> {
        let left = if self.needed.is_some() { left.min(LOOK) } else { left };
        let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let line = PollFd::from_borrowed_fd(self.line.as_fd(), self.line.waits_for());
        let mut both = [line, PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)];
        // An interrupted wait is one that ended early.
        let nothing = matches!(poll(&mut both, Some(&left)), Ok(0));
        if both.last().is_some_and(|bell| bell.revents().contains(PollFlags::IN)) {
            return Err(Error::new(ErrorKind::Cancelled, Fault::User, "the disk was closed"));
        }
        if nothing && self.needed.as_ref().is_some_and(|needed| !needed()) {
            return Err(unneeded());
        }
        Ok(())
    }
}

/// The server has gone, or its answer broke off.
pub(super) fn disconnected(action: impl Into<String>) -> Error {
    Error::new(ErrorKind::Disconnected, Fault::Peer, action)
}

/// The result is not needed any more.
pub(super) fn unneeded() -> Error {
    Error::new(ErrorKind::Cancelled, Fault::User, "GET: all clients that wanted it have gone")
}

impl Speech {
    fn begin(transport: HttpTransport) -> Result<Self> {
        let mut builder = http1::Builder::new();
        builder.max_headers(HEADERS).max_header_size(HEAD).max_buf_size(PIECE);
        let mut handshake = pin!(builder.handshake(transport));
        // It has nothing to wait for.
        let ready = handshake.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok((sender, driver))) = ready else {
            return Err(Error::new(ErrorKind::Io, Fault::Us, "connect: cannot begin HTTP"));
        };
        Ok(Self { sender, driver, over: false })
    }

    fn carry_on(&mut self, context: &mut Context<'_>) {
        if !self.over {
            // The thread that waits for an answer reports the failure.
            self.over = Pin::new(&mut self.driver).poll(context).is_ready();
        }
    }
}

impl Framed {
    /// After the end of the body.
    fn end(self) -> State {
        let parts = self.speech.driver.into_parts();
        let clean = self.keeps && !self.speech.over && parts.read_buf.is_empty();
        if clean { State::Quiet(parts.io) } else { State::Over }
    }
}

/// Takes the connection apart after the head of an answer whose body is `len` bytes long: returns
/// the bytes that have come already, and the stream for the rest.
fn straight(speech: Speech, mut body: Incoming, len: u64, keeps: bool) -> Result<State> {
    let mut begun = Vec::new();
    let mut context = Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(frame)) = Pin::new(&mut body).poll_frame(&mut context) {
        let frame = frame.map_err(|e| broken("receive the body", &e))?;
        if let Ok(bytes) = frame.into_data() {
            begun.push(bytes);
        }
    }
    let parts = speech.driver.into_parts();
    begun.push(parts.read_buf);
    let mut begun = Bytes::from(begun.concat());
    let most = to_usize(len);
    // Unrequested bytes after an answer are not an answer.
    let keeps = keeps && begun.len() <= most;
    begun.truncate(most);
    Ok(State::Straight(Straight { transport: parts.io, begun, left: len, keeps }))
}

/// Copies as much of `bytes` as fits. Returns how many, and the rest.
fn cut(bytes: &Bytes, into: &mut [IoSliceMut<'_>]) -> (usize, Bytes) {
    let mut rest = &**bytes;
    for place in into {
        let n = place.len().min(rest.len());
        let (now, later) = rest.split_at(n);
        if let Some(place) = place.get_mut(..n) {
            place.copy_from_slice(now);
        }
        rest = later;
    }
    let n = bytes.len() - rest.len();
    (n, bytes.slice(n..))
}

/// hyper's error, as ours.
fn broken(doing: &str, e: &hyper::Error) -> Error {
    if e.is_parse() {
        return protocol(format!("{doing}: the server violates HTTP/1.1: {e}"));
    }
    let cause = std::error::Error::source(e).map_or(String::new(), |source| format!(": {source}"));
    disconnected(format!("{doing}: {e}{cause}"))
}
