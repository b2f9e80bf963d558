//! What was written since an image was opened, for a dirty bitmap that is enabled.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use runtime::Mutex;

use super::bitmap::Bitmap;

/// An enabled bitmap.
pub(super) struct Tracked {
    pub(super) bitmap: Bitmap,
    /// Bytes of the bitmap in a chunk.
    chunk: u64,
    state: Mutex<State>,
}

/// Whether the image says that a bitmap is in use.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum InUse {
    /// It does not.
    #[default]
    No,
    /// It may, or may after a power failure: it is about to say so or to take it back, or that
    /// failed.
    Unsure,
    /// It does, durably.
    Said,
}

#[derive(Default)]
struct State {
    in_use: InUse,
    /// The bits that were set since, in chunks by number; they only change while it is in use.
    chunks: BTreeMap<u64, Arc<[u8]>>,
}

impl Tracked {
    /// With nothing set. A chunk is a block of tables.
    pub(super) fn new(bitmap: Bitmap, chunk: u64) -> Self {
        Self { bitmap, chunk, state: Mutex::default() }
    }

    /// Sets the bits of a range of the disk, of at least a byte; false if it is not certain that
    /// the image says that the bitmap is in use.
    pub(super) fn set(&self, offset: u64, len: u64) -> bool {
        let state = &mut *self.state.lock();
        if state.in_use != InUse::Said {
            return false;
        }
        let (mut bit, last) = (
            offset >> self.bitmap.granularity_bits,
            (offset + (len - 1)) >> self.bitmap.granularity_bits,
        );
        let each = self.chunk * 8;
        while bit <= last {
            let (number, end) = (bit / each, (bit / each + 1) * each);
            let to = end.min(last + 1);
            let len = usize::try_from(self.chunk).unwrap_or(0);
            let bytes = state.chunks.entry(number).or_insert_with(|| vec![0; len].into());
            set_bits(Arc::make_mut(bytes), bit % each..(to - 1) % each + 1);
            bit = to;
        }
        true
    }

    /// The bits that were set since it was saved in the chunk with `bit`, if any, and the first bit
    /// after it.
    pub(super) fn fresh(&self, bit: u64) -> (Option<Arc<[u8]>>, u64) {
        let number = bit / (self.chunk * 8);
        let found = self.state.lock().chunks.get(&number).cloned();
        (found, (number + 1) * self.chunk * 8)
    }

    /// Whether the image says that it is in use.
    pub(super) fn in_use(&self) -> InUse {
        self.state.lock().in_use
    }

    pub(super) fn mark(&self, in_use: InUse) {
        self.state.lock().in_use = in_use;
    }

    /// The first chunk with bits that were set, and where it begins in the bitmap, in bytes.
    pub(super) fn first_chunk(&self) -> Option<(u64, Arc<[u8]>)> {
        let state = self.state.lock();
        let (number, bits) = state.chunks.first_key_value()?;
        Some((number * self.chunk, bits.clone()))
    }

    /// The image has the bits of the chunk that begins at `at`.
    pub(super) fn forget_chunk(&self, at: u64) {
        self.state.lock().chunks.remove(&(at / self.chunk));
    }
}

/// Sets bits, the lowest of a byte first; whole bytes at once, since a zero of all of a large disk
/// sets all of them.
fn set_bits(bytes: &mut [u8], bits: Range<u64>) {
    let place = |bit: u64| usize::try_from(bit / 8).unwrap_or(usize::MAX);
    let (first, last) = (place(bits.start), place(bits.end));
    let (from, to) = (u8::MAX << (bits.start % 8), !(u8::MAX << (bits.end % 8)));
    let mut set = |at: usize, mask: u8| {
        if let Some(byte) = bytes.get_mut(at) {
            *byte |= mask;
        }
    };
    if bits.is_empty() {
        return;
    }
    if first == last {
        return set(first, from & to);
    }
    set(first, from);
    set(last, to);
    let len = bytes.len();
    if let Some(whole) = bytes.get_mut((first + 1).min(len)..last.min(len)) {
        whole.fill(u8::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_set_from_the_first_to_before_the_last_in_any_bytes() {
        for start in 0..40 {
            for end in start..=40 {
                let (mut fast, mut slow) = ([0; 5], [0; 5]);
                set_bits(&mut fast, start..end);
                for bit in start..end {
                    slow[usize::try_from(bit / 8).unwrap()] |= 1 << (bit % 8);
                }
                assert_eq!(fast, slow, "{start}..{end}");
            }
        }
    }
}
