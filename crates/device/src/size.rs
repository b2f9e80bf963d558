//! Sizes as qemu and nbdkit write them: powers of two, `1K` = 1024.
//!
//! Accepted: digits, then at most one of `b k K m M g G t T p P e E` (`b` is 1 byte, case does
//! not matter). `KB`, `KiB`, fractions, signs and overflow beyond 2^63-1 are refused.

use std::fmt;

/// Why a size could not be read.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum SizeError {
    /// No digits, or something that is not a digit among them.
    NotANumber(String),
    /// More than 2^63-1 bytes.
    TooLarge(String),
    /// A suffix that is not one of `b k M G T P E`.
    UnknownSuffix(String),
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotANumber(s) => write!(f, "`{s}` is not a size; write for example 4096 or 10G"),
            Self::TooLarge(s) => write!(f, "`{s}` is more than 2^63-1 bytes"),
            Self::UnknownSuffix(s) => {
                write!(f, "`{s}`: the suffix is one of b k M G T P E, each 1024 times the last")
            }
        }
    }
}

impl std::error::Error for SizeError {}

/// Reads a size; the answer is in bytes, at most 2^63-1.
///
/// # Errors
/// See [`SizeError`].
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    if digits == 0 {
        return Err(SizeError::NotANumber(text.into()));
    }
    let shift = match suffix {
        "" | "b" | "B" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        "t" | "T" => 40,
        "p" | "P" => 50,
        "e" | "E" => 60,
        s if s.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            return Err(SizeError::UnknownSuffix(text.into()));
        }
        _ => return Err(SizeError::NotANumber(text.into())),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(1 << shift))
        .filter(|n| i64::try_from(*n).is_ok())
        .ok_or_else(|| SizeError::TooLarge(text.into()))
}

/// Writes a size for people: the largest unit that leaves a number of at least 1, with at most
/// two decimals (`1.50 GiB`, `512 B`).
#[must_use]
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let unit = ((63 - bytes.leading_zeros()) / 10).min(6);
    let shift = unit * 10;
    let whole = bytes >> shift;
    // Two decimals by integer arithmetic: the remainder is below 2^60, so widen it first.
    let rest = (u128::from(bytes & ((1 << shift) - 1)) * 100) >> shift;
    let name = usize::try_from(unit - 1).ok().and_then(|u| UNITS.get(u)).unwrap_or(&"EiB");
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
            ("9223372036854775807", i64::MAX.unsigned_abs()),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn nonsense_and_overflow_are_refused() {
        for text in ["", "K", "-1", "1KB", "1KiB", "1.5G", " 1", "1 ", "0x10", "8E", "16E", "é"] {
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
