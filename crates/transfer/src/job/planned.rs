//! A job whose two ends are open, and of which it is known what is copied.

use std::sync::Arc;

use copy::Options;
use device::{Edge, Error, ErrorKind, Fault, Info, format_size};
use disk::Holds;
use runtime::Context;

use super::resuming::{NotedDigests, Remaining, Resuming};
use super::source::{self, Input, SourcedJob};
use super::target::{self, Target};
use super::verify::{Copied, verify};
use super::{CopyJob, JobDigest, JobError, JobFront};
use crate::digest::{ContentDigest, DigestKind};
use crate::proof::ContentProof;

/// What there is to do.
#[derive(Debug)]
pub enum ReadyJob {
    /// A copy.
    Copy(Box<PlannedJob>),
    /// Nothing: by the journal it was done before, and samples of it are as they were.
    Done {
        /// The digest of what was copied then, if there is to be one.
        digest: Option<device::Result<ContentDigest>>,
    },
}

/// A job that can run. Nothing of its target's bytes has been changed yet.
#[derive(Debug)]
pub struct PlannedJob {
    pub(super) job: Arc<CopyJob>,
    pub(super) context: Context,
    pub(super) source: Input,
    pub(super) target: Target,
    pub(super) options: Options,
    /// What the journal leaves to do.
    pub(super) left: Option<Remaining>,
    pub(super) resuming: Option<Resuming>,
    pub(super) proof: Option<ContentProof>,
    /// The digests that the journal keeps.
    pub(super) noted: Option<NotedDigests>,
}

impl SourcedJob {
    /// Whether opening the target may create something.
    #[must_use]
    pub fn creates(&self) -> bool {
        self.job.target.may_be_made()
    }

    /// Opens the target, and finds out what is to be copied.
    ///
    /// # Errors
    /// The ends do not fit, the target cannot be opened or created, or the journal is of another
    /// job. What was created is removed.
    pub fn plan(self, front: &dyn JobFront) -> Result<ReadyJob, JobError> {
        let Self { job, context, related, resuming, placed, source, files, versions } = self;
        let apart = related?.apart(&job, &files);
        if !job.is_new {
            front.meets(source.disk(), &context)?;
        }
        let ends = (&source, &*files);
        let mut target = target::open(&job, ends, resuming.as_ref(), &context)?;
        if let Some(placed) = placed {
            target.making = placed;
        }
        let version = versions.first().and_then(Option::as_deref);
        let left = match (&resuming, source.disk()) {
            (Some(resuming), Some(source)) => {
                match find(resuming, &job, (source, version), &target)? {
                    None => {
                        keep(&target);
                        if job.verifies {
                            let size = source.info().size;
                            let copied = Copied { source: Some(source), size, digest: None };
                            verify(&job, &copied, &context)?;
                        }
                        return Ok(ReadyJob::Done { digest: done_before(&job, resuming, source)? });
                    }
                    found => found,
                }
            }
            _ => None,
        };
        if let Some(resuming) = &resuming {
            resuming.mark(&job)?;
        }
        if job.keep_partial {
            keep(&target);
        }
        let proof = digest_of(&job).map(|digest| ContentProof::begin(&digest, source.size()));
        let proof = proof.transpose()?;
        let options = Options {
            witness: proof.as_ref().map(ContentProof::watched).or(job.options.witness.clone()),
            // Zeroing in advance, by a process that was killed, must not overtake what the next one
            // writes.
            apart: apart && job.options.durably.is_none(),
            anew: Some(source::anew(&job, &context)),
            ..for_target(target.holds, job.options.clone())
        };
        let noted = match (&resuming, &proof) {
            (Some(resuming), Some(proof)) => {
                let of = (proof.digester().kind(), proof.digester());
                Some(resuming.digests(of, source.size().unwrap_or(0))?)
            }
            _ => None,
        };
        let options = match (&resuming, &left) {
            (Some(resuming), Some(left)) => {
                let size = source.size().unwrap_or(0);
                resuming.options(options, size, (left, noted.as_ref()))
            }
            _ => options,
        };
        Ok(ReadyJob::Copy(Box::new(PlannedJob {
            job,
            context,
            source,
            target,
            options,
            left,
            resuming,
            proof,
            noted,
        })))
    }
}

/// The digest that the copy needs: the one that is wished for, or one by which the target is
/// verified. A copy of a part has none.
pub(super) fn digest_of(job: &CopyJob) -> Option<JobDigest> {
    let is_whole = job.journal.is_none() && job.changes.is_none() && !job.is_overlay;
    let own = || JobDigest { kind: DigestKind::quick(), manifest: None };
    job.digest.clone().or_else(|| (job.verifies && is_whole).then(own))
}

/// The digest of a copy that was done before, by its journal; a manifest is written, too.
fn done_before(
    job: &CopyJob,
    resuming: &Resuming,
    source: &Edge,
) -> Result<Option<device::Result<ContentDigest>>, JobError> {
    let Some(digest) = &job.digest else { return Ok(None) };
    let size = source.info().size;
    let proof = ContentProof::begin(digest, Some(size))?;
    resuming.digests((digest.kind, proof.digester()), size)?;
    let found = proof.finish(size).map_err(|_| {
        let action = "digest: its journal does not have it, since a run without it copied a part: `digest TARGET` computes it";
        Error::new(ErrorKind::InvalidInput, Fault::User, action).on(job.target.to_string())
    });
    Ok(Some(found))
}

/// What was created stays, whatever happens.
fn keep(target: &Target) {
    if let Some(made) = target.making.made() {
        made.keep();
    }
}

/// What is left to do by the journal, whose target has to be there after a power failure, too.
fn find(
    resuming: &Resuming,
    job: &CopyJob,
    source: (&Edge, Option<&str>),
    target: &Target,
) -> Result<Option<Remaining>, JobError> {
    if let Some(Err(e)) = target.making.made().map(disk::Made::sync_name) {
        return Err(Error::os("sync its directory", e).on(target.name()).into());
    }
    resuming.relate(job, source, &target.edge)
}

/// The options for a target that holds this.
fn for_target(holds: Holds, options: Options) -> Options {
    match holds {
        Holds::Zeroes => Options { target_is_zero: true, check_zero: false, ..options },
        // As if it had been emptied: what is not data becomes a hole.
        Holds::Old => Options { target_is_zero: false, skip_zeroes: false, ..options },
        Holds::Unknown => options,
    }
}

impl PlannedJob {
    /// Bytes of what is copied from, in which changes and places are; `None` for a stream.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.source.size()
    }

    /// The disk whose map tells how much is copied; `None` if all of it is, or the map does not
    /// tell.
    #[must_use]
    pub fn mapped(&self) -> Option<&Edge> {
        let Options { no_extents, wipe, written, .. } = self.options;
        let is_told = self.target.below.is_none()
            && !(no_extents || wipe || written)
            && self.job.changes.is_none();
        self.source.disk().filter(|_| is_told)
    }

    /// What both ends are, for people.
    #[must_use]
    pub fn words(&self) -> String {
        let from = match &self.source {
            Input::Stream(stream) => format!("{} (a stream of unknown length)", stream.name()),
            Input::Disk(disk) => end_in_words(disk),
        };
        let how = match (self.target.making.made(), self.target.holds) {
            (Some(_), _) => "made now",
            (None, Holds::Zeroes) => "empty",
            (None, Holds::Old | Holds::Unknown) => "written over",
        };
        format!("from {from} to {}, {how}", end_in_words(&self.target.edge))
    }
}

fn end_in_words(disk: &Edge) -> String {
    let Info { name, size, abilities, lanes, .. } = disk.info();
    let size = match *size == i64::MAX.cast_unsigned() {
        true => "as long as need be".to_owned(),
        false => format_size(*size),
    };
    let map = if abilities.extents { "with a map" } else { "without a map" };
    let lanes = lanes.map(|lanes| format!(", {lanes} connections")).unwrap_or_default();
    format!("{name} ({size}, {map}{lanes})")
}
