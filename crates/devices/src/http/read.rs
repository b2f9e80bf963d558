//! A read that waits for some of its bytes.
//!
//! Each chunk is copied into its buffer when it comes, on the thread that received it, so a chunk
//! need not stay in the window until the rest comes. It completes once: when nothing is missing, or
//! at the first failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use device::{Buffer, Done, Error, Outcome};
use runtime::{Behalf, Mutex, to_usize};

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
            copy_overlap(buffer, self.offset, index * CHUNK, bytes);
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

impl std::fmt::Debug for PendingRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PendingRead({} bytes at {})", self.len, self.offset)
    }
}

/// Copies into `buffer`, whose first byte is at `offset`, the wanted part of `bytes`, whose first
/// one is at `start`.
pub(super) fn copy_overlap(buffer: &mut [u8], offset: u64, start: u64, bytes: &[u8]) {
    let from = offset.max(start);
    let place = |base: u64| to_usize(from - base);
    let Some(into) = buffer.get_mut(place(offset)..) else { return };
    let Some(source) = bytes.get(place(start)..) else { return };
    let len = into.len().min(source.len());
    if let (Some(into), Some(source)) = (into.get_mut(..len), source.get(..len)) {
        into.copy_from_slice(source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_is_copied_wherever_a_chunk_begins_and_ends() {
        let chunk: Vec<u8> = (0..10).collect();
        for (offset, len, start, wanted) in [
            (0, 4, 0, &[0, 1, 2, 3][..]),
            (5, 3, 0, &[5, 6, 7]),
            (0, 4, 2, &[99, 99, 0, 1]),
            (8, 4, 0, &[8, 9, 99, 99]),
            (0, 4, 4, &[99; 4]),
            (10, 4, 0, &[99; 4]),
        ] {
            let mut buffer = vec![99; len];
            copy_overlap(&mut buffer, offset, start, &chunk);
            assert_eq!(buffer, wanted, "{offset} {len} {start}");
        }
    }
}
