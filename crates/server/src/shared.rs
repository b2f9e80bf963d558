//! What the reactors of a server share, and how a new connection finds its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use net::{Stream, Tuning};
use runtime::{Condvar, Mutex};

use crate::bell::{Accepted, ReactorBell};
use crate::connection::Common;
use serving::{Reason, Severity};

/// Beyond this many connections, socket buffers are not enlarged: a Unix socket's buffer is the
/// system's memory, outside of our limits.
const FEW: usize = 64;
/// How long TCP waits for a client to acknowledge what was sent, or to answer a probe: as long as a
/// client may take to read its replies.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long to wait for a woken reactor before it is checked again.
const ROUND: Duration = Duration::from_millis(20);

/// What the reactors of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) common: Arc<Common>,
    pub(crate) reactors: Vec<Arc<ReactorBell>>,
    pub(crate) connections: AtomicUsize,
    /// Notified when the last connection is gone.
    pub(crate) idle: Condvar,
    pub(crate) idle_lock: Mutex<()>,
    /// The number of the last roll call of the reactors.
    pub(crate) asked: AtomicU64,
    pub(crate) stopping: AtomicBool,
    /// Listeners wait for descriptors.
    pub(crate) full: AtomicBool,
    /// Reactors that have not ended, and threads that drive them.
    pub(crate) running: Mutex<usize>,
    pub(crate) ended: Condvar,
}

/// Counts a reactor, or a thread that drives one, until it is dropped: also by a panic.
#[derive(Debug)]
pub(crate) struct StillRunning(Arc<Shared>);

impl StillRunning {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        *shared.running.lock() += 1;
        Self(shared)
    }
}

impl Drop for StillRunning {
    fn drop(&mut self) {
        *self.0.running.lock() -= 1;
        self.0.ended.notify_all();
    }
}

impl Shared {
    pub(crate) fn new(common: Arc<Common>, reactors: Vec<Arc<ReactorBell>>) -> Self {
        Self {
            common,
            reactors,
            connections: AtomicUsize::new(0),
            idle: Condvar::new(),
            idle_lock: Mutex::new(()),
            asked: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            full: AtomicBool::new(false),
            running: Mutex::new(0),
            ended: Condvar::new(),
        }
    }

    /// Makes every reactor stop.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.reactors.iter().for_each(|bell| bell.wake());
    }

    /// Whether every reactor completes a turn within `limit`, so that none is stuck. Those of a
    /// server that stops need not.
    pub(crate) fn answers(&self, limit: Duration) -> bool {
        let number = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        let begun = Instant::now();
        loop {
            let late: Vec<_> =
                self.reactors.iter().filter(|bell| !bell.has_answered(number)).collect();
            if late.is_empty() || self.stopping.load(Ordering::SeqCst) {
                return true;
            }
            if begun.elapsed() >= limit {
                return false;
            }
            late.iter().for_each(|bell| bell.wake());
            std::thread::sleep(ROUND.min(limit));
        }
    }

    /// A connection has ended.
    pub(crate) fn left(&self) {
        if self.full.load(Ordering::SeqCst) {
            // The first one listens.
            self.reactors.first().into_iter().for_each(|bell| bell.wake());
        }
        if self.connections.fetch_sub(1, Ordering::SeqCst) == 1 {
            // With the lock, or it could be missed between a look and a wait.
            let _lock = self.idle_lock.lock();
            self.idle.notify_all();
        }
    }

    /// Gives a new connection to the reactor that has the fewest. Returns whether there was room
    /// for it.
    pub(crate) fn admit(&self, stream: Stream) -> bool {
        let (open, terms) = (self.connections.load(Ordering::Relaxed), self.common.terms.now());
        let peer = stream.peer();
        let refuse = |reason, open, whose, option| {
            let what =
                format_args!("refused: {open} connections{whose} are open already ({option})");
            self.common.hub.log.event(Severity::Warning, Some(&peer), None, what);
            self.common.hub.metrics.closed(reason);
            false
        };
        if open >= terms.max_connections {
            return refuse(Reason::Full, open, "", "--max-connections");
        }
        let account = self.common.hub.budget.account(&peer);
        let of_address = account.connections();
        if terms.max_of_address.is_some_and(|most| of_address > most) {
            let option = "--max-connections-per-address";
            return refuse(Reason::FullOfAddress, of_address - 1, " of its address", option);
        }
        let (send_buffer, patience) = (open < FEW, Some(PATIENCE));
        stream.tune(Tuning { send_buffer, receive_buffer: false, patience });
        let Some(bell) = self.reactors.iter().min_by_key(|bell| bell.load()) else {
            return false;
        };
        self.connections.fetch_add(1, Ordering::SeqCst);
        bell.give(Accepted { stream, account });
        true
    }
}
