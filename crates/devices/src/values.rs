//! Reading the values of parameters, with errors that name the parameter.

use device::{Error, Params, Result, parse_size};

/// The value of `key` as a size in bytes.
pub(crate) fn size(params: &Params, key: &str) -> Result<Option<u64>> {
    params.get(key).map(|text| parse_size(text).map_err(|e| wrong(key, e))).transpose()
}

/// The value of `key` as a size that must be given.
pub(crate) fn required_size(params: &Params, key: &str) -> Result<u64> {
    size(params, key)?.ok_or_else(|| Error::invalid(format!("`{key}` is missing; for example 1G")))
}

/// The value of `key` as a whole number, decimal or hexadecimal (`0x…`).
pub(crate) fn number(params: &Params, key: &str) -> Result<Option<u64>> {
    params
        .get(key)
        .map(|text| parse_number(text).ok_or_else(|| not_a(key, text, "a number")))
        .transpose()
}

/// The value of `key` as yes or no.
pub(crate) fn flag(params: &Params, key: &str) -> Result<Option<bool>> {
    let read = |text: &str| match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" | "on" => Some(true),
        "0" | "false" | "f" | "no" | "n" | "off" => Some(false),
        _ => None,
    };
    params
        .get(key)
        .map(|text| read(text).ok_or_else(|| not_a(key, text, "`true` or `false`")))
        .transpose()
}

/// The value of `key` as one of `words`: its index.
pub(crate) fn choice(params: &Params, key: &str, words: &[&str]) -> Result<Option<usize>> {
    let Some(text) = params.get(key) else { return Ok(None) };
    match words.iter().position(|w| *w == text) {
        Some(i) => Ok(Some(i)),
        None => Err(not_a(key, text, &format!("one of {}", words.join(", ")))),
    }
}

/// The value of `key` is not what it must be.
pub(crate) fn not_a(key: &str, text: &str, what: &str) -> Error {
    Error::invalid(format!("{key}={text} is not {what}"))
}

pub(crate) fn wrong(key: &str, why: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{key}: {why}"))
}

fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}
