//! Progress in one line that fits the terminal: what is done, how fast, how long it will take.
//!
//! The rate of a copy is that of its data: holes cost nothing, and would make it meaningless.

use std::collections::VecDeque;
use std::time::Duration;

use copy::{CopyCounts, Report};
use device::format_size;
use serde_json::{Value, json};

use crate::schema::VERSION;

/// Columns where their number is not known.
const COLUMNS: usize = 80;
/// The longest and the shortest bar worth drawing.
const BAR: std::ops::RangeInclusive<usize> = 8..=30;

/// What is counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Counting {
    /// Data that is copied, apart from holes.
    Data,
    /// All bytes alike; the participle of what is done to them ("zeroed").
    All(&'static str),
}

impl Counting {
    /// The bytes whose rate is shown.
    fn of(self, now: &CopyCounts) -> u64 {
        match self {
            Self::Data => now.copied,
            Self::All(_) => now.done(),
        }
    }

    /// The last line.
    pub(crate) fn summary(self, report: &Report) -> String {
        let time = format!("{:.1} s", report.elapsed.as_secs_f64());
        let (counted, what) = match self {
            Self::Data => {
                let holes = format_size(report.zeroed.saturating_add(report.skipped));
                let data = format_size(report.copied);
                (report.copied, format!("copied {data} of data and {holes} of holes"))
            }
            Self::All(done) => (report.done(), format!("{done} {}", format_size(report.done()))),
        };
        let rate = as_f64(counted) / report.elapsed.as_secs_f64().max(1e-6);
        if counted == 0 {
            return format!("{what} in {time}");
        }
        format!("{what} in {time}, {}", format_rate(rate))
    }
}

/// The rate over the last few seconds, so that it follows what happens.
#[derive(Debug, Default)]
pub(super) struct Rate {
    seen: VecDeque<(Duration, u64)>,
    /// When something was last done, and how much it was then.
    moved: (Duration, u64),
}

impl Rate {
    const WINDOW: Duration = Duration::from_secs(5);
    /// How long nothing may move before the line says so.
    const STILL: Duration = Duration::from_secs(10);

    pub(super) fn add(&mut self, now: &CopyCounts, counting: Counting) {
        if now.done() != self.moved.1 {
            self.moved = (now.elapsed, now.done());
        }
        self.seen.push_back((now.elapsed, counting.of(now)));
        while self.seen.len() > 2
            && self.seen.get(1).is_some_and(|s| now.elapsed.saturating_sub(s.0) >= Self::WINDOW)
        {
            self.seen.pop_front();
        }
    }

    /// Bytes a second.
    fn per_second(&self, now: &CopyCounts, counting: Counting) -> f64 {
        let (since, done) = self.seen.front().copied().unwrap_or_default();
        let counted = counting.of(now);
        let (mut time, mut bytes) =
            (now.elapsed.saturating_sub(since), counted.saturating_sub(done));
        if time < Duration::from_millis(200) {
            (time, bytes) = (now.elapsed, counted);
        }
        if time.is_zero() { 0.0 } else { as_f64(bytes) / time.as_secs_f64() }
    }

    /// Seconds to go, if known: what is left is assumed to have the same share of data as what is
    /// done.
    fn eta(&self, now: &CopyCounts, counting: Counting) -> Option<f64> {
        total(now)?;
        let left = as_f64(now.total.saturating_sub(now.done()));
        let counts = as_f64(counting.of(now)) / as_f64(now.done().max(1));
        let eta = left * counts / self.per_second(now, counting);
        eta.is_finite().then_some(eta).filter(|eta| *eta < 1e9 && (left == 0.0 || *eta > 0.0))
    }

    pub(super) fn json(&self, now: &CopyCounts, counting: Counting) -> Value {
        let data = json!({
            "done": now.done(),
            "total": total(now),
            "copied": now.copied,
            "zeroed": now.zeroed,
            "skipped": now.skipped,
            "rate": whole(self.per_second(now, counting)),
            "eta": self.eta(now, counting).map(|s| (s * 10.0).round() / 10.0),
        });
        json!({"version": VERSION, "type": "progress", "data": data})
    }
}

/// Forms of the line, each shorter than the one before.
pub(super) struct Line {
    texts: [String; 5],
    part: f64,
}

impl Line {
    pub(super) fn of(now: &CopyCounts, rate: &Rate, counting: Counting) -> Self {
        let done = format_size(now.done());
        let speed = format_rate(rate.per_second(now, counting));
        let eta = match rate.eta(now, counting) {
            Some(seconds) => format!("ETA {}", format_time(seconds)),
            None => match now.elapsed.saturating_sub(rate.moved.0) {
                still if still < Rate::STILL => "ETA unknown".into(),
                still => format!("nothing for {}", format_time(still.as_secs_f64())),
            },
        };
        let (far, short) = match total(now) {
            Some(total) => {
                let percent = format!("{:>3}%", percent(now));
                (format!("{percent} {done} of {}", format_size(total)), percent)
            }
            None => (done.clone(), done),
        };
        let counted = match counting {
            Counting::Data => format!("{far}, {} of data at {speed}", format_size(now.copied)),
            Counting::All(_) => format!("{far} at {speed}"),
        };
        let texts = [
            format!("{counted}, {eta}"),
            format!("{far}, {speed}, {eta}"),
            format!("{far}, {speed}"),
            format!("{short} {speed}, {eta}"),
            short,
        ];
        let part = total(now).map_or(0.0, |total| as_f64(now.done()) / as_f64(total.max(1)));
        Self { texts, part }
    }

    /// All of it.
    pub(super) fn in_full(&self) -> &str {
        self.texts.first().map_or("", |text| text.trim_start())
    }

    /// With a bar, as the terminal has room for.
    pub(super) fn for_terminal(&self) -> String {
        let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok();
        let columns = size.map(|size| usize::from(size.ws_col)).filter(|n| *n > 0);
        self.fit(columns.unwrap_or(COLUMNS), has_blocks())
    }

    /// In less than so many columns, with block characters or without.
    fn fit(&self, columns: usize, blocks: bool) -> String {
        let room = columns.saturating_sub(1);
        let shortest = *BAR.start() + 1;
        let fits = |spare: usize| self.texts.iter().find(|t| t.len() + spare <= room);
        // Words before a bar, but only those that leave room for one.
        let Some(text) = fits(shortest).or_else(|| fits(0)) else { return String::new() };
        let long = room.saturating_sub(text.len() + 1).min(*BAR.end());
        if long < *BAR.start() {
            return text.clone();
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and the length of the bar"
        )]
        let full = ((as_f64(long as u64) * self.part.clamp(0.0, 1.0)) as usize).min(long);
        let (on, off) = if blocks { ("█", "░") } else { ("#", "-") };
        format!("{}{} {text}", on.repeat(full), off.repeat(long - full))
    }
}

/// Whether the user's locale has more than ASCII.
fn has_blocks() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    let locale = locale.unwrap_or_default().to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// How much there is to do, where that is known: the length of a stream is known only at its end.
fn total(now: &CopyCounts) -> Option<u64> {
    Some(now.total).filter(|total| *total >= now.done())
}

fn percent(now: &CopyCounts) -> u128 {
    let done = u128::from(now.done()) * 100;
    done.checked_div(u128::from(now.total)).unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "for people: 53 bits are enough")]
fn as_f64(n: u64) -> f64 {
    n as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is not negative, and none is near 2^64"
)]
fn whole(rate: f64) -> u64 {
    rate.round() as u64
}

fn format_rate(rate: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut rate = rate;
    for unit in units {
        if rate < 1024.0 || unit == "EiB" {
            return format!("{rate:.1} {unit}/s");
        }
        rate /= 1024.0;
    }
    String::new()
}

fn format_time(seconds: f64) -> String {
    let whole = Duration::from_secs_f64(seconds).as_secs();
    let (h, m, s) = (whole / 3600, whole / 60 % 60, whole % 60);
    if h > 0 { format!("{h}:{m:02}:{s:02}") } else { format!("{m}:{s:02}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(seconds: u64, copied: u64, zeroed: u64, total: u64) -> CopyCounts {
        let elapsed = Duration::from_secs(seconds);
        CopyCounts { total, copied, zeroed, skipped: 0, elapsed }
    }

    #[test]
    fn a_line_fits_any_terminal_and_has_no_block_characters_where_there_are_none() {
        let now = now(100, 1_054_837_964, 1_054_837_964_000, (1 << 40) + 12_345);
        let mut rate = Rate::default();
        rate.add(&now, Counting::Data);
        for counting in [Counting::Data, Counting::All("zeroed")] {
            let line = Line::of(&now, &rate, counting);
            for columns in 1..200 {
                for blocks in [true, false] {
                    let text = line.fit(columns, blocks);
                    assert!(text.chars().count() < columns.max(1), "{columns}: {text}");
                    assert!(blocks || text.is_ascii());
                }
            }
            assert!(line.fit(40, false).contains("iB/s"), "{}", line.fit(40, false));
            assert!(line.fit(100, true).starts_with('█'));
        }
    }

    #[test]
    fn a_copy_that_does_not_move_says_for_how_long() {
        let mut rate = Rate::default();
        let mut text = |seconds: u64, copied: u64| {
            let now = now(seconds, copied, 0, 100);
            rate.add(&now, Counting::Data);
            Line::of(&now, &rate, Counting::Data).in_full().to_owned()
        };
        assert!(text(1, 0).ends_with("ETA unknown"));
        assert!(text(2, 10).contains("ETA 0:"));
        assert!(text(11, 10).ends_with("ETA unknown"));
        assert!(text(72, 10).ends_with("nothing for 1:10"));
        assert!(!text(73, 20).contains("nothing"));
    }

    #[test]
    fn a_stream_shows_how_much_came_and_not_how_much_will() {
        let (mut rate, now) = (Rate::default(), now(2, 5 << 20, 1 << 20, 0));
        rate.add(&now, Counting::Data);
        let line = Line::of(&now, &rate, Counting::Data);
        assert!(line.in_full().starts_with("6 MiB, 5 MiB of data at "), "{}", line.in_full());
        assert!(line.texts.iter().all(|text| !text.contains('%')));
        let json = rate.json(&now, Counting::Data);
        assert!(json["data"]["total"].is_null() && json["data"]["eta"].is_null(), "{json}");
    }

    #[test]
    fn the_rate_is_that_of_data_and_holes_do_not_change_it() {
        let mut rate = Rate::default();
        let mib = 1 << 20;
        for second in 0..4 {
            rate.add(
                &now(second, second * 50 * mib, (second * second) << 30, 1 << 40),
                Counting::Data,
            );
        }
        let last = now(4, 200 * mib, 16 << 30, 1 << 40);
        assert_eq!(format_rate(rate.per_second(&last, Counting::Data)), "50.0 MiB/s");
    }
}
