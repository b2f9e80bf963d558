//! Showing the progress of a copy or another long work on a disk: a bar, lines of text, or JSON
//! lines, on standard error.
//!
//! One thread reads the counters ten times a second at most; the work itself never waits for it.
//! Everything that is shown comes from the same counters as the final report. JSON: one object a
//! line, `{"version":1,"type":T,"data":{…}}`, see docs/reference/json.md.

use std::io::Write;
use std::time::Duration;

use copy::{CopyCounts, Report};
use device::Edge;
use serde_json::{Value, json};

use super::line::{Counting, Line, Rate, share};
use super::mapped::{MapWalk, Mapped};
use super::{Show, descriptor};
use crate::failure::{Failure, program};
use crate::names::is_qemu_img;
use crate::output::VERSION;

/// To the beginning of the line, which is emptied.
const ERASE: &str = "\r\x1b[2K";

/// Shows a work in one of the forms.
pub(crate) struct Display {
    show: Show,
    counting: Counting,
    /// What stands in the last line of the terminal, which it fits into.
    bar: String,
    rate: Rate,
    since_line: Duration,
    walk: Option<MapWalk>,
}

impl Display {
    pub(crate) fn new(show: Show, counting: Counting) -> Self {
        let (rate, since_line) = (Rate::default(), Duration::ZERO);
        Self { show, counting, bar: String::new(), rate, since_line, walk: None }
    }

    /// The source of the copy that is shown: its map tells how much of it is data. It is not walked
    /// where nothing is shown.
    pub(crate) fn source(&mut self, source: &Edge) {
        self.walk = self.period().map(|_| MapWalk::begin(source));
    }

    fn mapped(&self) -> Option<Mapped> {
        self.walk.as_ref().map(MapWalk::known)
    }

    /// How long to wait before the next `tick`; `None` if there is nothing to show.
    pub(crate) fn period(&self) -> Option<Duration> {
        match self.show {
            Show::Nothing | Show::Summary => None,
            _ => Some(Duration::from_millis(100)),
        }
    }

    /// Shows how far the work is now.
    pub(crate) fn tick(&mut self, now: &CopyCounts) {
        if matches!(self.show, Show::Nothing | Show::Summary) {
            return;
        }
        self.rate.add(now);
        if self.show == Show::Percent {
            let (done, total) = share(now, self.mapped());
            percent(done, total.max(1), '\r');
            return;
        }
        if self.show == Show::Hundredths {
            let (done, total) = share(now, self.mapped());
            descriptor::tell(done, total.max(1));
            return;
        }
        if self.show == Show::Bar {
            self.bar = self.text(now).for_terminal();
            write(&format!("{ERASE}{}", self.bar));
            return;
        }
        let every = Duration::from_millis(if self.show == Show::Json { 500 } else { 1000 });
        if (now.total > 0 || now.done() > 0) && now.elapsed.saturating_sub(self.since_line) >= every
        {
            self.since_line = now.elapsed;
            self.line(now);
        }
    }

    fn text(&self, now: &CopyCounts) -> Line {
        Line::of(now, &self.rate, self.counting, self.mapped())
    }

    /// One line at once, whatever else is shown.
    pub(crate) fn line(&mut self, now: &CopyCounts) {
        self.rate.add(now);
        if self.show == Show::Json {
            self.print(&self.rate.json(now, self.counting, self.mapped()));
        } else if is_qemu_img() {
            // Incus asks it so, and reads that.
            let (done, total) = share(now, self.mapped());
            self.print(&Percentage(done, total));
        } else {
            self.print(&format_args!("{}: {}", program(), self.text(now).in_full()));
        }
    }

    /// Something that the user should know.
    pub(crate) fn warn(&self, message: &str) {
        if self.show == Show::Json {
            warning(message);
        } else {
            self.print(&format_args!("{}: warning: {message}", program()));
        }
    }

    /// A note: something that is right, and may surprise.
    pub(crate) fn note(&self, note: &str) {
        self.print(&format_args!("{}: {note}", program()));
    }

    /// One line on standard error, above the bar.
    fn print(&self, line: &dyn std::fmt::Display) {
        match self.bar.as_str() {
            "" => say(line),
            bar => write(&format!("{ERASE}{line}\n{bar}")),
        }
    }

    fn erase(&mut self) {
        if !std::mem::take(&mut self.bar).is_empty() {
            write(ERASE);
        }
    }

    /// The work has ended, and what it found is said elsewhere.
    pub(crate) fn end(mut self) {
        self.erase();
    }

    /// The work is complete.
    pub(crate) fn succeed(mut self, now: &CopyCounts, report: &Report) {
        self.erase();
        match self.show {
            Show::Bar | Show::Lines | Show::Summary => {
                say(&format_args!("{}: {}", program(), self.counting.summary(report)));
            }
            Show::Json => {
                self.line(now);
                say(&json!({"version": VERSION, "type": "summary", "data": account(report)}));
            }
            Show::Percent => percent(1, 1, '\n'),
            Show::Hundredths => descriptor::tell(1, 1),
            Show::Nothing => {}
        }
    }

    /// The work failed.
    pub(crate) fn fail(mut self, failure: &Failure, report: Option<&Report>) {
        // The final message says how far it came.
        self.erase();
        if self.show != Show::Json {
            say(&format_args!("{}: {}", program(), failure.line()));
            return;
        }
        let mut data = report.map_or_else(|| json!({}), account);
        data["message"] = failure.line().into();
        if let Some(report) = report {
            let left: Vec<Value> =
                report.left.iter().take(100).map(|r| json!([r.start, r.end - r.start])).collect();
            data["left"] = left.into();
        }
        say(&json!({"version": VERSION, "type": "error", "data": data}));
    }
}

/// A warning as a JSON line. It may come from any thread.
pub(crate) fn warning(message: &str) {
    say(&json!({"version": VERSION, "type": "warning", "data": {"message": message}}));
}

/// So much of so much, as qemu-img prints it for programs to parse. Below 100 as long as something
/// is left to do.
struct Percentage(u64, u64);

impl std::fmt::Display for Percentage {
    #[expect(clippy::cast_precision_loss, reason = "a percentage needs no more than 52 bits")]
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(done, total) = *self;
        let part = 100.0 * done as f64 / total.max(1) as f64;
        let part = if done < total { part.min(99.99) } else { 100.0 };
        write!(f, "    ({part:.2}/100%)")
    }
}

/// The percentage on standard output, as qemu-img prints it.
pub(crate) fn percent(done: u64, total: u64, end: char) {
    let mut out = std::io::stdout().lock();
    let _ = write!(out, "{}{end}", Percentage(done, total)).and_then(|()| out.flush());
}

/// One line on standard error.
fn say(line: &dyn std::fmt::Display) {
    write(&format!("{line}\n"));
}

/// On standard error, at once; if it cannot be written, the work goes on all the same.
fn write(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn account(report: &Report) -> Value {
    let seconds = report.elapsed.as_secs_f64();
    json!({
        "done": report.done(),
        "total": report.total,
        "copied": report.copied,
        "zeroed": report.zeroed,
        "skipped": report.skipped,
        "confirmed": report.confirmed,
        "seconds": (seconds * 1e6).round() / 1e6,
    })
}
