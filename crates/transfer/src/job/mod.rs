//! A copy as a job: both ends by name, what is to be done between them, and what becomes of the
//! target. Its states are types, each of which can only become the next one:
//!
//! [`CopyJob`] → [`PreparedJob`] → [`SourcedJob`] → [`PlannedJob`] → [`RunningJob`] →
//! [`SettledJob`] → [`PublishedJob`]
//!
//! - *prepared*: the names are related, and the job's own files (journal, manifest) are open. It
//!   is the last step that asks the system about disks below, so a sandbox may shut behind it.
//! - *sourced*: the source is open. *Planned*: the target, too, and it is known what is copied.
//! - *running*: a thread copies. *Settled*: all bytes are in the target, which may have no name.
//! - *published*: the target is durable and has its name; the journal says so.
//!
//! A target that the job created is removed when a state is dropped before it is published, unless
//! the user keeps what is there. A job that fails says what became of it ([`TargetFate`]).
//!
//! It prints nothing, and knows no option by its name: a [`JobFront`] is told what a user should
//! know.

mod create;
mod error;
mod made;
mod outline;
mod overlay;
pub(crate) mod placed;
mod planned;
mod range;
mod related;
pub(crate) mod resuming;
mod running;
mod source;
mod target;
pub(crate) mod verify;

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use copy::{Cancel, Options, Progress};
use device::{Edge, Error, Reach, Result, Use};
use disk::{Named, Opened, Stack};
use runtime::Context;

pub use self::create::NewDisk;
pub use self::error::{Advice, JobError, TargetFate};
use self::made::MadeTarget;
pub use self::outline::{CopyOutline, FoundTarget, OutlinedJob};
pub use self::placed::unfinished;
pub use self::planned::{PlannedJob, ReadyJob};
use self::related::Related;
pub use self::related::refuse_used;
use self::resuming::Resuming;
pub use self::running::{PublishedJob, RunningJob, SettledJob};
pub use self::source::SourcedJob;
pub use self::target::backing_size;
use crate::changes::CopyChanges;
use crate::digest::DigestKind;

/// What is to be copied, and how: everything that is decided before anything is opened.
#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "independent wishes, each an option")]
pub struct CopyJob {
    /// At least one; several are one disk, one behind the other.
    pub sources: Arc<[JobSource]>,
    /// Only this range of it: the first byte, and how many at most.
    pub window: Option<(u64, u64)>,
    /// The offset in the target that they go to; the rest of it stays as it is.
    pub at: Option<u64>,
    /// What cannot be read is copied as zeroes, and this is told of it.
    pub salvages: Option<Arc<OnUnread>>,
    /// The sources are not locked against others.
    pub shares: bool,
    /// Neither is the target: others write other ranges of it.
    pub shares_target: bool,
    /// Where the bytes go.
    pub target: Named,
    /// Its format, and filters over it.
    pub target_stack: Stack,
    /// Filters over the target once it is made: they do not hide that it was.
    pub over_target: Option<Stack>,
    /// The target is an overlay: only the source's own layer is copied.
    pub is_overlay: bool,
    /// The target exists, and is written as it is; nothing is created.
    pub exists: bool,
    /// An existing target is left alone.
    pub is_new: bool,
    /// A new file has its name at once, and not only when it is complete; it is kept when the job
    /// fails.
    pub keep_partial: bool,
    /// A block device is written although the system uses it.
    pub force: bool,
    /// To each side, where both allow several.
    pub connections: usize,
    /// How the bytes are moved.
    pub options: Options,
    /// Where it is noted how far the copy is, so that the same job goes on.
    pub journal: Option<PathBuf>,
    /// The digest of what is copied.
    pub digest: Option<JobDigest>,
    /// Only what changed is copied, into a target that holds the rest.
    pub changes: Option<CopyChanges>,
    /// What was written is read back, past the page cache.
    pub verifies: bool,
    /// Counts while it copies.
    pub progress: Progress,
    /// Stops it.
    pub cancel: Cancel,
}

runtime::debug_as!(CopyJob);

/// Is told of each block of the source that cannot be read, and why; an empty range is where only
/// the map cannot be read. With an error the copy ends.
pub type OnUnread = dyn Fn(Range<u64>, &Error) -> Result<()> + Send + Sync;

/// A disk that is copied.
#[derive(Clone, Debug)]
pub struct JobSource {
    /// Its name.
    pub disk: Named,
    /// Its format, and filters over it.
    pub stack: Stack,
}

/// The digest of a job.
#[derive(Clone, Debug)]
pub struct JobDigest {
    /// Which one.
    pub kind: DigestKind,
    /// Where the digests of stretches go; it is written from its beginning.
    pub manifest: Option<Arc<File>>,
}

/// What a job tells the program around it, and asks of it. The calls come from the thread that
/// opens the ends.
pub trait JobFront {
    /// The source of this index is open.
    ///
    /// # Errors
    /// The job is refused.
    fn opened(&self, index: usize, opened: &Opened) -> Result<()> {
        let _ = (index, opened);
        Ok(())
    }

    /// The target is about to be opened. `source` is `None` for a stream. Nothing has been changed.
    ///
    /// # Errors
    /// The job is refused.
    fn meets(&self, source: Option<&Edge>, context: &Context) -> Result<()> {
        let _ = (source, context);
        Ok(())
    }

    /// Something that the user should know.
    fn warn(&self, text: &str) {
        let _ = text;
    }
}

impl CopyJob {
    /// A job that copies all of the sources to the beginning of a target, which is created.
    #[must_use]
    pub fn new(sources: Vec<JobSource>, (target, target_stack): (Named, Stack)) -> Self {
        Self {
            sources: sources.into(),
            window: None,
            at: None,
            salvages: None,
            shares: false,
            shares_target: false,
            target,
            target_stack,
            over_target: None,
            is_overlay: false,
            exists: false,
            is_new: false,
            keep_partial: false,
            force: false,
            connections: 8,
            options: Options::default(),
            journal: None,
            digest: None,
            changes: None,
            verifies: false,
            progress: Progress::default(),
            cancel: Cancel::default(),
        }
    }

    /// Whether the target exists, and is written as it is.
    pub(crate) fn is_there(&self) -> bool {
        self.exists || self.changes.is_some()
    }

    /// What its ends need of the system.
    #[must_use]
    pub fn reach(&self) -> Reach {
        let of = |source: &JobSource| disk::reach(&source.disk, &source.stack, Use::Read);
        let sources = self.sources.iter().map(of).fold(Reach::default(), Reach::and);
        let how = if self.is_there() { Use::Write } else { Use::Make };
        let over = self.over_target.as_ref().map(Stack::reaches).unwrap_or_default();
        let mark = resuming::mark_of(self).map(|mark| Reach::path(mark, Use::Make));
        let mut target = disk::reach(&self.target, &self.target_stack, how);
        if self.verifies {
            target.rereads.extend(target.makes.iter().cloned());
        }
        sources.and(target).and(over).and(mark.unwrap_or_default())
    }

    /// Relates the names of both ends, and opens the job's journal.
    ///
    /// # Errors
    /// The journal cannot be opened, or another job uses it. What is wrong with the ends is told
    /// once the source is open.
    pub fn prepare(self) -> std::result::Result<PreparedJob, JobError> {
        if self.changes.is_some() && (self.window.is_some() || self.at.is_some()) {
            return Err(JobError::usage("changes apply to a whole disk, not to a range of it"));
        }
        let resuming = Resuming::of(&self)?;
        let related = Related::of(&self);
        let placed = match (&resuming, &related) {
            (Some(resuming), Ok(_)) if !resuming.goes_on() => placed::place(&self)?,
            _ => None,
        };
        Ok(PreparedJob { job: Arc::new(self), related, resuming, placed })
    }
}

/// A job whose names are related.
#[derive(Debug)]
pub struct PreparedJob {
    job: Arc<CopyJob>,
    related: std::result::Result<Related, JobError>,
    resuming: Option<Resuming>,
    placed: Option<MadeTarget>,
}

impl PreparedJob {
    /// The job.
    #[must_use]
    pub fn job(&self) -> &Arc<CopyJob> {
        &self.job
    }
}
