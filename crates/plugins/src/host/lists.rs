//! Lists that plugins fill: the extents of a range, and the exports.
#![expect(unsafe_code, reason = "the interface is C's")]

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use crate::abi::{set_errno, text};
use crate::call;

super::functions!(
    nbdkit_add_extent,
    nbdkit_extents_new,
    nbdkit_extents_free,
    nbdkit_extents_count,
    nbdkit_get_extent,
    nbdkit_add_export,
    nbdkit_use_default_export,
    nbdkit_exports_new,
    nbdkit_exports_free,
    nbdkit_exports_count,
    nbdkit_get_export,
);

/// Extents in a list at most.
const MOST_EXTENTS: usize = 1 << 20;
/// Exports in a list at most.
const MOST_EXPORTS: usize = 10_000;
/// Bytes of a name or a description at most.
const LONGEST: usize = 4096;

/// `struct nbdkit_extents`: the map of a range so far.
#[derive(Debug)]
pub(crate) struct NbdkitExtents {
    start: u64,
    end: u64,
    /// Where the next extent has to begin.
    next: Option<u64>,
    list: Vec<NbdkitExtent>,
}

/// `struct nbdkit_extent`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct NbdkitExtent {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) kind: u32,
}

impl NbdkitExtents {
    /// An empty list for the range from `start` to `end`.
    pub(crate) fn new(start: u64, end: u64) -> Self {
        Self { start, end, next: None, list: Vec::new() }
    }

    /// The extents: they adjoin, begin at the start of the range, and end within it.
    pub(crate) fn list(&self) -> &[NbdkitExtent] {
        &self.list
    }

    /// Adds an extent, cut to the range.
    fn add(&mut self, offset: u64, length: u64, kind: u32) -> Result<(), String> {
        let order =
            "nbdkit_add_extent: extents must be added in ascending order and must be contiguous";
        if self.next.is_some_and(|next| next != offset) {
            return Err(order.to_owned());
        }
        let end = offset.saturating_add(length);
        self.next = Some(end);
        if length == 0 || offset >= self.end || self.list.len() >= MOST_EXTENTS {
            return Ok(());
        }
        let end = end.min(self.end);
        let begin = match self.list.last() {
            Some(_) => offset,
            None if end <= self.start => return Ok(()),
            None if offset > self.start => {
                let start = self.start;
                return Err(format!(
                    "nbdkit_add_extent: first extent must not be > start ({start})"
                ));
            }
            None => self.start,
        };
        let length = end.saturating_sub(begin);
        match self.list.last_mut() {
            Some(last) if last.kind == kind => last.length = last.length.saturating_add(length),
            _ => self.list.push(NbdkitExtent { offset: begin, length, kind }),
        }
        Ok(())
    }
}

/// `struct nbdkit_exports`: names of exports, with descriptions.
#[derive(Debug, Default)]
pub(crate) struct NbdkitExports {
    pub(crate) list: Vec<(String, String)>,
    /// The default export is one of them.
    pub(crate) with_default: bool,
}

/// The list behind a pointer of the plugin.
fn list<'a, T>(given: *mut T) -> Option<&'a mut T> {
    // SAFETY: it is null, or was made here, lives, and is used by one thread.
    unsafe { given.as_mut() }
}

fn answer(done: Result<(), String>, number: c_int) -> c_int {
    match done {
        Ok(()) => 0,
        Err(why) => {
            call::say(&why);
            set_errno(number);
            -1
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_add_extent(
    extents: *mut NbdkitExtents,
    offset: u64,
    length: u64,
    kind: u32,
) -> c_int {
    let Some(extents) = list(extents) else { return -1 };
    answer(extents.add(offset, length, kind), libc::ERANGE)
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_extents_new(start: u64, end: u64) -> *mut NbdkitExtents {
    if i64::try_from(end).is_err() || start > end {
        call::say(&format!("nbdkit_extents_new: from {start} to {end} is no range"));
        set_errno(libc::ERANGE);
        return null_mut();
    }
    Box::into_raw(Box::new(NbdkitExtents::new(start, end)))
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_extents_free(extents: *mut NbdkitExtents) {
    if !extents.is_null() {
        // SAFETY: it was made by `nbdkit_extents_new`, and the plugin uses it no more.
        drop(unsafe { Box::from_raw(extents) });
    }
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_extents_count(extents: *mut NbdkitExtents) -> usize {
    list(extents).map_or(0, |extents| extents.list.len())
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_get_extent(extents: *mut NbdkitExtents, index: usize) -> NbdkitExtent {
    let found = list(extents).and_then(|extents| extents.list.get(index).copied());
    found.unwrap_or(NbdkitExtent { offset: 0, length: 0, kind: 0 })
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_add_export(
    exports: *mut NbdkitExports,
    name: *const c_char,
    description: *const c_char,
) -> c_int {
    // SAFETY: by the plugin's promise they are null or texts that live until we return.
    let (name, description) = unsafe { (text(name), text(description)) };
    let (Some(exports), Some(name)) = (list(exports), name) else { return -1 };
    let description = description.unwrap_or_default();
    let done = if exports.list.len() >= MOST_EXPORTS {
        Err("nbdkit_add_export: too many exports".to_owned())
    } else if name.len() > LONGEST || description.len() > LONGEST {
        Err("nbdkit_add_export: string too long".to_owned())
    } else {
        exports.list.push((name, description));
        Ok(())
    };
    answer(done, libc::EINVAL)
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_use_default_export(exports: *mut NbdkitExports) -> c_int {
    let Some(exports) = list(exports) else { return -1 };
    exports.with_default = true;
    0
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_exports_new() -> *mut NbdkitExports {
    Box::into_raw(Box::default())
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_exports_free(exports: *mut NbdkitExports) {
    if !exports.is_null() {
        // SAFETY: it was made by `nbdkit_exports_new`, and the plugin uses it no more.
        drop(unsafe { Box::from_raw(exports) });
    }
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_exports_count(exports: *mut NbdkitExports) -> usize {
    list(exports).map_or(0, |exports| exports.list.len())
}

/// `struct nbdkit_export`.
#[repr(C)]
struct NbdkitExport {
    name: *const c_char,
    description: *const c_char,
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_get_export(exports: *mut NbdkitExports, index: usize) -> NbdkitExport {
    let found = list(exports).and_then(|exports| exports.list.get(index).cloned());
    let (name, description) = found.unwrap_or_default();
    let kept = |text: &str| call::keep(call::c_text(text));
    NbdkitExport { name: kept(&name), description: kept(&description) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_cut_to_the_range_joined_and_put_in_order() {
        let mut extents = NbdkitExtents::new(100, 200);
        for (offset, length, kind) in
            [(0, 50, 0), (50, 60, 3), (110, 10, 3), (120, 0, 1), (120, 500, 0)]
        {
            extents.add(offset, length, kind).unwrap();
        }
        let extent = |offset, length, kind| NbdkitExtent { offset, length, kind };
        assert_eq!(extents.list(), [extent(100, 20, 3), extent(120, 80, 0)]);
        assert!(extents.add(0, 1, 0).is_err(), "out of order");
    }

    #[test]
    fn extents_that_leave_out_the_beginning_are_refused() {
        assert!(NbdkitExtents::new(100, 200).add(101, 5, 0).is_err());
        let mut extents = NbdkitExtents::new(100, u64::MAX);
        extents.add(90, u64::MAX, 0).unwrap();
        assert_eq!(extents.list().len(), 1);
        assert!(extents.add(5, u64::MAX, 0).is_err());
    }
}
