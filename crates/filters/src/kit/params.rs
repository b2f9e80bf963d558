//! Reading parameters: what filters share beside `device::values`.

use std::path::PathBuf;

use device::{Error, Params, Result, text};

/// The value of `key`, which must be given and not be empty.
///
/// # Errors
/// It is missing.
pub(crate) fn required<'a>(params: &'a Params, key: &str, example: &str) -> Result<&'a str> {
    let missing = || Error::invalid(format!("`{key}` is missing; for example {key}={example}"));
    params.get(key).filter(|value| !value.is_empty()).ok_or_else(missing)
}

/// The path of a file, which the program finds also from another working directory.
///
/// # Errors
/// The name is empty, or there is no working directory.
pub(crate) fn absolute(name: &str) -> Result<PathBuf> {
    let failed = |e| Error::os("find the directory of", e).on(text::shown(name));
    std::path::absolute(text::path(name)).map_err(failed)
}

/// A number as C writes it: decimal, octal (`0NN`) or hexadecimal (`0xNN`).
pub(crate) fn c_number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(digits, radix).ok()).flatten()
}
