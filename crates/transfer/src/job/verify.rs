//! Reading back what was written, past the page cache.

use std::path::Path;
use std::sync::Arc;

use copy::{Cancel, Options, Progress};
use device::{Edge, Error, ErrorKind, Fault, Params, Result, text};
use disk::{External, Image, OpenOptions, Stack};
use runtime::Context;

use super::CopyJob;
use crate::digest::{ContentDigest, DigestKind, Digester, read};

/// What is compared with the target.
pub(super) struct Copied<'a> {
    /// The source; `None` for a stream.
    pub(super) source: Option<&'a Edge>,
    /// Bytes of it.
    pub(super) size: u64,
    /// The digest of what was copied, if that was all of the source.
    pub(super) digest: Option<(DigestKind, &'a ContentDigest)>,
}

/// Reads the target, which is complete, and compares it with what was copied.
///
/// # Errors
/// `Mismatch`: it holds something else, with where. Or it cannot be read.
pub(super) fn verify(job: &CopyJob, copied: &Copied<'_>, context: &Context) -> Result<()> {
    let Copied { source, size, digest } = *copied;
    let target = open(job, size, context)?;
    if let Some((kind, digest)) = digest {
        let digester = Arc::new(Digester::new(kind));
        let watched = (&Progress::default(), &Cancel::default());
        let found = read(&target, &digester, &Options::default(), watched, context)?;
        if found == *digest {
            return Ok(());
        }
    }
    let differs = |at: Option<u64>| {
        let action = match at {
            Some(_) => "verify: its contents differ from the copied data",
            None => {
                "verify: its digest differs from the copied data's, although its contents match \
                 the source now: the source was written meanwhile"
            }
        };
        let error = Error::new(ErrorKind::Mismatch, Fault::File, action).on(&target.info().name);
        at.map_or(error.duplicate(), |at| error.at(at))
    };
    let Some(source) = source else {
        let action = "verify: its contents differ from the copied data";
        return Err(Error::new(ErrorKind::Mismatch, Fault::File, action).on(&target.info().name));
    };
    let options = compare::Options { strict: false, threads: None };
    let report = compare::run(source, &target, &options, &Arc::new(compare::Progress::default()))
        .map_err(|failed| failed.error.at(failed.offset))?;
    match (report.difference, digest) {
        (None, None) => Ok(()),
        (None, Some(_)) => Err(differs(None)),
        (Some(compare::Difference::Content(at) | compare::Difference::Allocation(at)), _) => {
            Err(differs(Some(at)))
        }
        (Some(compare::Difference::Size), _) => Err(differs(Some(size))),
    }
}

/// The part of the target that was written, opened once more.
fn open(job: &CopyJob, size: u64, context: &Context) -> Result<Edge> {
    let image = job.target_stack.image();
    // It is locked for this job already.
    let options = OpenOptions {
        connections: job.connections,
        lock: false,
        once: true,
        past_cache: true,
        ..OpenOptions::read_only()
    };
    // What the job itself has made may be named by it.
    let directory = job.target.path().map(text::path);
    let directory = directory.as_deref().and_then(Path::parent).map(|parent| {
        if parent.as_os_str().is_empty() { Path::new(".") } else { parent }.to_owned()
    });
    let external = match (&image.external, directory) {
        (External::Nothing, Some(directory)) => External::Beneath(directory),
        (external, _) => external.clone(),
    };
    let opened = Image {
        external,
        options: Params::default(),
        params: super::target::params_of(image)?,
        ..image.clone()
    };
    let stack = job.target_stack.clone().over_image(opened);
    let edge = disk::open(&job.target, &stack, &options, context)?.edge;
    let at = job.at.unwrap_or(0);
    if at == 0 && edge.info().size == size {
        return Ok(edge);
    }
    Stack::parse([&*format!("offset?offset={at}&range={size}")])?.over(edge, context)
}
