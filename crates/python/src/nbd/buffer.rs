//! Python's buffers, and `nbd.Buffer`.
//!
//! Uses `unsafe` for the buffer protocol, so that bytes go straight between a socket and a
//! bytearray, a memoryview or an array of NumPy. An exported buffer can neither move nor be
//! resized, and is kept with the command until that is over.
#![expect(unsafe_code, reason = "see above")]

use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyMemoryView};
use runtime::Mutex;

use crate::engine::PythonMemory;

/// The memory of an object, exported until this is dropped.
pub(crate) struct View(Box<ffi::Py_buffer>);

// SAFETY: the protocol has no thread of its own; it is released with the interpreter attached
// (`drop`).
unsafe impl Send for View {}
// SAFETY: nothing is changed through a shared reference.
unsafe impl Sync for View {}

runtime::debug_as!(View, |it| "View({} bytes)", it.0.len);

impl View {
    /// Exports the memory of an object, of any type and shape that lies in one piece.
    pub(crate) fn of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        let mut raw = Box::new(ffi::Py_buffer::new());
        let flags = if writable { ffi::PyBUF_WRITABLE } else { ffi::PyBUF_SIMPLE };
        // SAFETY: the object is one, and what is filled in stays where it is.
        let got = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *raw, flags) };
        if got == 0 { Ok(Self(raw)) } else { Err(PyErr::fetch(object.py())) }
    }

    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.0.len).unwrap_or(0)
    }

    /// The memory; to be used only while this is kept.
    pub(crate) fn memory(&self) -> PythonMemory {
        match NonNull::new(self.0.buf.cast()) {
            // SAFETY: it is exported; the caller keeps this with the command.
            Some(start) => unsafe { PythonMemory::new(start, self.len()) },
            None => PythonMemory::none(),
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: it was filled in, and is released once.
        Python::attach(|_| unsafe { ffi::PyBuffer_Release(&raw mut *self.0) });
    }
}

/// A bytearray whose bytes are not set, for a read that sets all of them or zeroes them
/// (`CommandSpec::fresh`). It must not be seen before that.
pub(crate) fn fresh(py: Python<'_>, len: usize) -> PyResult<Bound<'_, PyByteArray>> {
    let size = ffi::Py_ssize_t::try_from(len).map_err(|_| PyValueError::new_err("too long"))?;
    // SAFETY: no bytes are copied from a null pointer; what comes back is a new bytearray, or an
    // error is set.
    let made = unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyByteArray_FromStringAndSize(std::ptr::null(), size))
    };
    Ok(made?.cast_into::<PyByteArray>()?)
}

/// A buffer for asynchronous commands: `Buffer(n)` has room for n bytes, which are zero until a
/// read fills them.
#[pyclass(name = "Buffer", module = "diskferry.nbd", frozen)]
#[derive(Debug)]
pub(crate) struct AioBuffer {
    len: usize,
    /// A bytearray that this made, or an object that the user gave; made when it is first needed.
    object: Mutex<Option<Py<PyAny>>>,
}

impl AioBuffer {
    fn object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let known = || {
            let object = self.object.lock();
            object.as_ref().map(|object| object.bind(py).clone())
        };
        if let Some(object) = known() {
            return Ok(object);
        }
        // Made without the lock: memory may be made by collecting garbage, which may run Python
        // code.
        let zeroes = PyByteArray::new_with(py, self.len, |_| Ok(()))?.into_any();
        let mut object = self.object.lock();
        Ok(object.get_or_insert_with(|| zeroes.unbind()).bind(py).clone())
    }
}

#[pymethods]
impl AioBuffer {
    /// Has room for `len` bytes.
    #[new]
    fn new(len: usize) -> Self {
        Self { len, object: Mutex::new(None) }
    }

    /// Shares the memory of any object with a buffer: reads go into it.
    #[staticmethod]
    fn from_buffer(buf: &Bound<'_, PyAny>) -> PyResult<Self> {
        let len = View::of(buf, false)?.len();
        Ok(Self { len, object: Mutex::new(Some(buf.clone().unbind())) })
    }

    /// Copies bytes, or anything that `bytearray()` accepts.
    #[staticmethod]
    fn from_bytearray(ba: &Bound<'_, PyAny>) -> PyResult<Self> {
        let copy = ba.py().get_type::<PyByteArray>().call1((ba,))?;
        Self::from_buffer(&copy)
    }

    /// The memory itself: changes are seen on both sides.
    fn to_buffer<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.object(py)
    }

    /// A copy of the bytes.
    fn to_bytearray<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.get_type::<PyByteArray>().call1((self.object(py)?,))
    }

    /// The number of bytes.
    fn size(&self) -> usize {
        self.len
    }

    fn __len__(&self) -> usize {
        self.len
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.object(key.py())?.get_item(key)
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.object(key.py())?.set_item(key, value)
    }

    /// Whether `size` bytes from `offset` on are all zero; -1 means to the end.
    #[pyo3(signature = (offset=0, size=-1))]
    fn is_zero(&self, py: Python<'_>, offset: isize, size: isize) -> PyResult<bool> {
        let wrong = || PyValueError::new_err("range out of bounds");
        let start = usize::try_from(offset).map_err(|_| wrong())?;
        let rest = self.len.checked_sub(start).ok_or_else(wrong)?;
        let len = if size == -1 { rest } else { usize::try_from(size).map_err(|_| wrong())? };
        if len > rest {
            return Err(wrong());
        }
        let view = View::of(&self.object(py)?, false)?;
        let mut memory = view.memory();
        Ok(memory.part(start, len).is_some_and(|bytes| device::is_zero(bytes)))
    }
}

/// The memory of an asynchronous read: an `nbd.Buffer`, or an object whose memory can be written.
/// It can be seen before the read is over, so it is never `fresh`.
pub(crate) fn target(buf: &Bound<'_, PyAny>) -> PyResult<(View, Py<PyAny>)> {
    let object = match buf.cast::<AioBuffer>() {
        Ok(buffer) => buffer.get().object(buf.py())?,
        Err(_) => buf.clone(),
    };
    let view = View::of(&object, true).map_err(|e| match View::of(&object, false) {
        Ok(_) => PyBufferError::new_err("underlying buffer is not writable"),
        Err(_) => wrong_type(buf.py(), e),
    })?;
    Ok((view, object.unbind()))
}

/// The memory of an asynchronous write.
pub(crate) fn source(buf: &Bound<'_, PyAny>) -> PyResult<(View, Py<PyAny>)> {
    let object = match buf.cast::<AioBuffer>() {
        Ok(buffer) => buffer.get().object(buf.py())?,
        Err(_) => buf.clone(),
    };
    let view = View::of(&object, false).map_err(|e| wrong_type(buf.py(), e))?;
    Ok((view, object.unbind()))
}

fn wrong_type(py: Python<'_>, e: PyErr) -> PyErr {
    if e.is_instance_of::<PyTypeError>(py) {
        return PyTypeError::new_err("aio_buffer: expecting buffer or nbd.Buffer instance");
    }
    e
}

/// A part of an object's memory, to be read.
pub(crate) fn part<'py>(
    object: &Bound<'py, PyAny>,
    start: usize,
    len: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let view = PyMemoryView::from(object)?;
    let bytes = view.call_method1("cast", ("B",))?;
    let end = start.saturating_add(len);
    let range =
        pyo3::types::PySlice::new(object.py(), isize::try_from(start)?, isize::try_from(end)?, 1);
    bytes.get_item(range)?.call_method0("toreadonly")
}
