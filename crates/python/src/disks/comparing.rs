//! Whether two disks hold the same bytes.

use std::sync::Arc;

use compare::{Difference, Options, Progress};
use disk::OpenOptions;
use pyo3::prelude::*;
use runtime::Context;

use super::naming::Handling;
use super::{Long, Naming, raise};

/// The result: whether they are the same, the kind and offset of the first difference, and whether
/// both have the same size.
type Told = (bool, Option<&'static str>, Option<u64>, bool);

/// Compares two disks; if one is longer, the rest of it must read as zeroes. `strict`: sizes and
/// maps must be the same too. `progress` is called with the bytes done and in all.
#[pyfunction(name = "compare")]
pub(crate) fn compare_disks<'py>(
    py: Python<'py>,
    first: Naming,
    second: Naming,
    strict: bool,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<Told> {
    let ends = [first.resolve(py, Handling::Read)?, second.resolve(py, Handling::Read)?];
    let counters = Arc::new(Progress::default());
    let seen = counters.clone();
    let work = move || -> device::Result<compare::Report> {
        let context = Context::default();
        let options = OpenOptions::read_only();
        let [first, second] = ends.map(|(named, stack)| {
            disk::open(&named, &stack, &options, &context).map(|opened| opened.edge)
        });
        let options = Options { strict, threads: None };
        let report = compare::run(&first?, &second?, &options, &counters);
        context.control.end();
        report.map_err(|failure| failure.error.at(failure.offset))
    };
    let tell = || match &progress {
        Some(progress) => progress.call1(seen.now()).map(|_| ()),
        None => Ok(()),
    };
    // It cannot be stopped in between, but changes nothing; this waits for its end.
    let done = Long::start(work)?.wait(py, tell, || {})?;
    let report = done.map_err(|e| raise(py, &e))?;
    let (what, at) = match report.difference {
        None => (None, None),
        Some(Difference::Content(at)) => (Some("content"), Some(at)),
        Some(Difference::Allocation(at)) => (Some("allocation"), Some(at)),
        Some(Difference::Size) => (Some("size"), None),
    };
    Ok((what.is_none(), what, at, report.same_size))
}
