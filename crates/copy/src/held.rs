//! Memory in buffers that a worker holds, counted until the last part of a buffer has gone.
//!
//! What is read is looked at for zeroes, and only the rest is written: 4 KiB on their way keep all of the
//! buffer that they lie in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many bytes that is.
#[derive(Debug, Default)]
pub(crate) struct Held(Arc<AtomicU64>);

/// A buffer's part of it. It counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Load {
    bytes: u64,
    held: Arc<AtomicU64>,
}

impl Held {
    /// A buffer of so many bytes is held.
    pub(crate) fn take(&self, bytes: usize) -> Arc<Load> {
        let bytes = bytes as u64;
        self.0.fetch_add(bytes, Relaxed);
        Arc::new(Load { bytes, held: self.0.clone() })
    }

    /// Whether so many more stay below `most`. If nothing is held, there is always room for them.
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
