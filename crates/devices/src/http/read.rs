//! A read that waits for some of its bytes.
//!
//! Each chunk is copied into its buffer when it comes, on the thread that received it, so a chunk
//! need not stay in the window until the rest comes. It completes once: when nothing is missing, or
//! at the first failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use device::{Buffer, Done, Error, Outcome, copy_overlap};
use runtime::{Behalf, Mutex};

use super::window::CHUNK;

/// See the module.
pub(super) struct PendingRead {
    offset: u64,
    len: u64,
    /// Missing chunks, and one more while it is being registered.
    missing: AtomicUsize,
    open: Mutex<Option<(Buffer, Done)>>,
    /// For whom it is.
    behalf: Behalf,
}

impl PendingRead {
    pub(super) fn new(offset: u64, buffer: Buffer, done: Done) -> Arc<Self> {
        let len = buffer.len() as u64;
        let open = Mutex::new(Some((buffer, done)));
        let (missing, behalf) = (AtomicUsize::new(1), Behalf::current());
        Arc::new(Self { offset, len, missing, open, behalf })
    }

    /// The client in whose turns it is; 0 is none.
    pub(super) fn client(&self) -> u64 {
        self.behalf.client()
    }

    /// Whether its client is still there.
    pub(super) fn is_wanted(&self) -> bool {
        self.behalf.is_wanted()
    }

    /// One more chunk is missing.
    pub(super) fn waits_for_one_more(&self) {
        self.missing.fetch_add(1, Ordering::Relaxed);
    }

    /// All that is missing has been counted.
    pub(super) fn registered(&self) {
        self.one_less();
    }

    /// How many of `len` bytes from `start` it wants.
    pub(super) fn overlap(&self, start: u64, len: u64) -> u64 {
        let end = (start + len).min(self.offset + self.len);
        end.saturating_sub(start.max(self.offset))
    }

    /// Copies what it wants of a chunk, which was there when it was registered.
    pub(super) fn copy(&self, index: u64, bytes: &[u8]) {
        let mut open = self.open.lock();
        if let Some((buffer, _)) = &mut *open {
            copy_overlap(buffer, self.offset, bytes, index * CHUNK);
        }
    }

    /// Takes a chunk that was missing.
    pub(super) fn take(&self, index: u64, bytes: &[u8]) {
        self.copy(index, bytes);
        self.one_less();
    }

    /// Completes with an error, unless it has completed.
    pub(super) fn fail(&self, error: &Error) {
        if let Some((_, done)) = self.close() {
            done(Err(error.duplicate()));
        }
    }

    fn one_less(&self) {
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some((buffer, done)) = self.close()
        {
            done(Ok(Outcome::Read(buffer)));
        }
    }

    fn close(&self) -> Option<(Buffer, Done)> {
        self.open.lock().take()
    }
}

runtime::debug_as!(PendingRead, |read| "PendingRead({} bytes at {})", read.len, read.offset);
