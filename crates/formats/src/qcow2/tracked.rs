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

#[derive(Default)]
struct State {
    /// The image says that it is in use.
    is_marked: bool,
    /// The bits that were set since, in chunks by number; they only change while it is marked.
    chunks: BTreeMap<u64, Arc<[u8]>>,
}

impl Tracked {
    /// With nothing set. A chunk is a block of tables.
    pub(super) fn new(bitmap: Bitmap, chunk: u64) -> Self {
        Self { bitmap, chunk, state: Mutex::default() }
    }

    /// Sets the bits of a range of the disk, of at least a byte; false if the image does not say
    /// yet that the bitmap is in use.
    pub(super) fn set(&self, offset: u64, len: u64) -> bool {
        let state = &mut *self.state.lock();
        if !state.is_marked {
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
    pub(super) fn is_marked(&self) -> bool {
        self.state.lock().is_marked
    }

    /// The image says that it is in use, or is about to say that it is not.
    pub(super) fn mark(&self, is_marked: bool) {
        self.state.lock().is_marked = is_marked;
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

/// Sets bits, the lowest of a byte first.
fn set_bits(bytes: &mut [u8], bits: Range<u64>) {
    for bit in bits {
        if let Some(byte) = usize::try_from(bit / 8).ok().and_then(|at| bytes.get_mut(at)) {
            *byte |= 1 << (bit % 8);
        }
    }
}
