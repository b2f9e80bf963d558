//! The files in the state directory of a plan.

use std::path::{Path, PathBuf};

use device::{Error, Result, text};

use super::plan::{FleetDisk, FleetPlan};
use super::share::ShardNumber;
use crate::job::resuming::MARK;

/// The journal of a shard, in a directory.
pub(super) fn journal_in(state: &Path, number: ShardNumber) -> PathBuf {
    state.join(format!("{}.{}.journal", number.disk, number.shard))
}

/// The record that a disk is finished, in a directory.
pub(super) fn record_in(state: &Path, disk: usize) -> PathBuf {
    state.join(format!("{disk}.finished"))
}

/// The record before it has its name.
pub(super) fn new_record_in(state: &Path, disk: usize) -> PathBuf {
    state.join(format!("{disk}.finished.new"))
}

/// The file in a directory that is locked by a reader of a source host, the number of which is that
/// in [`FleetPlan::hosts`].
pub(super) fn lease_in(state: &Path, host: usize, reader: u16) -> PathBuf {
    state.join(format!("host-{host}.{reader}.reader"))
}

impl FleetPlan {
    /// The hosts of all sources, each once, in order.
    pub(super) fn hosts(&self) -> Vec<&str> {
        let mut hosts: Vec<&str> = self.disks.iter().map(|disk| &*disk.host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    /// All of its shards.
    pub(super) fn numbers(&self) -> impl Iterator<Item = ShardNumber> + '_ {
        let of =
            |disk: usize| (0..self.shards_of(disk)).map(move |shard| ShardNumber { disk, shard });
        (0..self.disks.len()).flat_map(of)
    }

    pub(super) fn shards_of(&self, disk: usize) -> usize {
        self.disks.get(disk).map_or(0, |disk| disk.shards.len())
    }
}

impl FleetDisk {
    /// The file beside a target that says that it is not complete, where it is a file.
    pub(super) fn mark(&self) -> Option<PathBuf> {
        mark_of(&self.wanted.target)
    }
}

/// The mark beside a target, by its name.
pub(super) fn mark_of(target: &str) -> Option<PathBuf> {
    let named = disk::Named::parse(target).ok()?;
    let path = text::path(named.path()?);
    // Beside a block device nothing is made.
    if path.exists() && !path.is_file() {
        return None;
    }
    let mut name = path.into_os_string();
    name.push(MARK);
    Some(name.into())
}

/// What a mark says.
pub(super) fn mark_text(target: &str, plan: &Path) -> String {
    format!("{target} is not complete. The plan of the copy: {}\n", plan.display())
}

/// Makes the entries of a directory durable.
pub(super) fn sync_directory(path: &Path) -> Result<()> {
    let synced = std::fs::File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(|e| Error::os("sync the directory", e).on(path.display()))
}
