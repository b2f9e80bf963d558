//! Writes events to a file, a script, or both, in the order in which they happened.
//!
//! Logging never makes a thread wait for a file or a script: events are queued, and one thread of
//! the pool at a time writes them. The operation after an event goes on at once, unless a script
//! has to run first or the queue is too long.

use runtime::{Context, OperatorLog, WorkPool};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use device::{Error, ErrorKind, Fault, Result};
use programs::{Program, StandardStreams};

use super::event::Event;
use crate::kit::outlet::Outlet;

/// With more bytes of lines than this in the queue, logging waits.
const QUEUED: usize = 4 << 20;
/// The most bytes of lines in one write: a pipe takes as many in one piece.
const TOGETHER: usize = 4096;
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
    /// Bytes of the lines in the queue.
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
    line: String,
    /// For the script.
    event: Option<Event>,
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
        let entry = self.entry(event, None);
        let result = self.0.take([entry].into());
        self.0.note(result);
    }

    /// Logs `event`, and does `then` now or later.
    pub(super) fn put(&self, event: Event, then: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock();
        let waits = self.0.script.is_some() || state.bytes > QUEUED;
        // Built under the lock, so that the times in a log do not go backwards.
        let mut entry = self.entry(event, None);
        let mut then: Option<Then> = Some(Box::new(then));
        if waits {
            entry.then = then.take();
        }
        state.bytes += entry.line.len();
        state.queue.push_back(entry);
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

    fn entry(&self, event: Event, then: Option<Then>) -> Entry {
        let line = self.0.file.as_ref().map(|_| event.line(SystemTime::now())).unwrap_or_default();
        let event = self.0.script.as_ref().map(|_| event);
        Entry { line, event, then }
    }

    /// Waits until everything is written. Later events are written at once.
    pub(super) fn end(&self) {
        let mut state = self.0.lock();
        state.ended = true;
        while state.writing {
            let before = state.taken;
            let woken = self.0.changed.wait_timeout(state, STUCK);
            let (woken, waited) = woken.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if waited.timed_out() && state.taken == before && self.0.script.is_none() {
                drop(state);
                let action = "write the last lines: the reader does not read";
                return self.0.complain(&Error::new(ErrorKind::TimedOut, Fault::Peer, action));
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes all that is queued.
    fn drain(&self) {
        loop {
            let mut state = self.lock();
            if state.queue.is_empty() {
                state.writing = false;
                drop(state);
                return self.changed.notify_all();
            }
            let mut entries = VecDeque::new();
            let mut bytes = 0;
            while let Some(entry) = state.queue.pop_front() {
                bytes += entry.line.len();
                let is_last = entry.event.is_some() || bytes >= TOGETHER;
                let too_long = bytes > TOGETHER && !entries.is_empty();
                if too_long {
                    bytes -= entry.line.len();
                    state.queue.push_front(entry);
                    break;
                }
                entries.push_back(entry);
                if is_last {
                    break;
                }
            }
            state.bytes -= bytes;
            state.taken += 1;
            drop(state);
            let result = self.take(entries);
            self.note(result);
            self.changed.notify_all();
        }
    }

    fn take(&self, mut entries: VecDeque<Entry>) -> Result<()> {
        let lines: String = entries.iter().map(|entry| entry.line.as_str()).collect();
        let mut result = Ok(());
        if let Some(file) = &self.file {
            result = file.append(lines.as_bytes());
        }
        for entry in entries.drain(..) {
            if let (Some(script), Some(event)) = (&self.script, &entry.event) {
                result = result.and(run(script, event));
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
            && !std::mem::replace(&mut self.lock().failed, true)
        {
            self.complain(&e);
        }
    }

    fn complain(&self, e: &Error) {
        self.log.say(format_args!("log: {e}"));
    }
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
    use super::super::event::{Stage, hex};
    use super::*;

    fn event(n: u64) -> Event {
        let fields = vec![("offset", hex(n))];
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
