//! How far a plan is: what its journals say, without asking any process.

use device::Result;

use super::journal::{Noted, RECENT, now};
use super::look::FleetLook;
use super::plan::{FleetDisk, FleetPlan};
use super::share::ShardNumber;

/// How far a plan is.
#[derive(Clone, Debug)]
pub struct FleetStatus {
    /// Each of its disks, in order.
    pub disks: Vec<DiskStatus>,
}

/// What a shard does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ShardState {
    /// No process has begun it, or the one that did was stopped.
    Waiting,
    /// A process runs it.
    Running,
    /// The last run failed, and none has begun since.
    Failed,
    /// All of it is durable.
    Done,
}

/// How far a disk is.
#[derive(Clone, Debug)]
pub struct DiskStatus {
    /// Its target, for people.
    pub target: String,
    /// Bytes of the disk.
    pub size: u64,
    /// Bytes of data in it, by the map of its source.
    pub data: u64,
    /// Of these, bytes that are durable.
    pub copied: u64,
    /// Bytes that became durable in each second of the last minute.
    pub rate: u64,
    /// The state of each shard.
    pub shards: Vec<ShardState>,
    /// It is finished: proved, and complete.
    pub finished: bool,
    /// Why a shard failed.
    pub failure: Option<String>,
}

/// Looks how far a plan is.
///
/// # Errors
/// A journal cannot be read.
pub fn status(plan: &FleetPlan) -> Result<FleetStatus> {
    let now = now();
    let look = FleetLook::new(plan)?;
    let finished = look.finished()?;
    let mut disks: Vec<_> =
        plan.disks.iter().zip(finished).map(|(disk, is)| of(disk, is)).collect();
    let open: Vec<_> = disks.iter().map(|disk| !disk.finished).collect();
    let is_open = |number: &ShardNumber| open.get(number.disk) == Some(&true);
    let mut first = now;
    look.shards(plan.numbers().filter(is_open), |number, found| {
        let (planned, status) = (plan.disks.get(number.disk), disks.get_mut(number.disk));
        let planned = planned.and_then(|disk| disk.shards.get(number.shard));
        if let (Some(planned), Some(status)) = (planned, status) {
            let began = found.as_ref().and_then(|(noted, _)| noted.first);
            first = began.unwrap_or(first).min(first);
            status.add(planned.data, found);
        }
    })?;
    // Of the last minute, or since the first line was written.
    let since = now.saturating_sub(first).clamp(1, RECENT);
    disks.iter_mut().for_each(|disk| disk.rate /= since);
    Ok(FleetStatus { disks })
}

/// How far a disk is of which no shard was looked at: all of them are done where it is finished.
fn of(disk: &FleetDisk, finished: bool) -> DiskStatus {
    let data = disk.shards.iter().map(|shard| shard.data).sum();
    DiskStatus {
        target: disk.wanted.shown(),
        size: disk.size,
        data,
        copied: if finished { data } else { 0 },
        rate: 0,
        shards: if finished { vec![ShardState::Done; disk.shards.len()] } else { Vec::new() },
        finished,
        failure: None,
    }
}

impl DiskStatus {
    /// Adds the next shard, which has so many bytes of data. `rate` is the bytes of the last minute
    /// until all of them are there.
    fn add(&mut self, data: u64, found: Option<(Noted, bool)>) {
        let state = match &found {
            None => ShardState::Waiting,
            Some((noted, _)) if noted.done => ShardState::Done,
            Some((_, true)) => ShardState::Running,
            Some((noted, false)) if noted.failed.is_some() => ShardState::Failed,
            Some((_, false)) => ShardState::Waiting,
        };
        self.shards.push(state);
        let Some((noted, _)) = found else { return };
        let copied = if noted.done { data } else { noted.data.min(data) };
        self.copied = self.copied.saturating_add(copied);
        self.rate = self.rate.saturating_add(noted.recent);
        if state == ShardState::Failed && self.failure.is_none() {
            self.failure = noted.failed;
        }
    }

    /// How many shards are in a state.
    #[must_use]
    pub fn count(&self, state: ShardState) -> usize {
        self.shards.iter().filter(|found| **found == state).count()
    }

    /// In one word.
    #[must_use]
    pub fn word(&self) -> &'static str {
        let has = |state| self.shards.contains(&state);
        match () {
            () if self.finished => "finished",
            () if self.shards.iter().all(|state| *state == ShardState::Done) => "done",
            () if has(ShardState::Running) => "running",
            () if has(ShardState::Failed) => "failed",
            () => "waiting",
        }
    }
}

impl FleetStatus {
    /// Bytes of data, and those of them that are durable.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        let sum =
            |of: fn(&DiskStatus) -> u64| self.disks.iter().map(of).fold(0, u64::saturating_add);
        (sum(|disk| disk.data), sum(|disk| disk.copied))
    }

    /// Bytes a second in the last minute.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.disks.iter().map(|disk| disk.rate).fold(0, u64::saturating_add)
    }

    /// Seconds until all data is copied, at that rate; `None`: it is not known.
    #[must_use]
    pub fn seconds_left(&self) -> Option<u64> {
        let (all, copied) = self.bytes();
        let left = all.saturating_sub(copied);
        match (left, self.rate()) {
            (0, _) => Some(0),
            (_, 0) => None,
            (left, rate) => Some(left.div_ceil(rate)),
        }
    }
}
