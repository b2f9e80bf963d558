//! What the front ends of a process share: each has the same one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use runtime::RwLock;

use crate::budget::MemoryBudget;
use crate::exports::Exports;
use crate::log::ServerLog;
use crate::metrics::Metrics;
use crate::present::PresentClients;

/// The exports, who uses them, and what is counted of that.
#[derive(Debug)]
pub struct Hub {
    /// What is served.
    pub exports: Exports,
    /// Memory of requests.
    pub budget: Arc<MemoryBudget>,
    /// Counts.
    pub metrics: Metrics,
    /// Who is there.
    pub present: PresentClients,
    /// What happens.
    pub log: ServerLog,
    /// How many clients have come.
    clients: AtomicU64,
    /// What options limit, and to what; told with the metrics.
    limits: RwLock<Vec<(&'static str, String)>>,
}

impl Hub {
    /// Of these exports, with so many bytes for requests in flight, and so many threads that serve
    /// clients.
    #[must_use]
    pub fn new(exports: Exports, log: ServerLog, memory: u64, threads: usize) -> Self {
        Self {
            exports,
            budget: Arc::new(MemoryBudget::new(memory)),
            metrics: Metrics::new(threads),
            present: PresentClients::default(),
            log,
            clients: AtomicU64::new(0),
            limits: RwLock::default(),
        }
    }

    /// The number of a client that comes now, from 1.
    pub fn next_client(&self) -> u64 {
        self.clients.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How many clients have come so far.
    pub(crate) fn clients_so_far(&self) -> u64 {
        self.clients.load(Ordering::Relaxed)
    }

    /// Tells, with the metrics, what options limit from now on: each option, and its value.
    pub fn tell_limits(&self, limits: Vec<(&'static str, String)>) {
        *self.limits.write() = limits;
    }

    pub(crate) fn limits(&self) -> Vec<(&'static str, String)> {
        self.limits.read().clone()
    }
}
