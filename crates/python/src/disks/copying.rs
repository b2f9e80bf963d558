//! A copy from one disk to another, and a conversion, which copies into a new image.
//!
//! The target is complete and durable when this ends; otherwise a new target is removed.

use std::sync::Arc;

use copy::{Anew, Cancel, CopyPlan, Flush, Options, Progress, Report};
use device::Edge;
use disk::{
    Contents, Created, Creation, Holds, Image, Made, Named, OpenOptions, Relation, Stack, Storage,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use runtime::Context;

use super::naming::Handling;
use super::{Long, Naming, number, number_of_kind, raise, raise_number, raise_words};

/// Why a copy was refused or failed, in words.
struct Failed {
    kind: device::ErrorKind,
    number: i32,
    text: String,
}

impl Failed {
    fn new(kind: device::ErrorKind, text: String) -> Self {
        Self { kind, number: number_of_kind(kind), text }
    }
}

impl From<device::Error> for Failed {
    fn from(e: device::Error) -> Self {
        Self { kind: e.kind(), number: number(&e), text: e.to_string() }
    }
}

/// The options of a copy.
#[derive(Debug, FromPyObject)]
pub(crate) struct Choices {
    threads: Option<usize>,
    connections: usize,
    /// The block size in which to look for zeroes; 0: do not look.
    sparse: u64,
    allocated: bool,
    flush: bool,
    force: bool,
    target_is_zero: bool,
    /// Whether the target is made; otherwise it is there, and written where it lies.
    create: bool,
}

impl Choices {
    fn open_source(&self) -> OpenOptions {
        OpenOptions { connections: self.connections, once: true, ..OpenOptions::read_only() }
    }

    fn options(&self, apart: bool) -> Options {
        Options {
            threads: self.threads,
            sparse: Some(self.sparse).filter(|n| *n > 0),
            allocated: self.allocated,
            target_is_zero: self.target_is_zero,
            check_zero: self.target_is_zero,
            flush: if self.flush { Flush::WhereItCan } else { Flush::Never },
            apart,
            ..Options::default()
        }
    }
}

/// Both ends, named.
struct Work {
    source: Arc<(Named, Stack)>,
    target: (Named, Stack),
    choices: Choices,
    progress: Progress,
    cancel: Cancel,
}

impl Work {
    fn run(&self) -> Result<Report, Failed> {
        let context = Context::default();
        let result = self.open(&context).and_then(|(source, apart, target)| {
            let copied = self.copy(&source, apart, &target, &context);
            if let (Err(_), Some(made)) = (&copied, &target.made) {
                made.remove();
            }
            copied
        });
        context.control.end();
        result
    }

    fn open(&self, context: &Context) -> Result<(Edge, bool, Created), Failed> {
        let connections = self.choices.connections;
        let options = self.choices.open_source();
        let (named, stack) = &*self.source;
        let opened = disk::open(named, stack, &options, context)?;
        let mut files = vec![named.storage()];
        files.extend(opened.reached);
        let source = opened.edge;
        let (named, stack) = &self.target;
        // A new image shares nothing with its source.
        let apart = match disk::relate_all(&files, &named.storage()) {
            Relation::Apart => true,
            Relation::Unknown => stack.image().format().is_some(),
            Relation::Same | Relation::Overlapping => false,
        };
        let force = self.choices.force;
        let options = OpenOptions { connections, force, once: true, ..OpenOptions::read_write() };
        if !self.choices.create {
            let target = in_place(&self.target, (source.info().size, &files), &options, context)?;
            return Ok((source, apart, target));
        }
        let creation = Creation {
            appears: true,
            write_back: self.choices.flush,
            ..Creation::of(source.info().size, options)
        };
        let contents = if self.choices.allocated {
            Contents::Anything
        } else {
            Contents::Disk { disk: &source, is_read: false }
        };
        let target = disk::create_for(&contents, &files, named, stack, &creation, context)?;
        let room = target.edge.info().size;
        if !stack.is_empty() && room < source.info().size {
            if let Some(made) = &target.made {
                made.remove();
            }
            let text = format!("{named}: is too small; it was not written");
            return Err(Failed::new(device::ErrorKind::NoSpace, text));
        }
        Ok((source, apart, target))
    }

    /// How the source is opened once more.
    fn anew(&self, context: &Context) -> Anew {
        let (source, context) = (self.source.clone(), context.clone());
        let options = self.choices.open_source();
        Anew::new(move || Ok(disk::open(&source.0, &source.1, &options, &context)?.edge))
    }

    fn copy(
        &self,
        source: &Edge,
        apart: bool,
        target: &Created,
        context: &Context,
    ) -> Result<Report, Failed> {
        let mut options = self.choices.options(apart);
        options.anew = Some(self.anew(context));
        match target.holds {
            Holds::Zeroes => (options.target_is_zero, options.check_zero) = (true, false),
            // The target is to end as if it had been emptied: ranges without data become holes.
            Holds::Old => (options.target_is_zero, options.skip_zeroes) = (false, false),
            Holds::Unknown => {}
        }
        options.check()?;
        let plan = CopyPlan::Map;
        let name = &target.edge.info().name;
        let copied = copy::run(source, &target.edge, &plan, &options, &self.progress, &self.cancel);
        // Data that filters still hold belongs to the copy.
        context.control.end();
        let report = copied.map_err(|failure| {
            let (error, report) = (&failure.error, &failure.report);
            let state = if report.touched { "is incomplete" } else { "was not written" };
            let removed = target.made.as_deref().is_some_and(Made::remove);
            let state = if removed { "was removed" } else { state };
            let text = format!("{error}; {name} {state}");
            Failed { kind: error.kind(), number: number(error), text }
        })?;
        let io = |text: String| Failed::new(device::ErrorKind::Io, text);
        if let Some(complaint) = context.control.take_complaints().first() {
            return Err(io(complaint.to_string()));
        }
        if let Some(made) = &target.made {
            made.appear().map_err(|e| io(format!("{name}: it could not get its name: {e}")))?;
            if self.choices.flush {
                made.sync_name().map_err(|e| io(format!("{name}: its name may not last: {e}")))?;
            }
            made.keep();
        }
        Ok(report)
    }
}

/// The existing target, to be written where it lies.
fn in_place(
    (named, stack): &(Named, Stack),
    (size, files): (u64, &[Storage]),
    options: &OpenOptions,
    context: &Context,
) -> Result<Created, Failed> {
    disk::check_apart(&named.storage(), files).map_err(|e| e.on(named))?;
    let edge = disk::open(named, stack, options, context)?.edge;
    if !edge.info().abilities.write {
        let text = format!("{named}: can only be read; nothing was changed");
        return Err(Failed::new(device::ErrorKind::ReadOnly, text));
    }
    if edge.info().size < size {
        let text = format!("{named}: is too small; nothing was changed");
        return Err(Failed::new(device::ErrorKind::NoSpace, text));
    }
    Ok(Created { edge, holds: Holds::Unknown, made: None })
}

/// Copies all of one disk to another, which is created if it does not exist. `progress` is called
/// with the bytes done and in all. Returns statistics.
#[pyfunction(name = "copy")]
pub(crate) fn copy_disk<'py>(
    py: Python<'py>,
    source: Naming,
    target: Naming,
    choices: Choices,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let source = source.resolve(py, Handling::Read)?;
    let target = target.resolve(py, Handling::Write)?;
    check_target(py, &target.0, target.1.image(), &choices)?;
    // A copy onto its own source is refused.
    disk::relate(&source.0, &target.0).map_err(|e| raise(py, &e))?;
    let (counters, cancel) = (Progress::default(), Cancel::default());
    let (seen, stop) = (counters.clone(), cancel.clone());
    let source = Arc::new(source);
    let work = Work { source, target, choices, progress: counters, cancel };
    let tell = || {
        let now = seen.snapshot();
        match &progress {
            Some(progress) if now.total > 0 => progress.call1((now.done(), now.total)).map(|_| ()),
            _ => Ok(()),
        }
    };
    let done = Long::start(move || work.run())?.wait(py, tell, || stop.cancel())?;
    let report = done.map_err(|e| raise_number(py, e.kind, e.number, &e.text))?;
    if let Some(progress) = &progress {
        progress.call1((report.total, report.total))?;
    }
    let account = PyDict::new(py);
    account.set_item("total", report.total)?;
    account.set_item("copied", report.copied)?;
    account.set_item("zeroed", report.zeroed)?;
    account.set_item("skipped", report.skipped)?;
    account.set_item("seconds", report.elapsed.as_secs_f64())?;
    Ok(account)
}

/// Refuses a target that cannot be created or must not be written.
fn check_target(py: Python<'_>, named: &Named, image: &Image, choices: &Choices) -> PyResult<()> {
    image.check().map_err(|e| raise(py, &e))?;
    let refuse = |kind, text: String| Err(raise_words(py, kind, &text));
    if !choices.create && (image.compress || !image.options.is_empty()) {
        let text = "create=False: an image that exists keeps its options, and is not compressed";
        return refuse(device::ErrorKind::InvalidInput, text.to_owned());
    }
    if image.options.contains("backing_file") {
        let text = "an image over a backing image is made by `diskferry convert -B`";
        return refuse(device::ErrorKind::Unsupported, text.to_owned());
    }
    match image.format() {
        None if image.compress => {
            return refuse(device::ErrorKind::InvalidInput, "raw is not compressed".to_owned());
        }
        Some(format) if choices.create && format.create.is_none() => {
            let text = format!("{} images can be read, but not created", format.word);
            return refuse(device::ErrorKind::Unsupported, text);
        }
        _ => {}
    }
    let users = if choices.force { Vec::new() } else { named.users() };
    if users.is_empty() {
        return Ok(());
    }
    let text = format!("{named}: is mounted or in use: {}", users.join(", "));
    refuse(device::ErrorKind::Locked, text)
}
