//! Running shards of a plan: by one process or many, here or elsewhere, any number of times.
//!
//! A shard that is done is left alone; one that another process runs is waited for, a while. A
//! failure of one does not keep the others from being copied.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use copy::{Durably, Options, Watched};
use device::{Error, ErrorKind, Fault, Reach, Result};
use disk::{Opened, Stack};
use runtime::{Context, Mutex, RangeSet};

use super::caps::ReaderLease;
use super::journal::{ShardJournal, make};
use super::place::FleetState;
use super::plan::{FleetDisk, FleetPlan, FleetShard};
use super::share::ShardNumber;
use super::state::{journal_in, sync_directory};
use crate::changes::CopyChanges;
use crate::identity::{DiskIdentity, sample_of_part};
use crate::job::{CopyJob, JobError, JobFront, JobSource, ReadyJob};
use crate::witness::StretchWitness;

/// A flush comes after this part of a shard, in bytes within these bounds: what a kill loses is
/// that, and what is in flight.
const PART: u64 = 64;
const FLUSHES: std::ops::RangeInclusive<u64> = 4 << 20..=64 << 20;
/// Bytes in flight in each thread.
const QUEUE: u64 = 4 << 20;
/// Connections of a shard to each of its ends: shards are what there are many of.
const CONNECTIONS: usize = 2;

/// Shards of a plan that are to be run.
#[derive(Debug)]
pub struct FleetRun<'a> {
    plan: &'a FleetPlan,
    numbers: Vec<ShardNumber>,
    /// The number of the source host of each disk.
    hosts: Vec<usize>,
}

/// What became of a shard.
#[derive(Debug)]
pub enum ShardOutcome {
    /// It was copied, so many bytes of it, and is durable.
    Copied(u64),
    /// It was done before.
    Was,
    /// Another process runs it.
    Busy,
    /// It failed.
    Failed(JobError),
}

/// A shard that was run.
#[derive(Debug)]
pub struct ShardReport {
    /// Which.
    pub number: ShardNumber,
    /// What became of it.
    pub outcome: ShardOutcome,
}

impl<'a> FleetRun<'a> {
    /// These of a plan.
    #[must_use]
    pub fn new(plan: &'a FleetPlan, numbers: Vec<ShardNumber>) -> Self {
        let known = plan.hosts();
        let host = |disk: &FleetDisk| known.binary_search(&&*disk.host).unwrap_or(0);
        Self { plan, numbers, hosts: plan.disks.iter().map(host).collect() }
    }

    /// Makes their journals, empty where there are none: later, in a sandbox, files are not made.
    /// It starts no thread, and does nothing where the state is in a store.
    ///
    /// # Errors
    /// One cannot be made.
    pub fn make_journals(&self) -> Result<()> {
        let FleetState::Directory(state) = &self.plan.state else { return Ok(()) };
        for number in &self.numbers {
            // What is finished needs none.
            if !self.plan.is_finished(number.disk)? {
                make(&journal_in(state, *number))?;
            }
        }
        sync_directory(state)
    }

    /// What they need of the system.
    #[must_use]
    pub fn reach(&self) -> Reach {
        let mut disks: Vec<usize> = self.numbers.iter().map(|number| number.disk).collect();
        disks.sort_unstable();
        disks.dedup();
        let reach = self.plan.state.reach();
        let of = |disk: usize| Some(job(self.plan, self.plan.disks.get(disk)?).ok()?.reach());
        disks.into_iter().filter_map(of).fold(reach, Reach::and)
    }

    fn disk(&self, number: ShardNumber) -> Option<&'a FleetDisk> {
        self.plan.disks.get(number.disk)
    }

    /// Runs them, so many at a time. `context` makes a context for each, and `tell` is called with
    /// what became of it, in the thread that ran it.
    pub fn run(
        &self,
        workers: usize,
        context: &(dyn Fn() -> Context + Sync),
        tell: &(dyn Fn(&ShardReport) + Sync),
    ) -> Vec<ShardReport> {
        let queue = Mutex::new(self.numbers.iter().copied().collect::<VecDeque<_>>());
        let (reports, last) = (Mutex::new(Vec::new()), Mutex::new(Instant::now()));
        std::thread::scope(|scope| {
            for _ in 0..workers.max(1) {
                scope.spawn(|| {
                    let report = |report: ShardReport| {
                        tell(&report);
                        *last.lock() = Instant::now();
                        reports.lock().push(report);
                    };
                    self.work((&queue, &last), context, &report);
                });
            }
        });
        std::mem::take(&mut *reports.lock())
    }

    /// Takes shards from the queue until it is empty.
    fn work(
        &self,
        (queue, last): (&Mutex<VecDeque<ShardNumber>>, &Mutex<Instant>),
        context: &(dyn Fn() -> Context + Sync),
        report: &dyn Fn(ShardReport),
    ) {
        // Those that were seen in vain, one after the other.
        let mut vain = 0;
        let (look, wait) = self.plan.state.pauses();
        loop {
            let (number, count) = {
                let mut queue = queue.lock();
                let Some(number) = queue.pop_front() else { return };
                (number, queue.len())
            };
            let outcome = match self.try_one(number, context) {
                Attempt::Ended(outcome) => outcome,
                Attempt::Waits => {
                    // Readers before it end some time; it waits as long as they read.
                    *last.lock() = Instant::now();
                    queue.lock().push_back(number);
                    vain = pause(vain, count, look);
                    continue;
                }
                Attempt::Busy if last.lock().elapsed() < wait => {
                    queue.lock().push_back(number);
                    vain = pause(vain, count, look);
                    continue;
                }
                Attempt::Busy => ShardOutcome::Busy,
            };
            vain = 0;
            report(ShardReport { number, outcome });
        }
    }

    fn try_one(&self, number: ShardNumber, context: &(dyn Fn() -> Context + Sync)) -> Attempt {
        let attempt = || {
            let Some(disk) = self.disk(number) else {
                return Ok(Attempt::Ended(ShardOutcome::Was));
            };
            if self.plan.is_finished(number.disk)? {
                return Ok(Attempt::Ended(ShardOutcome::Was));
            }
            if let FleetState::Store(stored) = &self.plan.state
                && stored.settled(self.plan, number)?.is_some_and(|noted| noted.done)
            {
                // Leases are requests, which this needs none of.
                return Ok(Attempt::Ended(ShardOutcome::Was));
            }
            let host = self.hosts.get(number.disk).copied().unwrap_or(0);
            let Some(lease) = ReaderLease::of(self.plan, host)? else { return Ok(Attempt::Waits) };
            let Some(journal) = ShardJournal::open(self.plan, number)? else {
                return Ok(Attempt::Busy);
            };
            // Once more: who finished it meanwhile has removed its journals.
            if journal.noted.done || self.plan.is_finished(number.disk)? {
                return Ok(Attempt::Ended(ShardOutcome::Was));
            }
            let shard = disk.shards.get(number.shard).cloned();
            let Some(shard) = shard else { return Ok(Attempt::Ended(ShardOutcome::Was)) };
            let context = context();
            let stop = || {
                let control = context.control.clone();
                move || control.stop()
            };
            lease.when_lost(stop());
            journal.when_lost(stop());
            let copied = copy_shard(self.plan, (disk, &shard), (journal, &lease), &context);
            context.control.end();
            copied.map(|bytes| Attempt::Ended(ShardOutcome::Copied(bytes)))
        };
        attempt().unwrap_or_else(|e: JobError| Attempt::Ended(ShardOutcome::Failed(e)))
    }
}

enum Attempt {
    Ended(ShardOutcome),
    /// Another process runs it.
    Busy,
    /// As many read its source as may.
    Waits,
}

/// Waits once all in the queue were seen in vain. Returns how many were.
fn pause(vain: usize, count: usize, look: Duration) -> usize {
    if vain < count {
        return vain + 1;
    }
    std::thread::sleep(look);
    0
}

/// The copy of a disk, without what is to be copied of it.
fn job(plan: &FleetPlan, disk: &FleetDisk) -> Result<CopyJob> {
    let (source, mut stack) = disk.wanted.source()?;
    if let Some(rate) = plan.limits.rate_of_reader() {
        let filter = format!("rate?rate={}", rate.saturating_mul(8));
        stack = Stack::parse([&*filter])?.over_stack(stack);
    }
    let job = CopyJob::new(vec![JobSource { disk: source, stack }], disk.wanted.target()?);
    Ok(CopyJob {
        shares_target: !disk.wanted.has_one_writer()?,
        changes: Some(CopyChanges::Ranges(Arc::default())),
        connections: CONNECTIONS,
        ..job
    })
}

/// Copies what its journal leaves of a shard. Returns how many bytes were copied as data.
fn copy_shard(
    plan: &FleetPlan,
    (disk, shard): (&FleetDisk, &FleetShard),
    (journal, lease): (ShardJournal, &ReaderLease),
    context: &Context,
) -> std::result::Result<u64, JobError> {
    let held = journal.noted.held.clone();
    let left: RangeSet = held.gaps(shard.range.clone()).collect();
    let journal = Arc::new(journal);
    let parts = (disk.stretch, shard.range.clone());
    let witness = Arc::new(StretchWitness::new(plan.digest, parts, held)?);
    let (noting, seeing) = (journal.clone(), witness.clone());
    let every = (shard.data / PART).clamp(*FLUSHES.start(), *FLUSHES.end());
    let durably = Durably::new(every, move |ranges| noting.durable(&seeing.durable(ranges)?));
    let options = Options {
        durably: Some(durably),
        witness: Some(Watched(witness.clone())),
        queue_size: Some(QUEUE),
        ..Options::default()
    };
    let changes = Some(CopyChanges::Ranges(Arc::new(left)));
    let job = CopyJob { changes, options, ..job(plan, disk)? };
    let front = Recognising { disk, shard, begun: AtomicBool::new(false) };
    let copied = copy(job, &front, context).map_err(|e| match journal.check().and(lease.check()) {
        // It was stopped for that.
        Err(lost) if e.error.kind() == ErrorKind::Cancelled => lost.into(),
        _ => e,
    });
    let copied = copied.and_then(|copied| {
        journal.durable(&witness.rest()?)?;
        if !witness.is_whole() {
            let action = "copy a shard: some of it was not copied; this is a defect";
            return Err(Error::new(ErrorKind::Io, Fault::Us, action).into());
        }
        journal.done()?;
        Ok(copied)
    });
    if let Err(e) = &copied {
        // What was read of a source that came back as another one is not to be relied on.
        if e.error.kind() == ErrorKind::Changed && front.begun.load(Ordering::SeqCst) {
            journal.forget()?;
        }
        // The cause is what is to be told, also where this cannot be noted: the disk is full, say.
        let _ = journal.failed(&e.to_string());
    }
    copied
}

fn copy(
    job: CopyJob,
    front: &Recognising<'_>,
    context: &Context,
) -> std::result::Result<u64, JobError> {
    let planned = job.prepare()?.open_source(context, front)?.plan(front)?;
    let ReadyJob::Copy(planned) = planned else { return Ok(0) };
    front.begun.store(true, Ordering::SeqCst);
    let settled = planned.start(())?.wait()?;
    Ok(settled.publish()?.report.copied)
}

/// Refuses another source than that of the plan.
struct Recognising<'a> {
    disk: &'a FleetDisk,
    shard: &'a FleetShard,
    /// Whether the copy has begun.
    begun: AtomicBool,
}

impl JobFront for Recognising<'_> {
    fn opened(&self, _: usize, opened: &Opened) -> Result<()> {
        let (source, _) = self.disk.wanted.source()?;
        let version = opened.container.info().version.clone();
        let size = opened.edge.info().size;
        let found = DiskIdentity::anywhere(&source, size, version.as_deref());
        let differs = found.differs(&self.disk.identity);
        let differs = match differs {
            None if size == self.disk.size => {
                let is_same =
                    sample_of_part(&opened.edge, self.shard.range.clone())? == self.shard.sample;
                (!is_same).then(|| "its content has changed".to_owned())
            }
            None => Some("its size has changed".to_owned()),
            found => found,
        };
        let Some(differs) = differs else { return Ok(()) };
        let action = format!(
            "run the shard: the source is not the one that was planned: {differs}; nothing was changed: make the plan \
             anew"
        );
        Err(Error::new(ErrorKind::Changed, Fault::User, action).on(source))
    }
}
