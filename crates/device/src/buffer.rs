//! Buffers for data: page-aligned, recycled, bounded.
//!
//! Uses `unsafe` to allocate with an alignment of 4096 bytes, which direct I/O needs and `Vec`
//! does not give, and to map large buffers, so that their memory is taken page by page as bytes
//! arrive and given back when they are dropped. A recycled buffer holds what its last user left in
//! it; a read fills all of it or fails.
#![expect(unsafe_code, reason = "see above")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use runtime::Mutex;
#[cfg(target_os = "linux")]
use rustix::mm::{Advice, madvise};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

const ALIGN: usize = 4096;
/// Buffers up to this capacity have one of a few, 4 KiB, 8 KiB … 128 KiB; larger ones are mapped,
/// in whole pages of 4 KiB.
const SMALL: usize = 128 << 10;
/// Bytes of a huge page.
const HUGE: usize = 2 << 20;
/// A mapped buffer is also used for less, down to 8/9 of its capacity.
const SLACK: usize = 8;

/// An owned, page-aligned buffer of bytes.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
    touched: usize,
    pool: Option<Arc<Shelves>>,
}

// SAFETY: a buffer owns its memory exclusively, like a `Vec<u8>`.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer of `len` zero bytes that belongs to no pool. Aborts the program if there is not
    /// enough memory, as any allocation does.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self::allocate(len, whole_pages(len), None)
    }

    /// `len` zero bytes in memory of its own, of huge pages where the system has them, as
    /// [`BufferPool::take_whole`] says. For long-lived buffers.
    #[must_use]
    pub fn of_huge_pages(len: usize) -> Self {
        let capacity = len.max(SMALL + 1).next_multiple_of(HUGE);
        let start = allocate_huge(capacity);
        let mut buffer = Self { start, len, capacity, touched: capacity, pool: None };
        // Memory that was only read would all be the shared page of zeroes.
        buffer.fill(0);
        buffer
    }

    /// A buffer that holds a copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    fn allocate(len: usize, capacity: usize, pool: Option<Arc<Shelves>>) -> Self {
        let touched = if capacity > SMALL { 0 } else { capacity };
        Self { start: allocate(capacity), len, capacity, touched, pool }
    }

    /// How many bytes of memory it takes when all of it has been filled; not less than its length.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many bytes of memory it may have taken already when it was made. More are taken as it is
    /// filled.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.touched
    }

    /// Shortens the buffer to `len` bytes; longer is ignored.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

/// `len` rounded up to whole pages, at least one.
fn whole_pages(len: usize) -> usize {
    match len.checked_next_multiple_of(ALIGN) {
        Some(capacity) => capacity.max(ALIGN),
        None => too_much(),
    }
}

fn too_much() -> ! {
    handle_alloc_error(Layout::new::<u8>())
}

fn layout(capacity: usize) -> Layout {
    // Only a capacity near isize::MAX is refused, and no caller has one: limits come first.
    Layout::from_size_align(capacity, ALIGN).unwrap_or_else(|_| too_much())
}

/// `capacity` zero bytes, whole pages and at least one, without another owner.
fn allocate(capacity: usize) -> NonNull<u8> {
    // Also refuses what no slice can hold.
    let layout = layout(capacity);
    if capacity <= SMALL {
        // SAFETY: the layout is not empty: capacity is at least ALIGN.
        let memory = unsafe { alloc_zeroed(layout) };
        return NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout));
    }
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
    let Ok(memory) = (unsafe { mmap_anonymous(null_mut(), capacity, protection, flags) }) else {
        handle_alloc_error(layout)
    };
    // Page by page, also where the system likes huge ones. A hint: without it, it is merely larger.
    // SAFETY: the range is the mapping just made, and the advice changes no content.
    #[cfg(target_os = "linux")]
    let _ = unsafe { madvise(memory, capacity, Advice::LinuxNoHugepage) };
    NonNull::new(memory.cast()).unwrap_or_else(|| handle_alloc_error(layout))
}

/// The same for whole huge pages, at the beginning of one.
fn allocate_huge(capacity: usize) -> NonNull<u8> {
    let (Some(more), flags) = (capacity.checked_add(HUGE), MapFlags::PRIVATE) else { too_much() };
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
    let Ok(memory) = (unsafe { mmap_anonymous(null_mut(), more, protection, flags) }) else {
        handle_alloc_error(layout(capacity))
    };
    let before = memory.cast::<u8>().align_offset(HUGE).min(HUGE);
    let start = memory.cast::<u8>().wrapping_add(before);
    let behind = start.wrapping_add(capacity);
    // SAFETY: both ranges are parts of the mapping just made, in whole pages, and not in use yet.
    // What cannot be given back stays mapped, which costs nothing.
    unsafe {
        let _ = if before > 0 { munmap(memory, before) } else { Ok(()) };
        let _ = if before < HUGE { munmap(behind.cast(), HUGE - before) } else { Ok(()) };
        // A hint.
        #[cfg(target_os = "linux")]
        let _ = madvise(start.cast(), capacity, Advice::LinuxHugepage);
    }
    NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout(capacity)))
}

/// Gives back what [`allocate`] gave, or whole pages of what [`allocate_huge`] gave.
///
/// # Safety
/// `start` is from `allocate` with the same `capacity`, or `capacity` bytes, more than [`SMALL`],
/// are of a mapping of `allocate_huge`; they are given back once, and are not in use.
unsafe fn release(start: NonNull<u8>, capacity: usize) {
    if capacity <= SMALL {
        // SAFETY: by the caller's promise, allocated there with this layout.
        unsafe { dealloc(start.as_ptr(), layout(capacity)) }
    } else {
        // SAFETY: by the caller's promise, these are whole pages of a mapping made there.
        let unmapped = unsafe { munmap(start.as_ptr().cast(), capacity) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
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

runtime::debug_as!(Buffer, |buffer| "Buffer({} bytes)", buffer.len);

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take()
            && pool.put_back(self.start, self.capacity)
        {
            return;
        }
        // SAFETY: allocated in `allocate` with the same capacity, and not given back to a pool.
        unsafe { release(self.start, self.capacity) }
    }
}

/// Keeps dropped buffers for reuse, up to a number of bytes. Cheap to clone; all clones share.
#[derive(Clone)]
pub struct BufferPool(Arc<Shelves>);

struct Shelves {
    keep: usize,
    inner: Mutex<Kept>,
}

/// Buffers that are free, by their capacity. No list is empty.
#[derive(Default)]
struct Kept {
    bytes: usize,
    free: BTreeMap<usize, Vec<NonNull<u8>>>,
}

// SAFETY: the pointers on the shelves are owned by them alone.
unsafe impl Send for Kept {}

impl BufferPool {
    /// A pool that keeps at most `keep` bytes of free buffers.
    #[must_use]
    pub fn new(keep: usize) -> Self {
        Self(Arc::new(Shelves { keep, inner: Mutex::default() }))
    }

    /// A buffer of `len` bytes; what it holds is whatever its last user left.
    #[must_use]
    pub fn take(&self, len: usize) -> Buffer {
        self.kept_or(len, |_| None)
    }

    /// The same for a buffer that is filled at once, by a read: it is of huge pages where the
    /// system has them. Direct I/O then describes it to the disk in a piece or two, and not in one
    /// for each 4 KiB, which takes some disks half of the time. Its first byte may take 2 MiB of
    /// memory: so it is not for what a peer sends, who may send little of it.
    #[must_use]
    pub fn take_whole(&self, len: usize) -> Buffer {
        self.kept_or(len, |least| self.0.take_huge(least))
    }

    /// One that is kept, or what `new` makes of this capacity, or memory page by page.
    fn kept_or(
        &self,
        len: usize,
        new: impl FnOnce(usize) -> Option<(NonNull<u8>, usize)>,
    ) -> Buffer {
        let (pool, (least, most)) = (Some(self.0.clone()), capacities(len));
        let kept = self.0.take(least, most);
        let touched = kept.map_or(0, |(_, capacity)| capacity);
        match kept.or_else(|| new(least)) {
            Some((start, capacity)) => Buffer { start, len, capacity, touched, pool },
            None => Buffer::allocate(len, least, pool),
        }
    }
}

runtime::debug_as!(BufferPool, |pool| "BufferPool(keeps {} bytes)", pool.0.keep);

/// The capacity of a new buffer for `len` bytes, and the largest of one that is used for it.
fn capacities(len: usize) -> (usize, usize) {
    if len <= SMALL {
        let capacity = len.next_power_of_two().max(ALIGN);
        return (capacity, capacity);
    }
    let capacity = whole_pages(len);
    (capacity, capacity.saturating_add(capacity / SLACK))
}

impl Shelves {
    fn take(&self, least: usize, most: usize) -> Option<(NonNull<u8>, usize)> {
        let mut kept = self.inner.lock();
        let capacity = *kept.free.range(least..=most).next()?.0;
        kept.pop(capacity).map(|start| (start, capacity))
    }

    /// New memory of huge pages, if whole ones can be cut into buffers of this capacity; the others
    /// that one was cut into are kept. Each is given back by itself, as any mapping.
    fn take_huge(&self, capacity: usize) -> Option<(NonNull<u8>, usize)> {
        if capacity.is_multiple_of(HUGE) {
            return Some((allocate_huge(capacity), capacity));
        }
        if capacity <= SMALL || !capacity.is_power_of_two() || self.keep < HUGE {
            return None;
        }
        let start = allocate_huge(HUGE);
        for at in (capacity..HUGE).step_by(capacity) {
            // SAFETY: the place is within the mapping just made.
            let piece = unsafe { start.add(at) };
            if !self.put_back(piece, capacity) {
                // SAFETY: it is whole pages of that mapping, and nothing refers to them.
                unsafe { release(piece, capacity) }
            }
        }
        Some((start, capacity))
    }

    /// Keeps a buffer, if there is room. For a large one room is made by giving back large ones of
    /// other capacities, so that sizes that are no longer wanted do not stay here for ever.
    fn put_back(&self, start: NonNull<u8>, capacity: usize) -> bool {
        if capacity > self.keep {
            return false;
        }
        let mut given_back = Vec::new();
        let mut kept = self.inner.lock();
        while capacity > SMALL && capacity > self.keep - kept.bytes {
            let other = kept.free.keys().rev().find(|c| **c != capacity).copied();
            let Some(other) = other.filter(|other| *other > SMALL) else { break };
            given_back.extend(kept.pop(other).map(|start| (start, other)));
        }
        let fits = capacity <= self.keep - kept.bytes;
        if fits {
            kept.bytes += capacity;
            kept.free.entry(capacity).or_default().push(start);
        }
        drop(kept);
        for (start, capacity) in given_back {
            // SAFETY: it was on the shelf of buffers of this capacity, and is not any more.
            unsafe { release(start, capacity) }
        }
        fits
    }
}

impl Kept {
    fn pop(&mut self, capacity: usize) -> Option<NonNull<u8>> {
        let shelf = self.free.get_mut(&capacity)?;
        let start = shelf.pop()?;
        if shelf.is_empty() {
            self.free.remove(&capacity);
        }
        self.bytes -= capacity;
        Some(start)
    }
}

impl Drop for Shelves {
    fn drop(&mut self) {
        let kept = self.inner.get_mut();
        for (capacity, shelf) in std::mem::take(&mut kept.free) {
            for start in shelf {
                // SAFETY: every buffer of this shelf was allocated with this capacity.
                unsafe { release(start, capacity) }
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
        assert_eq!(pool.0.inner.lock().bytes, 8192);
        let again = pool.take(100);
        assert_eq!(pool.0.inner.lock().bytes, 4096);
        drop(pool);
        drop(again);
    }

    #[test]
    fn large_buffers_have_the_memory_that_is_counted_and_take_it_as_they_are_filled() {
        let resident = |buffer: &Buffer| {
            let mut pages = vec![0; buffer.capacity() / ALIGN];
            // SAFETY: the range is the buffer's, and there is a byte for each of its pages.
            let answer = unsafe {
                libc::mincore(buffer.start.as_ptr().cast(), buffer.capacity(), pages.as_mut_ptr())
            };
            assert_eq!(answer, 0);
            pages.iter().filter(|page| **page & 1 != 0).count()
        };
        let pool = BufferPool::new(1 << 20);
        let mut buffer = pool.take((2 << 20) + 512);
        assert_eq!((buffer.capacity(), buffer.taken()), ((2 << 20) + ALIGN, 0));
        assert_eq!(resident(&buffer), 0);
        buffer[ALIGN * 10..ALIGN * 12].fill(1);
        assert_eq!(resident(&buffer), 2);
        assert!(buffer[..ALIGN * 10].iter().all(|byte| *byte == 0));
        // More than the pool keeps: given back.
        drop(buffer);
        assert_eq!(pool.0.inner.lock().bytes, 0);
    }

    #[test]
    fn buffers_that_are_filled_at_once_share_a_huge_page_and_are_given_back_one_by_one() {
        let pool = BufferPool::new(HUGE);
        let mut taken: Vec<Buffer> = (0..17).map(|_| pool.take_whole(256 << 10)).collect();
        let first = taken[0].as_ptr() as usize;
        assert_eq!((taken[0].capacity(), first % HUGE), (256 << 10, 0));
        // Eight of one page: the others wait on the shelf, and count as taken.
        assert_eq!(taken.iter().filter(|b| b.taken() == 0).count(), 3);
        assert_eq!(pool.0.inner.lock().bytes, 7 * (256 << 10));
        for (n, buffer) in (0..).zip(&mut taken) {
            buffer.fill(n);
        }
        assert!((0..).zip(&taken).all(|(n, buffer)| buffer.iter().all(|byte| *byte == n)));
        // The pool keeps eight; the memory of each of the others is no longer there.
        let ninth = taken.remove(8);
        taken.truncate(8);
        assert!((0..).zip(&taken).all(|(n, buffer)| buffer.iter().all(|byte| *byte == n)));
        drop(taken);
        assert_eq!(pool.0.inner.lock().bytes, HUGE);
        assert!(ninth.iter().all(|byte| *byte == 8));
        let whole = pool.take_whole(2 * HUGE);
        assert_eq!((whole.as_ptr() as usize % HUGE, whole.capacity()), (0, 2 * HUGE));
    }

    #[test]
    fn a_pool_that_keeps_no_huge_page_makes_none() {
        let pool = BufferPool::new(1 << 20);
        let (a, b) = (pool.take_whole(256 << 10), pool.take_whole(300 << 10));
        assert_eq!((a.capacity(), b.capacity()), (256 << 10, 300 << 10));
        assert_eq!(pool.0.inner.lock().bytes, 0);
    }

    #[test]
    fn a_pool_gives_large_buffers_for_a_little_less_and_frees_sizes_that_are_not_asked_for() {
        let pool = BufferPool::new(1 << 20);
        let mut big = pool.take(512 << 10);
        big.fill(7);
        let at = big.as_ptr();
        drop(big);
        let again = pool.take(500 << 10);
        assert!(again.as_ptr() == at && again.len() == 500 << 10);
        assert_eq!((again.capacity(), again.taken()), (512 << 10, 512 << 10));
        assert!(pool.take(300 << 10).as_ptr() != at);
        drop(again);
        // 300 KiB and 512 KiB lie there; two of 500 KiB have room only without them.
        let two = (pool.take(520 << 10), pool.take(500 << 10), pool.take(500 << 10));
        drop(two);
        let kept = pool.0.inner.lock();
        assert!(kept.bytes <= 1 << 20);
        assert_eq!(kept.bytes, kept.free.iter().map(|(c, list)| c * list.len()).sum::<usize>());
    }
}
