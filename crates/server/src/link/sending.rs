//! Sending: the queue of a connection, and what goes from it to the socket.
//!
//! The thread that holds the lock of the queue sends; under TLS, which takes time, it is the one
//! that has taken the pieces out of the queue (`encrypting.rs`). A reply enters the queue as a
//! whole, under one lock, so replies never interleave. Large reads are queued as a place and leave
//! by sendfile. Bytes that waited for the socket may have left the page cache meanwhile: they are
//! checked again before each sendfile, and what is not there (or cannot be sent so) is read
//! elsewhere, a piece at a time.
//!
//! sendfile passes pages, not copies: bytes still in the socket show a later overlapping write.
//! NBD gives overlapping requests in flight together no order, so this is allowed. Bytes of another
//! offset must never show there, so leases are kept (`leases.rs`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use device::{Buffer, Error, ErrorKind, Fault, Operation, Outcome};
use net::Sent;
use runtime::{MutexGuard, has_time, promise, spawn};
use rustix::io::Errno;

use super::Link;
use super::leases::Leases;
use super::out::{Fetch, Fetched, Out, Placed, Seen};
use crate::execute::start;
use serving::Share;

/// How much is read at a time of what cannot be sent from its place, and how much where there is no
/// room for that.
const FETCH: u64 = 1 << 20;
const SMALL_FETCH: u64 = 64 << 10;
/// How much of a place is checked in the page cache, and sent, at a time.
const STRETCH: u64 = 4 << 20;

#[derive(Default)]
pub(super) struct Queue {
    pub(super) pieces: VecDeque<Out>,
    /// Bytes of the first piece that are sent.
    pub(super) sent: u64,
    /// epoll waits for room in the socket.
    pub(super) armed: bool,
    /// How often the socket had no room.
    pub(super) stops: u64,
    /// A thread is reading the first piece; nothing is sent until it is there.
    pub(super) fetching: bool,
    /// A thread has taken pieces out to encrypt and send them; no other sends until they are back.
    pub(super) sending: bool,
    /// Bytes of ciphertext that wait for the socket, beside the pieces that they were made of.
    pub(super) cipher: u64,
    /// What a thread has to read, to be started once the lock is released.
    wants: Option<Fetch>,
    leases: Leases,
}

impl Queue {
    /// Whether nothing waits to be sent.
    pub(super) fn is_idle(&self) -> bool {
        self.pieces.is_empty() && !self.sending
    }
}

impl Link {
    /// Sends what the socket takes: `head`, which is nowhere else yet, and then the queue.
    fn advance<'a>(
        &'a self,
        mut queue: MutexGuard<'a, Queue>,
        head: &[u8],
    ) -> MutexGuard<'a, Queue> {
        if self.stream.is_secure() {
            return self.encrypt(queue, head);
        }
        self.flush(&mut queue, head);
        queue
    }

    /// Releases the lock, and starts reading what is missing: that may happen here.
    fn release_queue(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>) {
        let wanted = queue.wants.take();
        drop(queue);
        if let Some(fetch) = wanted {
            self.fetch(fetch);
        }
    }

    /// Reads it, and whatever is missing after that: in a loop, so that a device that answers at
    /// once neither causes recursion nor keeps a reactor.
    fn fetch(self: &Arc<Self>, first: Fetch) {
        let (link, pool) = (self.clone(), first.served.edge.pool().clone());
        self.begin(0);
        spawn(async move {
            let mut next = Some(first);
            while let Some(fetch) = next {
                let (edge, len) = (fetch.served.edge.clone(), fetch.len);
                let read = Operation::Read { offset: fetch.offset, buffer: fetch.buffer() };
                let owed = Owed(Some((link.clone(), fetch)));
                let (promise, answer) = promise();
                start(&edge, &link, read, Box::new(move |result| promise.keep(result)));
                next = owed.pay(match answer.await {
                    Some(Ok(Outcome::Read(buffer))) if buffer.len() as u64 == len => Ok(buffer),
                    Some(Err(e)) => Err(e),
                    _ => Err(lost()),
                });
                if next.is_some() && !has_time() {
                    pool.enter().await;
                }
            }
        });
    }

    /// Sends `head`, which lies in the caller's memory and of which only what the socket does not
    /// take is copied, and then `pieces`. All under one lock: a header and its data are never
    /// parted by another request's reply.
    pub(crate) fn send_with(self: &Arc<Self>, head: &[u8], pieces: impl IntoIterator<Item = Out>) {
        let mut queue = self.queue.lock();
        if self.is_broken() {
            return;
        }
        let idle = queue.is_idle();
        if !idle && !head.is_empty() {
            self.push(&mut queue, Out::Bytes(head.to_vec()));
        }
        for mut piece in pieces {
            if let Out::Place(placed) = &mut piece
                && placed.seen == Seen::Now
            {
                // If nothing is queued before this reply, its places were checked just now.
                let is_next = idle && !queue.armed;
                placed.seen = if is_next { Seen::After(queue.stops) } else { Seen::LongAgo };
            }
            if piece.len() > 0 {
                self.push(&mut queue, piece);
            }
        }
        if idle {
            queue = self.advance(queue, head);
        }
        self.release_queue(queue);
    }

    /// Sends whole replies.
    pub(crate) fn send(self: &Arc<Self>, reply: impl IntoIterator<Item = Out>) {
        self.send_with(&[], reply);
    }

    /// The socket has room.
    pub(crate) fn writable(self: &Arc<Self>) {
        let mut queue = self.advance(self.queue.lock(), &[]);
        // While the first piece is read, or others send, room is of no use, and would be reported
        // again and again.
        if queue.pieces.is_empty() || queue.fetching || queue.sending {
            self.disarm(&mut queue);
        }
        self.release_queue(queue);
    }

    /// Whether to wait for room in the socket, while nothing is queued: TLS begins.
    pub(crate) fn want_room(&self, wanted: bool) {
        let mut queue = self.queue.lock();
        if queue.armed != wanted {
            queue.armed = wanted;
            self.ask(&queue);
        }
    }

    fn disarm(&self, queue: &mut Queue) {
        if queue.armed {
            queue.armed = false;
            self.ask(queue);
        }
    }

    /// The missing part of the first piece was read, or could not be. Returns what is missing now.
    fn fetched(&self, fetch: Fetch, read: Fetched) -> Option<Fetch> {
        let mut queue = self.queue.lock();
        queue.fetching = false;
        match read {
            _ if self.is_broken() => {}
            Ok(buffer) => {
                self.replace(&mut queue, buffer, fetch.share);
                queue = self.advance(queue, &[]);
            }
            Err(e) => {
                // The header has promised the bytes: the reply cannot be completed.
                fetch.failed(&e);
                self.fail(&mut queue);
            }
        }
        let next = queue.wants.take();
        drop(queue);
        if next.is_some() {
            self.begin(0);
        }
        self.ended(0);
        next
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
        self.push_front(queue, Out::Data(buffer, share));
    }

    /// Nothing more is sent; what is queued is forgotten.
    pub(crate) fn abandon(&self) {
        self.fail(&mut self.queue.lock());
    }

    fn count(&self, piece: &Out) {
        self.queued.fetch_add(piece.weight(), Ordering::Relaxed);
        self.account.take(piece.uncounted());
    }

    pub(super) fn push(&self, queue: &mut Queue, piece: Out) {
        self.count(&piece);
        queue.pieces.push_back(piece);
    }

    pub(super) fn push_front(&self, queue: &mut Queue, piece: Out) {
        self.count(&piece);
        queue.pieces.push_front(piece);
    }

    /// Sets how many bytes of ciphertext wait for the socket.
    pub(super) fn count_cipher(&self, queue: &mut Queue, bytes: u64) {
        let before = std::mem::replace(&mut queue.cipher, bytes);
        if bytes > before {
            self.queued.fetch_add(bytes - before, Ordering::Relaxed);
            self.account.take(bytes - before);
        } else {
            self.queued.fetch_sub(before - bytes, Ordering::Relaxed);
            self.account.put(before - bytes);
        }
    }

    /// Removes the first piece.
    pub(super) fn pop(&self, queue: &mut Queue) {
        if let Some(first) = queue.pieces.pop_front() {
            let queued = self.queued.fetch_sub(first.weight(), Ordering::Relaxed);
            debug_assert!(queued >= first.weight(), "each piece counts from its push to its pop");
            self.account.put(first.uncounted());
        }
    }

    pub(super) fn fail(&self, queue: &mut Queue) {
        self.broken.store(true, Ordering::Release);
        while !queue.pieces.is_empty() {
            self.pop(queue);
        }
        queue.sent = 0;
        self.count_cipher(queue, 0);
        // The reactor sees the end of the stream and closes.
        self.stream.close();
    }

    /// Sends what the socket takes: `head`, which is nowhere else yet, and then the queue.
    fn flush(&self, queue: &mut Queue, mut head: &[u8]) {
        while !queue.fetching && (!head.is_empty() || !queue.pieces.is_empty()) {
            let sent = match queue.pieces.front() {
                Some(Out::Place(placed)) if head.is_empty() => self.send_place(placed, queue),
                _ => self.send_pieces(head, &queue.pieces, queue.sent),
            };
            match sent {
                Ok(Sent::Bytes(n)) => {
                    let of_head = n.min(head.len() as u64);
                    head = head.get(usize::try_from(of_head).unwrap_or(0)..).unwrap_or(&[]);
                    self.consume(queue, n, n - of_head);
                }
                Ok(Sent::Unable) => self.want(queue),
                Ok(Sent::Full) => {
                    queue.stops += 1;
                    break;
                }
                // The file became shorter: the reply that was promised cannot be completed.
                Ok(Sent::Short) | Err(_) => {
                    let e = sent.err().unwrap_or(Errno::IO);
                    if let (Some(Out::Place(placed)), Errno::IO) = (queue.pieces.front(), e) {
                        // The client only sees the connection end.
                        let what = format_args!("a read at {}: {e}", placed.offset + queue.sent);
                        placed.served.voice.failed(what);
                    }
                    return self.fail(queue);
                }
            }
        }
        if !head.is_empty() {
            self.push_front(queue, Out::Bytes(head.to_vec()));
        }
        self.release(queue, None);
        self.arm(queue);
    }

    pub(super) fn arm(&self, queue: &mut Queue) {
        if !queue.armed && !queue.fetching && !queue.pieces.is_empty() {
            queue.armed = true;
            self.ask(queue);
        }
    }

    /// The first piece must be read by a thread that may wait.
    pub(super) fn want(&self, queue: &mut Queue) {
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

    /// Sends from a place; `Unable`: that would wait, or is not possible.
    fn send_place(&self, placed: &Placed, queue: &Queue) -> rustix::io::Result<Sent> {
        let len = (placed.len - queue.sent).min(STRETCH);
        let may_lease = placed.place.guard().is_none_or(|guard| queue.leases.may_keep(guard));
        if !may_lease || !placed.is_resident(queue.sent, len, queue.stops) {
            return Ok(Sent::Unable);
        }
        self.stream.send_from(&placed.place, queue.sent, len)
    }

    /// Sends bytes in memory, as many as are at the front.
    pub(super) fn send_pieces(
        &self,
        head: &[u8],
        pieces: &VecDeque<Out>,
        sent: u64,
    ) -> rustix::io::Result<Sent> {
        let sent_of_queue = usize::try_from(sent).unwrap_or(usize::MAX);
        let head = Some(head).filter(|head| !head.is_empty());
        // A head comes before all of the queue.
        let skip = if head.is_some() { 0 } else { sent_of_queue };
        let count = pieces.len() + usize::from(head.is_some());
        let pieces = head.into_iter().chain(pieces.iter().map_while(Out::bytes));
        match self.stream.send_gathered(pieces, skip, count)? {
            0 => Ok(Sent::Full),
            n => Ok(Sent::Bytes(n as u64)),
        }
    }

    /// `all` bytes were sent, `of_queue` of them of the queue.
    pub(super) fn consume(&self, queue: &mut Queue, all: u64, of_queue: u64) {
        let total = self.sent.fetch_add(all, Ordering::Relaxed) + all;
        if let Some(Out::Place(placed)) = queue.pieces.front()
            && let Some(guard) = placed.place.guard()
            && of_queue > 0
        {
            queue.leases.keep(guard, total);
        }
        queue.sent += of_queue;
        while let Some(first) = queue.pieces.front() {
            if queue.sent < first.len() {
                break;
            }
            queue.sent -= first.len();
            self.pop(queue);
        }
        debug_assert!(queue.sent == 0 || !queue.pieces.is_empty(), "no more is sent than queued");
    }

    fn release(&self, queue: &mut Queue, ended: Option<Duration>) {
        if !queue.leases.is_empty() {
            queue.leases.release(&self.stream, self.sent(), ended);
        }
    }

    /// Drops the leases of what has been received, or all if the connection `ended` long ago.
    /// Returns whether none is left.
    pub(crate) fn release_leases(&self, ended: Option<Duration>) -> bool {
        let mut queue = self.queue.lock();
        self.release(&mut queue, ended);
        queue.leases.is_empty()
    }
}

/// A thread reads what the queue waits for. If this is dropped instead, the connection ends.
struct Owed(Option<(Arc<Link>, Fetch)>);

impl Owed {
    fn pay(mut self, read: Fetched) -> Option<Fetch> {
        let (link, fetch) = self.0.take()?;
        link.fetched(fetch, read)
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if let Some((link, fetch)) = self.0.take() {
            link.fetched(fetch, Err(lost()));
        }
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Io, Fault::Us, "the read was given up")
}
