//! Commands: those that wait for their reply, and those that do not.

use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use wire::Command as Kind;

use super::NBD;
use crate::engine::{CommandSpec, PythonMemory};
use crate::nbd::buffer::{self, View};
use crate::nbd::shared::{CallError, Core, KeptObjects};
use crate::nbd::telling::callback;

/// Longest read, in bytes; the engine refuses more.
const MOST: usize = 64 << 20;

/// A command without payload, callbacks or special wishes.
fn plain(kind: Kind, count: u64, offset: u64, flags: u32) -> CommandSpec<KeptObjects> {
    CommandSpec {
        kind,
        flags,
        offset,
        count,
        memory: PythonMemory::none(),
        only: None,
        chunks: false,
        completion: false,
        fresh: false,
        keep: KeptObjects::default(),
    }
}

fn read(view: View, object: Py<PyAny>, offset: u64, flags: u32) -> CommandSpec<KeptObjects> {
    let (count, memory) = (view.len() as u64, view.memory());
    let keep = KeptObjects { _view: Some(view), object: Some(object), ..KeptObjects::default() };
    CommandSpec { memory, keep, ..plain(Kind::Read, count, offset, flags) }
}

fn write(view: View, object: Py<PyAny>, offset: u64, flags: u32) -> CommandSpec<KeptObjects> {
    let (count, memory) = (view.len() as u64, view.memory());
    let keep = KeptObjects { _view: Some(view), object: Some(object), ..KeptObjects::default() };
    CommandSpec { memory, keep, ..plain(Kind::Write, count, offset, flags) }
}

/// A read into a bytearray of its own; one that is too long, which is refused, has no room.
fn read_fresh<'py>(
    py: Python<'py>,
    count: usize,
    offset: u64,
    flags: u32,
) -> PyResult<(Bound<'py, PyByteArray>, CommandSpec<KeptObjects>)> {
    let room = if count > MOST { 0 } else { count };
    let bytes = buffer::fresh(py, room)?;
    let view = View::of(bytes.as_any(), true)?;
    let object = bytes.clone().into_any().unbind();
    let ask = read(view, object, offset, flags);
    Ok((bytes, CommandSpec { count: count as u64, fresh: true, ..ask }))
}

fn status(
    (count, offset): (u64, u64),
    extent: &Bound<'_, PyAny>,
    pairs: bool,
    flags: u32,
) -> PyResult<CommandSpec<KeptObjects>> {
    let keep =
        KeptObjects { extent: callback(Some(extent), "extent")?, pairs, ..KeptObjects::default() };
    Ok(CommandSpec { keep, ..plain(Kind::BlockStatus, count, offset, flags) })
}

impl NBD {
    /// Sends a command, and does not wait.
    fn issue(
        &self,
        py: Python<'_>,
        call: &str,
        mut ask: CommandSpec<KeptObjects>,
        completion: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        ask.keep.completion = callback(completion, "completion")?;
        ask.completion = ask.keep.completion.is_some();
        let issued = self.shared.detached(py, call, move |engine| Ok(engine.issue(ask)))?;
        issued.map_err(|(fault, keep)| {
            drop(keep);
            CallError::Engine(fault).raise(py, call)
        })
    }

    /// Sends a command, and waits for its end.
    fn command(&self, py: Python<'_>, call: &str, ask: CommandSpec<KeptObjects>) -> PyResult<()> {
        let cookie = self.issue(py, call, ask, None)?;
        let look = |core: &mut Core| match core.engine() {
            Ok(engine) => engine.retire(cookie).map(Ok),
            Err(failure) => Some(Err(failure)),
        };
        let (result, keep) = self.shared.wait(py, call, look)?;
        drop(keep);
        result.map_err(|fault| CallError::Engine(fault).raise(py, call))
    }
}

#[pymethods]
impl NBD {
    /// Reads `count` bytes from `offset` on.
    #[pyo3(signature = (count, offset, flags=0))]
    fn pread<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        offset: u64,
        flags: u32,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let (bytes, ask) = read_fresh(py, count, offset, flags)?;
        self.command(py, "pread", ask)?;
        Ok(bytes)
    }

    /// Reads into the memory of an object: a bytearray, a memoryview, a NumPy array. Not in libnbd.
    #[pyo3(signature = (buf, offset, flags=0))]
    fn pread_into(
        &self,
        py: Python<'_>,
        buf: &Bound<'_, PyAny>,
        offset: u64,
        flags: u32,
    ) -> PyResult<()> {
        let (view, object) = buffer::target(buf)?;
        self.command(py, "pread", read(view, object, offset, flags))
    }

    /// Reads, and calls `chunk(bytes, offset, status, error)` for each piece as it arrives:
    /// READ_DATA, READ_HOLE or READ_ERROR.
    #[pyo3(signature = (count, offset, chunk, flags=0))]
    fn pread_structured<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        offset: u64,
        chunk: &Bound<'py, PyAny>,
        flags: u32,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let (bytes, mut ask) = read_fresh(py, count, offset, flags)?;
        ask.chunks = true;
        ask.keep.chunk = callback(Some(chunk), "chunk")?;
        self.command(py, "pread_structured", ask)?;
        Ok(bytes)
    }

    /// Writes bytes at `offset`; with CMD_FLAG_FUA they are durable before this returns.
    #[pyo3(signature = (buf, offset, flags=0))]
    fn pwrite(
        &self,
        py: Python<'_>,
        buf: &Bound<'_, PyAny>,
        offset: u64,
        flags: u32,
    ) -> PyResult<()> {
        let view = View::of(buf, false)?;
        self.command(py, "pwrite", write(view, buf.clone().unbind(), offset, flags))
    }

    /// Flushes: makes earlier writes durable.
    #[pyo3(signature = (flags=0))]
    fn flush(&self, py: Python<'_>, flags: u32) -> PyResult<()> {
        self.command(py, "flush", plain(Kind::Flush, 0, 0, flags))
    }

    /// Trims bytes: they are not needed any more, and their contents are then undefined.
    #[pyo3(signature = (count, offset, flags=0))]
    fn trim(&self, py: Python<'_>, count: u64, offset: u64, flags: u32) -> PyResult<()> {
        self.command(py, "trim", plain(Kind::Trim, count, offset, flags))
    }

    /// Has the server prefetch bytes.
    #[pyo3(signature = (count, offset, flags=0))]
    fn cache(&self, py: Python<'_>, count: u64, offset: u64, flags: u32) -> PyResult<()> {
        self.command(py, "cache", plain(Kind::Cache, count, offset, flags))
    }

    /// Makes bytes read as zeroes. CMD_FLAG_NO_HOLE keeps them allocated; with CMD_FLAG_FAST_ZERO
    /// this fails if it would be as slow as writing.
    #[pyo3(signature = (count, offset, flags=0))]
    fn zero(&self, py: Python<'_>, count: u64, offset: u64, flags: u32) -> PyResult<()> {
        self.command(py, "zero", plain(Kind::WriteZeroes, count, offset, flags))
    }

    /// Calls `extent(context, offset, entries, error)` for each context: entries are lengths and
    /// flags in turn.
    #[pyo3(signature = (count, offset, extent, flags=0))]
    fn block_status(
        &self,
        py: Python<'_>,
        count: u64,
        offset: u64,
        extent: &Bound<'_, PyAny>,
        flags: u32,
    ) -> PyResult<()> {
        self.command(py, "block_status", status((count, offset), extent, false, flags)?)
    }

    /// The same, with entries that are pairs of length and flags.
    #[pyo3(signature = (count, offset, extent64, flags=0))]
    fn block_status_64(
        &self,
        py: Python<'_>,
        count: u64,
        offset: u64,
        extent64: &Bound<'_, PyAny>,
        flags: u32,
    ) -> PyResult<()> {
        self.command(py, "block_status_64", status((count, offset), extent64, true, flags)?)
    }

    /// The same, for some of the selected contexts.
    #[pyo3(signature = (count, offset, contexts, extent64, flags=0))]
    fn block_status_filter(
        &self,
        py: Python<'_>,
        count: u64,
        offset: u64,
        contexts: Vec<String>,
        extent64: &Bound<'_, PyAny>,
        flags: u32,
    ) -> PyResult<()> {
        let ask = status((count, offset), extent64, true, flags)?;
        self.command(py, "block_status_filter", CommandSpec { only: Some(contexts), ..ask })
    }

    /// Starts a read into a Buffer, or the memory of an object. Returns a cookie. Calls
    /// `completion(error)` at the end; if that returns 1, the command is retired.
    #[pyo3(signature = (buf, offset, completion=None, flags=0))]
    fn aio_pread(
        &self,
        py: Python<'_>,
        buf: &Bound<'_, PyAny>,
        offset: u64,
        completion: Option<&Bound<'_, PyAny>>,
        flags: u32,
    ) -> PyResult<u64> {
        let (view, object) = buffer::target(buf)?;
        self.issue(py, "aio_pread", read(view, object, offset, flags), completion)
    }

    /// Starts a read into a bytearray of its own, which holds any bytes until the read is over: for
    /// `aio.py`, which does not show it before.
    #[pyo3(signature = (count, offset, completion, flags=0))]
    fn _aio_read<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        offset: u64,
        completion: &Bound<'_, PyAny>,
        flags: u32,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let (bytes, ask) = read_fresh(py, count, offset, flags)?;
        self.issue(py, "aio_pread", ask, Some(completion))?;
        Ok(bytes)
    }

    /// The same as `aio_pread`, and calls `chunk` like `pread_structured`.
    #[pyo3(signature = (buf, offset, chunk, completion=None, flags=0))]
    fn aio_pread_structured(
        &self,
        py: Python<'_>,
        buf: &Bound<'_, PyAny>,
        offset: u64,
        chunk: &Bound<'_, PyAny>,
        completion: Option<&Bound<'_, PyAny>>,
        flags: u32,
    ) -> PyResult<u64> {
        let (view, object) = buffer::target(buf)?;
        let mut ask = read(view, object, offset, flags);
        ask.chunks = true;
        ask.keep.chunk = callback(Some(chunk), "chunk")?;
        self.issue(py, "aio_pread_structured", ask, completion)
    }

    /// Starts a write. The bytes must not change until its end.
    #[pyo3(signature = (buf, offset, completion=None, flags=0))]
    fn aio_pwrite(
        &self,
        py: Python<'_>,
        buf: &Bound<'_, PyAny>,
        offset: u64,
        completion: Option<&Bound<'_, PyAny>>,
        flags: u32,
    ) -> PyResult<u64> {
        let (view, object) = buffer::source(buf)?;
        self.issue(py, "aio_pwrite", write(view, object, offset, flags), completion)
    }

    /// Starts a flush.
    #[pyo3(signature = (completion=None, flags=0))]
    fn aio_flush(
        &self,
        py: Python<'_>,
        completion: Option<&Bound<'_, PyAny>>,
        flags: u32,
    ) -> PyResult<u64> {
        self.issue(py, "aio_flush", plain(Kind::Flush, 0, 0, flags), completion)
    }

    /// Starts a trim.
    #[pyo3(signature = (count, offset, completion=None, flags=0))]
    fn aio_trim(
        &self,
        py: Python<'_>,
        count: u64,
        offset: u64,
        completion: Option<&Bound<'_, PyAny>>,
        flags: u32,
    ) -> PyResult<u64> {
        self.issue(py, "aio_trim", plain(Kind::Trim, count, offset, flags), completion)
    }

    /// Starts a prefetch.
    #[pyo3(signature = (count, offset, completion=None, flags=0))]
    fn aio_cache(
        &self,
        py: Python<'_>,
        count: u64,
        offset: u64,
        completion: Option<&Bound<'_, PyAny>>,
        flags: u32,
    ) -> PyResult<u64> {
        self.issue(py, "aio_cache", plain(Kind::Cache, count, offset, flags), completion)
    }

    /// Starts a zero.
    #[pyo3(signature = (count, offset, completion=None, flags=0))]
    fn aio_zero(
        &self,
        py: Python<'_>,
        count: u64,
        offset: u64,
        completion: Option<&Bound<'_, PyAny>>,
        flags: u32,
    ) -> PyResult<u64> {
        self.issue(py, "aio_zero", plain(Kind::WriteZeroes, count, offset, flags), completion)
    }

    /// Starts a block status request, like `block_status`.
    #[pyo3(signature = (count, offset, extent, completion=None, flags=0))]
    fn aio_block_status(
        &self,
        py: Python<'_>,
        count: u64,
        offset: u64,
        extent: &Bound<'_, PyAny>,
        completion: Option<&Bound<'_, PyAny>>,
        flags: u32,
    ) -> PyResult<u64> {
        let ask = status((count, offset), extent, false, flags)?;
        self.issue(py, "aio_block_status", ask, completion)
    }

    /// Starts a block status request, like `block_status_64`.
    #[pyo3(signature = (count, offset, extent64, completion=None, flags=0))]
    fn aio_block_status_64(
        &self,
        py: Python<'_>,
        count: u64,
        offset: u64,
        extent64: &Bound<'_, PyAny>,
        completion: Option<&Bound<'_, PyAny>>,
        flags: u32,
    ) -> PyResult<u64> {
        let ask = status((count, offset), extent64, true, flags)?;
        self.issue(py, "aio_block_status_64", ask, completion)
    }

    /// Starts a block status request, like `block_status_filter`.
    #[pyo3(signature = (count, offset, contexts, extent64, completion=None, flags=0))]
    #[expect(clippy::too_many_arguments, reason = "libnbd's")]
    fn aio_block_status_filter(
        &self,
        py: Python<'_>,
        count: u64,
        offset: u64,
        contexts: Vec<String>,
        extent64: &Bound<'_, PyAny>,
        completion: Option<&Bound<'_, PyAny>>,
        flags: u32,
    ) -> PyResult<u64> {
        let ask = status((count, offset), extent64, true, flags)?;
        let ask = CommandSpec { only: Some(contexts), ..ask };
        self.issue(py, "aio_block_status_filter", ask, completion)
    }
}
