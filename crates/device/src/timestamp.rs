//! Times as logs write them.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// A time in UTC: `YYYY-MM-DD HH:MM:SS.uuuuuu`. Times before 1970 become its beginning.
#[must_use]
pub fn timestamp(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, rest) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let micros = since.subsec_micros();
    // Of its length at once: a log has one in each line.
    let mut text = String::with_capacity(26);
    let _ = write!(text, "{year:04}-{month:02}-{day:02} ");
    let _ = write!(text, "{hour:02}:{minute:02}:{second:02}.{micros:06}");
    text
}

/// Year, month and day of a day since 1970-01-01, in the Gregorian calendar. Years are counted from
/// March, so that the leap day is the last (Hinnant, "chrono-compatible low-level date
/// algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let january = month >= 10;
    let month = if january { month - 9 } else { month + 3 };
    (era * 400 + year + u64::from(january), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_written_in_utc_with_microseconds() {
        let at = |secs, micros: u32| timestamp(UNIX_EPOCH + Duration::new(secs, micros * 1000));
        assert_eq!(at(0, 0), "1970-01-01 00:00:00.000000");
        assert_eq!(at(951_782_400, 1), "2000-02-29 00:00:00.000001");
        assert_eq!(at(1_709_251_199, 999_999), "2024-02-29 23:59:59.999999");
        assert_eq!(at(1_709_251_200, 0), "2024-03-01 00:00:00.000000");
        assert_eq!(at(4_102_444_799, 0), "2099-12-31 23:59:59.000000");
    }
}
