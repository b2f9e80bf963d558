//! Functions that read the values of parameters.
#![expect(unsafe_code, reason = "the interface is C's")]

use std::ffi::{c_char, c_double, c_int, c_uint};

use crate::abi::text;
use crate::call;
use crate::numbers;

super::functions!(
    nbdkit_parse_size,
    nbdkit_parse_bool,
    nbdkit_parse_int,
    nbdkit_parse_int8_t,
    nbdkit_parse_int16_t,
    nbdkit_parse_int32_t,
    nbdkit_parse_int64_t,
    nbdkit_parse_unsigned,
    nbdkit_parse_uint8_t,
    nbdkit_parse_uint16_t,
    nbdkit_parse_uint32_t,
    nbdkit_parse_uint64_t,
    nbdkit_parse_probability,
    nbdkit_parse_delay,
);

/// A plugin's text; null counts as empty.
fn read(given: *const c_char) -> String {
    // SAFETY: by the plugin's promise it is null or a text that lives until we return.
    unsafe { text(given) }.unwrap_or_default()
}

/// Reports an error, if there is one.
fn said<T>(read: Result<T, String>) -> Option<T> {
    read.map_err(|why| call::say(&why)).ok()
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_parse_size(given: *const c_char) -> i64 {
    said(numbers::size(&read(given))).unwrap_or(-1)
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_parse_bool(given: *const c_char) -> c_int {
    said(numbers::truth(&read(given))).map_or(-1, c_int::from)
}

/// Stores a value at the plugin's pointer, which may be null.
fn put<T>(value: Option<T>, to: *mut T) -> c_int {
    let Some(value) = value else { return -1 };
    if !to.is_null() {
        // SAFETY: by the plugin's promise there is room for it.
        unsafe { to.write(value) }
    }
    0
}

macro_rules! whole {
    ($($name:ident, $number:ty, $signed:literal;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(what: *const c_char, given: *const c_char, to: *mut $number) -> c_int {
            put(said(numbers::fitting::<$number>(&read(what), &read(given), $signed)), to)
        }
    )*};
}

whole! {
    nbdkit_parse_int, c_int, true;
    nbdkit_parse_int8_t, i8, true;
    nbdkit_parse_int16_t, i16, true;
    nbdkit_parse_int32_t, i32, true;
    nbdkit_parse_int64_t, i64, true;
    nbdkit_parse_unsigned, c_uint, false;
    nbdkit_parse_uint8_t, u8, false;
    nbdkit_parse_uint16_t, u16, false;
    nbdkit_parse_uint32_t, u32, false;
    nbdkit_parse_uint64_t, u64, false;
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_parse_probability(
    what: *const c_char,
    given: *const c_char,
    to: *mut c_double,
) -> c_int {
    put(said(numbers::probability(&read(what), &read(given))), to)
}

#[unsafe(no_mangle)]
extern "C" fn nbdkit_parse_delay(
    what: *const c_char,
    given: *const c_char,
    seconds: *mut c_uint,
    nanoseconds: *mut c_uint,
) -> c_int {
    let Some((whole, rest)) = said(numbers::delay(&read(what), &read(given))) else { return -1 };
    put(Some(whole), seconds);
    put(Some(rest), nanoseconds)
}
