//! The system's allocator, but never for much at once: a parser that asks for that has believed an
//! untrusted number.
//!
//! Libraries in C allocate without it; the limit of all memory covers them.

use std::alloc::{GlobalAlloc, Layout, System};

/// Bytes of one allocation, at most: no parser of ours may need more for an input of some KiB.
const MOST: usize = 48 << 20;

pub(crate) struct Limited;

fn check(bytes: usize) {
    if bytes > MOST {
        // Nothing may be allocated here.
        std::process::abort();
    }
}

// SAFETY: each call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: the caller keeps the rules of this same function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, bytes: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        check(size);
        // SAFETY: as above.
        unsafe { System.realloc(bytes, layout, size) }
    }

    unsafe fn dealloc(&self, bytes: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(bytes, layout) }
    }
}
