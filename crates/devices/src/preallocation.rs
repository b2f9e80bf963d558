//! Preallocation: the request, its progress, and its result.
//!
//! It never changes what a disk reads as.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use device::{Error, ErrorKind, Fault, Result};

/// How a disk is allocated before anything is written to it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Allocation {
    /// None: it has its length, and is a hole.
    #[default]
    Sparse,
    /// All of it, but the file system still has to note each first write to it.
    Unwritten,
    /// All of it, as if zeroes had been written: later writes change no map.
    Written,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Preallocation {
    /// Bytes that the disk is to have at least; `None`: as many as it has, or as the range needs.
    pub size: Option<u64>,
    /// The first byte of the range to allocate.
    pub offset: u64,
    /// Bytes of the range; `None`: to the end.
    pub length: Option<u64>,
    /// The disk keeps its length, even if the range is after its end.
    pub keep_size: bool,
    /// How.
    pub mode: Allocation,
    /// Bytes a second that are zeroed at most.
    pub rate: Option<NonZeroU64>,
}

/// A way to write zeroes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ZeroMethod {
    /// FALLOC_FL_WRITE_ZEROES: the disk zeroes by itself.
    WriteZeroes,
    /// BLKZEROOUT: the kernel zeroes a block device, by whatever request that has.
    ZeroOut,
    /// Zeroes written past the page cache.
    Direct,
    /// Zeroes written through the page cache.
    Cached,
}

impl ZeroMethod {
    /// All of them, the best one first.
    pub const ALL: [Self; 4] = [Self::WriteZeroes, Self::ZeroOut, Self::Direct, Self::Cached];

    /// Its name.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::WriteZeroes => "write-zeroes",
            Self::ZeroOut => "zero-out",
            Self::Direct => "direct-writes",
            Self::Cached => "cached-writes",
        }
    }
}

/// The result.
#[derive(Clone, Debug)]
pub struct Preallocated {
    /// Bytes that the disk has now.
    pub size: u64,
    /// The first byte of the range.
    pub offset: u64,
    /// Bytes of the range.
    pub length: u64,
    /// Bytes that held data, or were written before, and were left alone.
    pub kept: u64,
    /// Bytes that were zeroed, by way; empty where nothing had to be.
    pub ways: Vec<(ZeroMethod, u64)>,
    /// Why the disk was not asked to zero by itself, if that is known.
    pub why: Option<String>,
    /// Whether the system's own map was checked afterwards, and is complete.
    pub checked: bool,
}

impl Preallocated {
    /// Bytes that were zeroed.
    #[must_use]
    pub fn zeroed(&self) -> u64 {
        self.ways.iter().map(|(_, n)| n).sum()
    }
}

/// The progress, and a request to stop. One thread works, others watch.
#[derive(Debug, Default)]
pub struct PreallocationWatch {
    total: AtomicU64,
    kept: AtomicU64,
    zeroed: [AtomicU64; ZeroMethod::ALL.len()],
    stopped: AtomicBool,
}

impl PreallocationWatch {
    /// Bytes that are done, and that are to be done.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        let zeroed: u64 = self.zeroed.iter().map(|n| n.load(Relaxed)).sum();
        (self.kept.load(Relaxed).saturating_add(zeroed), self.total.load(Relaxed))
    }

    /// Stops it as soon as requests in flight have ended.
    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    /// Whether it is to stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// An error if it is to stop.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_stopped() {
            return Err(Error::new(ErrorKind::Cancelled, Fault::User, "stopped as asked"));
        }
        Ok(())
    }

    pub(crate) fn expect(&self, total: u64) {
        self.total.store(total, Relaxed);
    }

    pub(crate) fn kept(&self, bytes: u64) {
        self.kept.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn zeroed(&self, way: ZeroMethod, bytes: u64) {
        if let Some(n) =
            ZeroMethod::ALL.iter().position(|w| *w == way).and_then(|i| self.zeroed.get(i))
        {
            n.fetch_add(bytes, Relaxed);
        }
    }

    /// Bytes that were left alone.
    pub(crate) fn all_kept(&self) -> u64 {
        self.kept.load(Relaxed)
    }

    /// Bytes that were zeroed, by way.
    pub(crate) fn ways(&self) -> Vec<(ZeroMethod, u64)> {
        let all = ZeroMethod::ALL.iter().zip(&self.zeroed);
        all.map(|(way, n)| (*way, n.load(Relaxed))).filter(|(_, n)| *n > 0).collect()
    }
}
