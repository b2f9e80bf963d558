//! `exitwhen`: stops the server on an event: a file appears or disappears, a pipe is closed, a
//! process ends, a script says so.
//!
//! From then on new clients are refused, connected ones are served until they leave, and then the
//! server stops. Events are looked for when clients come and go, and every `exit-when-poll` in
//! between, by one thread of the pool at a time: a script that takes its time keeps new clients
//! waiting, and no disk.

mod system;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use device::{
    Admission, Admitted, Client, Error, ErrorKind, Fault, Filter, Filtered, Over, Params, Passes,
    Reach, Result, param, repeated, values,
};
use programs::{Program, StandardStreams};
use runtime::{Context, Control, Mutex, OperatorLog, Timers, WorkPool, contained};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;

use crate::FilterKind;
use crate::kit::params::absolute;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "exitwhen",
    summary: "stops the server on an event: a file, a pipe, a process or a script",
    keeps_disk: false,
    params: &[
        repeated("exit-when-file-created", "FILE", "when there is such a file"),
        repeated("exit-when-file-deleted", "FILE", "when there is none"),
        repeated("exit-when-pipe-closed", "FD", "when the other end of this pipe is closed"),
        repeated("exit-when-process-exits", "PID", "when this process has ended"),
        repeated("exit-when-script", "SCRIPT", "when this shell script exits with 88"),
        param("exit-when-poll", "TIME", "how often to look (default 60 seconds)"),
    ],
    reaches: |params| Reach {
        programs: params.all("exit-when-script").map(script).collect(),
        ..Reach::default()
    },
    example: "serve --filter=exitwhen memory 1M exit-when-file-created=/tmp/stop \
              --run 'nbdinfo --size \"$uri\"'",
    open: |params, below, context| {
        let watch = context.common(params, || read(params, context))?;
        watch.begin();
        Ok(Filtered::device(ExitWhen(watch), below))
    },
    ..FilterKind::PLAIN
};

/// The exit status of a script when its event has happened.
const HAPPENED: i32 = 88;

fn script(text: &str) -> Program {
    Program::script(text, &[])
}

/// An event to watch for.
enum Event {
    Created(PathBuf),
    Deleted(PathBuf),
    Closed(OwnedFd),
    Exited(OwnedFd),
    Says(Program),
}

impl Event {
    fn read(key: &str, value: &str) -> Result<Option<Self>> {
        Ok(Some(match key {
            "exit-when-file-created" => Self::Created(absolute(value)?),
            "exit-when-file-deleted" => Self::Deleted(absolute(value)?),
            "exit-when-pipe-closed" => Self::Closed(pipe(key, value)?),
            "exit-when-process-exits" => Self::Exited(process(key, value)?),
            "exit-when-script" => Self::Says(script(value)),
            _ => return Ok(None),
        }))
    }

    /// Whether it has happened. May block.
    fn has_happened(&self) -> Result<bool> {
        match self {
            // In doubt, nothing has changed.
            Self::Created(path) => Ok(path.try_exists().unwrap_or(false)),
            Self::Deleted(path) => Ok(!path.try_exists().unwrap_or(true)),
            Self::Closed(pipe) => Ok(shows(pipe, PollFlags::empty())),
            Self::Exited(process) => Ok(shows(process, PollFlags::IN)),
            Self::Says(script) => says(script),
        }
    }
}

/// The read end of a pipe: a duplicate, so the caller keeps its own descriptor.
fn pipe(key: &str, value: &str) -> Result<OwnedFd> {
    let not_a = || values::not_a(key, value, "the number of a descriptor of a pipe");
    let number: u32 = value.parse().map_err(|_| not_a())?;
    let file =
        system::open_again(number).map_err(|e| Error::os(format!("{key}={number}: open"), e))?;
    let kind = file.metadata().map_err(|e| Error::os(format!("{key}={number}: look at"), e))?;
    if kind.file_type().is_fifo() { Ok(file.into()) } else { Err(not_a()) }
}

/// A process, which stays the same even if its number is reused.
fn process(key: &str, value: &str) -> Result<OwnedFd> {
    let pid = value.parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| values::not_a(key, value, "the number of a process"))?;
    system::process(pid).map_err(|e| Error::os(format!("{key}={value}: find the process"), e))
}

/// Whether a descriptor has one of these events, or its other end is closed.
fn shows(fd: &OwnedFd, flags: PollFlags) -> bool {
    let mut sources = [PollFd::from_borrowed_fd(fd.as_fd(), flags)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut sources, Some(&now)).is_ok_and(|n| n > 0)
}

/// Runs the script to its end.
fn says(script: &Program) -> Result<bool> {
    let failed = |e| Error::os("run the script", e).on("exit-when-script");
    let nothing = || programs::nothing().map_err(failed);
    let streams = StandardStreams { input: Some(nothing()?), output: Some(nothing()?) };
    let running = programs::start(script, &[], streams).map_err(failed)?;
    let status = running.wait().map_err(failed)?;
    match status.code() {
        Some(0) => Ok(false),
        Some(HAPPENED) => Ok(true),
        _ => {
            let action = format!("run the script: {status}");
            Err(Error::new(ErrorKind::Io, Fault::User, action).on("exit-when-script"))
        }
    }
}

/// Checks for the event.
struct Watch {
    events: Vec<Event>,
    poll: Duration,
    state: Mutex<State>,
    begun: AtomicBool,
    control: Control,
    timers: Timers,
    pool: WorkPool,
    log: OperatorLog,
}

#[derive(Default)]
struct State {
    /// Clients that were admitted.
    here: u64,
    happened: bool,
    /// Clients that have come since it was looked the last time.
    waiting: Vec<Admitted>,
    /// A thread looks, and then once more.
    looks: bool,
    again: bool,
}

fn read(params: &Params, context: &Context) -> Result<Watch> {
    let mut events = Vec::new();
    for (key, value) in params.iter() {
        events.extend(Event::read(key, value)?);
    }
    let poll = values::duration(params, "exit-when-poll")?.unwrap_or(Duration::from_secs(60));
    if poll.is_zero() {
        return Err(values::wrong("exit-when-poll", "it cannot be 0"));
    }
    let Context { control, timers, pool, log, .. } = context.clone();
    let (state, begun) = Default::default();
    Ok(Watch { events, poll, state, begun, control, timers, pool, log })
}

impl Watch {
    /// Checks now, and from then on.
    fn begin(self: &Arc<Self>) {
        if !self.events.is_empty() && !self.begun.swap(true, Ordering::AcqRel) {
            self.look();
            self.look_again();
        }
    }

    /// Checks, and stops the server if the event has happened and no client is connected. May
    /// block.
    fn look(&self) {
        let happened =
            self.state.lock().happened || self.events.iter().any(|event| self.is_over(event));
        let mut state = self.state.lock();
        state.happened |= happened;
        if state.happened && state.here == 0 {
            drop(state);
            self.control.stop();
        }
    }

    fn is_over(&self, event: &Event) -> bool {
        event.has_happened().unwrap_or_else(|e| {
            self.log.say(format_args!("exitwhen: {e}"));
            false
        })
    }

    /// Checks again after a while, as long as the filter exists and the event has not happened.
    fn look_again(self: &Arc<Self>) {
        let watch = Arc::downgrade(self);
        let later = move || {
            let Some(found) = watch.upgrade().filter(|watch| !watch.state.lock().happened) else {
                return;
            };
            found.look_soon(None);
            found.look_again();
        };
        self.timers.after(self.poll, later);
    }

    /// Has a thread look from now on, and then let this client in, or not.
    fn look_soon(self: &Arc<Self>, client: Option<Admitted>) {
        let mut state = self.state.lock();
        state.waiting.extend(client);
        state.again = true;
        if std::mem::replace(&mut state.looks, true) {
            return;
        }
        drop(state);
        let watch = self.clone();
        self.pool.run(move || watch.look_for_all());
    }

    /// Looks for all that have come, until none has come meanwhile. May block.
    fn look_for_all(self: &Arc<Self>) {
        loop {
            let mut state = self.state.lock();
            if !std::mem::take(&mut state.again) {
                state.looks = false;
                return;
            }
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            self.look();
            for then in waiting {
                // One that panics must not keep others from being looked for.
                let _ = contained("exitwhen", || then(self.enter()));
            }
        }
    }

    /// Lets a client in, unless something has happened.
    fn enter(self: &Arc<Self>) -> Result<Admission> {
        let mut state = self.state.lock();
        if state.happened {
            let action = "the server stops: what `exitwhen` waits for has happened";
            return Err(Error::new(ErrorKind::Shutdown, Fault::User, action));
        }
        state.here += 1;
        drop(state);
        let watch = Arc::downgrade(self);
        Ok(Admission::until(move || {
            if let Some(watch) = watch.upgrade() {
                watch.leave();
            }
        }))
    }

    fn leave(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.here = state.here.saturating_sub(1);
        drop(state);
        self.look_soon(None);
    }
}

struct ExitWhen(Arc<Watch>);

impl Filter for ExitWhen {
    fn describe(&self, over: &mut Over) {
        over.passes = Passes::ALL;
    }

    fn admit(&self, _client: &Client, then: Admitted) {
        if self.0.events.is_empty() {
            return then(Ok(Admission::free()));
        }
        self.0.look_soon(Some(then));
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::sync::mpsc::{Receiver, channel};

    use device::Device;
    use trial::Scratch;

    use super::*;
    use crate::kit::tested::{blank, client, put_in};
    use device::Edge;

    /// A disk, and the receiver of its request to stop the server.
    fn watching(words: &[&str]) -> Result<(Edge, Receiver<()>, Context)> {
        let context = Context::new(WorkPool::new(2));
        let disk = put_in(&context, "exitwhen", blank(512), words)?;
        let (tx, rx) = channel();
        context.control.when_stopped(move || {
            let _ = tx.send(());
        });
        Ok((disk, rx, context))
    }

    fn connect(disk: &Edge) -> Result<Option<Arc<dyn Device>>> {
        let (tx, rx) = channel();
        disk.device().connect(&client(1), Box::new(move |own| tx.send(own).unwrap()));
        rx.recv().unwrap()
    }

    #[test]
    fn connected_clients_are_served_until_they_leave_and_new_ones_are_refused() {
        let scratch = Scratch::new("/tmp");
        let path = scratch.path("created");
        let word = format!("exit-when-file-created={}", path.display());
        let (disk, stopped, _context) = watching(&[&word]).unwrap();
        let own = connect(&disk).unwrap().unwrap();
        std::fs::write(&path, "").unwrap();
        let refused = connect(&disk).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Shutdown);
        assert!(stopped.try_recv().is_err());
        trial::BlockingCalls::read_at(&*own, &mut [0; 10], 0).unwrap();
        drop(own);
        stopped.recv().unwrap();
    }

    #[test]
    fn what_has_happened_before_stops_it_at_once_and_what_happens_later_is_noticed() {
        let scratch = Scratch::new("/tmp");
        let path = scratch.path("deleted");
        let word = format!("exit-when-file-deleted={}", path.display());
        let (_disk, stopped, _context) = watching(&[&word]).unwrap();
        stopped.recv().unwrap();
        std::fs::write(&path, "").unwrap();
        let (_disk, stopped, _context) = watching(&[&word, "exit-when-poll=10ms"]).unwrap();
        assert!(stopped.recv_timeout(Duration::from_millis(100)).is_err());
        std::fs::remove_file(&path).unwrap();
        stopped.recv().unwrap();
    }

    #[test]
    fn a_pipe_that_is_closed_is_noticed_and_what_is_in_it_is_not_read() {
        let flags = rustix::pipe::PipeFlags::CLOEXEC;
        let (reader, writer) = rustix::pipe::pipe_with(flags).unwrap();
        let word = format!("exit-when-pipe-closed={}", reader.as_raw_fd());
        let (_disk, stopped, _context) = watching(&[&word, "exit-when-poll=10ms"]).unwrap();
        rustix::io::write(&writer, b"word").unwrap();
        assert!(stopped.recv_timeout(Duration::from_millis(100)).is_err());
        drop(writer);
        stopped.recv().unwrap();
        let mut word = [0; 9];
        assert_eq!(rustix::io::read(&reader, &mut word).unwrap(), 4);
    }

    #[test]
    fn a_process_that_ends_is_noticed() {
        let mut child = std::process::Command::new("sleep").arg("3600").spawn().unwrap();
        let word = format!("exit-when-process-exits={}", child.id());
        let (_disk, stopped, _context) = watching(&[&word, "exit-when-poll=10ms"]).unwrap();
        assert!(stopped.recv_timeout(Duration::from_millis(100)).is_err());
        child.kill().unwrap();
        // Also before anything waited for it.
        stopped.recv().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_script_says_so_by_exiting_with_88_and_by_nothing_else() {
        for code in [0, 1, 87, 89] {
            let word = format!("exit-when-script=exit {code}");
            let (disk, stopped, _context) = watching(&[&word]).unwrap();
            connect(&disk).unwrap();
            assert!(stopped.try_recv().is_err(), "{code}");
        }
        let (_disk, stopped, _context) = watching(&["exit-when-script=exit 88"]).unwrap();
        stopped.recv().unwrap();
    }

    #[test]
    fn a_script_that_takes_its_time_runs_once_for_all_that_wait_for_it() {
        let scratch = Scratch::new("/tmp");
        let [slow, go, runs] = ["slow", "go", "runs"].map(|name| scratch.path(name));
        let script = format!(
            "test -e {0} || exit 0; echo >>{2}; until test -e {1}; do sleep 0.01; done",
            slow.display(),
            go.display(),
            runs.display()
        );
        let (disk, _stopped, _context) =
            watching(&[&format!("exit-when-script={script}")]).unwrap();
        std::fs::write(&slow, "").unwrap();
        let (tx, rx) = channel();
        let comes = |number| {
            let tx = tx.clone();
            disk.device().connect(&client(number), Box::new(move |own| tx.send(own).unwrap()));
        };
        let times = || std::fs::read(&runs).map_or(0, |lines| lines.len());
        comes(1);
        while times() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        (2..40).for_each(comes);
        assert_eq!(times(), 1, "the others wait");
        std::fs::write(&go, "").unwrap();
        let all: Vec<_> = (1..40).map(|_| rx.recv().unwrap().unwrap()).collect();
        assert_eq!(times(), 2, "once more for those that came meanwhile");
        // The check when they leave must not wait.
        std::fs::remove_file(slow).unwrap();
        drop(all);
    }

    #[test]
    fn without_events_nothing_is_waited_for() {
        let (disk, stopped, _context) = watching(&[]).unwrap();
        drop(connect(&disk).unwrap());
        assert!(stopped.try_recv().is_err());
    }
}
