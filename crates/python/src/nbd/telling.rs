//! Calling users back, in the order in which things happened.
//!
//! The thread that does so is the driver until it is done: so no event is reported twice or out of
//! turn. Python runs without the lock.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyList, PyTuple};
use rustix::io::Errno;

use crate::engine::{Engine, Event, Submitted};
use crate::nbd::buffer;
use crate::nbd::shared::{KeptObjects, Shared};

impl Shared {
    /// Calls the user back with all queued events. This thread is the driver until that is done.
    pub(super) fn tell(&self, py: Python<'_>) {
        loop {
            let event = self.lock().engine.as_mut().and_then(Engine::event);
            let Some(event) = event else { break };
            match event {
                Event::Completed { cookie, errno } => self.tell_completion(py, cookie, errno),
                Event::Chunk { cookie, start, len, status, errno } => {
                    self.tell_chunk(py, cookie, (start, len), status, errno);
                }
                Event::Extents { cookie, context, offset, extents } => {
                    self.tell_extents(py, cookie, &context, offset, &extents);
                }
                Event::Listed(name, description) => {
                    self.tell_each(py, (name, description));
                }
                Event::Context(name) => self.tell_each(py, (name,)),
                Event::OptionDone(errno) => self.tell_option(py, errno),
                Event::Debug(text) => self.tell_debug(py, &text),
            }
        }
        self.told_all();
    }

    fn tell_completion(&self, py: Python<'_>, cookie: u64, errno: i32) {
        // The callback for a chunk or an extent may have failed it meanwhile.
        let found = self.command(cookie, |c| Some((c.ask.keep.completion.take(), c.errno)));
        let (completion, known) = found.unwrap_or((None, errno));
        let answer = match &completion {
            Some(completion) => call_back(py, completion, Ok(()), known),
            None => Answer { value: 0, errno: known },
        };
        let replaced = (answer.value == -1 && answer.errno != 0).then_some(answer.errno);
        let retired = {
            let mut core = self.lock();
            let engine = core.engine.as_mut();
            engine.and_then(|engine| engine.told(cookie, replaced, answer.value == 1))
        };
        // Without the lock: dropping what it kept may run Python code.
        drop(retired);
    }

    /// What `work` finds of a command that was not retired.
    fn command<T>(
        &self,
        cookie: u64,
        work: impl FnOnce(&mut Submitted<KeptObjects>) -> Option<T>,
    ) -> Option<T> {
        self.lock().engine.as_mut().and_then(|engine| engine.command(cookie)).and_then(work)
    }

    fn tell_chunk(
        &self,
        py: Python<'_>,
        cookie: u64,
        (start, len): (usize, usize),
        status: u32,
        errno: i32,
    ) {
        let known = self.command(cookie, |command| {
            let KeptObjects { chunk, object, .. } = &command.ask.keep;
            let (chunk, object) = (chunk.as_ref()?.clone_ref(py), object.as_ref()?.clone_ref(py));
            Some((chunk, object, command.ask.offset))
        });
        let Some((chunk, object, offset)) = known else { return };
        let part = buffer::part(object.bind(py), start, len);
        let part = part.map(|part| (part, offset + start as u64, status));
        self.apply(cookie, call_back(py, &chunk, part, errno));
    }

    fn tell_extents(
        &self,
        py: Python<'_>,
        cookie: u64,
        context: &str,
        offset: u64,
        extents: &[(u64, u64)],
    ) {
        let known = self.command(cookie, |command| {
            let keep = &command.ask.keep;
            Some((keep.extent.as_ref()?.clone_ref(py), keep.pairs, command.errno))
        });
        let Some((extent, pairs, errno)) = known else { return };
        let list = if pairs {
            PyList::new(py, extents.iter().copied())
        } else {
            PyList::new(py, extents.iter().flat_map(|(len, flags)| [*len, *flags]))
        };
        let list = list.map(|list| (context, offset, list));
        self.apply(cookie, call_back(py, &extent, list, errno));
    }

    /// The result of a callback for a part of a reply.
    fn apply(&self, cookie: u64, answer: Answer) {
        if answer.value != -1 {
            return;
        }
        let errno = if answer.errno == 0 { Errno::PROTO.raw_os_error() } else { answer.errno };
        let mut core = self.lock();
        if let Some(command) = core.engine.as_mut().and_then(|engine| engine.command(cookie)) {
            command.fail(errno);
        }
    }

    fn tell_each<'py>(&self, py: Python<'py>, args: impl pyo3::call::PyCallArgs<'py>) {
        let each = {
            let mut core = self.lock();
            core.asking.count += 1;
            core.asking.each.as_ref().map(|each| each.clone_ref(py))
        };
        if let Some(Err(e)) = each.map(|each| each.call1(py, args)) {
            e.print(py);
        }
    }

    fn tell_option(&self, py: Python<'_>, errno: i32) {
        let asking = {
            let mut core = self.lock();
            core.asking.done = Some(errno);
            (core.asking.each.take(), core.asking.completion.take())
        };
        if let (_, Some(completion)) = &asking {
            call_back(py, completion, Ok(()), errno);
        }
    }

    fn tell_debug(&self, py: Python<'_>, text: &str) {
        let (callback, name) = {
            let core = self.lock();
            let callback = core.debug.as_ref().map(|callback| callback.clone_ref(py));
            let name = core.engine.as_ref().map(|engine| engine.settings.name.clone());
            (callback, name.unwrap_or_default())
        };
        match callback {
            None => {
                let line = format!("libnbd: debug: {name}: {text}\n");
                let write = || py.import("sys")?.getattr("stderr")?.call_method1("write", (line,));
                // A program without standard error gets no message.
                let _ = write();
            }
            Some(callback) => {
                if let Err(e) = callback.call1(py, ("nbd", text)) {
                    e.print(py);
                }
            }
        }
    }
}

/// The result of a callback: its value, and what it left in the error that it was given.
struct Answer {
    value: i64,
    errno: i32,
}

/// Calls a user back with `args` and an error that it may set. An exception is printed, and counts
/// as -1.
fn call_back<'py, A>(py: Python<'py>, callback: &Py<PyAny>, args: PyResult<A>, errno: i32) -> Answer
where
    A: IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>>,
    A::Error: Into<PyErr>,
{
    let called = || -> PyResult<Answer> {
        let error = c_int(py)?.call1((errno,))?;
        let args = args?.into_pyobject(py).map_err(Into::into)?;
        let args = if args.is_empty() {
            PyTuple::new(py, [&error])?
        } else {
            let all: Vec<Bound<'py, PyAny>> = args.iter().chain([error.clone()]).collect();
            PyTuple::new(py, all)?
        };
        let value = match callback.bind(py).call1(args) {
            Ok(value) => match value.cast::<PyInt>() {
                Ok(value) => value.extract().unwrap_or(0),
                Err(_) => 0,
            },
            Err(e) => {
                e.print(py);
                -1
            }
        };
        let left = error.getattr("value")?.extract()?;
        Ok(Answer { value, errno: left })
    };
    called().unwrap_or_else(|e| {
        e.print(py);
        Answer { value: -1, errno: 0 }
    })
}

/// `ctypes.c_int`, in which libnbd's callbacks get their error.
fn c_int(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static TYPE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = TYPE
        .get_or_try_init(py, || Ok::<_, PyErr>(py.import("ctypes")?.getattr("c_int")?.unbind()));
    Ok(made?.bind(py))
}

/// A callback, or none.
pub(crate) fn callback(
    given: Option<&Bound<'_, PyAny>>,
    parameter: &str,
) -> PyResult<Option<Py<PyAny>>> {
    let Some(given) = given.filter(|given| !given.is_none()) else { return Ok(None) };
    if !given.is_callable() {
        let text = format!("callback parameter {parameter} is not callable");
        return Err(pyo3::exceptions::PyTypeError::new_err(text));
    }
    Ok(Some(given.clone().unbind()))
}
