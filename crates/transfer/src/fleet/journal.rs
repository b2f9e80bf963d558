//! The journal of a shard: which stretches of it are durable in the target, each with its digest.
//!
//! It is a file of JSON lines that only grows. The first says of which shard:
//! `{"shard":1,"plan":"…","start":0,"length":8388608}`. Others are stretches, or several that are
//! zero: `{"start":0,"length":4194304,"digest":"…","at":1764300000}`; a line is written when what
//! it says is true, so one that is lost costs a second copy. `{"failed":"…","at":…}` is why a run
//! ended, `{"forget":true}` that nothing before it counts, `{"done":true,"at":…}` that all is
//! durable. A line that is cut off, or is no JSON, ends what counts, and is cut off by the next
//! run.
//!
//! Who runs the shard, or finishes its disk, has a lock on it, which ends with the process. In a
//! store the same lines are in records of each run: see [`super::stored`].

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{BufRead, BufReader, ErrorKind as Io, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use device::{Error, ErrorKind, Fault, Result};
use runtime::{Mutex, RangeSet};
use serde_json::{Value, json};

use super::place::FleetState;
use super::plan::FleetPlan;
use super::share::ShardNumber;
use super::state::journal_in;
use super::stored::StoredJournal;
use crate::digest::{ContentDigest, DigestedRange};
use crate::journal::is_cut;
use crate::witness::DurableStretch;

/// The version of the form.
pub(super) const VERSION: u64 = 1;
/// What the first line begins with.
pub(super) const HEAD: &[u8] = b"{\"shard\":";
/// Bytes in the longest line.
const LINE: u64 = 4096;
/// Letters of a failure that are kept.
pub(super) const FAILURE: usize = 500;
/// Seconds over which a rate is measured.
pub(super) const RECENT: u64 = 60;

/// What a journal says.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// What is durable, in whole stretches.
    pub(super) held: RangeSet,
    /// The digests of stretches, by their first byte; those that are missing are zero.
    pub(super) digests: BTreeMap<u64, ContentDigest>,
    /// Bytes in stretches that have a digest.
    pub(super) data: u64,
    /// All is durable.
    pub(super) done: bool,
    /// Why the last run ended, if it failed.
    pub(super) failed: Option<String>,
    /// When the first line was written that still counts, in seconds.
    pub(super) first: Option<u64>,
    /// Bytes that became durable in the last minute.
    pub(super) recent: u64,
    /// Other runs, in a store, whose lines do not count any more.
    pub(super) forgotten: Vec<String>,
}

/// The journal of one shard, open; who has it runs the shard.
#[derive(Debug)]
pub(super) struct ShardJournal {
    kept: Kept,
    pub(super) noted: Noted,
}

/// Keeps other processes from a shard while it is there.
#[derive(Debug)]
pub(super) struct JournalLock {
    _kept: Kept,
}

/// Where its lines go.
#[derive(Debug)]
enum Kept {
    /// A file that is locked.
    File { name: String, file: Mutex<File> },
    /// Records in a store, and a lease.
    Store(Box<StoredJournal>),
}

impl ShardJournal {
    /// Opens it, and begins it where it is empty. `None`: another process runs the shard.
    pub(super) fn open(plan: &FleetPlan, number: ShardNumber) -> Result<Option<Self>> {
        let stored = match &plan.state {
            FleetState::Directory(state) => {
                return Self::take(plan, &journal_in(state, number), number, true);
            }
            FleetState::Store(stored) => stored.journal(plan, number)?,
        };
        Ok(stored.map(|(kept, noted)| Self { kept: Kept::Store(Box::new(kept)), noted }))
    }

    /// What it says, and is left as; and what keeps others from it, in a directory. `None`: another
    /// process runs the shard.
    pub(super) fn settled(
        plan: &FleetPlan,
        number: ShardNumber,
    ) -> Result<Option<(Noted, Option<JournalLock>)>> {
        match &plan.state {
            FleetState::Directory(state) => {
                let taken = Self::take(plan, &journal_in(state, number), number, false)?;
                Ok(taken.map(|Self { kept, noted }| (noted, Some(JournalLock { _kept: kept }))))
            }
            FleetState::Store(stored) => {
                Ok(stored.settled(plan, number)?.map(|noted| (noted, None)))
            }
        }
    }

    fn take(
        plan: &FleetPlan,
        path: &Path,
        number: ShardNumber,
        begins: bool,
    ) -> Result<Option<Self>> {
        let name = path.display().to_string();
        let failed = |what, e| Error::os(what, e).on(&name);
        let file = File::options().read(true).write(true).open(path);
        let mut file = file.map_err(|e| failed("open the journal", e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(e)) => return Err(failed("lock the journal", e)),
        }
        let (noted, end) = read(&file, plan, number).map_err(|e| e.on(&name))?;
        if begins {
            file.set_len(end).map_err(|e| failed("truncate the journal", e))?;
        }
        file.seek(SeekFrom::Start(end)).map_err(|e| failed("seek in the journal", e))?;
        let journal = Self { kept: Kept::File { name, file: Mutex::new(file) }, noted };
        if begins && end == 0 {
            let Range { start, end } = range_of(plan, number);
            let head =
                json!({"shard": VERSION, "plan": plan.id, "start": start, "length": end - start});
            journal.write(&[head])?;
        }
        Ok(Some(journal))
    }

    /// These stretches are durable.
    pub(super) fn durable(&self, stretches: &[DurableStretch]) -> Result<()> {
        let at = now();
        let line = |DurableStretch { range, .. }: &DurableStretch| {
            let DigestedRange { range: Range { start, end }, digest } = range;
            let mut line = json!({"start": start, "length": end - start});
            if let Some(digest) = digest {
                line["digest"] = digest.to_string().into();
            }
            line["at"] = at.into();
            line
        };
        let lines: Vec<_> = stretches.iter().map(line).collect();
        if lines.is_empty() { Ok(()) } else { self.write(&lines) }
    }

    /// All of the shard is.
    pub(super) fn done(&self) -> Result<()> {
        self.write(&[json!({"done": true, "at": now()})])
    }

    /// Nothing that it says counts any more.
    pub(super) fn forget(&self) -> Result<()> {
        self.write(&[json!({"forget": true})])
    }

    /// Why the run ended.
    pub(super) fn failed(&self, why: &str) -> Result<()> {
        let why: String = why.chars().take(FAILURE).collect();
        self.write(&[json!({"failed": why, "at": now()})])
    }

    /// `lost` is called when another process may run the shard, too, which only a lease in a store
    /// lets happen.
    pub(super) fn when_lost(&self, lost: impl Fn() + Send + 'static) {
        if let Kept::Store(stored) = &self.kept {
            stored.lease().when_lost(lost);
        }
    }

    /// Whether it is still ours.
    pub(super) fn check(&self) -> Result<()> {
        match &self.kept {
            Kept::File { .. } => Ok(()),
            Kept::Store(stored) => stored.lease().check(),
        }
    }

    fn write(&self, lines: &[Value]) -> Result<()> {
        let (name, file) = match &self.kept {
            Kept::File { name, file } => (name, file),
            Kept::Store(stored) => return stored.write(lines),
        };
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let mut file = file.lock();
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
        written.map_err(|e| Error::os("write the journal", e).on(name))
    }
}

/// What the journal of a shard says now, in this directory, and whether a process runs the shard.
/// `None`: no process has begun it.
pub(super) fn look_at(
    plan: &FleetPlan,
    state: &Path,
    number: ShardNumber,
) -> Result<Option<(Noted, bool)>> {
    let path = journal_in(state, number);
    let name = path.display().to_string();
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == Io::NotFound => return Ok(None),
        Err(e) => return Err(Error::os("open the journal", e).on(name)),
    };
    let (noted, end) = read(&file, plan, number).map_err(|e| e.on(&name))?;
    // A lock that is held for so short a time makes others look once more.
    let runs = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    Ok(Some((noted, runs)).filter(|_| end > 0 || runs))
}

/// Makes an empty one, unless there is one.
pub(super) fn make(path: &Path) -> Result<()> {
    let made = File::options().write(true).create(true).truncate(false).open(path);
    made.map(drop).map_err(|e| Error::os("make the journal", e).on(path.display()))
}

pub(super) fn range_of(plan: &FleetPlan, number: ShardNumber) -> Range<u64> {
    let shard = plan.disks.get(number.disk).and_then(|disk| disk.shards.get(number.shard));
    shard.map_or(0..0, |shard| shard.range.clone())
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// What a journal says, and where that ends.
fn read(file: &File, plan: &FleetPlan, number: ShardNumber) -> Result<(Noted, u64)> {
    let mut noted = Noted::default();
    let end = read_into(&mut noted, BufReader::new(file), (plan, number), &|_| Ok(()))?;
    Ok((noted, end))
}

/// Adds what a journal, or a part of one, says, whose first line `known` knows; where that ends.
pub(super) fn read_into(
    noted: &mut Noted,
    mut from: impl BufRead,
    (plan, number): (&FleetPlan, ShardNumber),
    known: &dyn Fn(&Value) -> Result<()>,
) -> Result<u64> {
    let range = range_of(plan, number);
    let stretch = plan.disks.get(number.disk).map_or(1, |disk| disk.stretch);
    let (mut end, now) = (0u64, now());
    loop {
        let mut line = Vec::new();
        let n = from.by_ref().take(LINE).read_until(b'\n', &mut line);
        let n = n.map_err(|e| Error::os("read the journal", e))?;
        let value = line.ends_with(b"\n").then(|| serde_json::from_slice::<Value>(&line).ok());
        let Some(value) = value.flatten() else {
            if end == 0 && !is_cut(&line, HEAD) {
                return Err(other("it is not a journal"));
            }
            return Ok(end);
        };
        if end == 0 {
            check_head(&value, plan, &range)?;
            known(&value)?;
        } else if noted.take(&value, (&range, stretch), now).is_none() {
            return Err(other("its entries do not fit this shard"));
        }
        end += n as u64;
    }
}

fn check_head(head: &Value, plan: &FleetPlan, range: &Range<u64>) -> Result<()> {
    let number = |key| head.get(key).and_then(Value::as_u64);
    if number("shard") != Some(VERSION) {
        return Err(other("it is not a journal"));
    }
    let id = head.get("plan").and_then(Value::as_str);
    if id != Some(&*plan.id) || number("start") != Some(range.start) {
        return Err(other("it belongs to another plan"));
    }
    Ok(())
}

pub(super) fn other(why: &str) -> Error {
    let action = format!("open the journal: {why}; nothing was changed");
    Error::new(ErrorKind::InvalidInput, Fault::File, action)
}

impl Noted {
    /// Takes a line; `None` if it makes no sense. What is not known says nothing.
    fn take(&mut self, line: &Value, (all, stretch): (&Range<u64>, u64), now: u64) -> Option<()> {
        let at = line.get("at").and_then(Value::as_u64);
        if let Some(what) = line.get("forget") {
            match what.as_str() {
                Some(run) => self.forgotten.push(run.to_owned()),
                None => *self = Self::default(),
            }
            return Some(());
        }
        if let Some(why) = line.get("failed") {
            self.failed = Some(why.as_str()?.to_owned());
            return Some(());
        }
        if line.get("done").is_some() {
            (self.done, self.failed) = (true, None);
            return Some(());
        }
        let Some(start) = line.get("start") else { return Some(()) };
        let start = start.as_u64()?;
        let range = start..start.checked_add(line.get("length")?.as_u64()?)?;
        let on_grid = |at: u64| at.is_multiple_of(stretch) || at == all.end;
        if range.is_empty() || range.start < all.start || range.end > all.end {
            return None;
        }
        if !on_grid(range.start) || !on_grid(range.end) {
            return None;
        }
        let len = range.end - range.start;
        if let Some(digest) = line.get("digest") {
            if len > stretch {
                return None;
            }
            self.digests.insert(range.start, ContentDigest::parse(digest.as_str()?)?);
            self.data = self.data.saturating_add(len);
            if at.is_some_and(|at| at.saturating_add(RECENT) >= now) {
                self.recent = self.recent.saturating_add(len);
            }
        }
        self.held.add(range);
        self.failed = None;
        self.first = self.first.or(at);
        Some(())
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "ranges are what is compared")]
mod tests {
    use super::*;
    use crate::digest::{DigestAlgorithm, digest_of};

    const NUMBER: ShardNumber = ShardNumber { disk: 0, shard: 0 };
    const STRETCH: u64 = 4 << 20;

    fn plan(scratch: &trial::Scratch) -> FleetPlan {
        let plan = super::super::plan::tests::plan(&[7]);
        let plan = FleetPlan { state: FleetState::Directory(scratch.path("")), ..plan };
        assert!(look(&plan).unwrap().is_none());
        make(&path(&plan)).unwrap();
        plan
    }

    fn path(plan: &FleetPlan) -> std::path::PathBuf {
        let FleetState::Directory(state) = &plan.state else { panic!("a directory") };
        journal_in(state, NUMBER)
    }

    fn look(plan: &FleetPlan) -> Result<Option<(Noted, bool)>> {
        let FleetState::Directory(state) = &plan.state else { panic!("a directory") };
        look_at(plan, state, NUMBER)
    }

    fn stretch(n: u64) -> DurableStretch {
        let digest = (n != 1).then(|| digest_of(DigestAlgorithm::Sha256, &n.to_le_bytes()));
        let range = DigestedRange { range: n * STRETCH..(n + 1) * STRETCH, digest };
        DurableStretch { range, blocks: Vec::new() }
    }

    #[test]
    fn a_journal_that_is_cut_off_anywhere_says_what_was_whole_and_goes_on_there() {
        let scratch = trial::Scratch::new(std::env::temp_dir());
        let plan = plan(&scratch);
        let path = path(&plan);
        let mut ends = Vec::new();
        let journal = ShardJournal::open(&plan, NUMBER).unwrap().unwrap();
        for n in 0..3 {
            ends.push(std::fs::metadata(&path).unwrap().len());
            journal.durable(&[stretch(n)]).unwrap();
        }
        ends.push(std::fs::metadata(&path).unwrap().len());
        journal.done().unwrap();
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        for len in 0..=whole.len() {
            for tail in [&b""[..], b"\0\0\0\n", b"{\"start\":"] {
                if len < whole.len() && (len as u64) < ends[0] && !tail.is_empty() {
                    continue;
                }
                std::fs::write(&path, [&whole[..len], tail].concat()).unwrap();
                let journal = ShardJournal::open(&plan, NUMBER).unwrap().unwrap();
                let count = ends.iter().filter(|end| **end <= len as u64).count().max(1) as u64 - 1;
                let held: RangeSet = (0..count).map(|n| stretch(n).range.range).collect();
                assert_eq!(journal.noted.held, held, "{len}");
                assert_eq!(journal.noted.done, len == whole.len(), "{len}");
                journal.durable(&[stretch(9)]).unwrap();
                drop(journal);
                let again = ShardJournal::open(&plan, NUMBER).unwrap().unwrap().noted;
                assert_eq!(again.held.len(), (count + 1) * STRETCH, "{len}");
                assert!(
                    !again.digests.contains_key(&STRETCH)
                        && again.digests.contains_key(&(9 * STRETCH))
                );
            }
        }
    }

    #[test]
    fn one_process_has_it_and_others_may_look() {
        let scratch = trial::Scratch::new(std::env::temp_dir());
        let plan = plan(&scratch);
        let journal = ShardJournal::open(&plan, NUMBER).unwrap().unwrap();
        assert!(ShardJournal::open(&plan, NUMBER).unwrap().is_none());
        journal.failed("no way").unwrap();
        let (noted, runs) = look(&plan).unwrap().unwrap();
        assert!(runs && noted.failed.as_deref() == Some("no way"));
        journal.durable(&[stretch(0)]).unwrap();
        journal.forget().unwrap();
        journal.durable(&[stretch(2)]).unwrap();
        drop(journal);
        let (noted, runs) = look(&plan).unwrap().unwrap();
        assert!(!runs && noted.failed.is_none());
        assert_eq!(noted.held.iter().collect::<Vec<_>>(), [stretch(2).range.range]);
        assert_eq!((noted.recent, noted.data), (STRETCH, STRETCH));
    }

    #[test]
    fn what_is_no_journal_of_this_shard_is_refused_and_left_alone() {
        let scratch = trial::Scratch::new(std::env::temp_dir());
        let plan = plan(&scratch);
        let path = path(&plan);
        drop(ShardJournal::open(&plan, NUMBER).unwrap());
        let head = std::fs::read_to_string(&path).unwrap();
        let with = |line: &str| format!("{head}{line}\n");
        for text in [
            "x".to_owned(),
            "{}\n".to_owned(),
            "{\"shard\":2}\n".to_owned(),
            head.replace(&plan.id, "0"),
            head.replace("\"start\":0", "\"start\":4194304"),
            with("{\"start\":1,\"length\":4194304}"),
            with("{\"start\":0,\"length\":0}"),
            with("{\"start\":0,\"length\":18446744073709551615}"),
            with("{\"start\":4194304,\"length\":18446744073709551615}"),
            with("{\"start\":0,\"length\":8388608,\"digest\":\"00\"}"),
            with("{\"start\":0,\"length\":4194304,\"digest\":\"zz\"}"),
        ] {
            std::fs::write(&path, &text).unwrap();
            assert!(ShardJournal::open(&plan, NUMBER).is_err(), "{text:?}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
