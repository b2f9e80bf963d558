//! Bytes of requests in flight, counted for one connection and for the whole server.
//!
//! A request is admitted when both counts are below their limits, so each limit can be exceeded
//! by one request (at most 32 MiB). When the server's is used up, a connection that holds nothing
//! may still have one small request; large ones wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes a connection may have in flight before it is read no further.
pub(crate) const OF_CONNECTION: u64 = 48 << 20;

/// The server's count.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, used: AtomicU64::new(0) }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.used.load(Ordering::Relaxed) < self.limit
    }
}

/// Bytes taken from the budget; given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Share {
    pub(crate) fn take(budget: &Arc<Budget>, bytes: u64) -> Self {
        budget.used.fetch_add(bytes, Ordering::Relaxed);
        Self { budget: budget.clone(), bytes }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
