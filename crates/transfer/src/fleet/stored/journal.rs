//! What runs of a shard have noted, in a store: each run has records of its own, in parts, and what
//! counts is the union of all of them.
//!
//! A part holds the lines of a journal, with a head of its own that names the plan, the disk, the
//! shard and the run. An object cannot grow, so the last part is written again with more lines
//! until it is full ([`PART`]), but not more often than each [`EVERY`]; what was not written is
//! lost with its process, and is copied again. `{"forget":"RUN"}` says that what that run noted
//! does not count. Why a run failed is in a record beside them, so that what fails again and again
//! leaves nothing.
//!
//! Nobody else writes what a run writes. One that finds that its record has changed or is gone
//! ends.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::{Error, ErrorKind, Fault, Result};
use disk::{RecordTag, Records, new_mark};
use runtime::Mutex;
use serde_json::{Value, json};

use super::super::journal::{FAILURE, Noted, VERSION, other, range_of, read_into};
use super::super::plan::FleetPlan;
use super::super::share::ShardNumber;
use super::{Lease, Listing, prefix_of};

/// Bytes of a part.
pub(super) const PART: usize = 128 << 10;
/// How often a run writes what it noted, at most; but it does so at once at first, at its end, and
/// when there is as much as a part holds.
const EVERY: Duration = Duration::from_secs(10);
/// Bytes of all parts of a shard, at most: those of a million stretches have an eighth of that.
const ALL: usize = 1 << 30;
/// What the names of parts end with.
const ENDING: &str = ".journal";

/// What was read of a shard.
#[derive(Debug, Default)]
pub(super) struct FoundJournals {
    pub(super) noted: Noted,
    pub(super) runs: Vec<String>,
    /// Two runs read different bytes of the source, so nothing counts.
    pub(super) disagree: bool,
    /// There is a record of why a run failed.
    has_failed: bool,
}

/// Where a run notes what is durable, as long as it has the lease of the shard.
#[derive(Debug)]
pub(in super::super) struct StoredJournal {
    records: Arc<dyn Records>,
    /// What the names of the shard's records begin with, and those of this run.
    shard: String,
    run: String,
    plan: String,
    head: Value,
    lease: Lease,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The part that is being filled: its number, what it holds, and its tag, if it was written.
    number: u32,
    text: String,
    tag: Option<RecordTag>,
    /// Lines that are in no part yet.
    waiting: String,
    /// Bytes of these that the last try was about, if it failed: it may have been done, and is made
    /// once more as it was.
    tried: Option<usize>,
    /// When something was written last.
    last: Option<Instant>,
    /// There is a record of why a run failed.
    has_failed: bool,
}

impl StoredJournal {
    /// Begins the records of a new run. None is written yet.
    pub(super) fn begin(
        records: Arc<dyn Records>,
        (plan, number): (&FleetPlan, ShardNumber),
        found: FoundJournals,
        lease: Lease,
    ) -> Result<(Self, Noted)> {
        let run = new_mark()?;
        let Range { start, end } = range_of(plan, number);
        let head = json!({
            "shard": VERSION,
            "plan": plan.id,
            "disk": number.disk,
            "number": number.shard,
            "run": run,
            "start": start,
            "length": end - start,
        });
        let FoundJournals { noted, runs, disagree, has_failed } = found;
        // What they copied is copied again, and counts from then on.
        let waiting = match disagree {
            true => runs.iter().map(|run| format!("{}\n", json!({"forget": run}))).collect(),
            false => String::new(),
        };
        let text = format!("{head}\n");
        let state =
            State { number: 0, text, tag: None, waiting, tried: None, last: None, has_failed };
        let (shard, plan, state) = (prefix_of(number), plan.id.clone(), Mutex::new(state));
        Ok((Self { records, shard, run, plan, head, lease, state }, noted))
    }

    pub(in super::super) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Notes these lines: what a run ends with at once, others in a while.
    pub(in super::super) fn write(&self, lines: &[Value]) -> Result<()> {
        let mut state = self.state.lock();
        let mut ends = false;
        for line in lines {
            if let Some(why) = line.get("failed") {
                // What was durable before is not to be copied again.
                let noted = self.put(&mut state);
                self.put_failure(why, line)?;
                state.has_failed = true;
                return noted;
            }
            let forgets = line.get("forget").is_some();
            ends |= forgets || line.get("done").is_some();
            state.waiting += &if forgets { self.forgets()? } else { format!("{line}\n") };
        }
        let is_due = state.last.is_none_or(|last| last.elapsed() >= EVERY);
        if ends || is_due || state.waiting.len() >= PART { self.put(&mut state) } else { Ok(()) }
    }

    /// The lines by which nothing counts that any run has noted until now.
    fn forgets(&self) -> Result<String> {
        let all = self.records.list(&self.shard, super::OF_SHARD)?;
        let mut runs: Vec<_> =
            all.iter().filter_map(|listed| part_of(&listed.name, &self.shard)).collect();
        runs.push((&self.run, 0));
        runs.dedup_by(|one, other| one.0 == other.0);
        Ok(runs.iter().map(|(run, _)| format!("{}\n", json!({"forget": run}))).collect())
    }

    /// Writes the lines that are in no part yet.
    fn put(&self, state: &mut State) -> Result<()> {
        while !state.waiting.is_empty() {
            self.lease.check()?;
            let room = PART.saturating_sub(state.text.len());
            let fits = state.waiting.match_indices('\n').map(|(at, _)| at + 1);
            let fits = state.tried.or_else(|| fits.take_while(|end| *end <= room).last());
            let Some(fits) = fits else {
                state.number += 1;
                (state.text, state.tag) = (format!("{}\n", self.head), None);
                continue;
            };
            let (now, _) = state.waiting.split_at(fits);
            let text = format!("{}{now}", state.text);
            let name = format!("{}{}.{}{ENDING}", self.shard, self.run, state.number);
            state.tried = Some(fits);
            let put = match &state.tag {
                None => self.records.create(&name, text.as_bytes())?,
                Some(tag) => self.records.replace(&name, text.as_bytes(), tag)?,
            };
            let Some(tag) = put else {
                let action = "write the journal: what this run had noted is gone: the disk was \
                              finished, or the state was removed; try again";
                let e = Error::new(ErrorKind::Disconnected, Fault::Peer, action);
                return Err(e.on(self.records.shown(&name)));
            };
            (state.text, state.tag, state.last) = (text, Some(tag), Some(Instant::now()));
            state.waiting.drain(..fits);
            state.tried = None;
            if std::mem::take(&mut state.has_failed) {
                self.records.remove(&failed_name(&self.shard))?;
            }
        }
        Ok(())
    }

    fn put_failure(&self, why: &Value, line: &Value) -> Result<()> {
        let name = failed_name(&self.shard);
        let line = json!({"failed": why, "at": line["at"], "plan": self.plan, "run": self.run});
        let bytes = format!("{line}\n").into_bytes();
        // Where another run writes one at the same time either will do.
        match self.records.read(&name)? {
            Some(found) => self.records.replace(&name, &bytes, &found.tag)?,
            None => self.records.create(&name, &bytes)?,
        };
        Ok(())
    }
}

fn failed_name(shard: &str) -> String {
    format!("{shard}failed")
}

/// The run and the number of a part, by its name.
fn part_of<'a>(name: &'a str, shard: &str) -> Option<(&'a str, u32)> {
    let (run, number) = name.strip_prefix(shard)?.strip_suffix(ENDING)?.split_once('.')?;
    Some((run, number.parse().ok()?))
}

/// What all runs of a shard have noted.
///
/// # Errors
/// The store cannot be asked; or a record is of another plan, or says what no journal of this shard
/// says.
pub(super) fn read(
    records: &dyn Records,
    plan: &FleetPlan,
    number: ShardNumber,
    listing: &Listing,
) -> Result<FoundJournals> {
    let shard = prefix_of(number);
    let mut parts: BTreeMap<&str, BTreeMap<u32, &str>> = BTreeMap::new();
    for listed in listing.of(&shard) {
        if let Some((run, part)) = part_of(&listed.name, &shard) {
            parts.entry(run).or_default().insert(part, &listed.name);
        }
    }
    let (mut runs, mut bytes) = (BTreeMap::new(), 0);
    for (run, parts) in parts {
        let mut noted = Noted::default();
        for name in parts.into_values() {
            bytes += read_part(&mut noted, records, name, (plan, number, run))
                .map_err(|e| e.on(records.shown(name)))?;
            if bytes > ALL {
                let action = format!("read the journals: they hold more than {ALL} bytes");
                let e = Error::new(ErrorKind::Limit, Fault::Peer, action);
                return Err(e.on(records.shown(&shard)));
            }
        }
        runs.insert(run.to_owned(), noted);
    }
    let stretch = plan.disks.get(number.disk).map_or(1, |disk| disk.stretch);
    let mut found = together(runs, &range_of(plan, number), stretch);
    let failed = failed_name(&shard);
    found.has_failed = listing.0.contains_key(&failed);
    if found.has_failed && !found.noted.done {
        found.noted.failed = read_failure(records, &failed, plan)?;
    }
    Ok(found)
}

/// Adds what a part says. Returns how many bytes it has.
fn read_part(
    noted: &mut Noted,
    records: &dyn Records,
    name: &str,
    (plan, number, run): (&FleetPlan, ShardNumber, &str),
) -> Result<usize> {
    // One that is gone by now was of a disk that was finished.
    let Some(found) = records.read(name)? else { return Ok(0) };
    let known = |head: &Value| {
        let is = |key, n: usize| head.get(key).and_then(Value::as_u64) == u64::try_from(n).ok();
        let is_this = is("disk", number.disk) && is("number", number.shard);
        let is_run = head.get("run").and_then(Value::as_str) == Some(run);
        if is_this && is_run { Ok(()) } else { Err(other("it belongs to another shard or run")) }
    };
    read_into(noted, &*found.bytes, (plan, number), &known)?;
    Ok(found.bytes.len())
}

/// Why the last run failed; what is of another plan says nothing.
fn read_failure(records: &dyn Records, name: &str, plan: &FleetPlan) -> Result<Option<String>> {
    let Some(found) = records.read(name)? else { return Ok(None) };
    let value = serde_json::from_slice::<Value>(&found.bytes).ok();
    let value = value.filter(|value| value["plan"].as_str() == Some(&*plan.id));
    let why = value.and_then(|value| Some(value.get("failed")?.as_str()?.to_owned()));
    Ok(why.map(|why| why.chars().take(FAILURE).collect()))
}

/// The union of what runs have noted.
fn together(mut runs: BTreeMap<String, Noted>, range: &Range<u64>, stretch: u64) -> FoundJournals {
    let forgotten: BTreeSet<String> =
        runs.values_mut().flat_map(|noted| std::mem::take(&mut noted.forgotten)).collect();
    let mut found = FoundJournals { runs: runs.keys().cloned().collect(), ..Default::default() };
    let all = &mut found.noted;
    for (_, noted) in runs.into_iter().filter(|(run, _)| !forgotten.contains(run)) {
        found.disagree |= differ(all, &noted);
        all.held.add_all(&noted.held);
        all.digests.extend(noted.digests);
        all.done |= noted.done;
        all.first = all.first.into_iter().chain(noted.first).min();
        all.recent = all.recent.saturating_add(noted.recent);
    }
    let len = |start: &u64| range.end.saturating_sub(*start).min(stretch);
    all.data = all.digests.keys().map(len).fold(0, u64::saturating_add);
    // A run says so of what others have noted, too, and that may not count any more.
    all.done &= all.held.gaps(range.clone()).next().is_none();
    if found.disagree {
        found.noted = Noted::default();
    }
    found
}

/// Whether two runs say different things of a stretch.
fn differ(one: &Noted, other: &Noted) -> bool {
    let says_otherwise = |one: &Noted, other: &Noted| {
        one.digests.iter().any(|(start, digest)| {
            other.held.covering(*start).is_some() && other.digests.get(start) != Some(digest)
        })
    };
    says_otherwise(one, other) || says_otherwise(other, one)
}
