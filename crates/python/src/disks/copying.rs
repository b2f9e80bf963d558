//! A copy from one disk to another, and a conversion, which copies into a new image.
//!
//! The target is complete and durable when this ends; otherwise a new target is removed.

use std::fs::File;
use std::path::PathBuf;

use copy::{Flush, Options, Report};
use disk::Image;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use runtime::Context;
use transfer::DigestKind;
use transfer::changes::CopyChanges;
use transfer::job::{
    Advice, CopyJob, JobDigest, JobError, JobFront, JobSource, PublishedJob, ReadyJob,
};

use super::naming::Handling;
use super::{Long, Naming, number, raise, raise_number, raise_words};

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
    /// Where it is noted how far the copy is.
    journal: Option<PathBuf>,
    /// The kind of digest that is wanted.
    digest: Option<String>,
    /// The range of the source, and where in the target it goes.
    offset: Option<u64>,
    length: Option<u64>,
    target_offset: Option<u64>,
    /// Whether what was written is read back.
    verify: bool,
    /// A bitmap, or a file that lists what changed.
    changes: Option<String>,
}

impl Choices {
    /// The range of the source that is copied, if that is not all of it.
    fn window(&self) -> Option<(u64, u64)> {
        let start = self.offset.unwrap_or(0);
        self.at().map(|_| (start, self.length.unwrap_or(u64::MAX)))
    }

    /// Where in the target it goes.
    fn at(&self) -> Option<u64> {
        let is_range = self.offset.is_some() || self.length.is_some();
        self.target_offset.or(is_range.then(|| self.offset.unwrap_or(0)))
    }

    fn options(&self) -> Options {
        Options {
            threads: self.threads,
            sparse: Some(self.sparse).filter(|n| *n > 0),
            allocated: self.allocated,
            target_is_zero: self.target_is_zero,
            check_zero: self.target_is_zero,
            flush: if self.flush { Flush::WhereItCan } else { Flush::Never },
            ..Options::default()
        }
    }
}

/// The user's words for a job that ended.
fn failed(py: Python<'_>, e: &JobError) -> PyErr {
    let cure = match e.advice {
        None => "",
        Some(Advice::Create) => "; create=True makes the target anew",
        Some(Advice::Force) => " (force=True writes it all the same)",
        Some(Advice::Resize) => "; make the target longer first",
    };
    raise_number(py, e.error.kind(), number(&e.error), &format!("{e}{cure}"))
}

/// Runs it to its end. By its journal it may have been done before.
fn run(job: CopyJob) -> Result<PublishedJob, JobError> {
    let context = Context::default();
    let run = || {
        let source = job.prepare()?.open_source(&context, &Silent)?;
        match source.plan(&Silent)? {
            ReadyJob::Copy(planned) => planned.start(())?.wait()?.publish(),
            ReadyJob::Done { digest } => {
                Ok(PublishedJob { report: Report::default(), digest, verified: false })
            }
        }
    };
    let done = run();
    context.control.end();
    done
}

/// Python is told by exceptions alone.
struct Silent;

impl JobFront for Silent {}

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
    check_target(py, target.1.image(), &choices)?;
    let (from, options) = (JobSource { disk: source.0, stack: source.1 }, choices.options());
    let is_overlay = target.1.image().options.contains("backing_file");
    let job = CopyJob {
        is_overlay,
        exists: !choices.create,
        force: choices.force,
        connections: choices.connections,
        journal: choices.journal.clone(),
        keep_partial: choices.journal.is_some(),
        digest: digest_of(py, &choices)?,
        window: choices.window(),
        at: choices.at(),
        verifies: choices.verify,
        changes: changes_of(py, &choices)?,
        options,
        ..CopyJob::new(vec![from], target)
    };
    let (seen, stop) = (job.progress.clone(), job.cancel.clone());
    let tell = || {
        let now = seen.snapshot();
        match &progress {
            Some(progress) if now.total > 0 => progress.call1((now.done(), now.total)).map(|_| ()),
            _ => Ok(()),
        }
    };
    let done = Long::start(move || run(job))?.wait(py, tell, || stop.cancel())?;
    let account = PyDict::new(py);
    let PublishedJob { report, digest, verified } = done.map_err(|e| failed(py, &e))?;
    if let Some(progress) = &progress {
        progress.call1((report.total, report.total))?;
    }
    account.set_item("total", report.total)?;
    account.set_item("copied", report.copied)?;
    account.set_item("zeroed", report.zeroed)?;
    account.set_item("skipped", report.skipped)?;
    account.set_item("seconds", report.elapsed.as_secs_f64())?;
    if verified {
        account.set_item("verified", true)?;
    }
    if let Some(digest) = digest {
        account.set_item("digest", digest.map_err(|e| raise(py, &e))?.to_string())?;
    }
    Ok(account)
}

/// What is to be copied of the source, if that is not all of it.
fn changes_of(py: Python<'_>, choices: &Choices) -> PyResult<Option<CopyChanges>> {
    let Some(word) = &choices.changes else { return Ok(None) };
    if let Some(bitmap) = CopyChanges::bitmap(word) {
        return Ok(Some(bitmap));
    }
    let file = File::open(word).map_err(|e| raise(py, &device::Error::os("open", e).on(word)))?;
    Ok(Some(CopyChanges::read(file).map_err(|e| raise(py, &e.on(word)))?))
}

/// The digest that is asked for.
fn digest_of(py: Python<'_>, choices: &Choices) -> PyResult<Option<JobDigest>> {
    let Some(word) = &choices.digest else { return Ok(None) };
    let kind = DigestKind::parse(word).map_err(|e| raise(py, &e))?;
    Ok(Some(JobDigest { kind, manifest: None }))
}

/// Refuses a target that cannot be created or must not be written.
fn check_target(py: Python<'_>, image: &Image, choices: &Choices) -> PyResult<()> {
    image.check().map_err(|e| raise(py, &e))?;
    let refuse = |kind, text: String| Err(raise_words(py, kind, &text));
    if !choices.create && (image.compress || !image.options.is_empty()) {
        let text = "create=False: an image that exists keeps its options, and is not compressed";
        return refuse(device::ErrorKind::InvalidInput, text.to_owned());
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
    Ok(())
}
