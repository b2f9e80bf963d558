//! Buffers for data on its way: page-aligned, recycled, bounded.
//!
//! Uses `unsafe` to allocate with an alignment of 4096 bytes, which direct I/O needs and `Vec`
//! does not give. A recycled buffer holds what its last user left in it; a read fills all of it
//! or fails.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

const ALIGN: usize = 4096;
/// Classes of 4 KiB, 8 KiB … 64 MiB.
const CLASSES: usize = 15;

/// An owned, page-aligned buffer of bytes.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
    pool: Option<Arc<Shelves>>,
}

// SAFETY: a buffer owns its memory exclusively, like a `Vec<u8>`.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer of `len` zero bytes that belongs to no pool.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self::allocate(len, len.next_multiple_of(ALIGN).max(ALIGN), None)
    }

    /// A buffer that holds a copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    fn allocate(len: usize, capacity: usize, pool: Option<Arc<Shelves>>) -> Self {
        let layout = layout(capacity);
        // SAFETY: the layout is not empty: capacity is at least ALIGN.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(memory) else { handle_alloc_error(layout) };
        Self { start, len, capacity, pool }
    }

    /// Shortens the buffer to `len` bytes; longer is ignored.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

fn layout(capacity: usize) -> Layout {
    match Layout::from_size_align(capacity, ALIGN) {
        Ok(layout) => layout,
        // Only a capacity near isize::MAX gets here, and no caller passes one: limits come first.
        Err(_) => handle_alloc_error(Layout::new::<u8>()),
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `capacity` initialised bytes that this buffer owns, and
        // `len` never exceeds `capacity`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take()
            && pool.put_back(self.start, self.capacity)
        {
            return;
        }
        // SAFETY: allocated in `allocate` with the same layout, and not given back to a pool.
        unsafe { dealloc(self.start.as_ptr(), layout(self.capacity)) }
    }
}

/// Keeps dropped buffers for reuse, up to a number of bytes. Cheap to clone; all clones share.
#[derive(Clone)]
pub struct BufferPool(Arc<Shelves>);

struct Shelves {
    keep: usize,
    inner: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    bytes: usize,
    free: [Vec<NonNull<u8>>; CLASSES],
}

// SAFETY: the pointers on the shelves are owned by them alone.
unsafe impl Send for Kept {}

impl BufferPool {
    /// A pool that keeps at most `keep` bytes of buffers that nobody uses.
    #[must_use]
    pub fn new(keep: usize) -> Self {
        Self(Arc::new(Shelves { keep, inner: Mutex::default() }))
    }

    /// A buffer of `len` bytes; what it holds is whatever its last user left.
    #[must_use]
    pub fn take(&self, len: usize) -> Buffer {
        let Some((class, capacity)) = class_of(len) else { return Buffer::zeroed(len) };
        if let Some(start) = self.0.take(class, capacity) {
            return Buffer { start, len, capacity, pool: Some(self.0.clone()) };
        }
        Buffer::allocate(len, capacity, Some(self.0.clone()))
    }
}

impl std::fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BufferPool(keeps {} bytes)", self.0.keep)
    }
}

/// The shelf for `len` bytes and the capacity of the buffers on it.
fn class_of(len: usize) -> Option<(usize, usize)> {
    let capacity = len.max(ALIGN).checked_next_power_of_two()?;
    let class = (capacity / ALIGN).ilog2() as usize;
    (class < CLASSES).then_some((class, capacity))
}

impl Shelves {
    fn take(&self, class: usize, capacity: usize) -> Option<NonNull<u8>> {
        let mut kept = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let start = kept.free.get_mut(class)?.pop()?;
        kept.bytes -= capacity;
        Some(start)
    }

    fn put_back(&self, start: NonNull<u8>, capacity: usize) -> bool {
        let Some((class, _)) = class_of(capacity) else { return false };
        let mut kept = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if capacity > self.keep.saturating_sub(kept.bytes) {
            return false;
        }
        kept.bytes += capacity;
        kept.free[class].push(start);
        true
    }
}

impl Drop for Shelves {
    fn drop(&mut self) {
        let kept = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (class, shelf) in kept.free.iter_mut().enumerate() {
            for start in shelf.drain(..) {
                // SAFETY: every buffer of this shelf was allocated with this capacity.
                unsafe { dealloc(start.as_ptr(), layout(ALIGN << class)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_gives_back_what_was_dropped_and_keeps_no_more_than_it_may() {
        let pool = BufferPool::new(8192);
        let (a, b, c) = (pool.take(5000), pool.take(4096), pool.take(1));
        assert_eq!((a.len(), b.len(), c.len()), (5000, 4096, 1));
        assert_eq!(a.as_ptr() as usize % ALIGN, 0);
        drop((b, c, a));
        assert_eq!(pool.0.inner.lock().unwrap().bytes, 8192);
        let again = pool.take(100);
        assert_eq!(pool.0.inner.lock().unwrap().bytes, 4096);
        drop(pool);
        drop(again);
    }

    #[test]
    fn buffers_larger_than_the_largest_class_are_not_pooled() {
        let pool = BufferPool::new(usize::MAX);
        drop(pool.take((64 << 20) + 1));
        assert_eq!(pool.0.inner.lock().unwrap().bytes, 0);
    }
}
