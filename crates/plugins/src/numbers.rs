//! Numbers, sizes, times and booleans as nbdkit parses parameters.

/// `Err`: what is wrong with it.
type Read<T> = Result<T, String>;

/// A size in bytes: digits, and a unit (powers of 1024, `s`: 512 bytes).
pub(crate) fn size(text: &str) -> Read<i64> {
    let digits = text.trim_start_matches(|c: char| c.is_ascii_whitespace());
    let digits = digits.strip_prefix('+').unwrap_or(digits);
    let count = digits.bytes().take_while(u8::is_ascii_digit).count();
    if digits.starts_with('-') {
        return Err(format!("size cannot be negative ({text})"));
    }
    let (number, unit) = digits.split_at(count);
    if number.is_empty() {
        return Err(format!("could not parse size string ({text})"));
    }
    let scale: i64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        "p" => 1 << 50,
        "e" => 1 << 60,
        "s" => 512,
        _ => return Err(format!("could not parse size: unknown suffix '{unit}'")),
    };
    let number: i64 = number.parse().map_err(|_| format!("size ({text}) exceeds maximum value"))?;
    number.checked_mul(scale).ok_or_else(|| format!("overflow computing size ({text})"))
}

/// Yes or no.
pub(crate) fn truth(text: &str) -> Read<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" | "on" => Ok(true),
        "0" | "false" | "f" | "no" | "n" | "off" => Ok(false),
        _ => Err(format!("could not decipher boolean ({text})")),
    }
}

/// A whole number as strtol(3) reads it: decimal, octal (`0…`) or hexadecimal (`0x…`), and a sign.
pub(crate) fn whole(what: &str, text: &str) -> Read<i128> {
    let bare = text.trim_start_matches(|c: char| c.is_ascii_whitespace());
    let (sign, digits) = match bare.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, bare.strip_prefix('+').unwrap_or(bare)),
    };
    if digits.is_empty() {
        return Err(format!("{what}: empty string where we expected a number"));
    }
    let lower = digits.to_ascii_lowercase();
    let (digits, radix) = match lower.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None if lower.len() > 1 && lower.starts_with('0') => (lower.as_str(), 8),
        None => (lower.as_str(), 10),
    };
    if !digits.starts_with(|c: char| c.is_digit(radix)) || digits.contains(['+', '-']) {
        return Err(format!("{what}: could not parse number: \"{text}\": trailing garbage"));
    }
    match i128::from_str_radix(digits, radix) {
        Ok(number) => Ok(sign * number),
        Err(e) if *e.kind() == std::num::IntErrorKind::PosOverflow => {
            Err(format!("{what}: could not parse number: \"{text}\": out of range"))
        }
        Err(_) => Err(format!("{what}: could not parse number: \"{text}\": trailing garbage")),
    }
}

/// A whole number in its range, and not negative if unsigned.
pub(crate) fn fitting<T: TryFrom<i128>>(what: &str, text: &str, signed: bool) -> Read<T> {
    let bare = text.trim_start_matches(|c: char| c.is_ascii_whitespace());
    if !signed && bare.starts_with('-') {
        return Err(format!("{what}: negative numbers are not allowed"));
    }
    let number = whole(what, text)?;
    let far = format!("{what}: could not parse number: \"{text}\": Numerical result out of range");
    T::try_from(number).map_err(|_| far)
}

/// A probability: `0.5`, `50%`, `1:2` or `1/2`; never negative.
pub(crate) fn probability(what: &str, text: &str) -> Read<f64> {
    let wrong = || format!("{what}: could not parse '{text}'");
    let number = |text: &str| text.trim_start().parse::<f64>().map_err(|_| wrong());
    let read = match text.split_once([':', '/']) {
        Some((part, all)) => {
            let (part, all) = (number(part)?, number(all)?);
            if all == 0.0 && part == 0.0 { 0.0 } else { part / all }
        }
        None => match text.strip_suffix('%') {
            Some(percent) => number(percent)? / 100.0,
            None => number(text)?,
        },
    };
    if !read.is_finite() || read < 0.0 {
        return Err(format!("{what}: probability out of range: '{text}'"));
    }
    Ok(read)
}

/// A time: `1.5` (seconds), `100ms`, `1.2us`, `1000ns`, as seconds and nanoseconds.
pub(crate) fn delay(what: &str, text: &str) -> Read<(u32, u32)> {
    let units = [("ms", 1e-3), ("us", 1e-6), ("μs", 1e-6), ("µs", 1e-6), ("ns", 1e-9), ("s", 1.0)];
    let unit = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)));
    let (number, scale) = unit.unwrap_or((text, 1.0));
    let wrong = || format!("{what}: could not parse '{text}' as a time");
    let seconds = number.trim_start().parse::<f64>().map_err(|_| wrong())? * scale;
    let time = std::time::Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    let seconds = u32::try_from(time.as_secs()).map_err(|_| wrong())?;
    Ok((seconds, time.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_nbdkits() {
        for (text, value) in [("0", 0), ("1b", 1), ("2s", 1024), ("1K", 1024), ("3m", 3 << 20)] {
            assert_eq!(size(text), Ok(value), "{text}");
        }
        assert_eq!(size("7E"), Ok(7 << 60));
        for bad in ["", "K", "-1", "1KiB", "1.5M", "8E", "9223372036854775808", "x", "1 K"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_are_nbdkits() {
        assert_eq!(fitting::<i8>("n", "-128", true), Ok(-128));
        assert!(fitting::<i8>("n", "128", true).is_err());
        assert_eq!(fitting::<u64>("n", "0xffffffffffffffff", false), Ok(u64::MAX));
        assert_eq!(fitting::<u32>("n", " 010", false), Ok(8));
        assert_eq!(fitting::<i32>("n", "+7", true), Ok(7));
        assert!(fitting::<u32>("n", " -1", false).is_err_and(|e| e.contains("negative")));
        for bad in ["", "x", "1x", "0x", "1 ", "--1", "1-", "08", "0x-1"] {
            assert!(fitting::<i64>("n", bad, true).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_and_probabilities_are_nbdkits() {
        assert_eq!(delay("t", "1.5"), Ok((1, 500_000_000)));
        assert_eq!(delay("t", "1us"), Ok((0, 1000)));
        assert_eq!(delay("t", "1000ns"), Ok((0, 1000)));
        assert!(delay("t", "-1").is_err() && delay("t", "").is_err() && delay("t", "inf").is_err());
        assert_eq!(probability("p", "1:4"), Ok(0.25));
        assert_eq!(probability("p", "50%"), Ok(0.5));
        assert!(probability("p", "-1").is_err() && probability("p", "1:0").is_err());
    }
}
