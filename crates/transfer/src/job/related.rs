//! What the names of both ends tell: whether they share bytes, and whether the target may be
//! written at all.

use device::ErrorKind;
use disk::{Named, Relation, Storage};

use super::{Advice, CopyJob, JobError};

/// What the names tell about the ends.
#[derive(Debug)]
pub(super) struct Related {
    relation: Relation,
    target: Storage,
    /// The sources that were named, which `relation` is about.
    sources: usize,
}

impl Related {
    /// Asks the system about disks below them, so it has to run before a sandbox.
    pub(super) fn of(job: &CopyJob) -> Result<Self, JobError> {
        let (target, sources) = (job.target.storage(), job.sources.len());
        let mut relations =
            job.sources.iter().map(|source| disk::relate(&source.disk, &job.target));
        let relation =
            relations.try_fold(Relation::Apart, |all, one| one.map(|one| all.and(one)))?;
        refuse_used(&job.target, job.force)?;
        let is_shifted = job.at.is_some_and(|at| job.window.is_some_and(|(start, _)| start != at));
        let name = &job.target;
        if relation == Relation::Same && is_shifted {
            return Err(JobError::refused(
                ErrorKind::Unsupported,
                format!(
                    "{name}: is the source itself, and cannot be copied to another offset in it; nothing was changed"
                ),
            ));
        }
        if job.is_new && !job.target.may_be_made() && target != Storage::Own {
            return Err(JobError::usage(format!(
                "{name} is not a file that could be created, and existing targets are to be kept"
            )));
        }
        Ok(Self { relation, target, sources })
    }

    /// Whether the ends share nothing, with what is known once the sources are open: where all
    /// files are that they name (the sources themselves come first).
    pub(super) fn apart(&self, job: &CopyJob, files: &[Storage]) -> bool {
        // A new image shares no offsets with its source: it has bytes of its own.
        let is_image = job.target_stack.image().format().is_some();
        let named = files.get(self.sources..).unwrap_or_default();
        match self.relation.and(disk::relate_all(named, &self.target)) {
            Relation::Apart => true,
            Relation::Unknown => is_image,
            Relation::Same | Relation::Overlapping => false,
        }
    }
}

/// Refuses a disk that the system uses, unless it is `forced`. Reads /proc and /sys, so it has to
/// run before any sandbox.
///
/// # Errors
/// It is used, with by what.
pub fn refuse_used(disk: &Named, forced: bool) -> Result<(), JobError> {
    let users = if forced { Vec::new() } else { disk.users() };
    if users.is_empty() {
        return Ok(());
    }
    let users = users.join(", ");
    let text = format!("{disk}: is mounted or in use: {users}; nothing was changed");
    Err(JobError::refused(ErrorKind::Locked, text).advise(Advice::Force))
}
