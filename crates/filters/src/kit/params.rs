//! Reading parameters: what filters share beside `device::values`.

use std::path::PathBuf;

use device::{Error, Params, Result, values};

/// What the value of `key` means: it is one of `words`, which `|` separates, and has the meaning in
/// the same place.
///
/// # Errors
/// It is none of them; the error names them all.
pub(crate) fn meaning<T, const N: usize>(
    params: &Params,
    key: &str,
    words: &str,
    meanings: [T; N],
) -> Result<Option<T>> {
    let words: Vec<_> = words.split('|').collect();
    debug_assert_eq!(words.len(), N, "{key}: a meaning for each word");
    let at = values::choice(params, key, &words)?;
    Ok(at.and_then(|at| meanings.into_iter().nth(at)))
}

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
    std::path::absolute(name).map_err(|e| Error::os("find the directory of", e).on(name))
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
