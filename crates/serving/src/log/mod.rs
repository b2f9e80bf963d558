//! The log of a server: to standard error, the system log, a file, or nowhere.
//!
//! A line has a time (UTC), a level, the client's address and the export, `-` for what is missing;
//! or it is a JSON object of these. Logging never waits: once the log has been started, lines are
//! queued, and a thread of the log's own writes them. Lines that do not fit, or that clients cause
//! too fast, are dropped and counted; the count is logged once there is room.

mod line;
mod outlet;
mod voice;

use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use device::{Error, Peer, Result};
use runtime::{Condvar, Mutex, MutexGuard};

use line::Line;
pub use line::LogFormat;
pub use outlet::stderr_is_journal;
use outlet::{Outlet, SYSLOG};
pub use voice::{Voice, quoted};

/// Bytes of lines that wait to be written; what comes beyond is dropped.
const QUEUED: usize = 256 << 10;
/// Characters of one line; what is longer is cut.
const LONGEST: usize = 1000;
/// How often dropped lines are reported.
const DROPPED: Duration = Duration::from_secs(10);

/// How much a line matters.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Severity {
    /// Something failed: an I/O error.
    Error,
    /// A client was refused, or closed, or was too slow.
    Warning,
    /// Usual events: clients come and go. Logged only if asked for.
    Info,
}

impl Severity {
    /// In syslog's numbers.
    fn severity(self) -> u8 {
        match self {
            Self::Error => 3,
            Self::Warning => 4,
            Self::Info => 6,
        }
    }

    /// How many lines may come at once, and how long each of them counts.
    fn pace(self) -> (u32, Duration) {
        match self {
            Self::Error | Self::Warning => (200, Duration::from_secs(1)),
            Self::Info => (2000, Duration::from_millis(20)),
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        })
    }
}

/// The log. Cheap to clone; all clones share.
#[derive(Clone, Debug)]
pub struct ServerLog(Arc<Owner>);

/// What all clones share; the writer ends when they are gone.
#[derive(Debug)]
struct Owner(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There is something to do for the writer.
    work: Condvar,
    /// The writer has nothing to do.
    idle: Condvar,
    writer: Mutex<Writer>,
}

/// Where lines go, and how they are written.
#[derive(Debug)]
struct Writer {
    outlet: Outlet,
    format: LogFormat,
    /// The program's name.
    name: String,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Entry>,
    /// Bytes of the lines in the queue.
    bytes: usize,
    /// A thread writes; until then each line is written by the thread that logs it.
    started: bool,
    /// Also log usual events.
    verbose: bool,
    writing: bool,
    ended: bool,
    /// A thread waits for everything to be written.
    hurry: bool,
    /// Lines that were dropped, and when that was last reported.
    dropped: u64,
    told: Option<Instant>,
    paces: [Pace; 3],
}

#[derive(Debug)]
enum Entry {
    Line(Line),
    Reopen,
}

/// How far lines of one level are ahead of their rate.
#[derive(Clone, Copy, Debug, Default)]
struct Pace(Option<Instant>);

impl Pace {
    /// Whether one more line may be logged now.
    fn allows(&mut self, level: Severity, now: Instant) -> bool {
        let (burst, each) = level.pace();
        let ahead = self.0.map_or(now, |at| at.max(now));
        if ahead.duration_since(now) >= each * burst {
            return false;
        }
        self.0 = ahead.checked_add(each);
        true
    }
}

impl Default for ServerLog {
    fn default() -> Self {
        Self::stderr()
    }
}

impl ServerLog {
    fn new(outlet: Outlet) -> Self {
        Self(Arc::new(Owner(Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            idle: Condvar::new(),
            writer: Mutex::new(Writer {
                outlet,
                format: LogFormat::default(),
                name: "diskferry".into(),
            }),
        }))))
    }

    /// The same with lines in this format. Call it before anything is logged.
    #[must_use]
    pub fn in_format(self, format: LogFormat) -> Self {
        self.shared().writer.lock().format = format;
        self
    }

    /// The same of a program of another name. Call it before anything is logged.
    #[must_use]
    pub fn in_name(self, name: impl Into<String>) -> Self {
        self.shared().writer.lock().name = name.into();
        self
    }

    /// Standard error. The program's name begins each line of text, or, where that is systemd's
    /// journal, the priority, and no time, which the journal has.
    #[must_use]
    pub fn stderr() -> Self {
        Self::new(Outlet::Stderr { is_journal: stderr_is_journal() })
    }

    /// Nowhere.
    #[must_use]
    pub fn nowhere() -> Self {
        Self::new(Outlet::Nowhere)
    }

    /// The end of a file, which is created if it is missing.
    pub fn file(path: &Path) -> Result<Self> {
        Outlet::file(path).map(Self::new)
    }

    /// The system log.
    ///
    /// # Errors
    /// There is no listener.
    pub fn syslog() -> Result<Self> {
        Outlet::syslog(Path::new(SYSLOG)).map(Self::new)
    }

    /// From now on a thread writes, and logging does not wait.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(&self, verbose: bool) -> Result<()> {
        let mut state = self.shared().state.lock();
        state.verbose = verbose;
        if state.started {
            return Ok(());
        }
        let shared = self.0.0.clone();
        std::thread::Builder::new()
            .name("log".into())
            .spawn(move || shared.write())
            .map_err(|e| Error::os("start a thread", e))?;
        state.started = true;
        Ok(())
    }

    /// Whether lines of this level are logged.
    #[must_use]
    pub fn takes(&self, level: Severity) -> bool {
        level < Severity::Info || self.shared().state.lock().verbose
    }

    /// Logs one line, of no particular client.
    pub fn say(&self, what: fmt::Arguments<'_>) {
        self.event(Severity::Warning, None, None, what);
    }

    /// Logs one line: what happened, to the client at `peer`, on `export`.
    pub fn event(
        &self,
        level: Severity,
        peer: Option<&Peer>,
        export: Option<&str>,
        what: fmt::Arguments<'_>,
    ) {
        self.line(level, voice::address(peer), export, what);
    }

    fn line(
        &self,
        level: Severity,
        peer: Option<String>,
        export: Option<&str>,
        what: fmt::Arguments<'_>,
    ) {
        if !self.takes(level) {
            return;
        }
        let what = what.to_string();
        // A line stays a line, whatever a client has put into it.
        let what = what.chars().take(LONGEST).map(|c| if c.is_control() { ' ' } else { c });
        let export = export.map(|name| voice::start_of(name).to_owned());
        let line = Line { time: SystemTime::now(), level, peer, export, what: what.collect() };
        self.shared().take(line);
    }

    /// Opens a file again that may have got another name, as logrotate(8) asks for. Later: the
    /// caller does not wait.
    pub fn reopen(&self) {
        self.shared().enqueue(&mut self.shared().state.lock(), Entry::Reopen);
    }

    /// Waits until everything is written, at most `limit`. Returns whether it is.
    #[must_use]
    pub fn flush(&self, limit: Duration) -> bool {
        let shared = self.shared();
        let mut state = shared.state.lock();
        state.hurry = true;
        shared.work.notify_one();
        let busy = |state: &mut State| {
            state.started && (state.writing || !state.queue.is_empty() || state.dropped > 0)
        };
        let waited = shared.idle.wait_timeout_while(state, limit, busy);
        let (mut state, waited) = waited;
        state.hurry = false;
        !waited
    }

    fn shared(&self) -> &Shared {
        &self.0.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.state.lock().ended = true;
        self.0.work.notify_one();
    }
}

impl Shared {
    fn take(&self, line: Line) {
        let mut state = self.state.lock();
        let now = Instant::now();
        let pace = state.paces.get_mut(line.level as usize);
        let in_time = pace.is_none_or(|pace| pace.allows(line.level, now));
        if !in_time || state.bytes + line.len() > QUEUED {
            state.dropped += 1;
            self.work.notify_one();
            return;
        }
        self.enqueue(&mut state, Entry::Line(line));
    }

    fn enqueue(&self, state: &mut MutexGuard<'_, State>, entry: Entry) {
        if !state.started {
            return self.perform(entry);
        }
        state.bytes += entry.len();
        state.queue.push_back(entry);
        self.work.notify_one();
    }

    fn perform(&self, entry: Entry) {
        let Writer { outlet, format, name } = &mut *self.writer.lock();
        match entry {
            Entry::Line(line) => outlet.write(&line, *format, name),
            Entry::Reopen => {
                if let Err(e) = outlet.reopen() {
                    // It continues where it was.
                    outlet.write(&Line::own(Severity::Error, e.to_string()), *format, name);
                }
            }
        }
    }

    /// The log's thread.
    fn write(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(entry) = state.queue.pop_front() {
                state.bytes -= entry.len().min(state.bytes);
                state.writing = true;
                drop(state);
                self.perform(entry);
                state = self.state.lock();
                state.writing = false;
                continue;
            }
            let due = state.told.is_none_or(|told| told.elapsed() >= DROPPED);
            if state.dropped > 0 && (due || state.hurry || state.ended) {
                let count = std::mem::take(&mut state.dropped);
                state.told = Some(Instant::now());
                let what = format!("{count} lines were dropped");
                state.queue.push_back(Entry::Line(Line::own(Severity::Warning, what)));
                continue;
            }
            self.idle.notify_all();
            if state.ended {
                return;
            }
            state = if state.dropped > 0 {
                let woken = self.work.wait_timeout(state, DROPPED);
                woken.0
            } else {
                self.work.wait(state)
            };
        }
    }
}

impl Entry {
    fn len(&self) -> usize {
        match self {
            Self::Line(line) => line.len(),
            Self::Reopen => 0,
        }
    }
}

#[cfg(test)]
mod tests;
