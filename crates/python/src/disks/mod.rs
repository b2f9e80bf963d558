//! Disks by name: anything that the command line can name, opened by the crate `disk`.
//!
//! - `naming.rs`: which disk, and how its bytes are understood. `open.rs`: one that is open.
//! - `copying.rs`, `comparing.rs`: two of them. `images.rs`: what verbs do with one. `serving.rs`:
//!   one over NBD.
//!
//! Nothing is guessed for writing. Waiting calls release the interpreter, and an exception from
//! `progress`, or Ctrl-C, stops a long operation.

mod comparing;
mod copying;
mod images;
mod naming;
mod open;
mod serving;

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use device::{Error, ErrorKind};
use pyo3::prelude::*;
use rustix::io::Errno;

pub(crate) use comparing::compare_disks;
pub(crate) use copying::copy_disk;
pub(crate) use images::{bitmap, check, create, digest_disk, info, measure, resize};
pub(crate) use naming::Naming;
pub(crate) use open::{Disk, Extents};
pub(crate) use serving::DiskServer;

/// How often a long operation reports progress and checks whether to stop.
const LOOK: Duration = Duration::from_millis(100);

/// The exception for an error.
pub(crate) fn raise(py: Python<'_>, e: &Error) -> PyErr {
    raise_number(py, e.kind(), number(e), &e.to_string())
}

/// The same, with a text of its own.
pub(crate) fn raise_words(py: Python<'_>, kind: ErrorKind, text: &str) -> PyErr {
    raise_number(py, kind, number_of_kind(kind), text)
}

/// The number for an error: that of the system call that failed, where the error is of the kind
/// that it gives.
fn number(e: &Error) -> i32 {
    let kind = e.kind();
    let number = e.raw_os_error().filter(|number| ErrorKind::from_errno(*number) == kind);
    number.unwrap_or_else(|| number_of_kind(kind))
}

/// The number that is nearest to a kind. Python has an exception for some that NBD, which
/// `ErrorKind::errno` is for, lacks.
fn number_of_kind(kind: ErrorKind) -> i32 {
    let found = match kind {
        ErrorKind::Disconnected => Errno::CONNRESET,
        ErrorKind::NotFound => Errno::NOENT,
        ErrorKind::TimedOut => Errno::TIMEDOUT,
        other => return other.errno().0,
    };
    found.raw_os_error()
}

fn raise_number(py: Python<'_>, kind: ErrorKind, number: i32, text: &str) -> PyErr {
    let made = || -> PyResult<PyErr> {
        let class = py.import("diskferry._disks")?.getattr("Error")?;
        let made = class.call1((number, text, format!("{kind:?}")))?;
        Ok(PyErr::from_value(made))
    };
    made().unwrap_or_else(|e| e)
}

/// The error for invalid arguments.
pub(crate) fn wrong(text: impl Into<String>) -> PyErr {
    pyo3::exceptions::PyValueError::new_err(text.into())
}

/// A long operation, in a thread of its own.
pub(crate) struct Long<T> {
    thread: JoinHandle<T>,
    over: Receiver<()>,
}

impl<T: Send + 'static> Long<T> {
    pub(crate) fn start(work: impl FnOnce() -> T + Send + 'static) -> PyResult<Self> {
        let (tell, over) = channel();
        let named = std::thread::Builder::new().name("long".into());
        let thread = named.spawn(move || {
            let done = work();
            drop(tell);
            done
        });
        Ok(Self { thread: thread.map_err(PyErr::from)?, over })
    }

    /// Waits for its end. Calls `tell` now and then; if that raises, stops the work by `stop`, and
    /// raises the exception when the work has ended.
    pub(crate) fn wait(
        self,
        py: Python<'_>,
        mut tell: impl FnMut() -> PyResult<()>,
        stop: impl Fn(),
    ) -> PyResult<T> {
        let Self { thread, over } = self;
        let mut raised = None;
        let over = runtime::Mutex::new(over);
        loop {
            let ended = py.detach(|| {
                let over = over.lock();
                over.recv_timeout(LOOK) == Err(RecvTimeoutError::Disconnected)
            });
            if ended {
                break;
            }
            if raised.is_none()
                && let Err(e) = py.check_signals().and_then(|()| tell())
            {
                raised = Some(e);
                stop();
            }
        }
        let done = py.detach(|| thread.join());
        match (raised, done) {
            (Some(e), _) => Err(e),
            (None, Ok(done)) => Ok(done),
            (None, Err(_)) => {
                Err(pyo3::exceptions::PyRuntimeError::new_err("a thread panicked; a defect"))
            }
        }
    }
}
