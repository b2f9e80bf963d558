//! One HTTP/1.1 connection: a request at a time, and the body of its answer piece by piece.
//!
//! hyper speaks; this thread carries it on and waits with poll(2), for the socket, for the end of the
//! device, or for a limit: a server that owes something may be silent for so long, and a body must
//! not only drip. A connection that failed in any way is not used again.

use std::future::Future;
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

use super::bell::Bell;
use super::transport::{Line, Transport};

/// Bytes of the head of an answer, at most.
const HEAD: usize = 64 << 10;
/// Headers of an answer, at most.
const HEADERS: usize = 100;
/// What hyper reads at once, in bytes, at most.
const PIECE: usize = 256 << 10;
/// A body that is not wanted is read to its end, so that the connection can be used again, if it is no
/// longer than this.
const DRAINED: u64 = 256 << 10;
/// How long that may take without a byte.
const DRAIN: Duration = Duration::from_secs(2);
/// How long a connection that nobody uses is kept: servers close theirs sooner or later.
pub(super) const IDLE: Duration = Duration::from_secs(15);
/// A server that sends less than this many bytes in [`DRIP`] sends too little.
const LEAST: u64 = 30 << 10;
const DRIP: Duration = Duration::from_secs(30);

/// See the module.
pub(super) struct Connection {
    /// To whom it leads.
    to: String,
    sender: http1::SendRequest<String>,
    driver: http1::Connection<Transport, String>,
    /// The driver has ended.
    over: bool,
    line: Arc<Line>,
    body: Option<Incoming>,
    bell: Arc<Bell>,
    /// How long the server may be silent.
    patience: Duration,
    /// Requests that were answered.
    answered: u32,
    used: Instant,
    pace: Pace,
}

/// A flag that hyper raises when something is to be done.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl Connection {
    /// Speaks over a stream that is ready for it.
    pub(super) fn new(
        to: String,
        (transport, line): (Transport, Arc<Line>),
        bell: &Arc<Bell>,
        patience: Duration,
    ) -> Result<Self> {
        let mut builder = http1::Builder::new();
        builder.max_headers(HEADERS).max_header_size(HEAD).max_buf_size(PIECE);
        let mut handshake = pin!(builder.handshake(transport));
        // It has nothing to wait for.
        let ready = handshake.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok((sender, driver))) = ready else {
            return Err(Error::new(ErrorKind::Io, Fault::Us, "connect: HTTP cannot be spoken"));
        };
        let bell = bell.clone();
        let used = Instant::now();
        let pace = Pace::new(used, 0);
        Ok(Self {
            to,
            sender,
            driver,
            over: false,
            line,
            body: None,
            bell,
            patience,
            answered: 0,
            used,
            pace,
        })
    }

    /// Whether another request can go over it to `to`: nobody has closed it, and nothing is left of
    /// the answer before.
    pub(super) fn is_ready_for(&mut self, to: &str) -> bool {
        if self.to != to || self.body.is_some() || self.used.elapsed() > IDLE {
            return false;
        }
        let flag = Arc::new(Flag(AtomicBool::new(false)));
        let waker = Waker::from(flag);
        self.carry_on(&mut Context::from_waker(&waker));
        !self.over && !self.sender.is_closed()
    }

    /// Whether it has answered before: its end may have been on its way when the next request was.
    pub(super) fn is_used(&self) -> bool {
        self.answered > 0
    }

    /// Sends a request and waits for the head of its answer, whose body is then there to be read.
    ///
    /// # Errors
    /// The connection ended, the answer is not HTTP, or it took too long.
    pub(super) fn ask(&mut self, request: Request<String>) -> Result<Response<()>> {
        let waiting = "wait for the answer";
        self.pace = Pace::new(Instant::now(), self.line.received());
        self.drive(waiting, self.patience, |sender, cx| sender.poll_ready(cx))?
            .map_err(|e| broken("send the request", &e))?;
        let mut sending = Box::pin(self.sender.send_request(request));
        let answer = self.drive(waiting, self.patience, |_, cx| sending.as_mut().poll(cx))?;
        let answer = answer.map_err(|e| broken(waiting, &e))?;
        self.answered += 1;
        self.used = Instant::now();
        let (head, body) = answer.into_parts();
        self.body = Some(body);
        Ok(Response::from_parts(head, ()))
    }

    /// The next bytes of the body; `None` at its end.
    ///
    /// # Errors
    /// As for `ask`; also that the body ended too early.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>> {
        self.next_within(self.patience)
    }

    fn next_within(&mut self, patience: Duration) -> Result<Option<Bytes>> {
        loop {
            let Some(mut body) = self.body.take() else { return Ok(None) };
            let receiving = "receive the body";
            let frame =
                self.drive(receiving, patience, |_, cx| Pin::new(&mut body).poll_frame(cx))?;
            self.used = Instant::now();
            match frame {
                None => return Ok(None),
                Some(Err(e)) => return Err(broken(receiving, &e)),
                Some(Ok(frame)) => {
                    self.body = Some(body);
                    // Trailers say nothing that is wanted.
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    /// Reads a body that is not wanted to its end, if that is near; whether the connection can be
    /// used again.
    pub(super) fn drain(&mut self) -> bool {
        let mut left = DRAINED;
        loop {
            match self.next_within(self.patience.min(DRAIN)) {
                Ok(None) => return true,
                Ok(Some(bytes)) => match left.checked_sub(bytes.len() as u64) {
                    Some(less) => left = less,
                    None => return false,
                },
                Err(_) => return false,
            }
        }
    }

    /// Carries hyper on until `poll` is ready.
    fn drive<T>(
        &mut self,
        doing: &str,
        patience: Duration,
        poll: impl FnMut(&mut http1::SendRequest<String>, &mut Context<'_>) -> Poll<T>,
    ) -> Result<T> {
        self.pace.begin(Instant::now());
        let done = self.drive_on(doing, patience, poll);
        self.pace.end(Instant::now());
        done
    }

    fn drive_on<T>(
        &mut self,
        doing: &str,
        patience: Duration,
        mut poll: impl FnMut(&mut http1::SendRequest<String>, &mut Context<'_>) -> Poll<T>,
    ) -> Result<T> {
        let flag = Arc::new(Flag(AtomicBool::new(false)));
        let waker = Waker::from(flag.clone());
        let mut context = Context::from_waker(&waker);
        loop {
            flag.0.store(false, Ordering::Release);
            if let Poll::Ready(done) = poll(&mut self.sender, &mut context) {
                return Ok(done);
            }
            self.carry_on(&mut context);
            if let Poll::Ready(done) = poll(&mut self.sender, &mut context) {
                return Ok(done);
            }
            if flag.0.load(Ordering::Acquire) {
                continue;
            }
            if self.over {
                let action = format!("{doing}: the connection ended");
                return Err(Error::new(ErrorKind::Disconnected, Fault::Peer, action));
            }
            let left = self.pace.left(Instant::now(), self.line.received(), patience);
            let left = left.map_err(|why| {
                Error::new(ErrorKind::TimedOut, Fault::Peer, format!("{doing}: {why}"))
            })?;
            self.wait(left)?;
        }
    }

    fn carry_on(&mut self, context: &mut Context<'_>) {
        if !self.over {
            self.line.wait_for_nothing();
            // What it failed with is told by whoever waits for an answer.
            self.over = Pin::new(&mut self.driver).poll(context).is_ready();
        }
    }

    /// Waits until something can be done, at most so long.
    fn wait(&self, left: Duration) -> Result<()> {
        let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let line = PollFd::from_borrowed_fd(self.line.as_fd(), self.line.waits_for());
        let mut both = [line, PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)];
        // An interrupted wait is one that ended early.
        let _ = poll(&mut both, Some(&left));
        if both.last().is_some_and(|bell| bell.revents().contains(PollFlags::IN)) {
            return Err(Error::new(ErrorKind::Cancelled, Fault::User, "the disk was closed"));
        }
        Ok(())
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection(to {}, {} answers)", self.to, self.answered)
    }
}

/// Whether bytes come often enough, and enough of them, while they are waited for.
#[derive(Debug)]
struct Pace {
    received: u64,
    /// When the last byte came, or when waiting for it began.
    last: Instant,
    /// A while of [`DRIP`] that began with the first byte: since when, and what had come then.
    since: Option<(Instant, u64)>,
    /// When waiting ended: what passes until it begins again does not count.
    ended: Instant,
}

impl Pace {
    /// For a new answer.
    fn new(now: Instant, received: u64) -> Self {
        Self { received, last: now, since: None, ended: now }
    }

    fn begin(&mut self, now: Instant) {
        self.last = now;
        if let Some((since, _)) = &mut self.since {
            *since += now.duration_since(self.ended);
        }
    }

    fn end(&mut self, now: Instant) {
        self.ended = now;
    }

    /// How long to wait for more, at most.
    fn left(
        &mut self,
        now: Instant,
        received: u64,
        patience: Duration,
    ) -> std::result::Result<Duration, String> {
        if received != self.received {
            self.received = received;
            self.last = now;
            let (since, before) = *self.since.get_or_insert((now, received));
            if now.duration_since(since) >= DRIP {
                if received - before < LEAST {
                    let (bytes, seconds) = (received - before, DRIP.as_secs());
                    return Err(format!("only {bytes} bytes in {seconds} seconds"));
                }
                self.since = Some((now, received));
            }
        }
        let silent = now.duration_since(self.last);
        match patience.checked_sub(silent).filter(|left| !left.is_zero()) {
            Some(left) => Ok(left),
            None => Err(format!("nothing came for {} seconds", patience.as_secs_f64())),
        }
    }
}

/// What hyper failed with.
fn broken(doing: &str, e: &hyper::Error) -> Error {
    if e.is_parse() {
        let action = format!("{doing}: the server does not speak proper HTTP/1.1: {e}");
        return Error::new(ErrorKind::Protocol, Fault::Peer, action);
    }
    let cause = std::error::Error::source(e).map_or(String::new(), |source| format!(": {source}"));
    let action = format!("{doing}: {e}{cause}");
    Error::new(ErrorKind::Disconnected, Fault::Peer, action)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether bytes that come like this, in `(milliseconds, bytes)` steps, are waited for.
    fn is_fast_enough(steps: impl IntoIterator<Item = (u64, u64)>) -> bool {
        let (mut now, mut received) = (Instant::now(), 0);
        let mut pace = Pace::new(now, 0);
        steps.into_iter().all(|(millis, bytes)| {
            now += Duration::from_millis(millis);
            received += bytes;
            pace.left(now, received, Duration::from_secs(30)).is_ok()
        })
    }

    #[test]
    fn silence_and_drips_are_not_waited_for_without_end_and_slow_lines_are() {
        assert!(is_fast_enough([(29_999, 0)]));
        assert!(!is_fast_enough([(30_000, 0)]));
        assert!(!is_fast_enough((0..200).map(|_| (300, 1))));
        assert!(is_fast_enough((0..2000).map(|_| (1000, 2048))));
        // A long wait before the first byte is no drip.
        assert!(is_fast_enough([(29_000, 100), (2000, 100)]));
    }

    #[test]
    fn time_in_which_nobody_waited_does_not_count() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now, 0);
        for i in 1..100 {
            pace.begin(now);
            now += Duration::from_millis(100);
            assert!(pace.left(now, i * 1000, Duration::from_secs(1)).is_ok(), "{i}");
            pace.end(now);
            now += Duration::from_secs(60);
        }
    }
}
