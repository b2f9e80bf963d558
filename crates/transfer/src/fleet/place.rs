//! Where the journals and leases of a plan lie.
//!
//! There are two such places. A *directory* has files that grow, and locks that end with their
//! process: journals are files, and who has a lock on one runs the shard. An object store has
//! neither, so there all are records that are written as a whole (`stored`). The modules around
//! this one keep what they note in either.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use device::{Name, Reach, Result, Use, text};
use disk::{Named, Records};
use runtime::Mutex;

/// How often it is looked whether something has become free.
const LOOK: Duration = Duration::from_secs(3);
/// How long shards are waited for that other processes run: that of one that was killed is free
/// when its lease has run out.
const WAIT: Duration = Duration::from_secs(60);
/// How long a request of the hasty kind may take.
pub(super) const SOON: Duration = Duration::from_secs(6);

/// The state of a plan.
#[derive(Clone, Debug)]
pub enum FleetState {
    /// A directory that all processes share. An absolute path.
    Directory(PathBuf),
    /// An object store.
    Store(StoredState),
}

impl FleetState {
    /// The state by its name: a path, relative to `directory`, or the URI of a place in a store.
    #[must_use]
    pub fn named(name: &str, directory: &Path) -> Self {
        match Name::parse(name) {
            Ok(Name::Uri { .. }) => Self::Store(StoredState::new(name)),
            _ => Self::Directory(directory.join(text::path(name))),
        }
    }

    /// As a plan has it.
    pub(super) fn carried(&self) -> String {
        match self {
            Self::Directory(path) => text::carry(path.as_os_str()),
            Self::Store(stored) => stored.text().to_owned(),
        }
    }

    /// What running shards needs of the system for it.
    pub(super) fn reach(&self) -> Reach {
        match self {
            Self::Directory(path) => Reach::path(path, Use::Write),
            Self::Store(stored) => stored.reach(),
        }
    }

    /// How often it is looked whether something has become free, and how long shards are waited for
    /// that other processes run.
    pub(super) fn pauses(&self) -> (Duration, Duration) {
        match self {
            Self::Directory(_) => (Duration::from_millis(100), Duration::from_secs(30)),
            Self::Store(_) => (LOOK, WAIT),
        }
    }
}

/// A place in a store. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub struct StoredState {
    /// Its name. It has no secret in it.
    text: String,
    pub(super) opened: Arc<Mutex<Option<OpenRecords>>>,
}

/// The place, twice: for what is tried again for as long as its name says, and for what has to be
/// known soon.
#[derive(Clone, Debug)]
pub(super) struct OpenRecords {
    pub(super) patient: Arc<dyn Records>,
    pub(super) hasty: Arc<dyn Records>,
}

impl StoredState {
    /// The one of this name. Nothing is opened.
    pub(super) fn new(text: &str) -> Self {
        Self { text: text.to_owned(), opened: Arc::default() }
    }

    /// Its name.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// What it needs of the system.
    pub(super) fn reach(&self) -> Reach {
        Named::parse(&self.text)
            .map_or_else(|_| Reach::default(), |named| named.reaches(Use::Write))
    }

    pub(super) fn open(&self) -> Result<OpenRecords> {
        let mut opened = self.opened.lock();
        if let Some(records) = &*opened {
            return Ok(records.clone());
        }
        let named = Named::parse(&self.text)?;
        let records =
            OpenRecords { patient: named.records(None)?, hasty: named.records(Some(SOON))? };
        *opened = Some(records.clone());
        Ok(records)
    }
}
