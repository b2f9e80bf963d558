//! The loop of asynchronous programs: the socket, which of its events to wait for, and commands
//! that are over.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use pyo3::prelude::*;
use rustix::io::Errno;
use wire::Command as Kind;

use super::NBD;
use crate::engine::{CommandSpec, Engine, EngineError, PythonMemory, State, When, lent_descriptor};
use crate::nbd::shared::{CallError, Core, KeptObjects};

/// Makes `shutdown` abandon commands in flight.
const ABANDON_PENDING: u32 = 0x10000;

fn disconnect(flags: u32) -> CommandSpec<KeptObjects> {
    CommandSpec {
        kind: Kind::Disconnect,
        flags,
        offset: 0,
        count: 0,
        memory: PythonMemory::none(),
        only: None,
        chunks: false,
        completion: false,
        fresh: false,
        keep: KeptObjects::default(),
    }
}

/// Whether a connection has ended, for `shutdown`.
fn over(core: &mut Core) -> Option<Result<(), CallError>> {
    match core.engine() {
        Ok(engine) => matches!(engine.state(), State::Closed | State::Dead).then_some(Ok(())),
        Err(failure) => Some(Err(failure)),
    }
}

impl NBD {
    fn is_state(
        &self,
        py: Python<'_>,
        wanted: impl Fn(&Engine<KeptObjects>) -> bool,
    ) -> PyResult<bool> {
        self.shared.with(py, "connection_state", |core| Ok(wanted(core.engine()?)))
    }
}

#[pymethods]
impl NBD {
    /// Waits for the socket, at most `timeout` milliseconds (for ever with -1), and makes progress.
    /// Returns 0 on timeout, else 1.
    fn poll(&self, py: Python<'_>, timeout: i32) -> PyResult<i32> {
        self.shared.poll(py, "poll", timeout).map(i32::from)
    }

    /// The same, and also returns when the other descriptor `fd` is readable.
    fn poll2(&self, py: Python<'_>, fd: RawFd, timeout: i32) -> PyResult<i32> {
        let beside = (fd >= 0).then(|| lent_descriptor(fd));
        self.shared.poll_beside(py, "poll2", beside, timeout).map(i32::from)
    }

    /// The descriptor of the socket, only for polling in the direction of `aio_get_direction`.
    fn aio_get_fd(&self, py: Python<'_>) -> PyResult<RawFd> {
        self.shared.with(py, "aio_get_fd", |core| {
            let socket = core.engine()?.socket()?;
            Ok(socket.as_fd().as_raw_fd())
        })
    }

    /// The direction to poll: AIO_DIRECTION_READ, AIO_DIRECTION_WRITE, both, or 0.
    fn aio_get_direction(&self, py: Python<'_>) -> PyResult<u32> {
        self.shared.with(py, "aio_get_direction", |core| Ok(core.engine()?.direction()))
    }

    /// Call this when the socket is readable.
    fn aio_notify_read(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.notify(py, "aio_notify_read", true)
    }

    /// Call this when the socket is writable.
    fn aio_notify_write(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.notify(py, "aio_notify_write", false)
    }

    /// Whether the handle is new and not connected yet.
    fn aio_is_created(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_state(py, |engine| engine.state() == State::Created)
    }

    /// Whether it is connecting, or an option is in flight.
    fn aio_is_connecting(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_state(py, |engine| matches!(engine.state(), State::Connecting | State::Talking))
    }

    /// Whether options may be sent.
    fn aio_is_negotiating(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_state(py, |engine| engine.state() == State::Negotiating)
    }

    /// Whether commands may be sent and no message is partly sent or received.
    fn aio_is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_state(py, |engine| engine.state() == State::Ready && !engine.is_processing())
    }

    /// Whether a command or reply is partly sent or received; commands may be sent.
    fn aio_is_processing(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_state(py, Engine::is_processing)
    }

    /// Whether an error has ended the connection.
    fn aio_is_dead(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_state(py, |engine| engine.state() == State::Dead)
    }

    /// Whether the connection was closed normally.
    fn aio_is_closed(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_state(py, |engine| engine.state() == State::Closed)
    }

    /// Whether a command has ended; if so, it is retired. A failed one raises its error.
    fn aio_command_completed(&self, py: Python<'_>, cookie: i64) -> PyResult<bool> {
        let retired = self.shared.with(py, "aio_command_completed", |core| {
            let wrong = || EngineError::new(Errno::INVAL, format!("invalid aio cookie {cookie}"));
            let known = u64::try_from(cookie).ok().filter(|cookie| *cookie > 0);
            Ok(core.engine()?.retire(known.ok_or_else(wrong)?))
        })?;
        match retired {
            None => Ok(false),
            Some((Ok(()), _)) => Ok(true),
            Some((Err(fault), _)) => {
                Err(CallError::Engine(fault).raise(py, "aio_command_completed"))
            }
        }
    }

    /// The cookie of a command that has ended and was not retired; 0 if all are in flight.
    fn aio_peek_command_completed(&self, py: Python<'_>) -> PyResult<u64> {
        self.shared.with(py, "aio_peek_command_completed", |core| {
            let engine = core.engine()?;
            match engine.first_ended() {
                Some(cookie) => Ok(cookie),
                None if engine.has_commands() => Ok(0),
                None => Err(EngineError::new(Errno::INVAL, "no commands are in flight").into()),
            }
        })
    }

    /// The number of commands in flight.
    fn aio_in_flight(&self, py: Python<'_>) -> PyResult<usize> {
        self.shared.with(py, "aio_in_flight", |core| {
            let engine = core.engine()?;
            When::Used.check(engine.state())?;
            Ok(engine.in_flight())
        })
    }

    /// The state, in words.
    fn connection_state(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.shared.with(py, "connection_state", |core| Ok(core.engine()?.state().described()))
    }

    /// Tells the server that no more commands come. It answers those in flight first.
    #[pyo3(signature = (flags=0))]
    fn aio_disconnect(&self, py: Python<'_>, flags: u32) -> PyResult<()> {
        self.shared.detached(py, "aio_disconnect", |engine| {
            engine.issue(disconnect(flags)).map(|_| ()).map_err(|(fault, _)| fault.into())
        })
    }

    /// Disconnects, and waits until the connection is closed.
    #[pyo3(signature = (flags=0))]
    fn shutdown(&self, py: Python<'_>, flags: u32) -> PyResult<()> {
        self.shared.detached(py, "shutdown", |engine| {
            When::Open.check(engine.state())?;
            if flags & !ABANDON_PENDING != 0 {
                let text = format!("flags: invalid value for flag: {flags:#x}");
                return Err(EngineError::new(Errno::INVAL, text).into());
            }
            if engine.state() == State::Negotiating {
                return Ok(engine.opt_abort()?);
            }
            if flags & ABANDON_PENDING != 0 && engine.in_flight() > 0 {
                engine.abandon_pending();
                return Ok(());
            }
            if engine.is_leaving() {
                return Ok(());
            }
            engine.issue(disconnect(0)).map(|_| ()).map_err(|(fault, _)| fault.into())
        })?;
        self.shared.wait(py, "shutdown", over)
    }
}
