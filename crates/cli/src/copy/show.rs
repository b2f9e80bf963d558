//! Showing how far a copy is: a bar, lines of text, or JSON lines, on standard error.
//!
//! One thread reads the copy's counters ten times a second at most; the copy itself never
//! waits for it. JSON: one object a line, `{"type":T,"data":{…}}`, T one of `progress` (done,
//! total, rate, eta), `summary` and `error`. Sizes are in bytes, rates in bytes a second, times
//! in seconds; `eta` is null while nothing can be said.

use std::io::Write;
use std::time::Duration;

use copy::{Report, Snapshot};
use device::format_size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use super::settings::Show;
use crate::failure::Failure;

/// Shows a copy in one of the forms.
pub(super) struct Display {
    show: Show,
    bar: Option<ProgressBar>,
    rate: Rate,
    since_line: Duration,
}

impl Display {
    pub(super) fn new(show: Show) -> Self {
        let bar = (show == Show::Bar).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            let style = ProgressStyle::with_template("{bar:30} {percent:>3}% {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { show, bar, rate: Rate::default(), since_line: Duration::ZERO }
    }

    /// How long to wait before the next `tick`; `None` if there is nothing to show.
    pub(super) fn period(&self) -> Option<Duration> {
        match self.show {
            Show::Nothing => None,
            _ => Some(Duration::from_millis(100)),
        }
    }

    /// Shows how far the copy is now.
    pub(super) fn tick(&mut self, now: &Snapshot) {
        if self.show == Show::Nothing {
            return;
        }
        self.rate.add(now);
        if let Some(bar) = &self.bar {
            bar.set_length(now.total);
            bar.set_position(now.done());
            bar.set_message(self.rate.text(now));
            return;
        }
        let every = Duration::from_millis(if self.show == Show::Json { 500 } else { 1000 });
        if now.total > 0 && now.elapsed.saturating_sub(self.since_line) >= every {
            self.since_line = now.elapsed;
            self.line(now);
        }
    }

    /// One line at once, whatever else is shown.
    pub(super) fn line(&mut self, now: &Snapshot) {
        let line = if self.show == Show::Json {
            self.rate.json(now).to_string()
        } else {
            format!("diskferry: {} {}", percent(now), self.rate.text(now))
        };
        match &self.bar {
            Some(bar) => bar.suspend(|| say(&line)),
            None => say(&line),
        }
    }

    /// The copy is complete.
    pub(super) fn succeed(mut self, now: &Snapshot, report: &Report) {
        match self.show {
            Show::Bar => {
                self.tick(now);
                if let Some(bar) = &self.bar {
                    bar.abandon();
                }
            }
            Show::Json => {
                self.line(now);
                say(&json!({"type": "summary", "data": account(report)}));
            }
            Show::Lines => self.line(now),
            Show::Nothing => {}
        }
    }

    /// The copy failed.
    pub(super) fn fail(self, failure: &Failure, report: Option<&Report>) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
        if self.show != Show::Json {
            say(&format_args!("diskferry: {}", failure.line()));
            return;
        }
        let mut data = report.map_or_else(|| json!({}), account);
        data["message"] = failure.line().into();
        if let Some(report) = report {
            let left: Vec<Value> =
                report.left.iter().take(100).map(|r| json!([r.start, r.end - r.start])).collect();
            data["left"] = left.into();
        }
        say(&json!({"type": "error", "data": data}));
    }
}

/// One line on standard error; if nobody listens any more, the copy goes on all the same.
fn say(line: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn account(report: &Report) -> Value {
    let seconds = report.elapsed.as_secs_f64();
    json!({
        "done": report.done(),
        "total": report.total,
        "copied": report.copied,
        "zeroed": report.zeroed,
        "skipped": report.skipped,
        "seconds": (seconds * 1e6).round() / 1e6,
    })
}

fn percent(now: &Snapshot) -> String {
    let done = u128::from(now.done()) * 100;
    let percent = done.checked_div(u128::from(now.total)).unwrap_or(0);
    format!("{percent}%")
}

/// The rate over the last few seconds, so that it follows what happens.
#[derive(Debug, Default)]
struct Rate {
    seen: std::collections::VecDeque<(Duration, u64)>,
    /// When something was last done, and how much it was then.
    moved: (Duration, u64),
}

impl Rate {
    const WINDOW: Duration = Duration::from_secs(5);
    /// How long nothing may be done before it is said.
    const STILL: Duration = Duration::from_secs(10);

    fn add(&mut self, now: &Snapshot) {
        if now.done() != self.moved.1 {
            self.moved = (now.elapsed, now.done());
        }
        self.seen.push_back((now.elapsed, now.done()));
        while self.seen.len() > 2
            && self.seen.get(1).is_some_and(|s| now.elapsed.saturating_sub(s.0) >= Self::WINDOW)
        {
            self.seen.pop_front();
        }
    }

    /// Bytes a second.
    fn per_second(&self, now: &Snapshot) -> f64 {
        let (since, done) = self.seen.front().copied().unwrap_or_default();
        let (mut time, mut bytes) =
            (now.elapsed.saturating_sub(since), now.done().saturating_sub(done));
        if time < Duration::from_millis(200) {
            (time, bytes) = (now.elapsed, now.done());
        }
        if time.is_zero() { 0.0 } else { as_f64(bytes) / time.as_secs_f64() }
    }

    /// Seconds to go, if that can be said.
    fn eta(&self, now: &Snapshot) -> Option<f64> {
        let rate = self.per_second(now);
        let eta = as_f64(now.total.saturating_sub(now.done())) / rate;
        (rate > 0.0 && eta < 1e9).then_some(eta)
    }

    fn text(&self, now: &Snapshot) -> String {
        let (done, total) = (format_size(now.done()), format_size(now.total));
        let rate = format_rate(self.per_second(now));
        let eta = match self.eta(now) {
            Some(seconds) => format!("ETA {}", format_time(seconds)),
            None => {
                let still = now.elapsed.saturating_sub(self.moved.0);
                if still < Self::STILL {
                    "ETA unknown".into()
                } else {
                    format!("nothing for {}", format_time(still.as_secs_f64()))
                }
            }
        };
        format!("{done} of {total}, {rate}, {eta}")
    }

    fn json(&self, now: &Snapshot) -> Value {
        let data = json!({
            "done": now.done(),
            "total": now.total,
            "rate": self.per_second(now).round(),
            "eta": self.eta(now).map(|s| (s * 10.0).round() / 10.0),
        });
        json!({"type": "progress", "data": data})
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people: 53 bits are enough")]
fn as_f64(n: u64) -> f64 {
    n as f64
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

    #[test]
    fn a_copy_that_does_not_move_says_for_how_long() {
        let mut rate = Rate::default();
        let mut text = |seconds: u64, copied: u64| {
            let elapsed = Duration::from_secs(seconds);
            let now = Snapshot { total: 100, copied, elapsed, ..Snapshot::default() };
            rate.add(&now);
            rate.text(&now)
        };
        assert!(text(1, 0).ends_with("ETA unknown"));
        assert!(text(2, 10).contains("ETA 0:"));
        assert!(text(11, 10).ends_with("ETA unknown"));
        assert!(text(72, 10).ends_with("nothing for 1:10"));
        assert!(!text(73, 20).contains("nothing"));
    }
}
