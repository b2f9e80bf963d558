//! What this process may leave in the page cache, for all its files together: an eighth of the
//! memory that is free, and no more than 64 MiB. In a virtual machine, pages that were unused for
//! long cost more to fill than recently freed ones, and a program that copies more than that does
//! not read it again soon.
//!
//! How much is free is asked again after every 16 MiB, so that what others take meanwhile counts.

use runtime::Mutex;

use super::memory;

/// The share of the free memory.
const PART: u64 = 8;
/// The most, in bytes.
const MOST: u64 = 64 << 20;
/// The free memory is read again after this many bytes.
const STEP: u64 = 16 << 20;

static ALLOWANCE: Mutex<Allowance> = Mutex::new(Allowance { left: MOST, unasked: 0 });

/// What is left of it.
#[derive(Debug)]
struct Allowance {
    left: u64,
    /// Bytes that may be taken before the free memory is read again.
    unasked: u64,
}

/// Whether a file of this many bytes may stay as a whole. A longer one is dropped as a whole: its
/// first part alone helps no reader, and filling pages that were just dropped is quicker.
pub(crate) fn fits(bytes: u64) -> bool {
    bytes <= MOST
}

/// Whether this many bytes may stay in memory; if so, they are taken.
pub(crate) fn take(bytes: u64) -> bool {
    ALLOWANCE.lock().take(bytes, memory::free)
}

impl Allowance {
    fn take(&mut self, bytes: u64, free: impl FnOnce() -> u64) -> bool {
        if self.unasked < bytes.max(1) {
            self.left = self.left.min(free() / PART);
            self.unasked = STEP;
        }
        let Some(left) = self.left.checked_sub(bytes) else { return false };
        self.left = left;
        self.unasked = self.unasked.saturating_sub(bytes);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_an_eighth_of_what_is_free_is_left_and_less_when_that_shrinks() {
        let new = || Allowance { left: MOST, unasked: 0 };
        let taken = |free: u64| {
            let mut allowance = new();
            (0..1000).filter(|_| allowance.take(4 << 20, || free)).count()
        };
        assert_eq!((taken(8 * (40 << 20)), taken(64 << 30), taken(0)), (10, 16, 0));
        let mut allowance = new();
        assert!(allowance.take(16 << 20, || 8 << 30));
        assert!(!allowance.take(4 << 20, || 8 << 20), "another program needs it now");
        assert!(!allowance.take(4 << 20, || 8 << 30), "what is gone does not come back");
    }
}
