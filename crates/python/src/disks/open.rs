//! A disk that is open.

use std::collections::VecDeque;
use std::sync::Arc;

use device::{Edge, Extent, ExtentKind, ZeroFlags, merge_extent};
use disk::{OpenOptions, Opened};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use runtime::{Context, Mutex};

use super::naming::Handling;
use super::{Naming, raise, wrong};
use crate::nbd::{View, fresh};

/// Extents asked for at a time.
const MANY: usize = 1024;
/// The longest single read into our own memory, in bytes.
const MOST: usize = 1 << 30;

/// The parts of an open disk.
struct Open {
    edge: Edge,
    format: &'static str,
    context: Context,
    writes: bool,
}

/// An open disk. `diskferry.open` returns one.
#[pyclass(module = "diskferry", subclass, frozen)]
pub(crate) struct Disk {
    name: String,
    open: Mutex<Option<Arc<Open>>>,
}

impl Disk {
    fn get(&self) -> PyResult<Arc<Open>> {
        let open = self.open.lock();
        open.clone().ok_or_else(|| PyValueError::new_err("the disk is closed"))
    }

    /// Runs an operation that may block.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Edge) -> device::Result<T> + Send,
    ) -> PyResult<T> {
        let open = self.get()?;
        let result = py.detach(|| work(&open.edge));
        result.map_err(|e| raise(py, &e))
    }
}

#[pymethods]
impl Disk {
    #[new]
    #[pyo3(signature = (naming, write, lock, force, connections))]
    fn new(
        py: Python<'_>,
        naming: Naming,
        write: bool,
        lock: bool,
        force: bool,
        connections: usize,
    ) -> PyResult<Self> {
        let (named, stack) =
            naming.resolve(py, if write { Handling::Write } else { Handling::Read })?;
        if !(1..=64).contains(&connections) {
            return Err(wrong("connections: must be from 1 to 64"));
        }
        let options = OpenOptions { write, lock, force, connections, ..OpenOptions::default() };
        let context = Context::default();
        let users = if write && !force { named.users() } else { Vec::new() };
        if !users.is_empty() {
            let text = format!("{named}: is mounted or in use: {}", users.join(", "));
            return Err(super::raise_words(py, device::ErrorKind::Locked, &text));
        }
        let opened = py.detach(|| disk::open(&named, &stack, &options, &context));
        let Opened { edge, format, .. } = opened.map_err(|e| raise(py, &e))?;
        if write && !edge.info().abilities.write {
            let text = format!("{named}: cannot be written");
            return Err(super::raise_words(py, device::ErrorKind::ReadOnly, &text));
        }
        let format = format.map_or("raw", |format| format.word);
        let name = edge.info().name.clone();
        let open = Open { edge, format, context, writes: write };
        Ok(Self { name, open: Mutex::new(Some(Arc::new(open))) })
    }

    /// The disk's name, for messages.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The size of the disk in bytes.
    #[getter]
    fn size(&self) -> PyResult<u64> {
        Ok(self.get()?.edge.info().size)
    }

    /// The format of the image, or "raw".
    #[getter]
    fn format(&self) -> PyResult<&'static str> {
        Ok(self.get()?.format)
    }

    /// Whether it is writable.
    #[getter]
    fn writable(&self) -> PyResult<bool> {
        Ok(self.get()?.edge.info().abilities.write)
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.lock().is_none()
    }

    /// The smallest, preferred and largest block size, in bytes. Other requests work, at a higher
    /// cost.
    #[getter]
    fn block_sizes(&self) -> PyResult<(u32, u32, u32)> {
        let blocks = self.get()?.edge.info().blocks;
        Ok((blocks.minimum, blocks.preferred, blocks.maximum))
    }

    /// Reads `count` bytes from `offset`: all or none.
    fn read<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        offset: u64,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let open = self.get()?;
        let checked = open.edge.check("read", offset, count as u64);
        checked.map_err(|e| raise(py, &e))?;
        if count > MOST {
            return Err(wrong("read: more than 1 GiB at once; use readinto"));
        }
        let bytes = fresh(py, count)?;
        let view = View::of(bytes.as_any(), true)?;
        let mut memory = view.memory();
        // The caller sees the bytes only if all were read.
        self.run(py, move |edge| edge.read(memory.part(0, count).unwrap_or_default(), offset))?;
        Ok(bytes)
    }

    /// Fills the memory of an object: a bytearray, a memoryview, a NumPy array.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<()> {
        let view = View::of(buffer, true)?;
        let (mut memory, len) = (view.memory(), view.len());
        self.run(py, move |edge| edge.read(memory.part(0, len).unwrap_or_default(), offset))
    }

    /// Writes bytes at `offset`; with `fua` they are durable before this returns.
    #[pyo3(signature = (data, offset, *, fua=false))]
    fn write(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        offset: u64,
        fua: bool,
    ) -> PyResult<()> {
        let view = View::of(data, false)?;
        let memory = view.memory();
        self.run(py, move |edge| edge.write(&memory, offset, fua))
    }

    /// Makes bytes read as zeroes. `punch`: they may become a hole. `fast`: fail if it would be as
    /// slow as writing.
    #[pyo3(signature = (count, offset, *, punch=true, fast=false, fua=false))]
    fn zero(
        &self,
        py: Python<'_>,
        count: u64,
        offset: u64,
        punch: bool,
        fast: bool,
        fua: bool,
    ) -> PyResult<()> {
        let flags = ZeroFlags { may_unmap: punch, written: false, fast_only: fast, fua };
        self.run(py, move |edge| edge.zero(offset, count, flags))
    }

    /// Trims bytes: they are not needed any more, and their contents are then undefined.
    #[pyo3(signature = (count, offset, *, fua=false))]
    fn trim(&self, py: Python<'_>, count: u64, offset: u64, fua: bool) -> PyResult<()> {
        self.run(py, move |edge| edge.trim(offset, count, fua))
    }

    /// Flushes: makes earlier writes durable.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, Edge::flush)
    }

    /// Prefetches bytes.
    fn prefetch(&self, py: Python<'_>, count: u64, offset: u64) -> PyResult<()> {
        self.run(py, move |edge| edge.prefetch(offset, count))
    }

    /// Extents as tuples: start, length, kind, depth.
    fn extents(&self, offset: u64, count: Option<u64>) -> PyResult<Extents> {
        let open = self.get()?;
        let size = open.edge.info().size;
        let rest = size.checked_sub(offset).ok_or_else(|| wrong("map: begins after the end"))?;
        let len = count.unwrap_or(rest);
        if len > rest {
            return Err(wrong("map: ends after the end"));
        }
        let state = Walk { at: offset, end: offset + len, waiting: VecDeque::new() };
        Ok(Extents { edge: open.edge.clone(), walk: Mutex::new(state) })
    }

    /// Flushes, and closes the disk. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.open.lock().take();
        let Some(open) = open else { return Ok(()) };
        let result = py.detach(move || {
            let flushed = if open.writes { open.edge.flush() } else { Ok(()) };
            open.context.control.end();
            let complaints = open.context.control.take_complaints();
            flushed.map(|()| complaints.first().map(ToString::to_string))
        });
        match result.map_err(|e| raise(py, &e))? {
            None => Ok(()),
            Some(text) => Err(super::raise_words(py, device::ErrorKind::Io, &text)),
        }
    }
}

/// The map of a disk, extent by extent.
#[pyclass(module = "diskferry", frozen)]
pub(crate) struct Extents {
    edge: Edge,
    walk: Mutex<Walk>,
}

struct Walk {
    at: u64,
    end: u64,
    waiting: VecDeque<Extent>,
}

impl Walk {
    /// The next extent, as long as possible.
    fn next(&mut self, edge: &Edge) -> device::Result<Option<Extent>> {
        let mut grown = Vec::with_capacity(2);
        while grown.len() < 2 {
            if let Some(extent) = self.waiting.pop_front() {
                // Its place does not matter here, and would keep extents from merging.
                merge_extent(&mut grown, Extent { home: None, place: None, ..extent });
                continue;
            }
            let mut found = Vec::new();
            if self.at < self.end
                && let Err(e) = edge.resolve(self.at, self.end - self.at, MANY, &mut found)
            {
                self.waiting.extend(grown);
                return Err(e);
            }
            let Some(last) = found.last() else { return Ok(grown.pop()) };
            self.at = last.end();
            self.waiting = found.into();
        }
        if let Some(next) = grown.pop() {
            self.waiting.push_front(next);
        }
        Ok(grown.pop())
    }
}

#[pymethods]
impl Extents {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<(u64, u64, &'static str, u16)>> {
        let next = py.detach(|| {
            let mut walk = self.walk.lock();
            walk.next(&self.edge)
        });
        let next = next.map_err(|e| raise(py, &e))?;
        Ok(next.map(|extent| {
            let kind = match extent.kind {
                ExtentKind::Data => "data",
                ExtentKind::Hole => "hole",
                ExtentKind::Zero => "zero",
            };
            (extent.start, extent.len, kind, extent.depth)
        }))
    }
}
