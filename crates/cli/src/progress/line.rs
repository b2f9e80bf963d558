//! Progress in one line that fits the terminal: what is done, how fast, how long it will take.
//!
//! The percentage, the rate and the time to go of a copy are those of its data, as far as the map
//! is known: holes cost nothing, and would make them meaningless.

use std::collections::VecDeque;
use std::time::Duration;

use copy::{CopyCounts, Report};
use device::format_size;
use serde_json::{Value, json};

use super::mapped::Mapped;
use crate::output::VERSION;

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
        let mut time = format!("{:.1} s", report.elapsed.as_secs_f64());
        let (counted, what) = match self {
            Self::Data => {
                let holes = format_size(report.zeroed.saturating_add(report.skipped));
                let data = format_size(report.copied);
                (report.copied, format!("copied {data} of data and {holes} of holes"))
            }
            Self::All(done) => (report.done(), format!("{done} {}", format_size(report.done()))),
        };
        let rate = as_f64(counted) / report.elapsed.as_secs_f64().max(1e-6);
        if counted > 0 {
            time = format!("{time}, {}", format_rate(rate));
        }
        if report.confirmed > 0 {
            let again = format_size(report.confirmed);
            time = format!(
                "{time}; the source was lost and reconnected: {again} read before are unchanged"
            );
        }
        format!("{what} in {time}")
    }
}

/// The rate over the last few seconds, so that it follows what happens.
#[derive(Debug, Default)]
pub(super) struct Rate {
    seen: VecDeque<CopyCounts>,
    /// When something was last done, and how much it was then.
    moved: (Duration, u64),
}

impl Rate {
    const WINDOW: Duration = Duration::from_secs(5);
    /// How long nothing may move before the line says so.
    const STILL: Duration = Duration::from_secs(10);

    pub(super) fn add(&mut self, now: &CopyCounts) {
        if now.done() != self.moved.1 {
            self.moved = (now.elapsed, now.done());
        }
        self.seen.push_back(*now);
        while self.seen.len() > 2
            && self
                .seen
                .get(1)
                .is_some_and(|then| now.elapsed.saturating_sub(then.elapsed) >= Self::WINDOW)
        {
            self.seen.pop_front();
        }
    }

    /// Bytes a second.
    fn per_second(&self, now: &CopyCounts, counting: Counting) -> f64 {
        self.of(now, |counts| counting.of(counts))
    }

    /// How fast a count grows, a second.
    fn of(&self, now: &CopyCounts, count: impl Fn(&CopyCounts) -> u64) -> f64 {
        let then = self.seen.front().copied().unwrap_or_default();
        let (mut time, mut bytes) =
            (now.elapsed.saturating_sub(then.elapsed), count(now).saturating_sub(count(&then)));
        if time < Duration::from_millis(200) {
            (time, bytes) = (now.elapsed, count(now));
        }
        if time.is_zero() { 0.0 } else { as_f64(bytes) / time.as_secs_f64() }
    }

    fn eta(&self, now: &CopyCounts, counting: Counting, mapped: Option<Mapped>) -> Eta {
        if total(now).is_none() {
            return Eta::Unknown;
        }
        let left = now.total.saturating_sub(now.done());
        let all = |now: &CopyCounts| now.done();
        match (counting, mapped) {
            (Counting::All(_), _) => seconds(left, self.of(now, all)).map_or(Eta::Unknown, Eta::In),
            (Counting::Data, Some(mapped)) => {
                let data = |now: &CopyCounts| mapped.done(now);
                let known = mapped.data.saturating_sub(data(now));
                match (seconds(known, self.of(now, data)), mapped.is_whole(now)) {
                    // What is left are holes.
                    _ if known == 0 && mapped.is_whole(now) => {
                        seconds(left, self.of(now, all)).map_or(Eta::Unknown, Eta::In)
                    }
                    (Some(time), true) => Eta::In(time),
                    (Some(time), false) if known > 0 => Eta::AtLeast(time),
                    _ => Eta::Unknown,
                }
            }
            // No map: how much of the rest is data is not known once there was a hole.
            (Counting::Data, None) if now.done() > now.copied && left > 0 => Eta::Unknown,
            (Counting::Data, None) => {
                seconds(left, self.of(now, all)).map_or(Eta::Unknown, Eta::In)
            }
        }
    }

    /// What the copy waited for most of the last few seconds; `None`: for neither end.
    fn waiting_for(&self, now: &CopyCounts) -> Option<&'static str> {
        if now.held_back {
            return Some("rate");
        }
        let then = self.seen.front().copied().unwrap_or_default();
        let since = |of: fn(&CopyCounts) -> Duration| of(now).saturating_sub(of(&then));
        let source = since(|counts| counts.waited_for_source);
        let target = since(|counts| counts.waited_for_target);
        let long = now.elapsed.saturating_sub(then.elapsed) / 10;
        match source > target {
            true if source > long => Some("source"),
            false if target > long => Some("target"),
            _ => None,
        }
    }

    pub(super) fn json(
        &self,
        now: &CopyCounts,
        counting: Counting,
        mapped: Option<Mapped>,
    ) -> Value {
        let copies = counting == Counting::Data;
        let whole_map = mapped.filter(|mapped| mapped.is_whole(now));
        let data = json!({
            "done": now.done(),
            "total": total(now),
            "copied": now.copied,
            "zeroed": now.zeroed,
            "skipped": now.skipped,
            "data-done": mapped.map(|mapped| mapped.done(now)),
            "data-total": whole_map.map(|mapped| mapped.data),
            "rate": whole(self.per_second(now, counting)),
            "read-rate": copies.then(|| whole(self.of(now, |counts| counts.read))),
            "write-rate": copies.then(|| whole(self.of(now, |counts| counts.copied))),
            "waiting-for": self.waiting_for(now).filter(|_| copies),
            "eta": match self.eta(now, counting, mapped) {
                Eta::In(seconds) => Some((seconds * 10.0).round() / 10.0),
                Eta::AtLeast(_) | Eta::Unknown => None,
            },
        });
        json!({"version": VERSION, "type": "progress", "data": data})
    }
}

/// How long it will take, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Eta {
    In(f64),
    /// More data may be found.
    AtLeast(f64),
    Unknown,
}

/// Seconds for so many bytes at such a rate.
fn seconds(bytes: u64, rate: f64) -> Option<f64> {
    let time = if bytes == 0 { 0.0 } else { as_f64(bytes) / rate };
    Some(time).filter(|time| time.is_finite() && *time < 1e9)
}

/// Forms of the line, each shorter than the one before.
pub(super) struct Line {
    texts: [String; 5],
    part: f64,
}

impl Line {
    /// `mapped`: what is known of the source's map, if it is walked.
    pub(super) fn of(
        now: &CopyCounts,
        rate: &Rate,
        counting: Counting,
        mapped: Option<Mapped>,
    ) -> Self {
        let done = format_size(now.done());
        let speed = format_rate(rate.per_second(now, counting));
        let eta = match rate.eta(now, counting, mapped) {
            _ if now.comparing => "comparing with the reconnected source".into(),
            Eta::In(seconds) => format!("ETA {}", format_time(seconds)),
            Eta::AtLeast(seconds) => format!("ETA {} or more", format_time(seconds)),
            Eta::Unknown => match now.elapsed.saturating_sub(rate.moved.0) {
                still if still < Rate::STILL => "ETA unknown".into(),
                still => format!("nothing for {}", format_time(still.as_secs_f64())),
            },
        };
        let percent = total(now).map(|_| format!("{:>3}%", percent(now, mapped)));
        let data = mapped.filter(|mapped| total(now).is_some() && mapped.data > 0);
        let (far, short) = match (total(now), percent, data) {
            (Some(_), Some(percent), Some(mapped)) => {
                let (data, all) = (format_size(mapped.done(now)), format_size(mapped.data));
                let more = if mapped.is_whole(now) { "" } else { " or more" };
                (format!("{percent} {data} of {all}{more}"), percent)
            }
            (Some(total), Some(percent), None) => {
                (format!("{percent} {done} of {}", format_size(total)), percent)
            }
            _ => (done.clone(), done),
        };
        let counted = match (counting, data) {
            (Counting::Data, Some(_)) => format!("{far} of data at {speed}"),
            (Counting::Data, None) => {
                format!("{far}, {} of data at {speed}", format_size(now.copied))
            }
            (Counting::All(_), _) => format!("{far} at {speed}"),
        };
        let texts = [
            format!("{counted}, {eta}"),
            format!("{far}, {speed}, {eta}"),
            format!("{far}, {speed}"),
            format!("{short} {speed}, {eta}"),
            short,
        ];
        let (part, whole) = share(now, mapped);
        let part = total(now).map_or(0.0, |_| as_f64(part) / as_f64(whole.max(1)));
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
pub(crate) fn has_blocks() -> bool {
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

/// What is done, of how much: bytes of data, where the map is walked. It never goes back.
pub(super) fn share(now: &CopyCounts, mapped: Option<Mapped>) -> (u64, u64) {
    match mapped {
        Some(mapped) if mapped.at_most(now) > 0 && now.done() < now.total => {
            (mapped.done(now), mapped.at_most(now))
        }
        _ => (now.done(), now.total),
    }
}

/// Below 100 as long as something is left to do, or to compare.
fn percent(now: &CopyCounts, mapped: Option<Mapped>) -> u128 {
    let (part, whole) = share(now, mapped);
    let part = (u128::from(part) * 100).checked_div(u128::from(whole)).unwrap_or(0);
    if now.done() < now.total || now.comparing { part.min(99) } else { part }
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
        CopyCounts { total, copied, zeroed, elapsed, ..CopyCounts::default() }
    }

    #[test]
    fn a_line_fits_any_terminal_and_has_no_block_characters_where_there_are_none() {
        let now = now(100, 1_054_837_964, 1_054_837_964_000, (1 << 40) + 12_345);
        let mut rate = Rate::default();
        rate.add(&now);
        for counting in [Counting::Data, Counting::All("zeroed")] {
            let line = Line::of(&now, &rate, counting, None);
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
            rate.add(&now);
            Line::of(&now, &rate, Counting::Data, None).in_full().to_owned()
        };
        assert!(text(1, 0).ends_with("ETA unknown"));
        assert!(text(2, 10).contains("ETA 0:"));
        assert!(text(11, 10).ends_with("ETA unknown"));
        assert!(text(72, 10).ends_with("nothing for 1:10"));
        assert!(!text(73, 20).contains("nothing"));
    }

    #[test]
    fn the_end_that_was_waited_for_most_is_what_is_waited_for() {
        let ms = Duration::from_millis;
        for (source, target, held_back, wanted) in [
            (0, 0, false, None),
            (50, 40, false, None),
            (900, 400, false, Some("source")),
            (300, 1400, false, Some("target")),
            (900, 400, true, Some("rate")),
        ] {
            let mut rate = Rate::default();
            rate.add(&now(1, 0, 0, 100));
            let waited_for_source = ms(source);
            let now = CopyCounts { waited_for_source, held_back, read: 80, ..now(2, 40, 0, 100) };
            let now = CopyCounts { waited_for_target: ms(target), ..now };
            rate.add(&now);
            let json = rate.json(&now, Counting::Data, None);
            assert_eq!(json["data"]["waiting-for"].as_str(), wanted, "{json}");
            assert_eq!(
                (&json["data"]["read-rate"], &json["data"]["write-rate"]),
                (&json!(80), &json!(40))
            );
            let json = rate.json(&now, Counting::All("zeroed"), None);
            assert!(json["data"]["waiting-for"].is_null() && json["data"]["read-rate"].is_null());
        }
    }

    #[test]
    fn a_copy_that_compares_is_not_done() {
        let (mut rate, now) = (Rate::default(), now(2, 100, 0, 100));
        rate.add(&now);
        let text =
            |now: &CopyCounts| Line::of(now, &rate, Counting::Data, None).in_full().to_owned();
        let comparing = CopyCounts { comparing: true, ..now };
        assert!(text(&now).starts_with("100% ") && text(&now).contains("ETA"), "{}", text(&now));
        let text = text(&comparing);
        assert!(
            text.starts_with("99% ") && text.ends_with("comparing with the reconnected source")
        );
    }

    #[test]
    fn a_stream_shows_how_much_came_and_not_how_much_will() {
        let (mut rate, now) = (Rate::default(), now(2, 5 << 20, 1 << 20, 0));
        rate.add(&now);
        let line = Line::of(&now, &rate, Counting::Data, None);
        assert!(line.in_full().starts_with("6 MiB, 5 MiB of data at "), "{}", line.in_full());
        assert!(line.texts.iter().all(|text| !text.contains('%')));
        let json = rate.json(&now, Counting::Data, None);
        assert!(json["data"]["total"].is_null() && json["data"]["eta"].is_null(), "{json}");
    }

    #[test]
    fn the_rate_is_that_of_data_and_holes_do_not_change_it() {
        let mut rate = Rate::default();
        let mib = 1 << 20;
        for second in 0..4 {
            rate.add(&now(second, second * 50 * mib, (second * second) << 30, 1 << 40));
        }
        let last = now(4, 200 * mib, 16 << 30, 1 << 40);
        assert_eq!(format_rate(rate.per_second(&last, Counting::Data)), "50.0 MiB/s");
    }

    /// A disk of 2 GiB with 60 MiB of data at its end, and one with them at its beginning, at 10
    /// MiB a second.
    #[test]
    fn percent_and_time_to_go_are_of_data_wherever_the_holes_are() {
        let (mib, total) = (1 << 20, 2048_u64 << 20);
        let (data, holes) = (60 * mib, total - 60 * mib);
        let known = Some(Mapped { data, holes });
        for holes_first in [true, false] {
            let mut rate = Rate::default();
            let mut shown = 0;
            for second in 0..=6 {
                let copied = second * 10 * mib;
                let zeroed = if holes_first || second == 6 { holes } else { 0 };
                let now = now(second, copied, zeroed, total);
                rate.add(&now);
                let left = 6 - second;
                if second > 0 {
                    assert_eq!(rate.eta(&now, Counting::Data, known), Eta::In(as_f64(left)));
                    let json = rate.json(&now, Counting::Data, known);
                    assert_eq!(json["data"]["eta"].as_f64(), Some(as_f64(left)), "{json}");
                    assert_eq!(json["data"]["data-total"].as_u64(), Some(data), "{json}");
                }
                let percent = percent(&now, known);
                assert_eq!(percent, u128::from(second * 100 / 6), "{holes_first} {second}");
                assert!(percent >= shown);
                shown = percent;
            }
            let now = now(3, 30 * mib, if holes_first { holes } else { 0 }, total);
            let line = Line::of(&now, &rate, Counting::Data, known);
            assert!(
                line.in_full().starts_with("50% 30 MiB of 60 MiB of data at "),
                "{}",
                line.in_full()
            );
        }
    }

    #[test]
    fn a_map_that_is_not_known_to_its_end_gives_a_least_time() {
        let (mib, mut rate) = (1 << 20, Rate::default());
        let known = Some(Mapped { data: 30 * mib, holes: 1000 * mib });
        for second in 0..2 {
            rate.add(&now(second, second * 10 * mib, 0, 2048 * mib));
        }
        let now = now(2, 20 * mib, 0, 2048 * mib);
        rate.add(&now);
        assert_eq!(rate.eta(&now, Counting::Data, known), Eta::AtLeast(1.0));
        let line = Line::of(&now, &rate, Counting::Data, known);
        assert_eq!(
            line.in_full(),
            "1% 20 MiB of 30 MiB or more of data at 10.0 MiB/s, ETA 0:01 or more"
        );
        let json = rate.json(&now, Counting::Data, known);
        assert!(json["data"]["data-total"].is_null() && json["data"]["eta"].is_null(), "{json}");
    }

    #[test]
    fn zeroes_in_data_are_data_that_is_done() {
        let (mib, mut rate) = (1 << 20, Rate::default());
        let known = Some(Mapped { data: 100 * mib, holes: 0 });
        for second in 0..5 {
            rate.add(&now(second, 0, second * 10 * mib, 100 * mib));
        }
        let now = now(5, 0, 50 * mib, 100 * mib);
        assert_eq!(rate.eta(&now, Counting::Data, known), Eta::In(5.0));
        assert_eq!(percent(&now, known), 50);
    }

    #[test]
    fn holes_that_take_time_have_a_time_to_go_too() {
        let (mib, mut rate) = (1 << 20, Rate::default());
        let known = Some(Mapped { data: 10 * mib, holes: 90 * mib });
        for second in 0..5 {
            rate.add(&now(second, 10 * mib, second * 10 * mib, 100 * mib));
        }
        let now = now(5, 10 * mib, 50 * mib, 100 * mib);
        assert_eq!(rate.eta(&now, Counting::Data, known), Eta::In(4.0));
        assert_eq!(percent(&now, known), 99);
    }
}
