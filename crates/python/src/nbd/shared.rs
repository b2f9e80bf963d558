//! A connection that threads share, and how they wait for it.
//!
//! One of the threads that wait is the *driver*: it polls the socket, lets the engine go on, and
//! calls the user back. The others sleep until it has. The lock is held only while nothing waits,
//! and never while Python runs, so a thread that holds the interpreter may take it. A driver that
//! waits is woken when another thread has something to send.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use runtime::{Bell, Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::engine::{Engine, EngineError};
use crate::nbd::buffer::View;

/// What Python keeps with a command.
#[derive(Debug, Default)]
pub(crate) struct KeptObjects {
    /// The memory of a read or write, which does not move while this is kept; and the object that
    /// owns it.
    pub(crate) _view: Option<View>,
    pub(crate) object: Option<Py<PyAny>>,
    pub(crate) chunk: Option<Py<PyAny>>,
    pub(crate) extent: Option<Py<PyAny>>,
    /// Whether the callback gets extents as pairs.
    pub(crate) pairs: bool,
    pub(crate) completion: Option<Py<PyAny>>,
}

/// What Python keeps with the option in flight.
#[derive(Debug, Default)]
pub(crate) struct Asking {
    /// Called with each export or context of a list.
    pub(crate) each: Option<Py<PyAny>>,
    pub(crate) completion: Option<Py<PyAny>>,
    /// How many there were.
    pub(crate) count: usize,
    /// Its result, once it has ended.
    pub(crate) done: Option<i32>,
}

#[derive(Debug)]
pub(crate) struct Core {
    /// `None` once it is closed.
    pub(super) engine: Option<Engine<KeptObjects>>,
    pub(crate) asking: Asking,
    pub(crate) debug: Option<Py<PyAny>>,
    driver: Option<ThreadId>,
    /// Wakes the driver.
    bell: Option<Arc<Bell>>,
}

impl Core {
    pub(crate) fn engine(&mut self) -> Result<&mut Engine<KeptObjects>, CallError> {
        self.engine.as_mut().ok_or(CallError::Closed)
    }

    /// Makes a waiting driver look again, if there is more to do now.
    fn wake_driver(&self) {
        let wants = self.engine.as_ref().is_none_or(|engine| engine.direction() & 2 != 0);
        if let (Some(_), Some(bell), true) = (self.driver, &self.bell, wants) {
            bell.ring();
        }
    }

    fn bell(&mut self) -> Result<Arc<Bell>, CallError> {
        if let Some(bell) = &self.bell {
            return Ok(bell.clone());
        }
        let failed = |e| EngineError::new(Errno::from_io_error(&e).unwrap_or(Errno::IO), "eventfd");
        let bell = Arc::new(Bell::new().map_err(failed)?);
        self.bell = Some(bell.clone());
        Ok(bell)
    }
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The handle was closed.
    Closed,
    Engine(EngineError),
}

impl From<EngineError> for CallError {
    fn from(fault: EngineError) -> Self {
        Self::Engine(fault)
    }
}

impl CallError {
    /// The exception, for the call of that name.
    pub(crate) fn raise(self, py: Python<'_>, call: &str) -> PyErr {
        match self {
            Self::Engine(fault) => {
                let args = (fault.said_by(call), fault.errno);
                errors(py, "Error", args).unwrap_or_else(|e| e)
            }
            Self::Closed => {
                let args = ("libnbd: method called on closed handle",);
                errors(py, "ClosedHandle", args).unwrap_or_else(|e| e)
            }
        }
    }
}

/// An exception of the package's.
fn errors<'py>(
    py: Python<'py>,
    name: &str,
    args: impl pyo3::call::PyCallArgs<'py>,
) -> PyResult<PyErr> {
    let module = py.import("diskferry._errors")?;
    Ok(PyErr::from_value(module.getattr(name)?.call1(args)?))
}

/// The result of one turn of a waiting thread.
enum Turn<T> {
    Found(T),
    /// This thread, the driver, has to call the user back.
    Events,
    /// The socket had an event, or another driver was at work; only if that was asked for.
    Moved,
    TimedOut,
    Interrupted,
}

#[derive(Debug)]
pub(crate) struct Shared {
    core: Mutex<Core>,
    changed: Condvar,
}

impl Shared {
    pub(crate) fn new(name: String) -> Self {
        let core = Core {
            engine: Some(Engine::new(name)),
            asking: Asking::default(),
            debug: None,
            driver: None,
            bell: None,
        };
        Self { core: Mutex::new(core), changed: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// Runs something that does not wait; then calls the user back, unless another thread does so.
    pub(crate) fn with<T>(
        &self,
        py: Python<'_>,
        call: &str,
        work: impl FnOnce(&mut Core) -> Result<T, CallError>,
    ) -> PyResult<T> {
        let mut core = self.lock();
        let result = work(&mut core);
        core.wake_driver();
        let events =
            core.driver.is_none() && core.engine.as_ref().is_some_and(|engine| engine.has_events());
        if events {
            core.driver = Some(thread::current().id());
        }
        drop(core);
        if events {
            self.tell(py);
        }
        result.map_err(|failure| failure.raise(py, call))
    }

    /// The same without the interpreter, for work that makes system calls: sends and connects. What
    /// `work` owns of Python it returns: it must not be dropped in it, for the lock is held there.
    pub(crate) fn detached<T: Send>(
        &self,
        py: Python<'_>,
        call: &str,
        work: impl FnOnce(&mut Engine<KeptObjects>) -> Result<T, CallError> + Send,
    ) -> PyResult<T> {
        let result = py.detach(|| {
            let mut core = self.lock();
            match core.engine() {
                Ok(engine) => work(engine),
                Err(closed) => {
                    // What it owns may be memory of Python, which is given back with the
                    // interpreter. A thread that has that may wait for the lock.
                    drop(core);
                    drop(work);
                    Err(closed)
                }
            }
        });
        self.with(py, call, |_| result)
    }

    /// Waits until `look` finds what it looks for, or fails.
    pub(crate) fn wait<T: Send>(
        &self,
        py: Python<'_>,
        call: &str,
        mut look: impl FnMut(&mut Core) -> Result<Option<T>, CallError> + Send,
    ) -> PyResult<T> {
        loop {
            let turn = py.detach(|| self.turn(None, None, &mut look));
            match turn.map_err(|failure| failure.raise(py, call))? {
                Turn::Found(found) => return Ok(found),
                Turn::Events => self.tell(py),
                Turn::Moved | Turn::TimedOut => {}
                Turn::Interrupted => py.check_signals()?,
            }
        }
    }

    /// Waits for the socket once, for this many milliseconds at most (for ever, if negative);
    /// whether it had an event. Also returns when another descriptor is readable.
    pub(crate) fn poll(
        &self,
        py: Python<'_>,
        call: &str,
        beside: Option<BorrowedFd<'_>>,
        timeout: i32,
    ) -> PyResult<bool> {
        let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
        let mut look = |_: &mut Core| Ok(None::<()>);
        match py.detach(|| self.turn(limit, Some(beside), &mut look)) {
            Ok(Turn::Found(()) | Turn::Moved) => Ok(true),
            Ok(Turn::Events) => {
                self.tell(py);
                Ok(true)
            }
            Ok(Turn::TimedOut) => Ok(false),
            Ok(Turn::Interrupted) => py.check_signals().map(|()| true),
            Err(failure) => {
                // The failure of what was in flight is reported first.
                self.with(py, call, |_| Ok(()))?;
                Err(failure.raise(py, call))
            }
        }
    }

    /// The socket was seen to be readable or writable by the thread that polls it.
    pub(crate) fn notify(&self, py: Python<'_>, call: &str, readable: bool) -> PyResult<()> {
        let result = py.detach(|| {
            let mut core = self.lock();
            let engine = core.engine()?;
            let result = if readable { engine.readable() } else { engine.writable() };
            self.changed.notify_all();
            result.map_err(CallError::Engine)
        });
        self.with(py, call, |_| result)
    }

    /// Waits until something is found; or for one turn, and for another descriptor too, if one is
    /// given.
    fn turn<T>(
        &self,
        limit: Option<Duration>,
        once: Option<Option<BorrowedFd<'_>>>,
        look: &mut impl FnMut(&mut Core) -> Result<Option<T>, CallError>,
    ) -> Result<Turn<T>, CallError> {
        let me = thread::current().id();
        let until = limit.map(|limit| Instant::now() + limit);
        let mut core = self.lock();
        loop {
            if core.driver.is_none() && core.engine()?.has_events() {
                core.driver = Some(me);
                return Ok(Turn::Events);
            }
            if let Some(found) = look(&mut core)? {
                return Ok(Turn::Found(found));
            }
            match core.driver {
                None => {}
                Some(driver) if driver == me => {
                    let text = "called from a callback of the same handle, which would never end";
                    return Err(EngineError::new(Errno::DEADLK, text).into());
                }
                Some(_) => {
                    // Signals are checked from time to time.
                    let patience = Duration::from_millis(100);
                    let (after, _) = self.changed.wait_timeout(core, patience);
                    core = after;
                    if until.is_some_and(|until| Instant::now() >= until) {
                        return Ok(Turn::TimedOut);
                    }
                    if core.driver.is_some() {
                        return Ok(Turn::Interrupted);
                    }
                    if once.is_some() {
                        return Ok(Turn::Moved);
                    }
                    continue;
                }
            }
            let engine = core.engine()?;
            let direction = engine.direction();
            if direction == 0 {
                let text = format!("nothing to poll for in state {}", engine.state().name());
                return Err(EngineError::invalid(text).into());
            }
            let mut seen = if engine.has_received() { Seen::Readable } else { Seen::Nothing };
            if seen == Seen::Nothing {
                let socket = engine.socket()?;
                let bell = core.bell()?;
                core.driver = Some(me);
                drop(core);
                let polled = wait(&socket, (&bell, once.flatten()), direction, until);
                core = self.lock();
                core.driver = None;
                self.changed.notify_all();
                seen = polled.map_err(|e| EngineError::new(e, "poll"))?;
            }
            let engine = core.engine()?;
            match seen {
                Seen::TimedOut => return Ok(Turn::TimedOut),
                Seen::Interrupted => return Ok(Turn::Interrupted),
                Seen::Readable => engine.readable()?,
                Seen::Writable => engine.writable()?,
                Seen::Beside => return Ok(Turn::Moved),
                Seen::Nothing => continue,
            }
            if engine.has_events() {
                core.driver = Some(me);
                return Ok(Turn::Events);
            }
            if once.is_some() {
                return Ok(Turn::Moved);
            }
        }
    }

    /// The user has been called back.
    pub(super) fn told_all(&self) {
        self.lock().driver = None;
        self.changed.notify_all();
    }

    /// Closes it. The rest is dropped without the lock and the interpreter: that waits for a server
    /// that this handle started.
    pub(crate) fn close(&self, py: Python<'_>) {
        let (engine, asking, debug) = {
            let mut core = self.lock();
            core.wake_driver();
            (core.engine.take(), std::mem::take(&mut core.asking), core.debug.take())
        };
        self.changed.notify_all();
        py.detach(|| drop(engine));
        drop((asking, debug));
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Seen {
    Nothing,
    Readable,
    Writable,
    /// The other descriptor.
    Beside,
    TimedOut,
    Interrupted,
}

/// Waits for the socket, the bell, or another descriptor.
fn wait(
    socket: &net::Stream,
    (bell, beside): (&Bell, Option<BorrowedFd<'_>>),
    direction: u32,
    until: Option<Instant>,
) -> Result<Seen, Errno> {
    let mut wanted = PollFlags::empty();
    if direction & 1 != 0 {
        wanted |= PollFlags::IN;
    }
    if direction & 2 != 0 {
        wanted |= PollFlags::OUT;
    }
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    let bell_fd = bell.as_fd();
    let third = PollFd::from_borrowed_fd(beside.unwrap_or(bell_fd), PollFlags::IN);
    let mut all = [PollFd::new(socket, wanted), PollFd::new(bell, PollFlags::IN), third];
    match poll(&mut all, left.as_ref()) {
        Ok(0) => return Ok(Seen::TimedOut),
        Err(Errno::INTR) => return Ok(Seen::Interrupted),
        Err(e) => return Err(e),
        Ok(_) => {}
    }
    let [socket, rung, moved] = all.map(|fd| fd.revents());
    if !rung.is_empty() {
        bell.silence();
    }
    // Reading shows the end of the connection.
    let ended = socket.intersects(PollFlags::HUP | PollFlags::ERR);
    Ok(if socket.contains(PollFlags::IN) || ended && direction & 1 != 0 {
        Seen::Readable
    } else if socket.contains(PollFlags::OUT) || ended {
        Seen::Writable
    } else if beside.is_some() && !moved.is_empty() {
        Seen::Beside
    } else {
        Seen::Nothing
    })
}
