//! Reading the values of parameters, with errors that name the parameter.

use std::time::Duration;

use crate::{Error, Params, Result, parse_size};

/// The value of `key` as a size in bytes.
///
/// # Errors
/// It is not a size.
pub fn size(params: &Params, key: &str) -> Result<Option<u64>> {
    params.get(key).map(|text| parse_size(text).map_err(|e| wrong(key, e))).transpose()
}

/// The value of `key` as a size that must be given.
///
/// # Errors
/// It is missing, or not a size.
pub fn required_size(params: &Params, key: &str) -> Result<u64> {
    size(params, key)?.ok_or_else(|| Error::invalid(format!("`{key}` is missing; for example 1G")))
}

/// The value of `key` as a whole number, decimal or hexadecimal (`0x…`).
///
/// # Errors
/// It is not a whole number.
pub fn number(params: &Params, key: &str) -> Result<Option<u64>> {
    params
        .get(key)
        .map(|text| parse_number(text).ok_or_else(|| not_a(key, text, "a number")))
        .transpose()
}

/// The value of `key` as true or false.
///
/// # Errors
/// It is neither.
pub fn flag(params: &Params, key: &str) -> Result<Option<bool>> {
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

/// The value of `key` as on or off, in the words of QEMU's options and no others.
///
/// # Errors
/// It is neither.
pub fn on_off(params: &Params, key: &str) -> Result<Option<bool>> {
    let read = |text: &str| match text {
        "on" | "yes" | "true" | "y" => Some(true),
        "off" | "no" | "false" | "n" => Some(false),
        _ => None,
    };
    params
        .get(key)
        .map(|text| read(text).ok_or_else(|| not_a(key, text, "`on` or `off`")))
        .transpose()
}

/// The value of `key` as one of `words`: its index.
///
/// # Errors
/// It is none of them; the error names them all.
pub fn choice(params: &Params, key: &str, words: &[&str]) -> Result<Option<usize>> {
    let Some(text) = params.get(key) else { return Ok(None) };
    match words.iter().position(|w| *w == text) {
        Some(i) => Ok(Some(i)),
        None => Err(not_a(key, text, &format!("one of {}", words.join(", ")))),
    }
}

/// What the value of `key` means: it is one of `words`, which `|` separates, and has the meaning in
/// the same place.
///
/// # Errors
/// It is none of them; the error names them all.
pub fn meaning<T, const N: usize>(
    params: &Params,
    key: &str,
    words: &str,
    meanings: [T; N],
) -> Result<Option<T>> {
    let words: Vec<_> = words.split('|').collect();
    debug_assert_eq!(words.len(), N, "{key}: a meaning for each word");
    let at = choice(params, key, &words)?;
    Ok(at.and_then(|at| meanings.into_iter().nth(at)))
}

/// The value of `key` is not what it must be.
#[must_use]
pub fn not_a(key: &str, text: &str, what: &str) -> Error {
    Error::invalid(format!("{key}={text} is not {what}"))
}

/// The value of `key` is wrong, for the reason `why`.
#[must_use]
pub fn wrong(key: &str, why: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{key}: {why}"))
}

/// The value of `key` as a time: `1.5` (seconds), `100ms`, `1.2us`, `1000ns`; at most a year.
///
/// # Errors
/// It is not a time.
pub fn duration(params: &Params, key: &str) -> Result<Option<Duration>> {
    params
        .get(key)
        .map(|text| {
            parse_duration(text)
                .ok_or_else(|| not_a(key, text, "a time such as 1.5, 100ms or 20us"))
        })
        .transpose()
}

fn parse_duration(text: &str) -> Option<Duration> {
    let units = [("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9), ("s", 1.0)];
    let unit = units.iter().find_map(|(u, scale)| Some((text.strip_suffix(u)?, *scale)));
    let (digits, scale) = unit.unwrap_or((text, 1.0));
    if !digits.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return None;
    }
    let seconds = digits.parse::<f64>().ok()? * scale;
    let year = 366.0 * 86400.0;
    (seconds <= year).then(|| Duration::try_from_secs_f64(seconds).ok()).flatten()
}

fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_or_off_is_said_in_the_words_of_qemu_and_in_no_others() {
        let read = |text: &str| {
            let params = Params::parse([format!("t={text}").as_str()]).unwrap();
            on_off(&params, "t").ok().flatten()
        };
        assert_eq!(["on", "yes", "true", "y"].map(read), [Some(true); 4]);
        assert_eq!(["off", "no", "false", "n"].map(read), [Some(false); 4]);
        assert_eq!(["", "maybe", "1", "0", "t", "f", "ON", "True", "on "].map(read), [None; 9]);
    }

    #[test]
    fn times_are_read_in_all_their_units_and_invalid_ones_are_refused() {
        let read = |text: &str| {
            let params = Params::parse([format!("t={text}").as_str()]).unwrap();
            duration(&params, "t").ok().flatten()
        };
        assert_eq!(read("1.5"), Some(Duration::from_millis(1500)));
        assert_eq!(read("100ms"), Some(Duration::from_millis(100)));
        assert_eq!(read("1.2us"), Some(Duration::from_nanos(1200)));
        assert_eq!(read("1000ns"), Some(Duration::from_micros(1)));
        assert_eq!(read("2s"), Some(Duration::from_secs(2)));
        for bad in ["", "-1", "1h", "1e9", "nan", "inf", "1..2", "99999999999999999999"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
