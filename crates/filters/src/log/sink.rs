//! Writes events to a file, a script, or both, in the order in which they happened.
//!
//! Logging never makes a thread wait for a file or a script: events are queued, and one thread of
//! the pool at a time makes lines of them and writes these. The operation after an event goes on at
//! once, unless a script has to run first or the queue is too long. The thread gathers
//! events for a millisecond at most: so a busy disk neither wakes it nor has it write for each.

use runtime::{Condvar, Context, Mutex, OperatorLog, WorkPool};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use device::{Error, ErrorKind, Fault, Result};
use programs::{Program, StandardStreams};

use super::event::Event;
use crate::kit::outlet::Outlet;

/// With more bytes of events than this in the queue, logging waits.
const QUEUED: usize = 4 << 20;
/// The most bytes of lines in one write: a pipe takes as many in one piece.
const TOGETHER: usize = 4096;
/// The most events that are taken from the queue at a time.
const BATCH: usize = 64;
/// How long the thread that writes gathers events once it has written all, and how often it looks
/// meanwhile whether there are enough for a write, or other work waits for it.
const STAYS: Duration = Duration::from_micros(100);
const LOOKS: usize = 10;
/// How long the end waits at most for a reader that does not read.
const STUCK: Duration = Duration::from_secs(10);

type Then = Box<dyn FnOnce() + Send>;

/// Takes events. Cheap to clone; all clones are one.
#[derive(Clone)]
pub(super) struct Sink(Arc<Shared>);

struct Shared {
    file: Option<Outlet>,
    script: Option<Program>,
    pool: WorkPool,
    log: OperatorLog,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Entry>,
    /// Bytes of the events in the queue.
    bytes: usize,
    /// A thread is writing the queue.
    writing: bool,
    /// Counts the events taken out.
    taken: u64,
    /// The program is ending: the thread that logs writes, too.
    ended: bool,
    /// Whether a failure has been reported.
    failed: bool,
}

struct Entry {
    at: SystemTime,
    event: Event,
    then: Option<Then>,
}

impl Sink {
    pub(super) fn new(file: Option<Outlet>, script: Option<Program>, context: &Context) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let (pool, log) = (context.pool.clone(), context.log.clone());
        Self(Arc::new(Shared { file, script, pool, log, state, changed }))
    }

    /// Logs `event` now, before any client is served.
    pub(super) fn begin_with(&self, event: Event) {
        let entry = Entry { at: SystemTime::now(), event, then: None };
        let result = self.0.take(&mut vec![entry], &mut String::new());
        self.0.note(result);
    }

    /// Logs `event`, and does `then` now or later.
    pub(super) fn put(&self, event: Event, then: impl FnOnce() + Send + 'static) {
        let weight = event.weight();
        let mut state = self.0.state.lock();
        let waits = self.0.script.is_some() || state.bytes > QUEUED;
        let (later, then) =
            if waits { (Some(Box::new(then) as Then), None) } else { (None, Some(then)) };
        // Under the lock, so that the times in a log do not go backwards.
        state.queue.push_back(Entry { at: SystemTime::now(), event, then: later });
        state.bytes += weight;
        let start = !state.writing;
        state.writing = true;
        let ended = state.ended;
        drop(state);
        if start && ended {
            self.0.drain();
        } else if start {
            let shared = self.0.clone();
            self.0.pool.run(move || shared.drain());
        }
        if let Some(then) = then {
            then();
        }
    }

    /// Waits until everything is written. Later events are written at once.
    pub(super) fn end(&self) {
        let mut state = self.0.state.lock();
        state.ended = true;
        self.0.changed.notify_all();
        while state.writing {
            let before = state.taken;
            let woken = self.0.changed.wait_timeout(state, STUCK);
            let (woken, waited) = woken;
            state = woken;
            if waited && state.taken == before && self.0.script.is_none() {
                drop(state);
                let action = "write the last lines: the reader does not read";
                return self.0.complain(&Error::new(ErrorKind::TimedOut, Fault::Peer, action));
            }
        }
    }
}

impl Shared {
    /// Writes all that is queued.
    fn drain(&self) {
        // A script runs before what follows its event.
        let most = if self.script.is_some() { 1 } else { BATCH };
        let (mut entries, mut text) = (Vec::new(), String::new());
        loop {
            let mut state = self.state.lock();
            for _ in 0..LOOKS {
                let is_over = state.ended || self.script.is_some() || self.pool.queued() > 0;
                if is_over || state.bytes >= TOGETHER {
                    break;
                }
                state = self.changed.wait_timeout(state, STAYS).0;
            }
            if state.queue.is_empty() {
                state.writing = false;
                drop(state);
                return self.changed.notify_all();
            }
            // Progress is counted for each batch: one of long events is short.
            let mut written = 0;
            while written < TOGETHER && entries.len() < most {
                let Some(entry) = state.queue.pop_front() else { break };
                written += entry.event.weight();
                entries.push(entry);
            }
            state.bytes = state.bytes.saturating_sub(written);
            state.taken += 1;
            drop(state);
            let result = self.take(&mut entries, &mut text);
            self.note(result);
            self.changed.notify_all();
        }
    }

    /// Writes the lines of `entries`, with the room of `text`, and does what comes after them.
    fn take(&self, entries: &mut Vec<Entry>, text: &mut String) -> Result<()> {
        let mut result = self.file.as_ref().map_or(Ok(()), |file| append(file, entries, text));
        for entry in entries.drain(..) {
            if let Some(script) = &self.script {
                result = result.and(run(script, &entry.event));
            }
            if let Some(then) = entry.then {
                then();
            }
        }
        result
    }

    /// If the log cannot be written, requests go on; the failure is reported once.
    fn note(&self, result: Result<()>) {
        if let Err(e) = result
            && !std::mem::replace(&mut self.state.lock().failed, true)
        {
            self.complain(&e);
        }
    }

    fn complain(&self, e: &Error) {
        self.log.say(format_args!("log: {e}"));
    }
}

/// Appends whole lines, with the room of `text`, as many at a time as a pipe takes in one piece.
fn append(file: &Outlet, entries: &[Entry], text: &mut String) -> Result<()> {
    text.clear();
    for entry in entries {
        let before = text.len();
        entry.event.write(entry.at, text);
        if text.len() > TOGETHER && before > 0 {
            let (lines, _) = text.split_at(before);
            file.append(lines.as_bytes())?;
            text.drain(..before);
        }
    }
    file.append(text.as_bytes())
}

/// The script that runs for each event.
pub(super) fn program(script: &str) -> Program {
    Program::script(script, Event::NAMES)
}

/// Runs the script for an event and waits for it.
fn run(script: &Program, event: &Event) -> Result<()> {
    let failed = |e| Error::os("run the script", e).on("logscript");
    let streams =
        StandardStreams { input: Some(programs::nothing().map_err(failed)?), output: None };
    let variables: Vec<_> = event.variables().collect();
    let values: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let running = programs::start(script, &values, streams).map_err(failed)?;
    let status = running.wait().map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    let action = format!("run the script for {}: {status}", event.act);
    Err(Error::new(ErrorKind::Io, Fault::User, action).on("logscript"))
}

#[cfg(test)]
mod tests {
    use super::super::event::{Fields, Stage, Value};
    use super::*;

    fn event(n: u64) -> Event {
        let fields = Fields::few([("offset", Value::Hex(n))]);
        Event { act: "Read", stage: Stage::Enter, connection: Some(1), id: Some(n), fields }
    }

    #[test]
    fn a_thread_that_logs_waits_for_a_slow_reader_and_nothing_is_lost() {
        let pool = WorkPool::new(1);
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let name = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer));
        let sink = Sink::new(Some(Outlet::open(&name, false).unwrap()), None, &Context::new(pool));
        drop(writer);
        let (tx, rx) = std::sync::mpsc::channel();
        let count = 150_000u64;
        for n in 0..count {
            let tx = tx.clone();
            sink.put(event(n), move || tx.send(n).unwrap());
        }
        drop(tx);
        // Nothing was read yet: events beyond the limit are still waiting.
        assert!(rx.try_iter().count() < usize::try_from(count).unwrap());
        let read = std::thread::spawn(move || std::io::read_to_string(std::fs::File::from(reader)));
        assert!(rx.iter().last().is_some());
        sink.end();
        drop(sink);
        let text = read.join().unwrap().unwrap();
        assert_eq!(text.lines().count() as u64, count);
        assert!(text.lines().all(|line| line.ends_with(" ...")));
    }
}
