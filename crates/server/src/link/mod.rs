//! The part of a connection that others than its reactor use: what is in flight for it, the inbox
//! of replies that are ready, and the sending of them (`sending.rs`, under TLS `encrypting.rs`).
//!
//! A request that ends elsewhere (in the pool, in a device that waits for something outside) puts
//! its reply in the inbox and calls the connection's own reactor, which gathers what is there and
//! sends it in one call. Two cases need no call: a reactor that is at work on the connection checks
//! the inbox before it leaves, and a reply with which nothing could be gathered, because no other
//! request of this connection is in flight, is sent by the thread that has it, once it has the lock
//! of the queue: a wake-up would cost more than it saves.

mod encrypting;
mod inbox;
mod leases;
mod out;
mod sending;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use device::Result;
use net::Stream;
use runtime::{Behalf, Mailbox, Mutex};
use rustix::event::epoll;

use crate::bell::ReactorBell;
pub(crate) use leases::LINGER;
use out::Reply;
pub(crate) use out::{Out, Placed};
use sending::Queue;
use serving::{Dismiss, MemoryAccount};

/// Bytes queued beyond which no further requests are read.
pub(crate) const QUEUE_LIMIT: u64 = 4 << 20;

/// The shared half of a connection.
pub(crate) struct Link {
    stream: Stream,
    /// Its reactor's, by which this connection is known as `token`.
    bell: Arc<ReactorBell>,
    token: u64,
    /// Its number among all clients of the server, from 1.
    client: u64,
    account: Arc<MemoryAccount>,
    queue: Mutex<Queue>,
    /// The reactor attends it while it works on the connection.
    inbox: Mailbox<Reply>,
    /// Nothing more is sent. Set only under the lock of the queue.
    broken: AtomicBool,
    /// Bytes sent so far.
    sent: AtomicU64,
    /// Bytes of memory in the queue, readable without the lock.
    queued: AtomicU64,
    /// Bytes of requests that are being worked on elsewhere, or whose replies lie in the inbox, and
    /// their number.
    busy_bytes: AtomicU64,
    busy: AtomicU64,
    /// The reactor stopped reading and wants to be called when there is room again.
    paused: AtomicBool,
    /// All requests are done.
    settled: AtomicBool,
    /// While it does not read, it wants to be called when the peer sends no more.
    hears_end: AtomicBool,
    /// The client is to leave.
    dismissed: AtomicBool,
}

runtime::debug_as!(Link, |it| "Link({:?})", it.stream);

impl Link {
    /// Of client number `client`. `bell` is its reactor's, where it is known as `token`. The queue
    /// counts in `account`.
    pub(crate) fn new(
        stream: Stream,
        bell: Arc<ReactorBell>,
        (token, client): (u64, u64),
        account: Arc<MemoryAccount>,
    ) -> Self {
        Self {
            stream,
            bell,
            token,
            client,
            account,
            queue: Mutex::default(),
            inbox: Mailbox::default(),
            broken: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            busy_bytes: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            settled: AtomicBool::new(false),
            hears_end: AtomicBool::new(false),
            dismissed: AtomicBool::new(false),
        }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The number of its client, from 1.
    pub(crate) fn client(&self) -> u64 {
        self.client
    }

    /// Of what is done for a request: not wanted any more once the client has gone.
    pub(crate) fn behalf(self: &Arc<Self>) -> Behalf {
        Behalf::of_client(self.client).wanted_by(self.clone())
    }

    /// The account that pays for what it holds.
    pub(crate) fn account(&self) -> &Arc<MemoryAccount> {
        &self.account
    }

    /// Bytes sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Bytes of memory held for this connection: replies queued and requests in flight.
    pub(crate) fn held(&self) -> u64 {
        self.queued.load(Ordering::Relaxed) + self.busy_bytes.load(Ordering::Relaxed)
    }

    /// Whether too much is queued for more requests to be read.
    pub(crate) fn is_full(&self, limit: u64) -> bool {
        self.queued.load(Ordering::Relaxed) >= QUEUE_LIMIT || self.held() >= limit
    }

    /// Whether nothing is queued and nothing is in flight.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.has_work() && self.queue.lock().is_idle()
    }

    /// Whether replies wait for the peer to read.
    pub(crate) fn is_owed(&self) -> bool {
        let queue = self.queue.lock();
        !queue.pieces.is_empty() && !queue.fetching
    }

    /// Whether a request is being worked on elsewhere, or its reply waits to be sent.
    pub(crate) fn has_work(&self) -> bool {
        self.busy.load(Ordering::SeqCst) > 0
    }

    /// No more requests will be taken, and the reactor does not check the inbox again.
    pub(crate) fn settle(&self) {
        self.settled.store(true, Ordering::Release);
    }

    pub(crate) fn is_dismissed(&self) -> bool {
        self.dismissed.load(Ordering::SeqCst)
    }

    /// Whether no more requests will be taken, and all are done.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire) && !self.has_work()
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Reads no more, and asks to be called when something has ended.
    pub(crate) fn pause(&self) {
        self.paused.store(true, Ordering::SeqCst);
        self.ask(&self.queue.lock());
    }

    /// While paused: whether to be called when the peer sends no more.
    pub(crate) fn hear_end(&self, wanted: bool) {
        if self.hears_end.swap(wanted, Ordering::SeqCst) != wanted {
            self.ask(&self.queue.lock());
        }
    }

    /// Reads again.
    pub(crate) fn resume(&self) {
        if self.paused.swap(false, Ordering::SeqCst) {
            self.hears_end.store(false, Ordering::SeqCst);
            self.ask(&self.queue.lock());
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    /// Tells epoll what to wait for. Under the lock, so that the last call is the right one.
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
        let _ = epoll::modify(self.bell.epoll(), &self.stream, data, flags);
    }
}

/// Its reactor is called, and takes no more requests of the client.
impl Dismiss for Link {
    fn dismiss(&self) -> Result<()> {
        self.dismissed.store(true, Ordering::SeqCst);
        self.bell.call(self.token);
        Ok(())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let queue = self.queue.get_mut();
        self.account.put(queue.cipher + queue.pieces.iter().map(Out::uncounted).sum::<u64>());
    }
}
