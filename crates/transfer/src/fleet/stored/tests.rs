//! The state in a store: leases, and what several runs note of a shard.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::super::caps::ReaderLease;
use super::super::journal::ShardJournal;
use super::super::look::FleetLook;
use super::super::place::{FleetState, OpenRecords};
use super::super::status::status;
use super::lease::{HOLDS, HeldLease};
use super::memory::{MemoryStore, Trouble};
use super::*;
use disk::FoundRecord;
use runtime::{Condvar, Mutex};

use crate::digest::{DigestAlgorithm, DigestedRange, digest_of};
use crate::witness::DurableStretch;

const NUMBER: ShardNumber = ShardNumber { disk: 0, shard: 0 };
const STRETCH: u64 = 4 << 20;
const COUNT: u64 = 256;

fn plan(store: &MemoryStore) -> FleetPlan {
    let plan = super::super::plan::tests::plan(&[1 << 30, 7]);
    FleetPlan { state: FleetState::Store(store.state()), ..plan }
}

/// A stretch that holds what `salt` says.
fn stretch(n: u64, salt: u64) -> DurableStretch {
    let digest =
        digest_of(DigestAlgorithm::Sha256, &[n.to_le_bytes(), salt.to_le_bytes()].concat());
    let range = DigestedRange { range: n * STRETCH..(n + 1) * STRETCH, digest: Some(digest) };
    DurableStretch { range, blocks: Vec::new() }
}

fn stretches(range: Range<u64>) -> Vec<DurableStretch> {
    range.map(|n| stretch(n, 0)).collect()
}

fn open(plan: &FleetPlan) -> Option<ShardJournal> {
    ShardJournal::open(plan, NUMBER).unwrap()
}

fn noted(plan: &FleetPlan) -> Noted {
    FleetLook::new(plan).unwrap().shard(NUMBER).unwrap().map(|found| found.0).unwrap_or_default()
}

/// A process that is killed: nothing of it is given back, or written.
fn kill<T>(of_process: T) {
    std::mem::forget(of_process);
}

/// Names of the parts of journals.
fn parts(store: &MemoryStore) -> Vec<String> {
    store.names().into_iter().filter(|name| name.ends_with(".journal")).collect()
}

#[test]
fn one_has_a_lease_until_it_runs_out_by_the_clock_of_the_store() {
    let store = MemoryStore::default();
    let (open, now) = (store.open(), Instant::now());
    let first = HeldLease::take(&open, "a.lease").unwrap().unwrap();
    for _ in 0..5 {
        store.pass(35);
        // It is kept.
        assert!(first.step(now).is_some());
        store.pass(35);
        assert!(HeldLease::take(&open, "a.lease").unwrap().is_none());
    }
    let before = store.bytes("a.lease");
    store.pass(1);
    let second = HeldLease::take(&open, "a.lease").unwrap().unwrap();
    assert!(store.bytes("a.lease") != before && second.check(now).is_ok());
    // Who was stopped meanwhile sees it, and is stopped.
    let told = Arc::new(AtomicUsize::new(0));
    let count = |told: &Arc<AtomicUsize>| {
        let told = told.clone();
        move || {
            told.fetch_add(1, SeqCst);
        }
    };
    first.when_lost(count(&told));
    assert!(first.check(now).is_ok() && first.step(now).is_none());
    assert_eq!(told.load(SeqCst), 1);
    first.when_lost(count(&told));
    assert_eq!(told.load(SeqCst), 2, "at once");
    let e = first.check(now).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Disconnected);
    assert!(second.step(now).is_some());
}

#[test]
fn a_lease_that_cannot_be_kept_is_lost_before_others_may_take_it() {
    let store = MemoryStore::default();
    let held = HeldLease::take(&store.open(), "a.lease").unwrap().unwrap();
    let now = Instant::now();
    store.trouble(Trouble::Failed);
    assert_eq!(held.step(now), Some(now + Duration::from_secs(1)));
    // A try that may not end in time is not begun.
    let late = now + HOLDS - Duration::from_secs(5);
    let due = held.step(late).unwrap();
    assert!(due > late && due <= now + HOLDS && held.check(late).is_ok());
    assert!(held.check(due).is_err() && held.step(due).is_none());
    assert!(held.check(now).is_err(), "lost for good");
}

#[test]
fn a_lease_whose_answer_was_lost_is_held_from_the_first_try_on() {
    let store = MemoryStore::default();
    let held = HeldLease::take(&store.open(), "a.lease").unwrap().unwrap();
    let first = Instant::now();
    store.trouble(Trouble::Lost);
    assert!(held.step(first).is_some());
    store.trouble(Trouble::None);
    let writes = store.writes();
    assert!(held.step(first + Duration::from_secs(12)).is_some());
    assert_eq!(store.writes(), writes, "it had been done");
    assert!(held.check(first + HOLDS - Duration::from_secs(1)).is_ok());
    assert!(held.check(first + HOLDS).is_err());
}

#[test]
fn a_lease_is_free_when_it_is_given_back_and_only_if_it_is_ours() {
    let store = MemoryStore::default();
    let lease = Lease::take(&store.open(), "a.lease").unwrap().unwrap();
    assert!(Lease::take(&store.open(), "a.lease").unwrap().is_none());
    drop(lease);
    assert!(store.bytes("a.lease").is_empty());
    let lease = Lease::take(&store.open(), "a.lease").unwrap().unwrap();
    store.pass(36);
    let other = Lease::take(&store.open(), "a.lease").unwrap().unwrap();
    let theirs = store.bytes("a.lease");
    // What does not hold it any more takes nothing from who does.
    drop(lease);
    assert!(store.bytes("a.lease") == theirs && other.check().is_ok());
    store.put("b.lease", b"of somebody else");
    let e = Lease::take(&store.open(), "b.lease").unwrap_err();
    assert!(e.to_string().contains("something else"), "{e}");
    assert_eq!(store.bytes("b.lease"), b"of somebody else");
}

#[test]
fn as_many_read_as_may() {
    let store = MemoryStore::default();
    let mut plan = plan(&store);
    plan.limits.readers = Some(2);
    let lease = || ReaderLease::of(&plan, 0).unwrap();
    let (first, second) = (lease(), lease());
    assert!(first.is_some() && second.is_some() && lease().is_none());
    drop(first);
    let third = lease();
    assert!(third.is_some() && lease().is_none());
    kill((second, third));
    assert!(lease().is_none());
    store.pass(36);
    assert!(lease().is_some());
}

#[test]
fn what_is_not_written_when_a_process_is_killed_is_done_again_and_little_is_written() {
    let store = MemoryStore::default();
    let plan = plan(&store);
    let journal = open(&plan).unwrap();
    let before = store.writes();
    for n in 0..100 {
        journal.durable(&stretches(n..n + 1)).unwrap();
    }
    // The first at once, the others later.
    assert!(store.writes() - before < 5, "{}", store.writes());
    assert!(open(&plan).is_none(), "it runs");
    kill(journal);
    store.pass(36);
    let again = open(&plan).unwrap();
    let held = again.noted.held.len();
    assert!((STRETCH..100 * STRETCH).contains(&held) && !again.noted.done);
    again.durable(&stretches(held / STRETCH..COUNT)).unwrap();
    again.done().unwrap();
    drop(again);
    let all = noted(&plan);
    assert!(all.done && all.digests.len() as u64 == COUNT && all.data == COUNT * STRETCH);
    // Each run has records of its own.
    assert_eq!(parts(&store).len(), 2);
    assert!(
        FleetLook::new(&plan).unwrap().shard(ShardNumber { disk: 1, shard: 0 }).unwrap().is_none()
    );
}

#[test]
fn a_long_journal_is_in_parts_of_bounded_length() {
    let store = MemoryStore::default();
    let plan = plan(&store);
    let journal = open(&plan).unwrap();
    let before = store.writes();
    for _ in 0..20 {
        journal.durable(&stretches(0..COUNT)).unwrap();
    }
    journal.done().unwrap();
    drop(journal);
    let parts = parts(&store);
    assert!(parts.len() > 3 && store.writes() - before < 3 * parts.len() as u64, "{parts:?}");
    assert!(parts.iter().all(|name| store.bytes(name).len() <= super::journal::PART));
    assert!(noted(&plan).done);
}

#[test]
fn two_runs_of_a_shard_at_the_same_time_are_harmless() {
    let store = MemoryStore::default();
    let plan = plan(&store);
    let first = open(&plan).unwrap();
    first.durable(&stretches(0..10)).unwrap();
    // It is stopped for a while, and another one begins.
    store.pass(36);
    let second = open(&plan).unwrap();
    assert_eq!(second.noted.held.len(), 10 * STRETCH);
    second.durable(&stretches(10..COUNT)).unwrap();
    // It does not know yet, and has copied the same.
    first.durable(&stretches(5..COUNT)).unwrap();
    first.done().unwrap();
    let look = noted(&plan);
    assert!(look.done && look.digests.len() as u64 == COUNT && look.data == COUNT * STRETCH);
    second.done().unwrap();
    drop((first, second));
    assert!(open(&plan).unwrap().noted.done);
    assert_eq!(parts(&store).len(), 2);
}

#[test]
fn where_runs_read_different_bytes_nothing_counts_and_all_is_copied_again() {
    let store = MemoryStore::default();
    let plan = plan(&store);
    for salt in [0, 1] {
        let journal = open(&plan).unwrap();
        if salt == 0 {
            journal.durable(&stretches(0..COUNT - 1)).unwrap();
        } else {
            journal.durable(&[stretch(7, 1), stretch(COUNT - 1, 1)]).unwrap();
        }
        journal.done().unwrap();
    }
    let look = noted(&plan);
    assert!(!look.done && look.held.is_empty() && look.digests.is_empty());
    let third = open(&plan).unwrap();
    assert!(third.noted.held.is_empty());
    third.durable(&stretches(0..COUNT)).unwrap();
    third.done().unwrap();
    assert!(noted(&plan).done);
}

#[test]
fn what_was_read_of_a_source_that_changed_is_forgotten_and_the_failure_is_told_until_it_goes_on() {
    let store = MemoryStore::default();
    let plan = plan(&store);
    let first = open(&plan).unwrap();
    first.durable(&stretches(0..10)).unwrap();
    drop(first);
    let second = open(&plan).unwrap();
    second.durable(&stretches(10..20)).unwrap();
    second.forget().unwrap();
    second.failed("the source has changed").unwrap();
    drop(second);
    for _ in 0..3 {
        open(&plan).unwrap().failed(&"it is not there: <Code>x</Code>".repeat(100)).unwrap();
    }
    let look = noted(&plan);
    assert!(look.held.is_empty() && look.failed.unwrap().starts_with("it is not there"));
    // Runs that have noted nothing leave nothing.
    assert_eq!(parts(&store).len(), 2);
    let last = open(&plan).unwrap();
    assert!(last.noted.held.is_empty());
    last.durable(&stretches(0..COUNT)).unwrap();
    assert!(noted(&plan).failed.is_none());
    last.done().unwrap();
    assert!(noted(&plan).done);
}

/// A store that reads a journal only when several were asked for at a time, or after a minute.
#[derive(Debug)]
struct Together {
    store: MemoryStore,
    /// Reads in flight, and the most there were.
    reads: Mutex<(usize, usize)>,
    begun: Condvar,
}

impl Records for Together {
    fn shown(&self, name: &str) -> String {
        self.store.shown(name)
    }

    fn read(&self, name: &str) -> Result<Option<FoundRecord>> {
        if !name.ends_with(".journal") {
            return self.store.read(name);
        }
        let mut reads = self.reads.lock();
        reads.0 += 1;
        reads.1 = reads.1.max(reads.0);
        self.begun.notify_all();
        let alone = |reads: &mut (usize, usize)| reads.1 < 4;
        let (mut reads, _) = self.begun.wait_timeout_while(reads, Duration::from_secs(60), alone);
        reads.0 -= 1;
        drop(reads);
        self.store.read(name)
    }

    fn list(&self, prefix: &str, most: usize) -> Result<Vec<ListedRecord>> {
        self.store.list(prefix, most)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<Option<RecordTag>> {
        self.store.create(name, bytes)
    }

    fn replace(&self, name: &str, bytes: &[u8], tag: &RecordTag) -> Result<Option<RecordTag>> {
        self.store.replace(name, bytes, tag)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.store.remove(name)
    }
}

#[test]
fn journals_are_read_several_at_a_time_and_counted_in_order() {
    let store = MemoryStore::default();
    let state = FleetState::Store(store.state());
    let plan = super::super::plan::tests::plan(&[1 << 30; 20]);
    let mut plan = FleetPlan { state, ..plan };
    // Each has noted as many stretches as its number, and one of them is finished.
    for disk in 1..20_u64 {
        let number = ShardNumber { disk: usize::try_from(disk).unwrap(), shard: 0 };
        let journal = ShardJournal::open(&plan, number).unwrap().unwrap();
        journal.durable(&stretches(0..disk)).unwrap();
    }
    let digest = digest_of(DigestAlgorithm::Sha256, b"all of it");
    let text = json!({"plan": plan.id, "digest": digest.to_string()}).to_string();
    store.state().record_finished(7, &text).unwrap();
    let together = Arc::new(Together { store, reads: Mutex::default(), begun: Condvar::default() });
    let state = StoredState::new("s3://b/p");
    let records: Arc<dyn Records> = together.clone();
    *state.opened.lock() = Some(OpenRecords { patient: records.clone(), hasty: records });
    plan.state = FleetState::Store(state);
    let status = status(&plan).unwrap();
    for (n, disk) in status.disks.iter().enumerate() {
        let copied = if n == 7 { 1 << 30 } else { n as u64 * STRETCH };
        assert!(disk.copied == copied && disk.finished == (n == 7), "{n}: {disk:?}");
    }
    let most = together.reads.lock().1;
    assert!((4..=8).contains(&most), "{most}");
}

#[test]
fn a_record_that_is_cut_off_counts_as_far_as_it_is_whole() {
    let store = MemoryStore::default();
    let plan = plan(&store);
    let journal = open(&plan).unwrap();
    journal.durable(&stretches(0..3)).unwrap();
    drop(journal);
    let name = parts(&store).remove(0);
    let whole = store.bytes(&name);
    let ends: Vec<_> = (1..=whole.len()).filter(|end| whole[end - 1] == b'\n').collect();
    for len in 0..=whole.len() {
        store.put(&name, &whole[..len]);
        let held = noted(&plan).held.len() / STRETCH;
        let count = ends.iter().filter(|end| **end <= len).count().max(1) - 1;
        assert_eq!(held, count as u64, "{len}");
    }
}

#[test]
fn what_is_of_another_plan_shard_or_run_is_refused_and_left_alone() {
    let store = MemoryStore::default();
    let plan = plan(&store);
    let journal = open(&plan).unwrap();
    journal.durable(&stretches(0..3)).unwrap();
    drop(journal);
    let name = parts(&store).remove(0);
    let whole = String::from_utf8(store.bytes(&name)).unwrap();
    let run = name.split('.').nth(2).unwrap();
    for other in [
        "x".to_owned(),
        whole.replace(&plan.id, "0"),
        whole.replace("\"disk\":0", "\"disk\":1"),
        whole.replace("\"number\":0", "\"number\":1"),
        whole.replace(run, "0"),
        whole.replace("\"length\":4194304", "\"length\":4194303"),
    ] {
        assert!(other != whole);
        store.put(&name, other.as_bytes());
        assert!(ShardJournal::open(&plan, NUMBER).is_err(), "{other}");
        assert!(FleetLook::new(&plan).unwrap().shard(NUMBER).is_err(), "{other}");
        assert_eq!(store.bytes(&name), other.as_bytes());
    }
    // What has no name of ours is none.
    store.put(&name, whole.as_bytes());
    for other in
        ["0.0.journal", "0.0.a.b.journal", "0.0.a.1.journal.old", "README", "0.00.x.0.journal"]
    {
        store.put(other, b"of somebody else");
    }
    assert_eq!(noted(&plan).held.len(), 3 * STRETCH);
}

#[test]
fn a_run_whose_records_are_removed_ends_and_a_lost_answer_to_it_is_no_loss() {
    let store = MemoryStore::default();
    let plan = plan(&store);
    let journal = open(&plan).unwrap();
    journal.durable(&stretches(0..3)).unwrap();
    store.trouble(Trouble::Lost);
    assert!(journal.forget().is_err());
    store.trouble(Trouble::None);
    journal.done().unwrap();
    let text = store.bytes(&parts(&store)[0]);
    assert!(text.ends_with(b"}\n") && text.windows(8).any(|word| word == b"{\"done\":"));
    let FleetState::Store(stored) = &plan.state else { panic!("a store") };
    stored.record_finished(0, "{}").unwrap();
    stored.record_finished(0, "{}").unwrap();
    assert!(stored.record_finished(0, "{1}").is_err());
    stored.clean(0).unwrap();
    assert_eq!(store.names(), ["0.finished"]);
    let e = journal.done().unwrap_err();
    assert!(e.kind() == ErrorKind::Disconnected && e.to_string().contains("is gone"), "{e}");
    assert_eq!(parts(&store), Vec::<String>::new());
}

#[test]
fn a_place_is_taken_by_one_plan_and_only_if_the_store_heeds_conditions() {
    let store = MemoryStore::default();
    let state = store.state();
    let lease = state.begin().unwrap();
    assert!(state.begin().unwrap_err().to_string().contains("try again in a minute"));
    drop(lease);
    drop(state.begin().unwrap());
    assert_eq!(store.names(), ["plan.lease"]);
    store.put("3.0.a.0.journal", b"");
    assert!(state.begin().unwrap_err().to_string().contains("state of another plan"));
    let store = MemoryStore::default();
    store.trouble(Trouble::Unconditional);
    let e = store.state().begin().unwrap_err().to_string();
    assert!(e.contains("If-None-Match"), "{e}");
    assert!(store.names().is_empty());
}
