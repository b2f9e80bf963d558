//! Messages and errors of plugins, and their requests to the program.
#![expect(unsafe_code, reason = "the interface is C's")]

use std::ffi::{c_char, c_int, c_void};

use crate::abi::text;
use crate::call::{self, Leave};

unsafe extern "C" {
    fn nbdkit_error(format: *const c_char, ...);
    fn nbdkit_verror(format: *const c_char, args: *mut c_void);
    fn nbdkit_debug(format: *const c_char, ...);
    fn nbdkit_vdebug(format: *const c_char, args: *mut c_void);
    fn nbdkit_printf_intern(format: *const c_char, ...) -> *const c_char;
    fn nbdkit_vprintf_intern(format: *const c_char, args: *mut c_void) -> *const c_char;
}

super::functions!(
    nbdkit_error,
    nbdkit_verror,
    nbdkit_debug,
    nbdkit_vdebug,
    nbdkit_printf_intern,
    nbdkit_vprintf_intern,
    diskferry_plugin_said,
    diskferry_plugin_traced,
    diskferry_plugin_is_traced,
    nbdkit_set_error,
    nbdkit_shutdown,
    nbdkit_disconnect,
    nbdkit_debug_hexdump,
    nbdkit_debug_hexdiff,
);

/// A message of a plugin.
#[unsafe(no_mangle)]
extern "C" fn diskferry_plugin_said(message: *const c_char) {
    // SAFETY: our own C gives a text that lives until this returns.
    if let Some(message) = unsafe { text(message) } {
        call::say(&message);
    }
}

/// A debug message of a plugin.
#[unsafe(no_mangle)]
extern "C" fn diskferry_plugin_traced(message: *const c_char) {
    // SAFETY: as above.
    if let Some(message) = unsafe { text(message) } {
        call::trace(&message);
    }
}

/// Whether debug messages are wanted.
#[unsafe(no_mangle)]
extern "C" fn diskferry_plugin_is_traced() -> c_int {
    c_int::from(call::is_traced())
}

/// Sets the error number of the callback.
#[unsafe(no_mangle)]
extern "C" fn nbdkit_set_error(number: c_int) {
    call::set_error(number);
}

/// Ends the program, gracefully.
#[unsafe(no_mangle)]
extern "C" fn nbdkit_shutdown() {
    call::stop();
}

/// Ends the connection of the client on whose behalf the plugin is called.
#[unsafe(no_mangle)]
extern "C" fn nbdkit_disconnect(force: c_int) {
    let how = if force == 0 { Leave::Gracefully } else { Leave::AtOnce };
    if !call::leave(how) {
        call::trace("no connection in this thread, ignoring disconnect request");
    }
}

/// The most bytes of a dump that are logged.
const DUMPED: usize = 4096;

fn dump(bytes: *const c_void, len: usize, prefix: *const c_char, start: u64) {
    if !call::is_traced() || bytes.is_null() {
        return;
    }
    // SAFETY: by the plugin's promise `len` bytes are there.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len.min(DUMPED)) };
    // SAFETY: by the plugin's promise it is null or a text.
    let prefix = unsafe { text(prefix) }.unwrap_or_default();
    for (line, at) in bytes.chunks(16).zip((start..).step_by(16)) {
        let hex: String = line.iter().map(|byte| format!(" {byte:02x}")).collect();
        call::trace(&format!("{prefix}{at:08x}:{hex}"));
    }
}

/// Logs a hex dump for debugging.
#[unsafe(no_mangle)]
extern "C" fn nbdkit_debug_hexdump(
    bytes: *const c_void,
    len: usize,
    prefix: *const c_char,
    start: u64,
) {
    dump(bytes, len, prefix, start);
}

/// Logs the hex dump of two buffers, one after the other.
#[unsafe(no_mangle)]
extern "C" fn nbdkit_debug_hexdiff(
    one: *const c_void,
    other: *const c_void,
    len: usize,
    prefix: *const c_char,
    start: u64,
) {
    dump(one, len, prefix, start);
    dump(other, len, prefix, start);
}
