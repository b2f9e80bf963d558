//! What other threads may know of a copy while it runs, and how they stop it.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Fault, Result};

/// How often a waiting thread checks whether the copy is to stop.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// Counters of a running copy. Cheap to clone; all clones share. May be read at any time.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    total: AtomicU64,
    copied: AtomicU64,
    zeroed: AtomicU64,
    skipped: AtomicU64,
    read: AtomicU64,
    /// In nanoseconds, of all threads together.
    waited_for_source: AtomicU64,
    waited_for_target: AtomicU64,
    comparing: AtomicBool,
    started: OnceLock<Instant>,
    /// The target was sent something that may have changed it.
    touched: AtomicBool,
}

/// The counters at one moment, all in bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CopyCounts {
    /// Bytes to do: the size of the source, or those of a list. 0 before the copy has begun.
    pub total: u64,
    /// Written to the target as data.
    pub copied: u64,
    /// Zeroed in the target.
    pub zeroed: u64,
    /// Left alone because the target reads as zeroes there.
    pub skipped: u64,
    /// Bytes that the source was asked for, and gave.
    pub read: u64,
    /// How long threads had nothing to do until the source answered, all together.
    pub waited_for_source: Duration,
    /// The same of the target.
    pub waited_for_target: Duration,
    /// A filter holds requests back, to keep to a rate.
    pub held_back: bool,
    /// All is done, and what was read of the source before its server was lost is read again and
    /// compared.
    pub comparing: bool,
    /// Since the copy began.
    pub elapsed: Duration,
}

impl CopyCounts {
    /// Bytes that are done, one way or another.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.copied.saturating_add(self.zeroed).saturating_add(self.skipped)
    }
}

impl Progress {
    /// The counters now.
    #[must_use]
    pub fn snapshot(&self) -> CopyCounts {
        let c = &self.0;
        CopyCounts {
            total: c.total.load(Relaxed),
            copied: c.copied.load(Relaxed),
            zeroed: c.zeroed.load(Relaxed),
            skipped: c.skipped.load(Relaxed),
            read: c.read.load(Relaxed),
            waited_for_source: Duration::from_nanos(c.waited_for_source.load(Relaxed)),
            waited_for_target: Duration::from_nanos(c.waited_for_target.load(Relaxed)),
            held_back: false,
            comparing: c.comparing.load(Relaxed),
            elapsed: c.started.get().map_or(Duration::ZERO, Instant::elapsed),
        }
    }

    pub(crate) fn begin(&self, total: u64) {
        self.0.total.store(total, Relaxed);
        self.0.started.get_or_init(Instant::now);
    }

    pub(crate) fn add(&self, how: Moved, len: u64) {
        let counter = match how {
            Moved::Copied => &self.0.copied,
            Moved::Skipped => &self.0.skipped,
            Moved::Zeroed => &self.0.zeroed,
        };
        counter.fetch_add(len, Relaxed);
    }

    /// The source gave this much.
    pub(crate) fn read(&self, len: u64) {
        self.0.read.fetch_add(len, Relaxed);
    }

    /// A thread had nothing to do until the source answered, or else the target.
    pub(crate) fn waited(&self, for_source: bool, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let counter =
            if for_source { &self.0.waited_for_source } else { &self.0.waited_for_target };
        counter.fetch_add(nanos, Relaxed);
    }

    /// This much was done in vain, and will be done again.
    pub(crate) fn take_back(&self, mut len: u64) {
        for counter in [&self.0.copied, &self.0.zeroed, &self.0.skipped] {
            let less = |n: u64| Some(n.saturating_sub(len));
            // It never fails: there is always a new value.
            let before = counter.fetch_update(Relaxed, Relaxed, less).unwrap_or(0);
            len = len.saturating_sub(before);
        }
    }

    pub(crate) fn compare(&self, comparing: bool) {
        self.0.comparing.store(comparing, Relaxed);
    }

    pub(crate) fn touch(&self) {
        if !self.0.touched.load(Relaxed) {
            self.0.touched.store(true, Relaxed);
        }
    }

    /// The target is sent something that may change it, and that it may refuse.
    pub(crate) fn touching(&self) -> Touch {
        Touch { counters: self.0.clone(), before: self.0.touched.swap(true, Relaxed) }
    }

    pub(crate) fn touched(&self) -> bool {
        self.0.touched.load(Relaxed)
    }
}

/// One attempt to change the target.
pub(crate) struct Touch {
    counters: Arc<Counters>,
    before: bool,
}

impl Touch {
    /// It was refused, and changed nothing. To be called only where no other write can have touched
    /// the target in the meantime: before anything is handed out to workers.
    pub(crate) fn was_nothing(self) {
        self.counters.touched.store(self.before, Relaxed);
    }
}

/// How a range came to be right.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Moved {
    Copied,
    Skipped,
    Zeroed,
}

/// A request to stop, from any thread or signal handler. Cheap to clone; all clones share.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks the copy to stop soon.
    pub fn cancel(&self) {
        self.0.store(true, Relaxed);
    }

    /// Whether it is to stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// # Errors
    /// `Cancelled`, if it is to stop.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(cancelled()) } else { Ok(()) }
    }
}

/// The copy stops before its end, and not for an error of its own.
pub(crate) fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, Fault::User, "copy: stopped as asked")
}
