//! The table of callbacks in a plugin's memory, and calls through it.
//!
//! The table is read once, up to the length that the plugin gives: a plugin for an older interface
//! has fewer callbacks, and the last ones of a newer one are unknown here. The copy never changes.
#![expect(unsafe_code, reason = "the interface is C's")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::size_of;

use crate::host::{NbdkitExports, NbdkitExtents};
use crate::system::errno_location;

/// The versions of the interface.
pub(crate) const VERSIONS: std::ops::RangeInclusive<c_int> = 0..=2;

/// Flags of the data callbacks.
pub(crate) mod flag {
    pub(crate) const MAY_TRIM: u32 = 1;
    pub(crate) const FUA: u32 = 2;
    pub(crate) const REQ_ONE: u32 = 4;
    pub(crate) const FAST_ZERO: u32 = 8;
}

/// Kinds of extents.
pub(crate) mod extent {
    pub(crate) const HOLE: u32 = 1;
    pub(crate) const ZERO: u32 = 2;
}

/// A plugin's handle for a client's connection. Never null.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw(*mut c_void);

// SAFETY: the plugin gave it to be used from any thread, as far as its thread model allows.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

type Text = *const c_char;
type Plain = Option<unsafe extern "C" fn()>;
type Asked = Option<unsafe extern "C" fn() -> c_int>;
type AskedOf = Option<unsafe extern "C" fn(*mut c_void) -> c_int>;
type Told = Option<unsafe extern "C" fn(*mut c_void) -> Text>;
type Read1 = Option<unsafe extern "C" fn(*mut c_void, *mut c_void, u32, u64) -> c_int>;
type Write1 = Option<unsafe extern "C" fn(*mut c_void, *const c_void, u32, u64) -> c_int>;
type Trim1 = Option<unsafe extern "C" fn(*mut c_void, u32, u64) -> c_int>;
type Zero1 = Option<unsafe extern "C" fn(*mut c_void, u32, u64, c_int) -> c_int>;
type Read = Option<unsafe extern "C" fn(*mut c_void, *mut c_void, u32, u64, u32) -> c_int>;
type Write = Option<unsafe extern "C" fn(*mut c_void, *const c_void, u32, u64, u32) -> c_int>;
type Effect = Option<unsafe extern "C" fn(*mut c_void, u32, u64, u32) -> c_int>;

/// `struct nbdkit_plugin` of version 2, with the callbacks of version 1 at their places.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Table {
    struct_size: u64,
    api_version: c_int,
    max_thread_model: c_int,
    name: Text,
    longname: Text,
    version: Text,
    description: Text,
    load: Plain,
    unload: Plain,
    config: Option<unsafe extern "C" fn(Text, Text) -> c_int>,
    config_complete: Asked,
    config_help: Text,
    open: Option<unsafe extern "C" fn(c_int) -> *mut c_void>,
    close: Option<unsafe extern "C" fn(*mut c_void)>,
    get_size: Option<unsafe extern "C" fn(*mut c_void) -> i64>,
    can_write: AskedOf,
    can_flush: AskedOf,
    is_rotational: AskedOf,
    can_trim: AskedOf,
    pread_v1: Read1,
    pwrite_v1: Write1,
    flush_v1: AskedOf,
    trim_v1: Trim1,
    zero_v1: Zero1,
    errno_is_preserved: c_int,
    dump_plugin: Plain,
    can_zero: AskedOf,
    can_fua: AskedOf,
    pread: Read,
    pwrite: Write,
    flush: Option<unsafe extern "C" fn(*mut c_void, u32) -> c_int>,
    trim: Effect,
    zero: Effect,
    magic_config_key: Text,
    can_multi_conn: AskedOf,
    can_extents: AskedOf,
    extents: Option<unsafe extern "C" fn(*mut c_void, u32, u64, u32, *mut NbdkitExtents) -> c_int>,
    can_cache: AskedOf,
    cache: Effect,
    thread_model: Asked,
    can_fast_zero: AskedOf,
    preconnect: Option<unsafe extern "C" fn(c_int) -> c_int>,
    get_ready: Asked,
    after_fork: Asked,
    list_exports: Option<unsafe extern "C" fn(c_int, c_int, *mut NbdkitExports) -> c_int>,
    default_export: Option<unsafe extern "C" fn(c_int, c_int) -> Text>,
    export_description: Told,
    cleanup: Plain,
    block_size: Option<unsafe extern "C" fn(*mut c_void, *mut u32, *mut u32, *mut u32) -> c_int>,
}

/// The callbacks of a plugin. A missing callback returns `None`; the plugin's own results are
/// passed on unchanged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Callbacks(Table);

// SAFETY: functions and constants of a library that is never unloaded.
unsafe impl Send for Callbacks {}
// SAFETY: as above.
unsafe impl Sync for Callbacks {}

/// The type of `plugin_init`.
pub(crate) type Init = unsafe extern "C" fn() -> *const c_void;

/// Converts a C string. `None`: it is null.
///
/// # Safety
/// It is null, or ends with a 0, and lives until this returns.
pub(crate) unsafe fn text(text: Text) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: by the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    Some(device::text::carry(std::os::unix::ffi::OsStrExt::from_bytes(text.to_bytes())))
}

/// Calls a callback that takes only the handle.
macro_rules! of_handle {
    ($($(#[$doc:meta])* $name:ident: $answer:ty;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name(&self, handle: Raw) -> Option<$answer> {
            // SAFETY: a callback of the plugin, with a handle that it gave and that is open.
            self.0.$name.map(|call| unsafe { call(handle.0) })
        }
    )*};
}

/// Calls a callback that takes nothing and returns a number.
macro_rules! asked {
    ($($name:ident;)*) => {$(
        pub(crate) fn $name(&self) -> Option<c_int> {
            // SAFETY: a callback of the plugin, called in the order that the interface asks for.
            self.0.$name.map(|call| unsafe { call() })
        }
    )*};
}

/// Calls a callback that takes and returns nothing.
macro_rules! told {
    ($($name:ident;)*) => {$(
        pub(crate) fn $name(&self) {
            if let Some(call) = self.0.$name {
                // SAFETY: a callback of the plugin, called in the order that the interface asks
                // for.
                unsafe { call() }
            }
        }
    )*};
}

/// Constant texts.
macro_rules! texts {
    ($($name:ident;)*) => {$(
        pub(crate) fn $name(&self) -> Option<String> {
            // SAFETY: the plugin's own constant, or null.
            unsafe { text(self.0.$name) }
        }
    )*};
}

/// An entry of the table, which may be missing.
trait Entry {
    fn is_there(&self) -> bool;
}

impl Entry for Text {
    fn is_there(&self) -> bool {
        !self.is_null()
    }
}

impl<T> Entry for Option<T> {
    fn is_there(&self) -> bool {
        self.is_some()
    }
}

/// Entries by their names, and those of version 1, and whether they are there.
macro_rules! entries {
    ($table:expr; $($name:ident)*; $($old:ident)*) => {[
        $((stringify!($name), $table.$name.is_there()),)*
        $((concat!("_", stringify!($old)), $table.$old.is_there()),)*
    ]};
}

impl Callbacks {
    /// Reads the table.
    ///
    /// # Safety
    /// It is null, or as long as it says, and is never freed.
    pub(crate) unsafe fn read(table: *const c_void) -> Option<Self> {
        if table.is_null() {
            return None;
        }
        // SAFETY: the first field is there by the caller's promise.
        let said = unsafe { table.cast::<u64>().read_unaligned() };
        let len = usize::try_from(said).map_or(size_of::<Table>(), |n| n.min(size_of::<Table>()));
        // SAFETY: all its fields may be zero: numbers, null, no callback.
        let mut own: Table = unsafe { std::mem::zeroed() };
        // SAFETY: `len` bytes are there in both, which do not overlap; every value of a callback
        // that is not zero is one by the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(
                table.cast::<u8>(),
                std::ptr::from_mut(&mut own).cast::<u8>(),
                len,
            );
        }
        Some(Self(own))
    }

    /// The length of the plugin's table, in bytes.
    pub(crate) fn struct_size(&self) -> u64 {
        self.0.struct_size
    }

    /// The version of the interface that it was written for.
    pub(crate) fn api_version(&self) -> c_int {
        self.0.api_version
    }

    /// The thread model that it was compiled for.
    pub(crate) fn max_thread_model(&self) -> c_int {
        self.0.max_thread_model
    }

    /// Whether errno says why a callback failed.
    pub(crate) fn is_errno_preserved(&self) -> bool {
        self.0.errno_is_preserved != 0
    }

    texts! { name; longname; version; description; config_help; magic_config_key; }
    told! { load; unload; dump_plugin; cleanup; }
    asked! { config_complete; thread_model; get_ready; after_fork; }
    of_handle! {
        get_size: i64; can_write: c_int; can_flush: c_int; is_rotational: c_int; can_trim: c_int; can_zero: c_int;
        can_fast_zero: c_int; can_extents: c_int; can_fua: c_int; can_multi_conn: c_int; can_cache: c_int;
    }

    /// The callbacks that are there, as `--dump-plugin` names them.
    pub(crate) fn has(&self) -> Vec<&'static str> {
        let all = entries!(self.0;
            longname description load unload dump_plugin config config_complete config_help
            thread_model get_ready after_fork cleanup preconnect list_exports default_export
            open close export_description get_size block_size can_write can_flush is_rotational
            can_trim can_zero can_fast_zero can_extents can_fua can_multi_conn can_cache pread
            pwrite flush trim zero extents cache;
            pread_v1 pwrite_v1 flush_v1 trim_v1 zero_v1);
        all.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect()
    }

    /// A required callback that is missing, if any.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        let has = self.has();
        let read = has.contains(&"pread") || has.contains(&"_pread_v1");
        let missing = ["open", "get_size"].into_iter().find(|name| !has.contains(name));
        missing.or((!read).then_some("pread"))
    }

    /// Whether it has this callback.
    pub(crate) fn can(&self, name: &str) -> bool {
        self.has().contains(&name)
    }

    /// Gives it a parameter.
    pub(crate) fn config(&self, key: &CStr, value: &CStr) -> Option<c_int> {
        // SAFETY: two texts that live until it returns; more is not promised to plugins.
        self.0.config.map(|call| unsafe { call(key.as_ptr(), value.as_ptr()) })
    }

    /// A client has come.
    pub(crate) fn preconnect(&self, read_only: bool) -> Option<c_int> {
        // SAFETY: a callback of the plugin, which is ready.
        self.0.preconnect.map(|call| unsafe { call(c_int::from(read_only)) })
    }

    /// Opens a handle; `None`: the plugin refused.
    pub(crate) fn open(&self, read_only: bool) -> Option<Raw> {
        // SAFETY: a callback of the plugin, which is ready.
        let handle = unsafe { (self.0.open?)(c_int::from(read_only)) };
        (!handle.is_null()).then_some(Raw(handle))
    }

    /// Closes a handle, which must not be used any more.
    pub(crate) fn close(&self, handle: Raw) {
        if let Some(call) = self.0.close {
            // SAFETY: the plugin gave it, and it is not used now or later.
            unsafe { call(handle.0) }
        }
    }

    /// The names of its exports.
    pub(crate) fn list_exports(
        &self,
        read_only: bool,
        is_tls: bool,
        list: &mut NbdkitExports,
    ) -> Option<c_int> {
        let (read_only, is_tls) = (c_int::from(read_only), c_int::from(is_tls));
        // SAFETY: the list is ours, and lives until it returns.
        self.0.list_exports.map(|call| unsafe { call(read_only, is_tls, list) })
    }

    /// The name of the export for clients that ask for none; the inner `None`: there is no such
    /// export.
    pub(crate) fn default_export(&self, read_only: bool, is_tls: bool) -> Option<Option<String>> {
        let call = self.0.default_export?;
        // SAFETY: a callback of the plugin; the text lives at least until the plugin is called
        // again by this thread.
        Some(unsafe { text(call(c_int::from(read_only), c_int::from(is_tls))) })
    }

    /// The description of the export.
    pub(crate) fn export_description(&self, handle: Raw) -> Option<String> {
        let call = self.0.export_description?;
        // SAFETY: an open handle; the text lives at least until the plugin is called again with it.
        unsafe { text(call(handle.0)) }
    }

    /// Minimum, preferred and maximum, in bytes.
    pub(crate) fn block_size(&self, handle: Raw) -> Option<(c_int, [u32; 3])> {
        let (mut minimum, mut preferred, mut maximum) = (0, 0, 0);
        let call = self.0.block_size?;
        // SAFETY: an open handle, and three numbers of ours.
        let answer = unsafe { call(handle.0, &mut minimum, &mut preferred, &mut maximum) };
        Some((answer, [minimum, preferred, maximum]))
    }

    /// Reads into all of `buffer`, which has fewer than 2^32 bytes.
    pub(crate) fn pread(&self, handle: Raw, buffer: &mut [u8], offset: u64) -> Option<c_int> {
        let count = u32::try_from(buffer.len()).ok()?;
        let to = buffer.as_mut_ptr().cast::<c_void>();
        if let Some(call) = self.0.pread {
            // SAFETY: an open handle, and `count` bytes that are ours alone until it returns.
            return Some(unsafe { call(handle.0, to, count, offset, 0) });
        }
        // SAFETY: as above.
        self.0.pread_v1.map(|call| unsafe { call(handle.0, to, count, offset) })
    }

    /// Writes all of `data`, which has fewer than 2^32 bytes. Version 1 knows no flags.
    pub(crate) fn pwrite(
        &self,
        handle: Raw,
        data: &[u8],
        offset: u64,
        flags: u32,
    ) -> Option<c_int> {
        let count = u32::try_from(data.len()).ok()?;
        let from = data.as_ptr().cast::<c_void>();
        if let Some(call) = self.0.pwrite {
            // SAFETY: an open handle, and `count` bytes that do not change until it returns.
            return Some(unsafe { call(handle.0, from, count, offset, flags) });
        }
        // SAFETY: as above.
        self.0.pwrite_v1.map(|call| unsafe { call(handle.0, from, count, offset) })
    }

    /// Makes writes durable.
    pub(crate) fn flush(&self, handle: Raw) -> Option<c_int> {
        if let Some(call) = self.0.flush {
            // SAFETY: an open handle.
            return Some(unsafe { call(handle.0, 0) });
        }
        // SAFETY: as above.
        self.0.flush_v1.map(|call| unsafe { call(handle.0) })
    }

    /// Discards a range.
    pub(crate) fn trim(&self, handle: Raw, len: u32, offset: u64, flags: u32) -> Option<c_int> {
        if let Some(call) = self.0.trim {
            // SAFETY: an open handle.
            return Some(unsafe { call(handle.0, len, offset, flags) });
        }
        // SAFETY: as above.
        self.0.trim_v1.map(|call| unsafe { call(handle.0, len, offset) })
    }

    /// Zeroes a range. Version 1 has no fast zero, so callers never ask it for one.
    pub(crate) fn zero(&self, handle: Raw, len: u32, offset: u64, flags: u32) -> Option<c_int> {
        if let Some(call) = self.0.zero {
            // SAFETY: an open handle.
            return Some(unsafe { call(handle.0, len, offset, flags) });
        }
        let may_trim = c_int::from(flags & flag::MAY_TRIM != 0);
        let call = self.0.zero_v1.filter(|_| flags & flag::FAST_ZERO == 0)?;
        // SAFETY: as above.
        Some(unsafe { call(handle.0, len, offset, may_trim) })
    }

    /// Prefetches a range.
    pub(crate) fn cache(&self, handle: Raw, len: u32, offset: u64) -> Option<c_int> {
        // SAFETY: an open handle.
        self.0.cache.map(|call| unsafe { call(handle.0, len, offset, 0) })
    }

    /// Has it add the map of a range to `list`.
    pub(crate) fn extents(
        &self,
        handle: Raw,
        len: u32,
        offset: u64,
        flags: u32,
        list: &mut NbdkitExtents,
    ) -> Option<c_int> {
        // SAFETY: an open handle, and a list of ours that lives until it returns.
        self.0.extents.map(|call| unsafe { call(handle.0, len, offset, flags, list) })
    }
}

/// Sets errno of this thread.
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the address is this thread's own.
    unsafe { *errno_location() = number }
}

/// errno of this thread.
pub(crate) fn errno() -> c_int {
    // SAFETY: the address is this thread's own.
    unsafe { *errno_location() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that gives its length as `len` bytes; all others would be callbacks that crash.
    fn table(len: u64) -> Vec<u64> {
        let mut words = vec![8; 128];
        if let Some(first) = words.first_mut() {
            *first = len;
        }
        words
    }

    #[test]
    fn of_a_shorter_table_the_rest_is_not_there() {
        let words = table(48);
        // SAFETY: it is longer than it says.
        let read = unsafe { Callbacks::read(words.as_ptr().cast()) };
        let callbacks = read.map(|read| read.0);
        assert!(callbacks.is_some_and(|t| !t.description.is_null() && t.load.is_none()));
        assert!(callbacks.is_some_and(|t| t.block_size.is_none() && t.magic_config_key.is_null()));
    }

    #[test]
    fn of_a_longer_table_the_rest_is_not_read() {
        let words = table(1 << 40);
        // SAFETY: it is longer than what is read.
        let read = unsafe { Callbacks::read(words.as_ptr().cast()) };
        assert!(read.is_some_and(|read| read.0.block_size.is_some()));
        // SAFETY: nothing is read.
        assert!(unsafe { Callbacks::read(std::ptr::null()) }.is_none());
    }

    #[test]
    fn the_table_is_as_long_as_the_newest_interface_says() {
        assert_eq!(size_of::<Table>(), 384);
    }
}
