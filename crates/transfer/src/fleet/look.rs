//! One look at the state of a plan: what its journals say, without asking any process.

use std::panic::resume_unwind;
use std::path::Path;
use std::thread;

use device::Result;

use super::journal::{Noted, look_at};
use super::place::{FleetState, StoredState};
use super::plan::FleetPlan;
use super::share::ShardNumber;
use super::stored::Listing;

/// How many shards, or disks, a store is asked for at a time: as many as it keeps connections for.
/// What was noted of them is in memory until it was looked at.
const AT_ONCE: usize = 8;

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

    /// Which disks are finished, in order.
    pub(super) fn finished(&self) -> Result<Vec<bool>> {
        let mut finished = vec![false; self.plan.disks.len()];
        let asked: Vec<_> = match &self.at {
            At::Directory(_) => (0..finished.len()).collect(),
            At::Store(_, listing) => {
                (0..finished.len()).filter(|disk| listing.has_finished(*disk)).collect()
            }
        };
        let ask = |disk| self.plan.is_finished(disk);
        self.in_order(asked, ask, |disk, is| {
            if let Some(known) = finished.get_mut(disk) {
                *known = is;
            }
        })?;
        Ok(finished)
    }

    /// Calls `then` with what is noted of each of these shards, in their order, and whether a
    /// process runs it. `None`: no process has begun it.
    pub(super) fn shards(
        &self,
        numbers: impl IntoIterator<Item = ShardNumber>,
        then: impl FnMut(ShardNumber, Option<(Noted, bool)>),
    ) -> Result<()> {
        self.in_order(numbers, |number| self.shard(number), then)
    }

    /// What is noted of a shard, and whether a process runs it.
    pub(super) fn shard(&self, number: ShardNumber) -> Result<Option<(Noted, bool)>> {
        match &self.at {
            At::Directory(state) => look_at(self.plan, state, number),
            At::Store(stored, listing) => stored.look(self.plan, number, listing),
        }
    }

    /// Asks for each item, for several at a time in a store, and goes on with the answers in order.
    fn in_order<T: Copy + Send, R: Send>(
        &self,
        items: impl IntoIterator<Item = T>,
        ask: impl Fn(T) -> Result<R> + Sync,
        mut then: impl FnMut(T, R),
    ) -> Result<()> {
        let at_once = match self.at {
            At::Directory(_) => 1,
            At::Store(..) => AT_ONCE,
        };
        let mut items = items.into_iter();
        loop {
            let some: Vec<T> = items.by_ref().take(at_once).collect();
            if some.is_empty() {
                return Ok(());
            }
            for (item, answer) in some.iter().zip(answers(&some, &ask)) {
                then(*item, answer?);
            }
        }
    }
}

/// The answers for all of these, which are asked for at the same time.
fn answers<T: Copy + Send, R: Send>(items: &[T], ask: &(impl Fn(T) -> R + Sync)) -> Vec<R> {
    if let [item] = items {
        return vec![ask(*item)];
    }
    thread::scope(|scope| {
        let begin = |item: &T| {
            let item = *item;
            scope.spawn(move || ask(item))
        };
        let begun: Vec<_> = items.iter().map(begin).collect();
        let end = |thread: thread::ScopedJoinHandle<'_, R>| {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        begun.into_iter().map(end).collect()
    })
}
