//! The clients' paths to a disk, what each has read and written, and their flushes.
//!
//! Reads and writes that make a flush necessary are counted, and so is what a flush that has
//! *ended* covered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device::{Edge, Operation, Result};

use crate::kit::below;

/// A reason for a flush: how often it happened, and how many of these a flush has covered. A flush
/// in flight covers nothing yet.
#[derive(Default)]
pub(super) struct FlushCause {
    happened: AtomicU64,
    covered: AtomicU64,
}

impl FlushCause {
    pub(super) fn note(&self) {
        self.happened.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn now(&self) -> u64 {
        self.happened.load(Ordering::Acquire)
    }

    pub(super) fn cover(&self, until: u64) {
        self.covered.fetch_max(until, Ordering::AcqRel);
    }

    pub(super) fn is_open(&self) -> bool {
        self.now() > self.covered.load(Ordering::Acquire)
    }
}

/// One path to the device below, with its reads and writes.
pub(super) struct Member {
    pub(super) below: Edge,
    pub(super) wrote: FlushCause,
    pub(super) read: FlushCause,
}

impl Member {
    pub(super) fn is_used(&self) -> bool {
        self.wrote.now() > 0 || self.read.now() > 0
    }

    /// Notes a read or write. Call it before an operation and again after it: a flush in between
    /// may have cleared the first note, although it covers only operations that had ended.
    pub(super) fn note(&self, writes: bool) {
        if writes { &self.wrote } else { &self.read }.note();
    }
}

/// A device to be flushed, and the members that reach it.
pub(super) struct Path {
    pub(super) below: Edge,
    pub(super) members: Vec<Arc<Member>>,
}

impl Path {
    pub(super) fn is(&self, other: &Edge) -> bool {
        Arc::ptr_eq(self.below.device(), other.device())
    }
}

/// Different devices to be flushed.
pub(super) struct Paths(pub(super) Vec<Path>);

impl Paths {
    pub(super) fn of(members: impl Iterator<Item = Arc<Member>>) -> Self {
        let mut paths: Vec<Path> = Vec::new();
        for member in members {
            match paths.iter_mut().find(|p| p.is(&member.below)) {
                Some(path) => path.members.push(member),
                None => paths.push(Path { below: member.below.clone(), members: vec![member] }),
            }
        }
        Self(paths)
    }

    /// The only device, if there is just one.
    pub(super) fn only(&self) -> Option<Edge> {
        if let [only] = &*self.0 { Some(only.below.clone()) } else { None }
    }

    pub(super) fn skip(&mut self, device: Option<&Edge>) {
        self.0.retain(|path| device.is_none_or(|d| !path.is(d)));
    }

    /// Flushes them all at the same time; that covers all writes that had ended, and reads too if
    /// `reads`.
    ///
    /// # Errors
    /// One of the failures; the other paths were flushed all the same.
    pub(super) async fn flush(self, reads: bool) -> Result<()> {
        let flush = |path: Path| {
            let times = path.members.into_iter().map(|m| (m.wrote.now(), m.read.now(), m));
            let times: Vec<_> = times.collect();
            (times, below::submit(&path.below, Operation::Flush))
        };
        let begun: Vec<_> = self.0.into_iter().map(flush).collect();
        let mut all = Ok(());
        for (times, flush) in begun {
            let flushed = below::ended(flush).await.map(drop);
            for (wrote, read, member) in times.iter().filter(|_| flushed.is_ok()) {
                member.wrote.cover(*wrote);
                member.read.cover(if reads { *read } else { 0 });
            }
            all = all.and(flushed);
        }
        all
    }
}
