//! One look at the state of a plan: what its journals say, without asking any process.

use std::path::Path;

use device::Result;

use super::journal::{Noted, look_at};
use super::place::{FleetState, StoredState};
use super::plan::FleetPlan;
use super::share::ShardNumber;
use super::stored::Listing;

/// See the module. What is in a store is listed once; a disk that is finished meanwhile may seem to
/// miss shards, to whoever looks at that moment.
#[derive(Debug)]
pub(super) struct FleetLook<'a> {
    plan: &'a FleetPlan,
    at: At<'a>,
}

#[derive(Debug)]
enum At<'a> {
    Directory(&'a Path),
    Store(&'a StoredState, Listing),
}

impl<'a> FleetLook<'a> {
    pub(super) fn new(plan: &'a FleetPlan) -> Result<Self> {
        let at = match &plan.state {
            FleetState::Directory(state) => At::Directory(state),
            FleetState::Store(stored) => At::Store(stored, stored.listing("")?),
        };
        Ok(Self { plan, at })
    }

    /// Whether a disk is finished.
    pub(super) fn is_finished(&self, disk: usize) -> Result<bool> {
        match &self.at {
            At::Store(_, listing) if !listing.has_finished(disk) => Ok(false),
            At::Store(..) | At::Directory(_) => self.plan.is_finished(disk),
        }
    }

    /// What is noted of a shard, and whether a process runs it. `None`: no process has begun it.
    pub(super) fn shard(&self, number: ShardNumber) -> Result<Option<(Noted, bool)>> {
        match &self.at {
            At::Directory(state) => look_at(self.plan, state, number),
            At::Store(stored, listing) => stored.look(self.plan, number, listing),
        }
    }
}
