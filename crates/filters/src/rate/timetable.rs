//! Rates by the time of the day, in the words of rclone's `--bwlimit`: `08:00,512K 12:00,10M
//! 23:00,off`, in bytes a second. A time is local, and each lasts until the next one; one may be of
//! a day of the week (`Sat-08:00,off`). No clock.

use device::{Error, Result, parse_size};

use super::clock::LocalTime;

/// Minutes of a day.
const DAY: u32 = 24 * 60;
/// As the system counts them.
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Never empty: minutes since the week began, in order, and the bits a second from then on.
pub(super) struct Timetable(Vec<(u32, u64)>);

impl Timetable {
    /// # Errors
    /// It is none.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut all = Vec::new();
        for word in text.split_ascii_whitespace() {
            let wrong = || {
                Error::invalid(format!(
                    "read the timetable: `{word}` is not a time and a rate; write for example 08:00,512K or Sat-12:00,off"
                ))
            };
            let (time, rate) = word.split_once(',').ok_or_else(wrong)?;
            let (days, time) = days(time).ok_or_else(wrong)?;
            let minute = minute(time).ok_or_else(wrong)?;
            let rate = bits(rate).ok().flatten().ok_or_else(wrong)?;
            all.extend(days.map(|day| (day * DAY + minute, rate)));
        }
        if all.is_empty() {
            return Err(Error::invalid("read the timetable: it is empty"));
        }
        all.sort_by_key(|(minute, _)| *minute);
        Ok(Self(all))
    }

    /// Bits a second at this time; 0: no limit.
    pub(super) fn at(&self, now: LocalTime) -> u64 {
        let minute = now.weekday * DAY + now.minute;
        let begun = self.0.iter().rev().find(|(from, _)| *from <= minute);
        // What began last week.
        begun.or(self.0.last()).map_or(0, |(_, rate)| *rate)
    }
}

/// The days that a time is of, and the time.
fn days(time: &str) -> Option<(std::ops::Range<u32>, &str)> {
    let Some((day, time)) = time.split_once('-') else { return Some((0..7, time)) };
    let day = DAYS.iter().position(|known| known.eq_ignore_ascii_case(day))?;
    let day = u32::try_from(day).ok()?;
    Some((day..day + 1, time))
}

fn minute(time: &str) -> Option<u32> {
    let (hour, minute) = time.split_once(':')?;
    let number = |text: &str, below: u32| {
        let is_number = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u32>().ok().filter(|n| is_number && *n < below)
    };
    Some(number(hour, 24)? * 60 + number(minute, 60)?)
}

/// The bits a second that a rate in bytes says: `10M`, `10M/s`, or `off` (0). `None`: it says
/// nothing yet.
///
/// # Errors
/// It is not a rate.
pub(super) fn bits(text: &str) -> std::result::Result<Option<u64>, String> {
    let text = text.trim();
    match text {
        "" => return Ok(None),
        "off" => return Ok(Some(0)),
        _ => {}
    }
    let bytes = parse_size(text.strip_suffix("/s").unwrap_or(text));
    let bytes = bytes.map_err(|e| e.to_string())?;
    let bits = bytes.checked_mul(8).filter(|bits| *bits > 0);
    let wrong = || format!("{text} is not a rate; write 10M, or off");
    bits.map(Some).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_lasts_until_the_next_one() {
        let at = |table: &str, weekday: u32, hour: u32, minute: u32| {
            let now = LocalTime { weekday, minute: hour * 60 + minute };
            Timetable::parse(table).unwrap().at(now) / 8
        };
        let table = "08:00,512K 12:00,10M 13:00,512K/s 23:00,off";
        for (hour, minute, wanted) in [
            (0, 0, 0),
            (7, 59, 0),
            (8, 0, 512 << 10),
            (12, 30, 10 << 20),
            (13, 0, 512 << 10),
            (23, 59, 0),
        ] {
            assert_eq!(at(table, 3, hour, minute), wanted, "{hour}:{minute}");
        }
        let week = "Mon-08:00,1K sat-00:00,off";
        assert_eq!(at(week, 0, 12, 0), 0);
        assert_eq!(at(week, 1, 7, 59), 0);
        assert_eq!(at(week, 5, 23, 59), 1024);
        assert_eq!(at(week, 6, 0, 0), 0);
        assert_eq!(at("09:30,1M", 0, 0, 0), 1 << 20);
    }

    #[test]
    fn what_is_no_timetable_is_refused() {
        for table in
            ["", "512K", "8:00,1M", "24:00,1M", "08:60,1M", "08:00,", "08:00,0", "Day-08:00,1M"]
        {
            assert!(Timetable::parse(table).is_err(), "{table}");
        }
    }
}
