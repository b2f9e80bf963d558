//! What verbs do with images and disks by name: describe, measure, check, create, resize, bitmaps,
//! and the digest of what one holds.
//!
//! An image that is changed is one whose format was named.

use std::sync::Arc;

use copy::{Cancel, Options, Progress};
use device::{Error, ErrorKind, Fault, Params};
use disk::{
    Allocation, BitmapChange, Checked, Content, Described, Findings, Image, KeptImage, Length,
    Measured, Named, NewRoom, OpenOptions, Repair, Resizing, Stack,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use runtime::Context;
use transfer::job::{NewDisk, refuse_used};
use transfer::{DigestKind, Digester, digest};

use super::naming::Handling;
use super::{Long, Naming, raise, wrong};

/// Does what may take long without the interpreter. It is waited for to its end.
fn work<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Context) -> device::Result<T> + Send + 'static,
) -> PyResult<T> {
    let run = move || {
        let context = Context::default();
        let done = work(&context);
        context.control.end();
        done
    };
    Long::start(run)?.wait(py, || Ok(()), || {})?.map_err(|e| raise(py, &e))
}

/// The image that is named, and nothing over it.
fn image_of(py: Python<'_>, disk: &Naming, how: Handling) -> PyResult<(Named, Image)> {
    let (named, stack) = disk.resolve(py, how)?;
    if !stack.is_empty() {
        return Err(wrong("filters: this is for images and disks without"));
    }
    let image = stack.image().clone();
    if how == Handling::Write && matches!(image.content, Content::Guess) {
        return Err(wrong("format: it is not guessed for writing"));
    }
    Ok((named, image))
}

/// What is known of an image, or of a disk without a format.
#[pyfunction]
pub(crate) fn info<'py>(py: Python<'py>, disk: Naming) -> PyResult<Bound<'py, PyDict>> {
    let (named, image) = image_of(py, &disk, Handling::Read)?;
    let described = work(py, move |context| {
        disk::describe(&named, &image, &OpenOptions::read_only(), context)
            .and_then(Described::refuse_unknown)
    })?;
    let (found, of) = (PyDict::new(py), &described.description);
    found.set_item("format", described.format.word)?;
    found.set_item("size", of.virtual_size)?;
    found.set_item("cluster_size", of.cluster_size)?;
    found.set_item("backing", of.backing.as_ref().map(|file| &file.name))?;
    found.set_item("backing_format", of.backing.as_ref().and_then(|file| file.format.as_ref()))?;
    let files: Vec<_> = of.data_files.iter().map(|file| &file.name).collect();
    found.set_item("data_files", files)?;
    found.set_item("encrypted", of.encrypted)?;
    found.set_item("dirty", of.dirty)?;
    found.set_item("corrupt", of.corrupt)?;
    let snapshots = of.snapshots.iter().map(|snapshot| {
        let one = PyDict::new(py);
        one.set_item("id", &snapshot.id)?;
        one.set_item("name", &snapshot.name)?;
        one.set_item("size", snapshot.virtual_size)?;
        one.set_item("seconds", snapshot.date.0)?;
        Ok(one)
    });
    found.set_item("snapshots", snapshots.collect::<PyResult<Vec<_>>>()?)?;
    let bitmaps = of.bitmaps.iter().flatten().map(|bitmap| {
        let one = PyDict::new(py);
        one.set_item("name", &bitmap.name)?;
        one.set_item("granularity", bitmap.granularity)?;
        Ok(one)
    });
    found.set_item("bitmaps", bitmaps.collect::<PyResult<Vec<_>>>()?)?;
    Ok(found)
}

/// How many bytes an image of `target`'s format and options would have: with the data of a disk,
/// or an empty one of `size` bytes, and if all of it were data.
#[pyfunction]
pub(crate) fn measure(
    py: Python<'_>,
    disk: Option<Naming>,
    size: Option<u64>,
    format: String,
    options: Vec<(String, String)>,
) -> PyResult<(u64, u64)> {
    let source = disk.map(|disk| disk.resolve(py, Handling::Read)).transpose()?;
    let found = work(py, move |context| {
        let format = disk::format(&format)?;
        let mut params = Params::default();
        options.iter().try_for_each(|(key, value)| params.set(key, value))?;
        let of = |what: Measured<'_>| disk::measure(format, &params, what, context);
        match (source, size) {
            (Some((named, stack)), None) => {
                let opened = disk::open(&named, &stack, &OpenOptions::read_only(), context)?;
                of(Measured::Disk(&opened.edge, opened.format.map(|_| &opened.container)))
            }
            (None, Some(size)) => of(Measured::Empty(size)),
            _ => Err(Error::invalid("measure: give a disk, or size=")),
        }
    })?;
    Ok((found.required, found.fully_allocated))
}

/// Whether the metadata of an image are sound; `repair` is "leaks" or "all". `None`: images of its
/// format cannot be checked.
#[pyfunction]
pub(crate) fn check<'py>(
    py: Python<'py>,
    disk: Naming,
    repair: Option<String>,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let repair = match repair.as_deref() {
        None => None,
        Some("leaks") => Some(Repair::Leaks),
        Some("all") => Some(Repair::All),
        Some(other) => return Err(wrong(format!("repair: \"leaks\" or \"all\", not {other:?}"))),
    };
    let how = if repair.is_some() { Handling::Write } else { Handling::Read };
    let (named, image) = image_of(py, &disk, how)?;
    let (format, findings, fixed) = work(py, move |context| {
        let options = OpenOptions::read_only();
        let Some(what) = repair else {
            let Checked { format, findings } = disk::check(&named, &image, &options, context)?;
            return Ok((format.word, findings, (0, 0)));
        };
        let kept = disk::keep(&named, &image, &options, context)?;
        let none = "images of this format are not repaired";
        let repaired =
            kept.change(none, kept.format.upkeep.repair, |run, container, opening| {
                run(container, opening, what)
            })?;
        let fixed = (repaired.leaks_fixed, repaired.corruptions_fixed);
        Ok((kept.format.word, Some(repaired.now), fixed))
    })?;
    findings.map(|findings| told(py, format, &findings, fixed)).transpose()
}

fn told<'py>(
    py: Python<'py>,
    format: &str,
    findings: &Findings,
    (leaks_fixed, corruptions_fixed): (u64, u64),
) -> PyResult<Bound<'py, PyDict>> {
    let told = PyDict::new(py);
    told.set_item("format", format)?;
    told.set_item("corruptions", findings.corruption_count)?;
    told.set_item("leaks", findings.leaks)?;
    told.set_item("check_errors", findings.check_errors)?;
    told.set_item("messages", &findings.corruptions)?;
    told.set_item("leaks_fixed", leaks_fixed)?;
    told.set_item("corruptions_fixed", corruptions_fixed)?;
    Ok(told)
}

/// Makes an empty disk or image, durably. What was there is gone.
#[pyfunction]
pub(crate) fn create(py: Python<'_>, disk: Naming, size: u64, force: bool) -> PyResult<()> {
    let (target, image) = image_of(py, &disk, Handling::Write)?;
    if image.options.contains("backing_file") {
        return Err(wrong("backing_file: overlays are made by the verb, diskferry create -b"));
    }
    work(py, move |context| {
        let options = OpenOptions { force, ..OpenOptions::read_write() };
        image.check()?;
        refuse_used(&target, force).map_err(|e| e.error)?;
        let new = NewDisk {
            target: &target,
            image: &image,
            size,
            fills: None,
            spared: &[],
            options: &options,
        };
        new.create(context)
    })
}

/// Gives a raw file, or the disk in an image, another size in bytes.
#[pyfunction]
pub(crate) fn resize(py: Python<'_>, disk: Naming, size: u64, shrink: bool) -> PyResult<()> {
    let (named, image) = image_of(py, &disk, Handling::Write)?;
    work(py, move |context| {
        let wish = Resizing { length: Length::Exactly(size), shrink, mode: Allocation::Sparse };
        let options = OpenOptions::read_write();
        if image.format().is_none() {
            return named.resize(&wish, &options).map(drop);
        }
        let kept = disk::keep(&named, &image, &options, context)?;
        let after = |before| wish.of(before).map(|resized| resized.after);
        let none = "images of this format cannot be resized";
        kept.change(none, kept.format.upkeep.resize, |run, container, opening| {
            run(container, opening, &after, NewRoom::None).map(drop)
        })
    })
}

/// Changes a bitmap of an image: "add", "remove", "clear", "enable", "disable", or "merge", which
/// adds what is set in the bitmap `other`.
#[pyfunction]
pub(crate) fn bitmap(
    py: Python<'_>,
    disk: Naming,
    name: String,
    action: String,
    granularity: Option<u64>,
    other: Option<String>,
) -> PyResult<()> {
    let (named, image) = image_of(py, &disk, Handling::Write)?;
    if (granularity.is_some() && action != "add") || (other.is_some() != (action == "merge")) {
        return Err(wrong("granularity= belongs to \"add\", other= to \"merge\""));
    }
    work(py, move |context| {
        let change = match (action.as_str(), &other) {
            ("add", _) => BitmapChange::Add(granularity),
            ("remove", _) => BitmapChange::Remove,
            ("clear", _) => BitmapChange::Clear,
            ("enable", _) => BitmapChange::Enable,
            ("disable", _) => BitmapChange::Disable,
            ("merge", Some(other)) => BitmapChange::Merge(other, None),
            _ => {
                let what = format!("bitmap: there is no action {action:?}");
                return Err(Error::new(ErrorKind::InvalidInput, Fault::User, what));
            }
        };
        let kept: KeptImage<'_> = disk::keep(&named, &image, &OpenOptions::read_only(), context)?;
        let none = "images of this format have no bitmaps";
        kept.change(none, kept.format.upkeep.bitmap, |run, container, opening| {
            run(container, opening, &name, &[change])
        })
    })
}

/// The digest of what a disk holds, as `diskferry digest` prints it. `progress` is called with the
/// bytes done and in all.
#[pyfunction(name = "digest")]
pub(crate) fn digest_disk<'py>(
    py: Python<'py>,
    disk: Naming,
    algorithm: &str,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<String> {
    let kind = DigestKind::parse(algorithm).map_err(|e| raise(py, &e))?;
    let (named, stack): (Named, Stack) = disk.resolve(py, Handling::Read)?;
    let (seen, stop) = (Arc::new(Progress::default()), Arc::new(Cancel::default()));
    let (counters, cancel) = (seen.clone(), stop.clone());
    let run = move || {
        let context = Context::default();
        let found = disk::open(&named, &stack, &OpenOptions::read_only(), &context);
        let found = found.and_then(|opened| {
            let watched = (&*counters, &*cancel);
            let digester = Arc::new(Digester::new(kind));
            digest::read(&opened.edge, &digester, &Options::default(), watched, &context)
        });
        context.control.end();
        found
    };
    let tell = || {
        let now = seen.snapshot();
        match &progress {
            Some(progress) if now.total > 0 => progress.call1((now.done(), now.total)).map(|_| ()),
            _ => Ok(()),
        }
    };
    let found = Long::start(run)?.wait(py, tell, || stop.cancel())?;
    found.map(|digest| digest.to_string()).map_err(|e| raise(py, &e))
}
