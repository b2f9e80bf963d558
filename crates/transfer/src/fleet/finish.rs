//! Finishing a plan: every disk whose shards are durable is read back, compared with the digests of
//! what was read of its source, and counts as complete from then on. It can be done any number of
//! times, also after it was killed, and by several processes at once: in a directory each disk is
//! read by one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind as Io, Write};
use std::sync::Arc;
use std::time::Instant;

use copy::{Cancel, Options, Progress};
use device::{Edge, Error, ErrorKind, Fault, Result, text};
use disk::{OpenOptions, Stack};
use programs::names;
use runtime::{Context, Mutex};
use serde_json::{Value, json};

use super::journal::ShardJournal;
use super::look::FleetLook;
use super::place::FleetState;
use super::plan::{FleetDisk, FleetPlan};
use super::share::ShardNumber;
use super::state::{journal_in, new_record_in, record_in};
use crate::digest::{ContentDigest, DigestedRange, Digester, read};
use crate::job::placed;

/// How a plan is finished.
#[derive(Clone, Copy, Debug, Default)]
pub struct FleetFinish {
    /// What was written is read past the page cache.
    pub past_cache: bool,
}

/// A disk that is complete.
#[derive(Clone, Debug)]
pub struct FinishedDisk {
    /// Its number, from 0 on.
    pub disk: usize,
    /// Of what it holds.
    pub digest: ContentDigest,
    /// It was finished before, or by another process.
    pub was: bool,
}

impl FleetPlan {
    /// Whether a disk is finished.
    pub(super) fn is_finished(&self, disk: usize) -> Result<bool> {
        Ok(self.finished(disk)?.is_some())
    }

    /// The digest of a disk that is finished.
    pub(super) fn finished(&self, disk: usize) -> Result<Option<ContentDigest>> {
        let (text, name) = match &self.state {
            FleetState::Directory(state) => {
                let path = record_in(state, disk);
                let name = path.display().to_string();
                match std::fs::read(&path) {
                    Ok(text) => (text, name),
                    Err(e) if e.kind() == Io::NotFound => return Ok(None),
                    Err(e) => return Err(Error::os("read the record", e).on(name)),
                }
            }
            FleetState::Store(stored) => match stored.finished(disk)? {
                Some(found) => found,
                None => return Ok(None),
            },
        };
        let record = serde_json::from_slice::<Value>(&text).ok();
        let record = record.filter(|record| record["plan"].as_str() == Some(&*self.id));
        let digest = record.and_then(|record| ContentDigest::parse(record["digest"].as_str()?));
        let wrong = || {
            let action =
                "read the record of a finished disk: it belongs to another plan, or is incomplete";
            Error::new(ErrorKind::Corrupt, Fault::File, action).on(&name)
        };
        digest.ok_or_else(wrong).map(Some)
    }
}

/// Finishes a plan. `tell` is called with each disk that is complete.
///
/// # Errors
/// `Locked`: shards are missing or running; all of them are named, and nothing was changed.
/// `TimedOut`: another process has a disk open for long. Disks before it are finished.
/// `Mismatch`: a target holds something else than was copied to it. Disks before it are finished.
pub fn finish(
    plan: &FleetPlan,
    how: FleetFinish,
    context: &Context,
    tell: &dyn Fn(&FinishedDisk),
) -> Result<()> {
    refuse_missing(plan)?;
    for (number, disk) in plan.disks.iter().enumerate() {
        let (digest, was) =
            proven(plan, (number, disk), how, context).map_err(|e| e.on(disk.wanted.shown()))?;
        clean(plan, number, disk)?;
        tell(&FinishedDisk { disk: number, digest, was });
    }
    Ok(())
}

/// Names of shards in one message.
const NAMED: usize = 8;

fn refuse_missing(plan: &FleetPlan) -> Result<()> {
    let look = FleetLook::new(plan)?;
    let finished = look.finished()?;
    let is_open = |number: &ShardNumber| finished.get(number.disk) == Some(&false);
    let mut missing = Vec::new();
    look.shards(plan.numbers().filter(is_open), |number, found| {
        let why = match found {
            None => "was not begun".to_owned(),
            Some((noted, _)) if noted.done => return,
            Some((_, true)) => "is running".to_owned(),
            Some((noted, false)) => noted
                .failed
                .map_or_else(|| "is not done".to_owned(), |why| format!("failed: {why}")),
        };
        missing.push((number, why));
    })?;
    // Once more: another process that finished a disk meanwhile has removed its journals.
    for disk in missing.iter().map(|(number, _)| number.disk).collect::<BTreeSet<_>>() {
        if plan.is_finished(disk)? {
            missing.retain(|(number, _)| number.disk != disk);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let name = |(number, why): &(ShardNumber, String)| {
        let disk = plan.disks.get(number.disk).map(|disk| disk.wanted.shown()).unwrap_or_default();
        format!("{}.{} ({disk}) {why}", number.disk, number.shard)
    };
    let mut names: Vec<_> = missing.iter().take(NAMED).map(name).collect();
    if missing.len() > NAMED {
        names.push(format!("and {} others", missing.len() - NAMED));
    }
    let action =
        format!("finish the plan: {} shards are missing: {}", missing.len(), names.join("; "));
    Err(Error::new(ErrorKind::Locked, Fault::User, action))
}

/// The digest of a disk, and whether another process, or an earlier one, has proven it. What such a
/// process has open is waited for, a while.
fn proven(
    plan: &FleetPlan,
    (number, disk): (usize, &FleetDisk),
    how: FleetFinish,
    context: &Context,
) -> Result<(ContentDigest, bool)> {
    let (look, wait) = plan.state.pauses();
    let begun = Instant::now();
    loop {
        if let Some(digest) = plan.finished(number)? {
            return Ok((digest, true));
        }
        match one(plan, (number, disk), how, context) {
            Ok(digest) => return Ok((digest, false)),
            // It has removed the journals.
            Err(e) if e.kind() == ErrorKind::NotFound && !plan.is_finished(number)? => {
                return Err(e);
            }
            Err(e) if e.kind() == ErrorKind::Locked && begun.elapsed() >= wait => {
                let action = format!(
                    "finish the plan: another process has the disk open after {} seconds",
                    wait.as_secs()
                );
                return Err(Error::new(ErrorKind::TimedOut, Fault::Peer, action).with_source(e));
            }
            // Another `finish` reads it, or the last of its writers has not closed it yet.
            Err(e) if e.kind() == ErrorKind::Locked => std::thread::sleep(look),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
}

/// Proves that a target holds what its journals say, makes it durable, and records that.
fn one(
    plan: &FleetPlan,
    (number, disk): (usize, &FleetDisk),
    how: FleetFinish,
    context: &Context,
) -> Result<ContentDigest> {
    // No process writes to the target from here on: those that began before have a lock, and those
    // that begin later see that the shard is done, or the record.
    let mut wanted = BTreeMap::new();
    // Nor does another one finish it: the first journal stays locked.
    let mut first = None;
    for shard in 0..disk.shards.len() {
        let number = ShardNumber { disk: number, shard };
        let settled = ShardJournal::settled(plan, number)?.filter(|(noted, _)| noted.done);
        let Some((mut noted, lock)) = settled else {
            let action = format!("finish the plan: shard {}.{shard} is running", number.disk);
            return Err(Error::new(ErrorKind::Locked, Fault::User, action));
        };
        wanted.append(&mut noted.digests);
        first = first.or(lock);
    }
    let found = Arc::new(Mutex::new(Vec::new()));
    let each = found.clone();
    let digester = Digester::new(plan.digest)
        .with_stretches(disk.stretch, move |range: DigestedRange| each.lock().push(range));
    // Nobody else writes to it meanwhile, as far as locks tell.
    let held = open(disk, &OpenOptions { once: true, ..OpenOptions::read_write() }, context)?;
    if held.info().abilities.flush {
        // Each shard was durable when it was done; this is for what another machine may hold back.
        held.flush()?;
    }
    let target = match how.past_cache {
        true => {
            let options = OpenOptions {
                once: true,
                past_cache: true,
                lock: false,
                ..OpenOptions::read_only()
            };
            open(disk, &options, context)?
        }
        false => held.clone(),
    };
    let watched = (&Progress::default(), &Cancel::default());
    let digest = read(&target, &Arc::new(digester), &Options::default(), watched, context)?;
    compare(plan, (number, disk), &mut wanted, &found.lock())?;
    record(plan, number, disk, &digest)?;
    drop(first);
    Ok(digest)
}

/// The part of the target that was written.
fn open(disk: &FleetDisk, options: &OpenOptions, context: &Context) -> Result<Edge> {
    let (target, stack) = disk.wanted.target()?;
    let edge = disk::open(&target, &stack, options, context)?.edge;
    if edge.info().size == disk.size {
        return Ok(edge);
    }
    Stack::parse([&*format!("offset?offset=0&range={}", disk.size)])?.over(edge, context)
}

fn compare(
    plan: &FleetPlan,
    (number, disk): (usize, &FleetDisk),
    wanted: &mut BTreeMap<u64, ContentDigest>,
    found: &[DigestedRange],
) -> Result<()> {
    for DigestedRange { range, digest } in found {
        let differs = match digest {
            Some(digest) => (wanted.remove(&range.start) != Some(*digest)).then_some(range.start),
            // Several stretches of zeroes.
            None => wanted.range(range.clone()).next().map(|(start, _)| *start),
        };
        let Some(at) = differs else { continue };
        let shard = disk.shards.iter().position(|shard| shard.range.contains(&at)).unwrap_or(0);
        let journal = match &plan.state {
            FleetState::Directory(state) => {
                journal_in(state, ShardNumber { disk: number, shard }).display().to_string()
            }
            FleetState::Store(stored) => {
                format!("all of {}", stored.shown(&format!("{number}.{shard}."))?)
            }
        };
        let action = format!(
            "finish the plan: the target does not hold what shard {number}.{shard} copied to it, in the stretch from {at} \
             on: it was written by another, or lost what was durable; remove {journal} and run that shard again"
        );
        return Err(Error::new(ErrorKind::Mismatch, Fault::File, action));
    }
    Ok(())
}

/// Records that a disk is finished.
fn record(plan: &FleetPlan, number: usize, disk: &FleetDisk, digest: &ContentDigest) -> Result<()> {
    let text = json!({"plan": plan.id, "size": disk.size, "digest": digest.to_string()});
    let state = match &plan.state {
        FleetState::Directory(state) => state,
        FleetState::Store(stored) => return stored.record_finished(number, &text.to_string()),
    };
    let (path, new) = (record_in(state, number), new_record_in(state, number));
    placed::remove(&new)?;
    let write = || {
        let mut file = File::from(names::make(&new, 0o666)?);
        writeln!(file, "{text}")?;
        file.sync_all()?;
        names::replace(&path, &new)?;
        names::sync(&path)
    };
    write().map_err(|e: std::io::Error| {
        Error::os("record that the disk is finished", e).on(path.display())
    })
}

/// Removes what only a disk has that is not finished.
fn clean(plan: &FleetPlan, number: usize, disk: &FleetDisk) -> Result<()> {
    let target = disk.wanted.target()?.0;
    if let Some(mark) = disk.mark() {
        placed::remove(&mark)?;
        if let Some(path) = target.path().map(text::path) {
            names::sync(&path)
                .map_err(|e| Error::os("sync the directory of", e).on(path.display()))?;
        }
    }
    let state = match &plan.state {
        FleetState::Directory(state) => state,
        FleetState::Store(stored) => return stored.clean(number),
    };
    for shard in 0..disk.shards.len() {
        placed::remove(&journal_in(state, ShardNumber { disk: number, shard }))?;
    }
    Ok(())
}
