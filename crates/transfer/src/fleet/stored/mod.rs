//! The state of a plan in an object store, as records: each is written as a whole, and says what it
//! expects to be there. It does what a directory does with files that grow and locks that end with
//! their process.
//!
//! | record | what |
//! |---|---|
//! | `D.S.RUN.N.journal` | part `N` of what a run noted of shard `S` of disk `D`: see [`journal`] |
//! | `D.S.lease` | held by who runs the shard: see [`lease`] |
//! | `D.S.failed` | why its last run ended |
//! | `D.finished` | disk `D` is finished: its digest |
//! | `host-H.N.lease` | held by a reader of a source host |
//! | `plan.lease` | held by who makes the plan |
//!
//! What is not noted yet when a process is killed is done again. Nothing is believed that is not of
//! this plan, which has the identities of its sources and the names of its targets in it. No clocks
//! of two machines are compared: how old a record is the store says, by its own.

mod journal;
mod lease;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use device::{Error, ErrorKind, Fault, Result};
use disk::{ListedRecord, RecordTag, Records, new_mark};
use serde_json::json;

use super::journal::Noted;
use super::place::StoredState;
use super::plan::FleetPlan;
use super::share::ShardNumber;
pub(super) use journal::StoredJournal;
pub(super) use lease::Lease;

/// Records of a plan, at most; and of one disk, of one shard.
const RECORDS: usize = 4_000_000;
const OF_DISK: usize = 2_000_000;
const OF_SHARD: usize = 20_000;
/// What the names of records end with that only a plan which was run has.
const OLD: [&str; 2] = [".journal", ".finished"];

/// Records by their names.
#[derive(Debug)]
pub(super) struct Listing(BTreeMap<String, ListedRecord>);

impl Listing {
    /// Those whose names begin like that.
    fn of<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a ListedRecord> {
        let from = self.0.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from.map(|(_, record)| record).take_while(move |record| record.name.starts_with(prefix))
    }

    pub(super) fn has_finished(&self, disk: usize) -> bool {
        self.0.contains_key(&finished_name(disk))
    }
}

impl StoredState {
    fn records(&self) -> Result<Arc<dyn Records>> {
        Ok(self.open()?.patient)
    }

    /// A record, or those whose names begin like that, for people.
    pub(super) fn shown(&self, name: &str) -> Result<String> {
        Ok(self.records()?.shown(name))
    }

    /// All records whose names begin like that.
    pub(super) fn listing(&self, prefix: &str) -> Result<Listing> {
        let most = match prefix.bytes().filter(|b| *b == b'.').count() {
            0 => RECORDS,
            1 => OF_DISK,
            _ => OF_SHARD,
        };
        let all = self.records()?.list(prefix, most)?;
        Ok(Listing(all.into_iter().map(|record| (record.name.clone(), record)).collect()))
    }

    /// Takes the place for a plan that is to be made, as long as the lease is held.
    ///
    /// # Errors
    /// The store cannot be asked, or does not keep conditions; there is the state of another plan;
    /// or a plan is being made there.
    pub(super) fn begin(&self) -> Result<Lease> {
        let records = self.records()?;
        probe(&*records).map_err(|e| e.on(records.shown("")))?;
        let Some(lease) = Lease::take(&self.open()?, "plan.lease")? else {
            let action = "begin the plan: one is being made there, or was until a moment ago; \
                          try again in a minute";
            return Err(Error::new(ErrorKind::Locked, Fault::User, action).on(records.shown("")));
        };
        let found = self.listing("")?;
        if found.0.keys().any(|name| OLD.iter().any(|old| name.ends_with(old))) {
            let action =
                "use the place: it holds the state of another plan; remove it, or name another";
            let e = Error::new(ErrorKind::InvalidInput, Fault::File, action);
            return Err(e.on(records.shown("")));
        }
        Ok(lease)
    }

    /// A lease for a reader of a source host; `None`: as many read already as may.
    pub(super) fn reader(&self, host: usize, readers: u16) -> Result<Option<Lease>> {
        let open = self.open()?;
        let prefix = format!("host-{host}.");
        let found = self.listing(&prefix)?;
        for reader in 0..readers {
            let name = format!("{prefix}{reader}.lease");
            if found.0.get(&name).is_some_and(lease::is_held) {
                continue;
            }
            if let Some(lease) = Lease::take(&open, &name)? {
                return Ok(Some(lease));
            }
        }
        Ok(None)
    }

    /// The journal of a shard, with its lease, and what is noted of the shard. `None`: another
    /// process runs it.
    pub(super) fn journal(
        &self,
        plan: &FleetPlan,
        number: ShardNumber,
    ) -> Result<Option<(StoredJournal, Noted)>> {
        let open = self.open()?;
        let prefix = prefix_of(number);
        let Some(lease) = Lease::take(&open, &format!("{prefix}lease"))? else { return Ok(None) };
        // What others have noted until now: from here on they know that it is not theirs.
        let found = journal::read(&*open.patient, plan, number, &self.listing(&prefix)?)?;
        StoredJournal::begin(open.patient, (plan, number), found, lease).map(Some)
    }

    /// What is noted of a shard, and whether a process runs it. `None`: no process has begun it.
    pub(super) fn look(
        &self,
        plan: &FleetPlan,
        number: ShardNumber,
        listing: &Listing,
    ) -> Result<Option<(Noted, bool)>> {
        let prefix = prefix_of(number);
        let lease = listing.0.get(&format!("{prefix}lease"));
        let runs = lease.is_some_and(lease::is_held);
        let found = journal::read(&*self.records()?, plan, number, listing)?;
        let begun = runs || !found.runs.is_empty() || found.noted.failed.is_some();
        Ok(begun.then_some((found.noted, runs)))
    }

    /// What is noted of a shard that no process runs. `None`: one does.
    pub(super) fn settled(&self, plan: &FleetPlan, number: ShardNumber) -> Result<Option<Noted>> {
        let found = self.look(plan, number, &self.listing(&prefix_of(number))?)?;
        Ok(match found {
            None => Some(Noted::default()),
            Some((noted, false)) => Some(noted),
            Some((_, true)) => None,
        })
    }

    /// The record that a disk is finished, and its name.
    pub(super) fn finished(&self, disk: usize) -> Result<Option<(Vec<u8>, String)>> {
        let (records, name) = (self.records()?, finished_name(disk));
        Ok(records.read(&name)?.map(|found| (found.bytes, records.shown(&name))))
    }

    /// Records that a disk is finished. One that says the same may be there.
    pub(super) fn record_finished(&self, disk: usize, text: &str) -> Result<()> {
        let (records, name) = (self.records()?, finished_name(disk));
        let bytes = format!("{text}\n").into_bytes();
        if records.create(&name, &bytes)?.is_some()
            || records.read(&name)?.is_some_and(|found| found.bytes == bytes)
        {
            return Ok(());
        }
        let action = "record that the disk is finished: a different record exists";
        Err(Error::new(ErrorKind::Corrupt, Fault::File, action).on(records.shown(&name)))
    }

    /// Removes what only a disk has that is not finished.
    pub(super) fn clean(&self, disk: usize) -> Result<()> {
        let (records, kept) = (self.records()?, finished_name(disk));
        let found = self.listing(&format!("{disk}."))?;
        found.0.keys().filter(|name| **name != kept).try_for_each(|name| records.remove(name))
    }
}

/// What the names of the records of a shard begin with.
fn prefix_of(number: ShardNumber) -> String {
    format!("{}.{}.", number.disk, number.shard)
}

fn finished_name(disk: usize) -> String {
    format!("{disk}.finished")
}

/// Tries whether the store does what all of this relies on: a write whose condition does not hold
/// is refused, what was written is listed, and the store tells its time.
fn probe(records: &dyn Records) -> Result<()> {
    let mark = new_mark()?;
    let name = format!("probe.{mark}");
    let bytes = |n: u8| json!({"probe": mark, "n": n}).to_string().into_bytes();
    let lacks = |what: &str| {
        let action = format!(
            "keep the state there: the store {what}, by which processes know of each other; name \
             a directory instead"
        );
        Err(Error::unsupported(action))
    };
    let Some(tag) = records.create(&name, &bytes(0))? else {
        return lacks("does not create an object with If-None-Match");
    };
    let probed = (|| {
        if records.create(&name, &bytes(1))?.is_some() {
            return lacks("ignores If-None-Match");
        }
        let other = RecordTag("\"00000000000000000000000000000000\"".to_owned());
        if records.replace(&name, &bytes(2), &other)?.is_some()
            || records.replace(&name, &bytes(3), &tag)?.is_none()
            || records.replace(&name, &bytes(4), &tag)?.is_some()
        {
            return lacks("ignores If-Match");
        }
        let found = records.read(&name)?;
        if !found.is_some_and(|found| found.bytes == bytes(3) && found.age.is_some()) {
            return lacks("does not say when an object was written");
        }
        let listed = records.list("probe.", OF_SHARD)?;
        if !listed.iter().any(|listed| listed.name == name && listed.age.is_some()) {
            return lacks("does not list an object that was just created");
        }
        Ok(())
    })();
    probed.and(records.remove(&name))
}
