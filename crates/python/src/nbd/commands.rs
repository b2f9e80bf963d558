//! Commands: those that wait for their reply, and those that do not.

use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use wire::Command as Kind;

use super::buffer::{self, View};
use super::shared::{CallError, Core, KeptObjects};
use super::telling::callback;
use super::{NBD, Object};
use crate::engine::CommandSpec;

/// Longest read, in bytes; the engine refuses more.
const MOST: usize = 64 << 20;

type Spec = CommandSpec<KeptObjects>;

/// A read into, or a write from, the memory of an object.
fn transfer(kind: Kind, (view, object): (View, Py<PyAny>), offset: u64, flags: u32) -> Spec {
    let (count, memory) = (view.len() as u64, view.memory());
    let keep = KeptObjects { _view: Some(view), object: Some(object), ..KeptObjects::default() };
    CommandSpec { memory, keep, ..Spec::new(kind, count, offset, flags) }
}

/// A read into a bytearray of its own; one that is too long, which is refused, has no room.
fn read_fresh<'py>(
    py: Python<'py>,
    count: usize,
    offset: u64,
    flags: u32,
) -> PyResult<(Bound<'py, PyByteArray>, Spec)> {
    let room = if count > MOST { 0 } else { count };
    let bytes = buffer::fresh(py, room)?;
    let view = View::of(bytes.as_any(), true)?;
    let object = bytes.clone().into_any().unbind();
    let ask = transfer(Kind::Read, (view, object), offset, flags);
    Ok((bytes, CommandSpec { count: count as u64, fresh: true, ..ask }))
}

/// A read whose pieces are reported as they arrive.
fn in_pieces(mut ask: Spec, chunk: Object<'_, '_>) -> PyResult<Spec> {
    ask.chunks = true;
    ask.keep.chunk = callback(Some(chunk), "chunk")?;
    Ok(ask)
}

fn status(
    (count, offset): (u64, u64),
    extent: Object<'_, '_>,
    pairs: bool,
    flags: u32,
) -> PyResult<Spec> {
    let keep =
        KeptObjects { extent: callback(Some(extent), "extent")?, pairs, ..KeptObjects::default() };
    Ok(CommandSpec { keep, ..Spec::new(Kind::BlockStatus, count, offset, flags) })
}

impl NBD {
    /// Sends a command, and does not wait.
    fn issue(
        &self,
        py: Python<'_>,
        call: &str,
        mut ask: Spec,
        completion: Option<Object<'_, '_>>,
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
    fn command(&self, py: Python<'_>, call: &str, ask: Spec) -> PyResult<()> {
        let cookie = self.issue(py, call, ask, None)?;
        let look = |core: &mut Core| Ok(core.engine()?.retire(cookie));
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
        self.command(py, "pread", ask).map(|()| bytes)
    }

    /// Reads into the memory of an object: a bytearray, a memoryview, a NumPy array. Not in libnbd.
    #[pyo3(signature = (buf, offset, flags=0))]
    fn pread_into(
        &self,
        py: Python<'_>,
        buf: Object<'_, '_>,
        offset: u64,
        flags: u32,
    ) -> PyResult<()> {
        self.command(py, "pread", transfer(Kind::Read, buffer::target(buf)?, offset, flags))
    }

    /// Reads, and calls `chunk(bytes, offset, status, error)` for each piece as it arrives:
    /// READ_DATA, READ_HOLE or READ_ERROR.
    #[pyo3(signature = (count, offset, chunk, flags=0))]
    fn pread_structured<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        offset: u64,
        chunk: Object<'_, '_>,
        flags: u32,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let (bytes, ask) = read_fresh(py, count, offset, flags)?;
        self.command(py, "pread_structured", in_pieces(ask, chunk)?).map(|()| bytes)
    }

    /// Starts a read into a bytearray of its own, which holds any bytes until the read is over: for
    /// `aio.py`, which does not show it before.
    #[pyo3(signature = (count, offset, completion, flags=0))]
    fn _aio_read<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        offset: u64,
        completion: Object<'_, '_>,
        flags: u32,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let (bytes, ask) = read_fresh(py, count, offset, flags)?;
        self.issue(py, "aio_pread", ask, Some(completion)).map(|_| bytes)
    }
}

methods! {
    /// Writes bytes at `offset`; with CMD_FLAG_FUA they are durable before this returns.
    pwrite(buf: Object<'_, '_>, offset: u64, flags: u32 = 0) -> () = command({
        let memory = (View::of(buf, false)?, buf.clone().unbind());
        transfer(Kind::Write, memory, offset, flags)
    });

    /// Flushes: makes earlier writes durable.
    flush(flags: u32 = 0) -> () = command(Spec::new(Kind::Flush, 0, 0, flags));

    /// Trims bytes: they are not needed any more, and their contents are then undefined.
    trim(count: u64, offset: u64, flags: u32 = 0) -> ()
        = command(Spec::new(Kind::Trim, count, offset, flags));

    /// Has the server prefetch bytes.
    cache(count: u64, offset: u64, flags: u32 = 0) -> ()
        = command(Spec::new(Kind::Cache, count, offset, flags));

    /// Makes bytes read as zeroes. CMD_FLAG_NO_HOLE keeps them allocated; with CMD_FLAG_FAST_ZERO
    /// this fails if it would be as slow as writing.
    zero(count: u64, offset: u64, flags: u32 = 0) -> ()
        = command(Spec::new(Kind::WriteZeroes, count, offset, flags));

    /// Calls `extent(context, offset, entries, error)` for each context: entries are lengths and
    /// flags in turn.
    block_status(count: u64, offset: u64, extent: Object<'_, '_>, flags: u32 = 0) -> ()
        = command(status((count, offset), extent, false, flags)?);

    /// The same, with entries that are pairs of length and flags.
    block_status_64(count: u64, offset: u64, extent64: Object<'_, '_>, flags: u32 = 0) -> ()
        = command(status((count, offset), extent64, true, flags)?);

    /// The same, for some of the selected contexts.
    block_status_filter(
        count: u64, offset: u64, contexts: Vec<String>, extent64: Object<'_, '_>, flags: u32 = 0
    ) -> () = command({
        CommandSpec { only: Some(contexts), ..status((count, offset), extent64, true, flags)? }
    });

    /// Starts a read into a Buffer, or the memory of an object. Returns a cookie. Calls
    /// `completion(error)` at the end; if that returns 1, the command is retired.
    aio_pread(
        buf: Object<'_, '_>, offset: u64, completion: Option<Object<'_, '_>> = None, flags: u32 = 0
    ) -> u64 = issue(transfer(Kind::Read, buffer::target(buf)?, offset, flags), completion);

    /// The same as `aio_pread`, and calls `chunk` like `pread_structured`.
    aio_pread_structured(
        buf: Object<'_, '_>, offset: u64, chunk: Object<'_, '_>,
        completion: Option<Object<'_, '_>> = None, flags: u32 = 0
    ) -> u64 = issue({
        in_pieces(transfer(Kind::Read, buffer::target(buf)?, offset, flags), chunk)?
    }, completion);

    /// Starts a write. The bytes must not change until its end.
    aio_pwrite(
        buf: Object<'_, '_>, offset: u64, completion: Option<Object<'_, '_>> = None, flags: u32 = 0
    ) -> u64 = issue(transfer(Kind::Write, buffer::source(buf)?, offset, flags), completion);

    /// Starts a flush.
    aio_flush(completion: Option<Object<'_, '_>> = None, flags: u32 = 0) -> u64
        = issue(Spec::new(Kind::Flush, 0, 0, flags), completion);

    /// Starts a trim.
    aio_trim(
        count: u64, offset: u64, completion: Option<Object<'_, '_>> = None, flags: u32 = 0
    ) -> u64 = issue(Spec::new(Kind::Trim, count, offset, flags), completion);

    /// Starts a prefetch.
    aio_cache(
        count: u64, offset: u64, completion: Option<Object<'_, '_>> = None, flags: u32 = 0
    ) -> u64 = issue(Spec::new(Kind::Cache, count, offset, flags), completion);

    /// Starts a zero.
    aio_zero(
        count: u64, offset: u64, completion: Option<Object<'_, '_>> = None, flags: u32 = 0
    ) -> u64 = issue(Spec::new(Kind::WriteZeroes, count, offset, flags), completion);

    /// Starts a block status request, like `block_status`.
    aio_block_status(
        count: u64, offset: u64, extent: Object<'_, '_>,
        completion: Option<Object<'_, '_>> = None, flags: u32 = 0
    ) -> u64 = issue(status((count, offset), extent, false, flags)?, completion);

    /// Starts a block status request, like `block_status_64`.
    aio_block_status_64(
        count: u64, offset: u64, extent64: Object<'_, '_>,
        completion: Option<Object<'_, '_>> = None, flags: u32 = 0
    ) -> u64 = issue(status((count, offset), extent64, true, flags)?, completion);

    /// Starts a block status request, like `block_status_filter`.
    aio_block_status_filter(
        count: u64, offset: u64, contexts: Vec<String>, extent64: Object<'_, '_>,
        completion: Option<Object<'_, '_>> = None, flags: u32 = 0
    ) -> u64 = issue({
        CommandSpec { only: Some(contexts), ..status((count, offset), extent64, true, flags)? }
    }, completion);
}
