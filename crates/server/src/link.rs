//! The sending half of a connection: replies queued, gathered and sent without waiting.
//!
//! Any thread may send: a reactor after a batch, a worker or a device when an operation ends. A
//! reply is put in the queue as a whole, so replies never interleave; what the socket does not
//! take at once is sent by the reactor when the socket has room. Large reads are queued as a
//! place and leave by sendfile. What has waited for the socket may have left the page cache
//! meanwhile: it is looked for again before each sendfile, and what is not there (or cannot be
//! sent so) is read by a thread of the pool, a piece at a time.
//!
//! sendfile passes pages, not copies: bytes still in the socket show a later overlapping write.
//! NBD gives overlapping requests in flight together no order, so this is allowed.

use runtime::contained;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device::{Buffer, Place, Result, Wait};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};

use crate::budget::{Account, Share};
use crate::execute::Served;

/// How many pieces one sendmsg gathers.
const PIECES: usize = 64;
/// Bytes queued beyond which no further requests are read.
pub(crate) const QUEUE_LIMIT: u64 = 4 << 20;

/// How much is read at a time of what cannot be sent from its place, and how much where there is no
/// room for that.
const FETCH: u64 = 1 << 20;
const SMALL_FETCH: u64 = 64 << 10;
/// How much of a place is looked for in the page cache, and sent, at a time.
const STRETCH: u64 = 4 << 20;

/// Something to be sent.
#[derive(Debug)]
pub(crate) enum Out {
    Bytes(Vec<u8>),
    /// With its share of the server's memory, held until it is sent.
    Data(Buffer, Share),
    Place(Placed),
}

/// Bytes that leave from where they lie.
#[derive(Debug)]
pub(crate) struct Placed {
    place: Place,
    len: u64,
    /// Whose they are, and where: to look whether they are in memory, and to read them if not.
    served: Arc<Served>,
    offset: u64,
    /// They were looked for when the queue had been stopped so many times.
    seen: Option<u64>,
}

impl Placed {
    /// `len` bytes at `offset` of what is served, which lie at `place` and were seen in memory
    /// just now.
    pub(crate) fn new(place: Place, len: u64, served: &Arc<Served>, offset: u64) -> Self {
        Self { place, len, served: served.clone(), offset, seen: None }
    }

    /// Whether `len` bytes, `skip` on, can be sent without waiting.
    fn is_hot(&self, skip: u64, len: u64, stops: u64) -> bool {
        let edge = &self.served.edge;
        edge.info().wait == Wait::Never
            || self.seen == Some(stops)
            || edge.device().is_hot(self.offset + skip, len)
    }

    /// Without its first `by` bytes.
    fn advance(&mut self, by: u64) {
        self.place = self.place.advanced(by);
        self.offset += by;
        self.len -= by;
    }
}

/// Bytes that must be read before the queue can go on.
struct Fetch {
    served: Arc<Served>,
    offset: u64,
    len: u64,
    /// Of the bytes that are read, counted from the beginning.
    share: Share,
}

impl Fetch {
    fn read(&self) -> Result<Buffer> {
        let mut buffer = self.served.buffers.take(usize::try_from(self.len).unwrap_or(0));
        self.served.edge.read(&mut buffer, self.offset)?;
        Ok(buffer)
    }
}

impl Out {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(b) => b.len() as u64,
            Self::Data(b, _) => b.len() as u64,
            Self::Place(placed) => placed.len,
        }
    }

    /// Bytes of memory it holds.
    fn weight(&self) -> u64 {
        match self {
            Self::Bytes(b) => (b.capacity() as u64).max(64),
            Self::Data(b, _) => b.len() as u64,
            Self::Place(_) => 64,
        }
    }

    /// What of that nobody has counted yet.
    fn uncounted(&self) -> u64 {
        if let Self::Data(..) = self { 0 } else { self.weight() }
    }

    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(b) => Some(b),
            Self::Data(b, _) => Some(b),
            Self::Place(_) => None,
        }
    }
}

/// The shared half of a connection.
pub(crate) struct Link {
    socket: OwnedFd,
    epoll: Arc<OwnedFd>,
    token: u64,
    account: Arc<Account>,
    queue: Mutex<Queue>,
    /// Bytes sent so far.
    sent: AtomicU64,
    /// Bytes of memory in the queue, readable without the lock.
    queued: AtomicU64,
    /// Bytes of requests that are being worked on elsewhere, and their number.
    busy_bytes: AtomicU64,
    busy: AtomicU64,
    /// The reactor stopped reading and wants to be told when there is room again.
    paused: AtomicBool,
    /// Nothing that was asked for is left to be done.
    settled: AtomicBool,
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
    /// How often the socket had no room.
    stops: u64,
    /// The first piece is being read by somebody; nothing is sent until it is there.
    fetching: bool,
    /// What somebody must be asked to read, once the lock is released.
    wants: Option<Fetch>,
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
    /// Takes a non-blocking socket; `epoll` is its reactor's, where it is known as `token`. What
    /// is queued counts in `account`.
    pub(crate) fn new(
        socket: OwnedFd,
        epoll: Arc<OwnedFd>,
        token: u64,
        account: Arc<Account>,
    ) -> Self {
        Self {
            socket,
            epoll,
            token,
            account,
            sent: AtomicU64::new(0),
            queue: Mutex::default(),
            queued: AtomicU64::new(0),
            busy_bytes: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            settled: AtomicBool::new(false),
            hears_end: AtomicBool::new(false),
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who pays for what it holds.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Bytes sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
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

    /// Whether replies wait for the peer to read.
    pub(crate) fn is_owed(&self) -> bool {
        let queue = self.lock();
        !queue.pieces.is_empty() && !queue.fetching
    }

    /// Whether a request is being worked on elsewhere.
    pub(crate) fn has_work(&self) -> bool {
        self.busy.load(Ordering::Acquire) > 0
    }

    /// No request will be taken any more.
    pub(crate) fn settle(&self) {
        self.settled.store(true, Ordering::Release);
    }

    /// Whether no request will be taken any more, and all that were are done.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire) && !self.has_work()
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
    pub(crate) fn end(self: &Arc<Self>, bytes: u64, reply: impl IntoIterator<Item = Out>) {
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

    /// Works on the queue; then lets be read what it found missing. Not under the lock: where no
    /// thread is to be had, that happens here.
    fn with_queue(self: &Arc<Self>, work: impl FnOnce(&Self, &mut Queue)) {
        let mut queue = self.lock();
        work(self, &mut queue);
        let wanted = queue.wants.take();
        drop(queue);
        if let Some(fetch) = wanted {
            let link = self.clone();
            self.begin(0);
            fetch.served.edge.pool().clone().run(move || {
                let read =
                    contained("a read", || fetch.read()).unwrap_or_else(|panic| Err(panic.into()));
                link.fetched(fetch, read);
            });
        }
    }

    /// Sends bytes that lie in the caller's memory, copying only what the socket does not take.
    pub(crate) fn send_slice(self: &Arc<Self>, bytes: &[u8], more: bool) {
        self.with_queue(|me, queue| me.slice(queue, bytes, more));
    }

    /// Queues a reply and sends what the socket takes.
    pub(crate) fn send(self: &Arc<Self>, reply: impl IntoIterator<Item = Out>) {
        self.with_queue(|me, queue| me.pieces(queue, reply));
    }

    /// Sends `head`, which lies in the caller's memory, and then `pieces`. All under one lock: a
    /// header and its data are never parted by somebody else's reply.
    pub(crate) fn send_with(self: &Arc<Self>, head: &[u8], pieces: impl IntoIterator<Item = Out>) {
        self.with_queue(|me, queue| {
            let mut pieces = pieces.into_iter();
            match pieces.next() {
                Some(Out::Data(data, share)) if !head.is_empty() && queue.is_idle() => {
                    me.head_and_data(queue, head, data, share);
                }
                first => {
                    me.slice(queue, head, first.is_some());
                    me.pieces(queue, first);
                }
            }
            me.pieces(queue, pieces);
        });
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
                    Ok(n) => {
                        self.sent.fetch_add(n as u64, Ordering::Relaxed);
                        rest = &rest[n.min(rest.len())..];
                    }
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
        self.sent.fetch_add(sent as u64, Ordering::Relaxed);
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
    pub(crate) fn writable(self: &Arc<Self>) {
        self.with_queue(|me, queue| {
            me.flush(queue);
            // While the first piece is read, room is of no use, and would be told again and again.
            if queue.pieces.is_empty() || queue.fetching {
                me.disarm(queue);
            }
        });
    }

    fn disarm(&self, queue: &mut Queue) {
        if queue.armed {
            queue.armed = false;
            self.ask(queue);
        }
    }

    /// What the first piece lacked was read, or cannot be.
    fn fetched(self: &Arc<Self>, fetch: Fetch, read: Result<Buffer>) {
        self.with_queue(|me, queue| {
            queue.fetching = false;
            match read {
                _ if queue.broken => {}
                Ok(buffer) => {
                    me.replace(queue, buffer, fetch.share);
                    me.flush(queue);
                }
                Err(e) => {
                    // The header has promised the bytes: the reply cannot be completed.
                    fetch.served.voice.failed(format_args!("a read at {}: {e}", fetch.offset));
                    me.fail(queue);
                }
            }
        });
        self.end(0, []);
    }

    /// Puts `buffer` before what is left of the first piece, from which it was read.
    fn replace(&self, queue: &mut Queue, buffer: Buffer, share: Share) {
        let done = queue.sent + buffer.len() as u64;
        if let Some(first @ Out::Place(_)) = queue.pieces.front_mut() {
            if first.len() > done {
                if let Out::Place(placed) = first {
                    placed.advance(done);
                }
            } else {
                self.pop(queue);
            }
        }
        queue.sent = 0;
        let piece = Out::Data(buffer, share);
        self.queued.fetch_add(piece.weight(), Ordering::Relaxed);
        queue.pieces.push_front(piece);
    }

    /// Nothing more is sent; what is queued is forgotten.
    pub(crate) fn abandon(&self) {
        self.fail(&mut self.lock());
    }

    fn push(&self, queue: &mut Queue, mut piece: Out) {
        self.queued.fetch_add(piece.weight(), Ordering::Relaxed);
        self.account.take(piece.uncounted());
        if let Out::Place(placed) = &mut piece
            && !queue.armed
            && queue.pieces.len() <= 1
        {
            // Nothing but its header is before it: what was seen of it just now holds.
            placed.seen = Some(queue.stops);
        }
        queue.pieces.push_back(piece);
    }

    /// Lets go of the first piece.
    fn pop(&self, queue: &mut Queue) {
        if let Some(first) = queue.pieces.pop_front() {
            self.queued.fetch_sub(first.weight(), Ordering::Relaxed);
            self.account.put(first.uncounted());
        }
    }

    fn fail(&self, queue: &mut Queue) {
        queue.broken = true;
        while !queue.pieces.is_empty() {
            self.pop(queue);
        }
        queue.sent = 0;
        // The reactor sees the end of the stream and closes.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    fn arm(&self, queue: &mut Queue) {
        if !queue.armed && !queue.fetching && !queue.pieces.is_empty() {
            queue.armed = true;
            self.ask(queue);
        }
    }

    fn flush(&self, queue: &mut Queue) {
        while !queue.fetching
            && let Some(first) = queue.pieces.front()
        {
            let sent = match first {
                Out::Place(placed) => Self::send_place(&self.socket, placed, queue),
                _ => self.send_pieces(queue),
            };
            match sent {
                Ok(Some(n)) => self.consume(queue, n),
                Ok(None) => return self.want(queue),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    queue.stops += 1;
                    break;
                }
                Err(e) => {
                    if let (Out::Place(placed), Errno::IO) = (first, e) {
                        // The client only sees the connection end.
                        let what = format_args!("a read at {}: {e}", placed.offset + queue.sent);
                        placed.served.voice.failed(what);
                    }
                    return self.fail(queue);
                }
            }
        }
        self.arm(queue);
    }

    /// The first piece must be read by somebody who may wait.
    fn want(&self, queue: &mut Queue) {
        let Some(Out::Place(placed)) = queue.pieces.front() else { return };
        let most = if self.account.has_room(FETCH) { FETCH } else { SMALL_FETCH };
        let len = (placed.len - queue.sent).min(most);
        queue.wants = Some(Fetch {
            served: placed.served.clone(),
            offset: placed.offset + queue.sent,
            len,
            share: Share::take(&self.account, len),
        });
        queue.fetching = true;
        self.disarm(queue);
    }

    /// Sends from a place; `None`: that would wait, or cannot be.
    fn send_place(
        socket: &OwnedFd,
        placed: &Placed,
        queue: &Queue,
    ) -> rustix::io::Result<Option<u64>> {
        let len = (placed.len - queue.sent).min(STRETCH);
        if !placed.is_hot(queue.sent, len, queue.stops) {
            return Ok(None);
        }
        let mut offset = placed.place.offset() + queue.sent;
        let want = usize::try_from(len).unwrap_or(usize::MAX);
        match rustix::fs::sendfile(socket, placed.place.fd(), Some(&mut offset), want) {
            // The file became shorter: the reply that was promised cannot be completed.
            Ok(0) => Err(Errno::IO),
            Ok(n) => Ok(Some(n as u64)),
            // A file system or a socket that cannot.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn send_pieces(&self, queue: &Queue) -> rustix::io::Result<Option<u64>> {
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
        Ok(Some(n as u64))
    }

    fn consume(&self, queue: &mut Queue, sent: u64) {
        self.sent.fetch_add(sent, Ordering::Relaxed);
        queue.sent += sent;
        while let Some(first) = queue.pieces.front() {
            if queue.sent < first.len() {
                break;
            }
            queue.sent -= first.len();
            self.pop(queue);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let queue = self.queue.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.account.put(queue.pieces.iter().map(Out::uncounted).sum());
    }
}
