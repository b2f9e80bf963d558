//! Sizes as qemu and nbdkit write them: powers of two, `1K` = 1024.
//!
//! Accepted: digits, then at most one of `b s k K m M g G t T p P e E` (`b` is 1 byte, `s` a sector
//! of 512, case does not matter) or `KiB` to `EiB`; a decimal fraction before a unit (`1.5G`, cut
//! to whole bytes); `0x` and hexadecimal digits, in bytes. `KB`, which is 1000 bytes to some, signs
//! and overflow beyond 2^63-1 are refused.

use crate::{Error, Result};

/// Reads a size; the answer is in bytes, at most 2^63-1.
///
/// # Errors
/// It is no number, not of whole bytes, too large, or has an unknown suffix.
pub fn parse_size(text: &str) -> Result<u64> {
    let largest = |n: &u64| i64::try_from(*n).is_ok();
    let wrong = |what: &str| Error::invalid(format!("`{text}`{what}"));
    let too_large = || wrong(" is more than 2^63-1 bytes");
    let not_a_number = || wrong(" is not a size; write for example 4096 or 10G");
    if let Some(hex) = text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        if hex.is_empty() || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(not_a_number());
        }
        return u64::from_str_radix(hex, 16).ok().filter(largest).ok_or_else(too_large);
    }
    let (number, rest) = split_digits(text);
    if number.is_empty() {
        return Err(not_a_number());
    }
    let (fraction, suffix) = rest.strip_prefix('.').map_or((None, rest), |rest| {
        let (digits, suffix) = split_digits(rest);
        (Some(digits), suffix)
    });
    let unit = match unit(suffix) {
        Some(unit) => unit,
        None if suffix.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            let known = "b s K M G T P E (or KiB to EiB)";
            return Err(wrong(&format!(": the suffix is one of {known}; 1K is 1024")));
        }
        None => return Err(not_a_number()),
    };
    let part = match fraction {
        None => 0,
        Some("") => return Err(not_a_number()),
        Some(_) if unit == 1 => return Err(wrong(": a fraction needs a unit, as in 1.5G")),
        Some(digits) => part_of(digits, unit),
    };
    let whole = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    whole.and_then(|n| n.checked_add(part)).filter(largest).ok_or_else(too_large)
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// Bytes of a unit.
fn unit(suffix: &str) -> Option<u64> {
    let letter = match suffix.as_bytes() {
        [] => return Some(1),
        [letter] | [letter, b'i', b'B'] => letter.to_ascii_lowercase(),
        _ => return None,
    };
    let shift = match letter {
        b'b' | b's' if suffix.len() > 1 => return None,
        b'b' => 0,
        b's' => 9,
        b'k' => 10,
        b'm' => 20,
        b'g' => 30,
        b't' => 40,
        b'p' => 50,
        b'e' => 60,
        _ => return None,
    };
    Some(1 << shift)
}

/// `0.digits` of `unit` (at most 2^60), cut to whole bytes.
fn part_of(digits: &str, unit: u64) -> u64 {
    // From the last digit on, so that nothing overflows; more than 40 change no byte.
    let digits = digits.bytes().take(40).collect::<Vec<_>>();
    let scaled = digits.iter().rev().fold(0_u128, |rest, digit| {
        ((u128::from(digit - b'0') * (u128::from(unit) << 40)) + rest) / 10
    });
    u64::try_from(scaled >> 40).unwrap_or(u64::MAX)
}

/// Writes a size for people: the largest unit that leaves a number of at least 1, with at most
/// two decimals (`1.50 GiB`, `512 B`).
#[must_use]
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let unit = (bytes.ilog2() / 10).min(6);
    let shift = unit * 10;
    let whole = bytes >> shift;
    // Two decimals by integer arithmetic: the remainder is below 2^60, so widen it first.
    let rest = (u128::from(bytes & ((1 << shift) - 1)) * 100) >> shift;
    let name = UNITS.get(unit as usize - 1).unwrap_or(&"EiB");
    if rest == 0 { format!("{whole} {name}") } else { format!("{whole}.{rest:02} {name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("512b", 512),
            ("1K", 1024),
            ("1k", 1024),
            ("3M", 3 << 20),
            ("1G", 1 << 30),
            ("2T", 2 << 40),
            ("1P", 1 << 50),
            ("7E", 7 << 60),
            ("3s", 1536),
            ("1KiB", 1024),
            ("1MiB", 1 << 20),
            ("2giB", 2 << 30),
            ("1.5G", 3 << 29),
            ("0.5K", 512),
            ("1.25MiB", 5 << 18),
            ("1.1K", 1126),
            ("1.0000000000000000000000000000000000000000000000001K", 1024),
            ("7.999999999999999999E", (8 << 60) - 2),
            ("0x1000", 4096),
            ("0X1f", 31),
            ("0x7fffffffffffffff", i64::MAX.unsigned_abs()),
            ("9223372036854775807", i64::MAX.unsigned_abs()),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
    }

    #[test]
    fn invalid_and_overflowing_sizes_are_refused() {
        let wrong = "K -1 1KB 1kb 1BiB 1siB 1iB 1.5 1.5b .5G 1.G 1.5.5M 1,5G 0x 0x1K 0x1.5 0xg 8E \
             16E 7.9999999999999999999E9 0x8000000000000000 1e3 é";
        for text in wrong.split(' ').chain(["", " 1", "1 "]) {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert!(parse_size("99999999999999999999").is_err());
    }

    #[test]
    fn sizes_print_in_the_largest_unit() {
        assert_eq!(format_size(0), "0 B");
        assert_eq!(format_size(1023), "1023 B");
        assert_eq!(format_size(1536), "1.50 KiB");
        assert_eq!(format_size(1 << 30), "1 GiB");
        assert_eq!(format_size(u64::MAX), "15.99 EiB");
    }
}
