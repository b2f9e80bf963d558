//! A bounded pool of threads for work that may wait for a disk.
//!
//! Threads are made when work waits and no thread is idle, up to the limit, and leave after a few
//! idle seconds. No client or disk can fill the pool: work is taken from the disks in turn and, for
//! one disk, from the clients in turn; half of the threads at most work for one disk, and a disk
//! for which none works gets one even when the limit is reached. The work of one client for one
//! disk is taken in the order given. A panic ends only the work that panicked. Dropping the pool
//! lets queued work finish.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::behalf::{Behalf, client};
use crate::contained::contained;
use crate::deferred::{Jobs, PoolJob, QuickJob, Quickness, defer};
use crate::sync::{Condvar, Mutex, MutexGuard, spawn_thread};
use crate::task::move_to;
use crate::thread::having_time;

const IDLE: Duration = Duration::from_secs(5);
/// Threads beyond the limit, for disks that have none.
const EXTRA: usize = 64;

/// The pool, as one disk sees it. Cheap to clone; all clones share the threads.
#[derive(Clone)]
pub struct WorkPool {
    shared: Arc<Shared>,
    disk: u64,
    /// How many threads may work for this disk.
    share: usize,
    /// No more of them than the machine has processors.
    computes: bool,
    /// If its work is nearly always quick.
    quickness: Option<Arc<Quickness>>,
}

struct Shared {
    limit: usize,
    state: Mutex<State>,
    wake: Condvar,
    disks: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Disks that have work queued or running.
    disks: HashMap<u64, Disk>,
    /// Those with work that may be taken, in turn.
    ready: VecDeque<u64>,
    threads: usize,
    /// Threads that work; those that neither work nor are idle are about to look for work.
    working: usize,
    idle: usize,
    /// Idle threads that were woken and have not looked for work yet.
    told: usize,
}

#[derive(Default)]
struct Disk {
    clients: HashMap<u64, VecDeque<PoolJob>>,
    /// Clients that have work queued, in turn.
    turns: VecDeque<u64>,
    running: usize,
    share: usize,
    /// It is in [`State::ready`].
    ready: bool,
}

/// Work that was taken: its disk, its client, and the job.
struct Taken {
    disk: u64,
    client: u64,
    job: PoolJob,
}

impl WorkPool {
    /// A pool of at most `limit` (≥ 1) threads, half of them at most for one disk.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self::with_share(limit.max(1), limit.div_ceil(2).max(1))
    }

    /// A pool of at most `limit` (≥ 1) threads, all of which may work for one disk: for a program
    /// that keeps no other disk waiting.
    #[must_use]
    pub fn undivided(limit: usize) -> Self {
        Self::with_share(limit.max(1), limit.max(1))
    }

    fn with_share(limit: usize, share: usize) -> Self {
        let shared = Shared {
            limit,
            state: Mutex::default(),
            wake: Condvar::new(),
            disks: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared), disk: 0, share, computes: false, quickness: None }
    }

    /// The same threads, for the work of one more disk.
    #[must_use]
    pub fn for_disk(&self) -> Self {
        let disk = self.shared.disks.fetch_add(1, Ordering::Relaxed) + 1;
        Self { shared: self.shared.clone(), disk, quickness: None, ..*self }
    }

    /// The same, but for at most `most` (≥ 1) of them at a time.
    #[must_use]
    pub fn at_most(&self, most: usize) -> Self {
        Self { share: self.share.min(most.max(1)), ..self.for_disk() }
    }

    /// The same threads, for computations that wait for nothing: more of them than the machine has
    /// processors would only be in each other's way.
    #[must_use]
    pub fn for_computing(&self) -> Self {
        Self { computes: true, ..self.for_disk() }
    }

    /// How many threads may work for this disk. The processors are counted when there is work: to
    /// ask for them reads the files of the control groups, longer than a short program may take.
    fn threads(&self) -> usize {
        static PROCESSORS: OnceLock<usize> = OnceLock::new();
        let known = || std::thread::available_parallelism().map_or(1, usize::from);
        if self.computes { self.share.min(*PROCESSORS.get_or_init(known)) } else { self.share }
    }

    /// The same threads, for work that is nearly always quick, which a thread that defers such work
    /// ([`deferring`](crate::deferring)) may do itself.
    #[must_use]
    pub fn for_quick_work(&self) -> Self {
        Self { quickness: Some(Arc::default()), ..self.clone() }
    }

    /// For a task: continues on a thread of the pool.
    pub async fn enter(&self) {
        move_to(self).await;
    }

    /// How many jobs wait for a thread, of all disks together.
    #[must_use]
    pub fn queued(&self) -> usize {
        let state = self.shared.state.lock();
        state.disks.values().flat_map(|disk| disk.clients.values()).map(VecDeque::len).sum()
    }

    /// How many threads work.
    #[must_use]
    pub fn working(&self) -> usize {
        self.shared.state.lock().working
    }

    /// Runs `job` soon, on some thread of the pool, in the turns of the client for whom this step
    /// works. If no thread can be started at all, it runs here.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let (client, job) = (client(), Box::new(job));
        let Some(quickness) = self.quickness.clone() else { return self.run_for(client, job) };
        let work = QuickJob { pool: Box::new(self.clone()), quickness, client, job };
        if let Err(work) = defer(work) {
            work.hand_over();
        }
    }
}

impl Jobs for WorkPool {
    fn run_for(&self, client: u64, job: PoolJob) {
        let (shared, share) = (&self.shared, self.threads());
        let mut state = shared.state.lock();
        state.queue((self.disk, share), client, job);
        if state.ready.is_empty() {
            // Enough work for this disk already.
            return;
        }
        if state.idle > state.told {
            state.told += 1;
            drop(state);
            return shared.wake.notify_one();
        }
        if state.threads < shared.limit || state.is_stuck(shared.limit) {
            shared.clone().hire(state);
        }
    }
}

crate::debug_as!(WorkPool, |pool| "WorkPool(at most {} threads)", pool.shared.limit);

impl State {
    fn queue(&mut self, (number, share): (u64, usize), client: u64, job: PoolJob) {
        let disk = self.disks.entry(number).or_default();
        disk.share = share;
        let jobs = disk.clients.entry(client).or_default();
        if jobs.is_empty() {
            disk.turns.push_back(client);
        }
        jobs.push_back(job);
        if !disk.ready && disk.running < disk.share {
            disk.ready = true;
            self.ready.push_back(number);
        }
    }

    fn take(&mut self) -> Option<Taken> {
        let id = self.ready.pop_front()?;
        let disk = self.disks.get_mut(&id)?;
        disk.ready = false;
        let client = disk.turns.pop_front()?;
        let jobs = disk.clients.get_mut(&client)?;
        let job = jobs.pop_front()?;
        if jobs.is_empty() {
            disk.clients.remove(&client);
        } else {
            disk.turns.push_back(client);
        }
        disk.running += 1;
        debug_assert!(disk.running <= disk.share, "no disk has more threads than its share");
        self.working += 1;
        if !disk.turns.is_empty() && disk.running < disk.share {
            disk.ready = true;
            self.ready.push_back(id);
        }
        Some(Taken { disk: id, client, job })
    }

    /// Whether every thread is busy while no thread works for a disk that waits.
    fn is_stuck(&self, limit: usize) -> bool {
        self.working == self.threads && self.threads < limit + EXTRA && self.forsakes()
    }

    /// Whether no thread works for a disk that waits.
    fn forsakes(&self) -> bool {
        self.ready.iter().any(|id| self.disks.get(id).is_some_and(|disk| disk.running == 0))
    }

    /// Work for a disk has ended.
    fn ended(&mut self, id: u64) {
        debug_assert!(self.working > 0 && self.disks.contains_key(&id), "it was taken");
        self.working -= 1;
        let Some(disk) = self.disks.get_mut(&id) else { return };
        disk.running -= 1;
        if disk.turns.is_empty() {
            if disk.running == 0 {
                self.disks.remove(&id);
            }
        } else if !disk.ready && disk.running < disk.share {
            disk.ready = true;
            self.ready.push_back(id);
        }
    }
}

impl Taken {
    /// Runs it; returns the disk.
    fn run(self) -> u64 {
        // Destructors of what it held complete what it owed; the panic is counted.
        let _ = contained("work", || Behalf::of_client(self.client).run(self.job));
        self.disk
    }
}

impl Shared {
    /// One more thread.
    fn hire(self: Arc<Self>, mut state: MutexGuard<'_, State>) {
        state.threads += 1;
        drop(state);
        let worker = self.clone();
        let made = spawn_thread("work", move || having_time(|| worker.work()));
        if made.is_err() {
            self.without_a_thread();
        }
    }

    fn work(self: &Arc<Self>) {
        let mut state = self.state.lock();
        loop {
            while let Some(taken) = state.take() {
                if state.is_stuck(self.limit) {
                    self.clone().hire(state);
                } else {
                    drop(state);
                }
                let disk = taken.run();
                state = self.state.lock();
                state.ended(disk);
                if state.threads > self.limit && !state.forsakes() {
                    // It was made for disks without a thread, and they are served.
                    state.threads -= 1;
                    return;
                }
            }
            state.idle += 1;
            let (woken, waited) = self.wake.wait_timeout(state, IDLE);
            state = woken;
            state.idle -= 1;
            state.told = state.told.saturating_sub(1);
            if waited && state.ready.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }

    /// The system gave no thread: if there is none at all, nothing else would do the work.
    fn without_a_thread(&self) {
        let mut state = self.state.lock();
        state.threads -= 1;
        while state.threads == 0
            && let Some(taken) = state.take()
        {
            drop(state);
            let disk = taken.run();
            state = self.state.lock();
            state.ended(disk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn all_work_is_done_by_no_more_threads_than_allowed() {
        let pool = WorkPool::new(3);
        let (tx, rx) = mpsc::channel();
        for i in 0..200 {
            let tx = tx.clone();
            pool.run(move || tx.send((i, std::thread::current().id())).unwrap());
        }
        drop(tx);
        let all: Vec<_> = rx.into_iter().collect();
        assert_eq!(all.len(), 200);
        let threads: std::collections::HashSet<_> = all.iter().map(|(_, t)| *t).collect();
        assert!(threads.len() <= 3);
    }

    /// A job that runs until the sender is dropped.
    fn stuck() -> (mpsc::Sender<()>, impl FnOnce() + Send + 'static) {
        let (tx, rx) = mpsc::channel::<()>();
        (tx, move || assert!(rx.recv().is_err()))
    }

    #[test]
    fn a_disk_that_does_not_answer_keeps_at_most_half_of_the_threads() {
        let pool = WorkPool::new(4);
        let (dead, other) = (pool.for_disk(), pool.for_disk());
        let held: Vec<_> = (0..20).map(|_| stuck()).map(|(tx, job)| (tx, dead.run(job))).collect();
        let (tx, rx) = mpsc::channel();
        for i in 0..50 {
            let tx = tx.clone();
            other.run(move || tx.send(i).unwrap());
        }
        drop(tx);
        assert_eq!(rx.into_iter().count(), 50);
        drop(held);
    }

    #[test]
    fn a_disk_without_a_thread_gets_one_beyond_the_limit() {
        let pool = WorkPool::new(2);
        let held: Vec<_> = (0..6)
            .map(|_| {
                let (tx, job) = stuck();
                pool.for_disk().run(job);
                tx
            })
            .collect();
        let (tx, rx) = mpsc::channel();
        pool.for_disk().run(move || tx.send(7).unwrap());
        assert_eq!(rx.recv().unwrap(), 7);
        drop(held);
    }

    #[test]
    fn work_is_taken_from_clients_in_turn() {
        let pool = WorkPool::new(1).for_disk();
        let (gate, job) = stuck();
        pool.run(job);
        let (tx, rx) = mpsc::channel();
        for (client, count) in [(1, 5), (2, 2)] {
            Behalf::of_client(client).run(|| {
                for i in 0..count {
                    let tx = tx.clone();
                    pool.run(move || tx.send((client, i, Behalf::current().client())).unwrap());
                }
            });
        }
        drop((tx, gate));
        let all: Vec<_> = rx.into_iter().collect();
        let order: Vec<_> = all.iter().map(|(client, i, _)| (*client, *i)).collect();
        assert_eq!(order, [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (1, 3), (1, 4)]);
        assert!(all.iter().all(|(client, _, seen)| client == seen));
    }

    #[test]
    fn only_quick_work_is_deferred_and_each_disk_has_its_own() {
        let pool = WorkPool::new(1).for_disk();
        let quick = pool.for_quick_work();
        let (tell, told) = mpsc::channel();
        let ((), deferred) = crate::deferring(|| {
            for pool in [&pool, &quick, &quick.for_disk(), &quick.at_most(1)] {
                let tell = tell.clone();
                pool.run(move || tell.send(()).unwrap());
            }
        });
        assert_eq!(deferred.len(), 1);
        assert_eq!(told.iter().take(3).count(), 3);
        deferred.into_iter().for_each(|work| work.begin().unwrap().run());
        assert_eq!(told.try_recv(), Ok(()));
    }

    #[test]
    fn work_that_panics_takes_no_thread_with_it() {
        let pool = WorkPool::new(2);
        for _ in 0..10 {
            pool.run(|| panic!("on purpose"));
        }
        let (tx, rx) = mpsc::channel();
        pool.run(move || tx.send(1).unwrap());
        assert_eq!(rx.recv().unwrap(), 1);
    }
}
