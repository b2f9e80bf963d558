//! The sending half of a connection: replies queued, gathered and sent without waiting.
//!
//! Any thread may send: a reactor after a batch, a worker or a device when an operation ends. A
//! reply is put in the queue as a whole, so replies never interleave; what the socket does not
//! take at once is sent by the reactor when the socket has room. Large reads are queued as a
//! place and leave by sendfile.
//!
//! sendfile passes pages, not copies: bytes still in the socket show a later overlapping write.
//! NBD gives overlapping requests in flight together no order, so this is allowed.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::{Buffer, Place};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};

use crate::budget::Share;

/// How many pieces one sendmsg gathers.
const PIECES: usize = 64;
/// Bytes queued beyond which no further requests are read.
pub(crate) const QUEUE_LIMIT: u64 = 4 << 20;

/// Something to be sent.
#[derive(Debug)]
pub(crate) enum Out {
    Bytes(Vec<u8>),
    /// With its share of the server's memory, held until it is sent.
    Data(Buffer, Share),
    Place(Place, u64),
}

impl Out {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(b) => b.len() as u64,
            Self::Data(b, _) => b.len() as u64,
            Self::Place(_, len) => *len,
        }
    }

    /// Bytes of memory it holds.
    fn weight(&self) -> u64 {
        if let Self::Place(..) = self { 64 } else { self.len() }
    }

    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(b) => Some(b),
            Self::Data(b, _) => Some(b),
            Self::Place(..) => None,
        }
    }
}

/// The shared half of a connection.
pub(crate) struct Link {
    socket: OwnedFd,
    epoll: Arc<OwnedFd>,
    token: u64,
    queue: Mutex<Queue>,
    /// Bytes of memory in the queue, readable without the lock.
    queued: AtomicU64,
    /// Bytes of requests that are being worked on elsewhere, and their number.
    busy_bytes: AtomicU64,
    busy: AtomicU64,
    /// The reactor stopped reading and wants to be told when there is room again.
    paused: AtomicBool,
    /// While it does not read, it wants to be told when the peer sends no more.
    hears_end: AtomicBool,
}

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Out>,
    /// Bytes of the first piece that are sent.
    sent: u64,
    /// epoll is asked to tell when the socket has room.
    armed: bool,
    broken: bool,
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.pieces.is_empty() && !self.broken
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({:?})", self.socket)
    }
}

impl Link {
    /// Takes a non-blocking socket; `epoll` is its reactor's, where it is known as `token`.
    pub(crate) fn new(socket: OwnedFd, epoll: Arc<OwnedFd>, token: u64) -> Self {
        Self {
            socket,
            epoll,
            token,
            queue: Mutex::default(),
            queued: AtomicU64::new(0),
            busy_bytes: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            hears_end: AtomicBool::new(false),
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of memory held for this connection: replies queued and requests under way.
    pub(crate) fn held(&self) -> u64 {
        self.queued.load(Ordering::Relaxed) + self.busy_bytes.load(Ordering::Relaxed)
    }

    /// Whether too much is queued for more requests to be read.
    pub(crate) fn is_full(&self, limit: u64) -> bool {
        self.queued.load(Ordering::Relaxed) >= QUEUE_LIMIT || self.held() >= limit
    }

    /// Whether nothing is queued and nothing is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.busy.load(Ordering::Acquire) == 0 && self.lock().pieces.is_empty()
    }

    /// Whether a request is being worked on elsewhere.
    pub(crate) fn has_work(&self) -> bool {
        self.busy.load(Ordering::Acquire) > 0
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.lock().broken
    }

    /// Counts a request that is worked on elsewhere.
    pub(crate) fn begin(&self, bytes: u64) {
        self.busy.fetch_add(1, Ordering::AcqRel);
        self.busy_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Ends a request that was worked on elsewhere, with its reply.
    pub(crate) fn end(&self, bytes: u64, reply: impl IntoIterator<Item = Out>) {
        self.send(reply);
        self.busy_bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.busy.fetch_sub(1, Ordering::AcqRel);
        self.wake_if_paused();
    }

    /// Reads no more, and asks to be woken (by a readiness event) when something has ended.
    pub(crate) fn pause(&self) {
        self.paused.store(true, Ordering::SeqCst);
        self.ask(&self.lock());
    }

    /// While paused: whether to be told when the peer sends no more.
    pub(crate) fn hear_end(&self, wanted: bool) {
        if self.hears_end.swap(wanted, Ordering::SeqCst) != wanted {
            self.ask(&self.lock());
        }
    }

    /// Reads again.
    pub(crate) fn resume(&self) {
        if self.paused.swap(false, Ordering::SeqCst) {
            self.hears_end.store(false, Ordering::SeqCst);
            self.ask(&self.lock());
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    /// A writable event wakes the reactor even when all there is to read is in its memory.
    pub(crate) fn wake_if_paused(&self) {
        if self.is_paused() {
            let mut queue = self.lock();
            queue.armed = true;
            self.ask(&queue);
        }
    }

    /// Tells epoll what to wait for. Under the lock, so that the last word is the right one.
    fn ask(&self, queue: &Queue) {
        let mut flags = epoll::EventFlags::empty();
        if !self.is_paused() {
            flags |= epoll::EventFlags::IN;
        } else if self.hears_end.load(Ordering::SeqCst) {
            flags |= epoll::EventFlags::RDHUP;
        }
        if queue.armed {
            flags |= epoll::EventFlags::OUT;
        }
        let data = epoll::EventData::new_u64(self.token);
        // It fails only when the reactor has already closed the connection.
        let _ = epoll::modify(&*self.epoll, &self.socket, data, flags);
    }

    /// Sends bytes that lie in the caller's memory, copying only what the socket does not take.
    pub(crate) fn send_slice(&self, bytes: &[u8], more: bool) {
        self.slice(&mut self.lock(), bytes, more);
    }

    /// Queues a reply and sends what the socket takes.
    pub(crate) fn send(&self, reply: impl IntoIterator<Item = Out>) {
        self.pieces(&mut self.lock(), reply);
    }

    /// Sends `head`, which lies in the caller's memory, and then `pieces`. All under one lock: a
    /// header and its data are never parted by somebody else's reply.
    pub(crate) fn send_with(&self, head: &[u8], pieces: impl IntoIterator<Item = Out>) {
        let mut queue = self.lock();
        let mut pieces = pieces.into_iter();
        match pieces.next() {
            Some(Out::Data(data, share)) if !head.is_empty() && queue.is_idle() => {
                self.head_and_data(&mut queue, head, data, share);
            }
            first => {
                self.slice(&mut queue, head, first.is_some());
                self.pieces(&mut queue, first);
            }
        }
        self.pieces(&mut queue, pieces);
    }

    fn slice(&self, queue: &mut Queue, bytes: &[u8], more: bool) {
        if queue.broken || bytes.is_empty() {
            return;
        }
        let mut rest = bytes;
        if queue.pieces.is_empty() {
            let flags = if more { SendFlags::MORE } else { SendFlags::empty() };
            loop {
                match send(&self.socket, rest, flags | SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                    Ok(n) => rest = &rest[n.min(rest.len())..],
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(_) => return self.fail(queue),
                }
                if rest.is_empty() {
                    return;
                }
            }
        }
        self.push(queue, Out::Bytes(rest.to_vec()));
        self.arm(queue);
    }

    fn pieces(&self, queue: &mut Queue, pieces: impl IntoIterator<Item = Out>) {
        if queue.broken {
            return;
        }
        let was_empty = queue.pieces.is_empty();
        for piece in pieces {
            if piece.len() > 0 {
                self.push(queue, piece);
            }
        }
        if was_empty {
            self.flush(queue);
        }
    }

    /// A head and the data behind it in one call, to a socket that owes nothing.
    fn head_and_data(&self, queue: &mut Queue, head: &[u8], data: Buffer, share: Share) {
        let both = [IoSlice::new(head), IoSlice::new(&data)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = match sendmsg(&self.socket, &both, &mut SendAncillaryBuffer::default(), flags) {
            Ok(n) => n,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(_) => return self.fail(queue),
        };
        if let Some(rest) = head.get(sent..).filter(|r| !r.is_empty()) {
            self.push(queue, Out::Bytes(rest.to_vec()));
            self.push(queue, Out::Data(data, share));
        } else if sent < head.len() + data.len() {
            self.push(queue, Out::Data(data, share));
            queue.sent = (sent - head.len()) as u64;
        }
        self.arm(queue);
    }

    /// The socket has room.
    pub(crate) fn writable(&self) {
        let mut queue = self.lock();
        self.flush(&mut queue);
        if queue.armed && queue.pieces.is_empty() {
            queue.armed = false;
            self.ask(&queue);
        }
    }

    /// Nothing more is sent; what is queued is forgotten.
    pub(crate) fn abandon(&self) {
        self.fail(&mut self.lock());
    }

    fn push(&self, queue: &mut Queue, piece: Out) {
        self.queued.fetch_add(piece.weight(), Ordering::Relaxed);
        queue.pieces.push_back(piece);
    }

    fn fail(&self, queue: &mut Queue) {
        queue.broken = true;
        queue.pieces.clear();
        queue.sent = 0;
        self.queued.store(0, Ordering::Relaxed);
        // The reactor sees the end of the stream and closes.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    fn arm(&self, queue: &mut Queue) {
        if !queue.armed && !queue.pieces.is_empty() {
            queue.armed = true;
            self.ask(queue);
        }
    }

    fn flush(&self, queue: &mut Queue) {
        while let Some(first) = queue.pieces.front() {
            let sent = match first {
                Out::Place(place, len) => self.send_place(place, *len, queue.sent),
                _ => self.send_pieces(queue),
            };
            match sent {
                Ok(n) => self.consume(queue, n),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return self.fail(queue),
            }
        }
        self.arm(queue);
    }

    fn send_place(&self, place: &Place, len: u64, sent: u64) -> rustix::io::Result<u64> {
        let mut offset = place.offset() + sent;
        let want = usize::try_from(len - sent).unwrap_or(usize::MAX).min(1 << 30);
        match rustix::fs::sendfile(&self.socket, place.fd(), Some(&mut offset), want)? {
            // The file became shorter: the reply that was promised cannot be completed.
            0 => Err(Errno::IO),
            n => Ok(n as u64),
        }
    }

    fn send_pieces(&self, queue: &Queue) -> rustix::io::Result<u64> {
        let mut slices = [IoSlice::new(&[]); PIECES];
        let mut count = 0;
        let mut skip = usize::try_from(queue.sent).unwrap_or(usize::MAX);
        for (slot, piece) in slices.iter_mut().zip(&queue.pieces) {
            let Some(bytes) = piece.bytes() else { break };
            *slot = IoSlice::new(bytes.get(skip..).unwrap_or(&[]));
            skip = 0;
            count += 1;
        }
        let mut flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if queue.pieces.len() > count {
            flags |= SendFlags::MORE;
        }
        let n = match slices.get(..count) {
            Some([one]) => send(&self.socket, one, flags)?,
            Some(many) => sendmsg(&self.socket, many, &mut SendAncillaryBuffer::default(), flags)?,
            None => 0,
        };
        Ok(n as u64)
    }

    fn consume(&self, queue: &mut Queue, sent: u64) {
        queue.sent += sent;
        while let Some(first) = queue.pieces.front() {
            if queue.sent < first.len() {
                break;
            }
            queue.sent -= first.len();
            self.queued.fetch_sub(first.weight(), Ordering::Relaxed);
            queue.pieces.pop_front();
        }
    }
}
