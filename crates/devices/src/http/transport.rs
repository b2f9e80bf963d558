//! The bytes below HTTP: a stream, in clear text or under TLS, as hyper reads and writes it.
//!
//! Nothing here waits: an operation that cannot be done now is pending, and [`Line`] remembers what
//! has to be waited for.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use net::{Received, Stream};
use runtime::to_usize;
use rustix::event::PollFlags;
use rustix::io::Errno;

/// Bytes that are received at once for hyper.
const PIECE: usize = 64 << 10;

/// The stream, and what is known of it on both sides of hyper.
#[derive(Debug)]
pub(super) struct Line {
    stream: Stream,
    wants_read: AtomicBool,
    wants_write: AtomicBool,
    /// The socket has taken all that hyper has sent so far.
    all_sent: AtomicBool,
    received: AtomicU64,
    sent: AtomicU64,
}

impl Line {
    /// Bytes that have been received so far; under TLS those of ciphertext that went either way: a
    /// record may come in many parts.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed) + self.stream.carried()
    }

    /// Bytes that the socket has taken in clear text; those under TLS are in [`Line::received`].
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Nothing is waited for, until a poll says otherwise.
    pub(super) fn wait_for_nothing(&self) {
        self.wants_read.store(false, Ordering::Relaxed);
        self.wants_write.store(false, Ordering::Relaxed);
    }

    /// What has to be waited for.
    pub(super) fn waits_for(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.wants_read.load(Ordering::Relaxed));
        flags.set(PollFlags::OUT, self.wants_write.load(Ordering::Relaxed));
        flags
    }

    fn receive(&self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.received_or_not(self.stream.receive(into))
    }

    fn receive_scattered(&self, into: &mut [IoSliceMut<'_>]) -> Poll<io::Result<usize>> {
        self.received_or_not(self.stream.receive_scattered(into))
    }

    fn received_or_not(&self, received: rustix::io::Result<Received>) -> Poll<io::Result<usize>> {
        match received {
            Ok(Received::Bytes(n)) => {
                if !self.stream.is_secure() {
                    self.received.fetch_add(n as u64, Ordering::Relaxed);
                }
                Poll::Ready(Ok(n))
            }
            Ok(Received::End) => Poll::Ready(Ok(0)),
            Ok(Received::Nothing) => {
                self.wants_read.store(true, Ordering::Relaxed);
                Poll::Pending
            }
            Err(e) => Poll::Ready(Err(self.failure(e))),
        }
    }

    fn failure(&self, e: Errno) -> io::Error {
        let e = io::Error::from(e);
        match self.stream.why() {
            Some(why) => io::Error::new(e.kind(), why),
            None => e,
        }
    }

    /// Whether the last bytes that hyper had to send have left whole. Where they have not, nothing
    /// else can be sent: the peer waits for the rest, part of which may be encrypted already.
    pub(super) fn has_sent_all(&self) -> bool {
        self.all_sent.load(Ordering::Relaxed)
    }

    fn send(&self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let sent = self.stream.send(bytes);
        self.all_sent.store(sent == Ok(bytes.len()), Ordering::Relaxed);
        match sent {
            Ok(0) if !bytes.is_empty() => {
                self.wants_write.store(true, Ordering::Relaxed);
                Poll::Pending
            }
            Ok(n) => {
                if !self.stream.is_secure() {
                    self.sent.fetch_add(n as u64, Ordering::Relaxed);
                }
                Poll::Ready(Ok(n))
            }
            Err(e) => Poll::Ready(Err(self.failure(e))),
        }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// See the module.
pub(super) struct HttpTransport {
    line: Arc<Line>,
    /// Bytes received for hyper, which needs few except for bodies without a length.
    piece: Vec<u8>,
}

impl HttpTransport {
    pub(super) fn new(stream: Stream) -> (Self, Arc<Line>) {
        let line = Arc::new(Line {
            stream,
            wants_read: AtomicBool::new(false),
            wants_write: AtomicBool::new(false),
            all_sent: AtomicBool::new(true),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        });
        (Self { line: line.clone(), piece: Vec::new() }, line)
    }

    /// Receives what is there into `into` (not empty); 0 at the end.
    pub(super) fn receive(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.line.receive(into)
    }

    /// The same into several places in turn, no more than `most` (> 0) bytes.
    pub(super) fn receive_at_most(
        &mut self,
        into: &mut [IoSliceMut<'_>],
        most: u64,
    ) -> Poll<io::Result<usize>> {
        let mut left = to_usize(most);
        let fit = into.iter().take_while(|place| {
            let fits = place.len() <= left;
            left = left.saturating_sub(place.len());
            fits
        });
        let fit = fit.count();
        if let Some(into) = into.get_mut(..fit).filter(|into| !into.is_empty()) {
            return self.line.receive_scattered(into);
        }
        let Some(place) = into.first_mut() else { return Poll::Ready(Ok(0)) };
        let len = place.len().min(to_usize(most));
        self.receive(place.get_mut(..len).unwrap_or_default())
    }
}

impl Read for HttpTransport {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let most = buffer.remaining().min(PIECE);
        let mut piece = std::mem::take(&mut this.piece);
        if piece.len() < most {
            piece.resize(most, 0);
        }
        let read = this.receive(piece.get_mut(..most).unwrap_or_default());
        let read = read.map_ok(|n| buffer.put_slice(piece.get(..n).unwrap_or_default()));
        this.piece = piece;
        read
    }
}

impl Write for HttpTransport {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.line.send(bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.line.stream.end();
        Poll::Ready(Ok(()))
    }
}
