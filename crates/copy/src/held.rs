//! Memory in buffers that a worker holds, counted until the last part of a buffer has gone.
//!
//! Reads are searched for zeroes, and only the rest is written: 4 KiB that wait to be written keep
//! all of their buffer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many bytes are held.
#[derive(Debug, Default)]
pub(crate) struct Held(Arc<AtomicU64>);

/// A buffer's share of that, until it is dropped.
#[derive(Debug)]
pub(crate) struct Load {
    bytes: u64,
    held: Arc<AtomicU64>,
}

impl Held {
    /// Counts a buffer of this many bytes.
    pub(crate) fn take(&self, bytes: usize) -> Arc<Load> {
        let bytes = bytes as u64;
        self.0.fetch_add(bytes, Relaxed);
        Arc::new(Load { bytes, held: self.0.clone() })
    }

    /// Whether this many more stay below `most`. If nothing is held, there is always room.
    pub(crate) fn has_room(&self, bytes: u64, most: u64) -> bool {
        let held = self.0.load(Relaxed);
        held == 0 || held.saturating_add(bytes) <= most
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_counts_as_long_as_a_part_of_it_is_there() {
        let held = Held::default();
        assert!(held.has_room(1000, 10), "one at a time, however long");
        let (one, other) = (held.take(6), held.take(4));
        let part = one.clone();
        drop((one, other));
        assert!(held.has_room(4, 10) && !held.has_room(5, 10));
        drop(part);
        assert!(held.has_room(1000, 10));
    }
}
