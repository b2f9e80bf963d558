//! The loop of asynchronous programs: the socket, which of its events to wait for, and commands
//! that are over.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use pyo3::prelude::*;
use wire::Command as Kind;

use super::NBD;
use super::shared::{CallError, Core, KeptObjects};
use crate::engine::When::{Always, Open, Used};
use crate::engine::{CommandSpec, Engine, EngineError, State, lent_descriptor};

/// Makes `shutdown` abandon commands in flight.
const ABANDON_PENDING: u32 = 0x10000;

fn disconnect(engine: &mut Engine<KeptObjects>, flags: u32) -> Result<(), CallError> {
    let ask = CommandSpec::new(Kind::Disconnect, 0, 0, flags);
    engine.issue(ask).map(|_| ()).map_err(|(fault, _)| fault.into())
}

/// Whether a connection has ended, for `shutdown`.
fn over(core: &mut Core) -> Result<Option<()>, CallError> {
    Ok(matches!(core.engine()?.state(), State::Closed | State::Dead).then_some(()))
}

impl NBD {
    fn is_in(&self, py: Python<'_>, call: &str, state: impl Fn(State) -> bool) -> PyResult<bool> {
        self.know(py, call, Always, |engine| Ok(state(engine.state())))
    }
}

methods! {
    /// The descriptor of the socket, only for polling in the direction of `aio_get_direction`.
    aio_get_fd() -> RawFd = know(Always, |engine| Ok(engine.socket()?.as_fd().as_raw_fd()));

    /// The direction to poll: AIO_DIRECTION_READ, AIO_DIRECTION_WRITE, both, or 0.
    aio_get_direction() -> u32 = know(Always, |engine| Ok(engine.direction()));

    /// Whether the handle is new and not connected yet.
    aio_is_created() -> bool = is_in(|state| state == State::Created);

    /// Whether it is connecting, or an option is in flight.
    aio_is_connecting() -> bool
        = is_in(|state| matches!(state, State::Connecting | State::Talking));

    /// Whether options may be sent.
    aio_is_negotiating() -> bool = is_in(|state| state == State::Negotiating);

    /// Whether commands may be sent and no message is partly sent or received.
    aio_is_ready() -> bool
        = know(Always, |engine| Ok(engine.state() == State::Ready && !engine.is_processing()));

    /// Whether a command or reply is partly sent or received; commands may be sent.
    aio_is_processing() -> bool = know(Always, |engine| Ok(engine.is_processing()));

    /// Whether an error has ended the connection.
    aio_is_dead() -> bool = is_in(|state| state == State::Dead);

    /// Whether the connection was closed normally.
    aio_is_closed() -> bool = is_in(|state| state == State::Closed);

    /// The cookie of a command that has ended and was not retired; 0 if all are in flight.
    aio_peek_command_completed() -> u64 = know(Always, |engine| match engine.first_ended() {
        Some(cookie) => Ok(cookie),
        None if engine.has_commands() => Ok(0),
        None => Err(EngineError::invalid("no commands are in flight")),
    });

    /// The number of commands in flight.
    aio_in_flight() -> usize = know(Used, |engine| Ok(engine.in_flight()));

    /// The state, in words.
    connection_state() -> &'static str = know(Always, |engine| Ok(engine.state().described()));
}

#[pymethods]
impl NBD {
    /// Waits for the socket, at most `timeout` milliseconds (for ever with -1), and makes progress.
    /// Returns 0 on timeout, else 1.
    fn poll(&self, py: Python<'_>, timeout: i32) -> PyResult<i32> {
        self.shared.poll(py, "poll", None, timeout).map(i32::from)
    }

    /// The same, and also returns when the other descriptor `fd` is readable.
    fn poll2(&self, py: Python<'_>, fd: RawFd, timeout: i32) -> PyResult<i32> {
        let beside = (fd >= 0).then(|| lent_descriptor(fd));
        self.shared.poll(py, "poll2", beside, timeout).map(i32::from)
    }

    /// Call this when the socket is readable.
    fn aio_notify_read(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.notify(py, "aio_notify_read", true)
    }

    /// Call this when the socket is writable.
    fn aio_notify_write(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.notify(py, "aio_notify_write", false)
    }

    /// Whether a command has ended; if so, it is retired. A failed one raises its error.
    fn aio_command_completed(&self, py: Python<'_>, cookie: i64) -> PyResult<bool> {
        let retired = self.shared.with(py, "aio_command_completed", |core| {
            let wrong = || EngineError::invalid(format!("invalid aio cookie {cookie}"));
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

    /// Tells the server that no more commands come. It answers those in flight first.
    #[pyo3(signature = (flags=0))]
    fn aio_disconnect(&self, py: Python<'_>, flags: u32) -> PyResult<()> {
        self.shared.detached(py, "aio_disconnect", |engine| disconnect(engine, flags))
    }

    /// Disconnects, and waits until the connection is closed.
    #[pyo3(signature = (flags=0))]
    fn shutdown(&self, py: Python<'_>, flags: u32) -> PyResult<()> {
        self.shared.detached(py, "shutdown", |engine| {
            Open.check(engine.state())?;
            if flags & !ABANDON_PENDING != 0 {
                let text = format!("flags: invalid value for flag: {flags:#x}");
                return Err(EngineError::invalid(text).into());
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
            disconnect(engine, 0)
        })?;
        self.shared.wait(py, "shutdown", over)
    }
}
