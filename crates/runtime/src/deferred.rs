//! Work that is nearly always quick, and may take long all the same: a write into the page cache
//! takes microseconds, and handing it to another thread as long again; but it may wait for a frozen
//! file system, for the disk where too much is dirty, for the file's lock.
//!
//! A thread that another stands in for when it stalls (a reactor, see [`Cover`](crate::Cover)) may
//! do such work itself: it finds what its pools would have been given when it is through with a
//! turn. One such work of a disk runs at a time, so that a disk that does not answer keeps one
//! thread; and after one that took long the pool has the next ones, for a time that doubles.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::behalf::Behalf;
use crate::contained::contained;
#[cfg(shuttle)]
use crate::sync::RefCellKey;
use crate::sync::{thread_local, with_local};

/// Work that takes longer is slow.
const SLOW: Duration = Duration::from_millis(1);
/// How long the pool has all work after slow work, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));

thread_local! {
    static DEFERRED: RefCell<Option<Vec<QuickJob>>> = const { RefCell::new(None) };
}

/// Work for a pool.
pub(crate) type PoolJob = Box<dyn FnOnce() + Send>;

/// The pool that has what is not done here.
pub(crate) trait Jobs: Send {
    /// Runs `job` soon, on a thread of its own, in the turns of `client`.
    fn run_for(&self, client: u64, job: PoolJob);
}

/// Work that a pool would have been given, for the thread itself.
pub struct QuickJob {
    pub(crate) pool: Box<dyn Jobs>,
    pub(crate) quickness: Arc<Quickness>,
    pub(crate) client: u64,
    pub(crate) job: PoolJob,
}

crate::debug_as!(QuickJob, |it| "QuickJob(of client {})", it.client);

/// Runs `work`, and returns the quick work that came up, which this thread may do afterwards.
pub fn deferring<R>(work: impl FnOnce() -> R) -> (R, Vec<QuickJob>) {
    let mut deferred = Vec::new();
    let done = with_local(&DEFERRED, Some(Vec::new()), || {
        let done = work();
        deferred = DEFERRED.take().unwrap_or_default();
        done
    });
    (done, deferred)
}

/// Leaves work to this thread, if it takes any; otherwise gives it back.
pub(crate) fn defer(work: QuickJob) -> Result<(), QuickJob> {
    DEFERRED.with_borrow_mut(|deferred| match deferred {
        Some(list) => {
            list.push(work);
            Ok(())
        }
        None => Err(work),
    })
}

impl QuickJob {
    /// Whether its disk is quick, as far as is known, and none of its work runs in this way.
    /// Otherwise it goes to the pool.
    #[must_use]
    pub fn begin(self) -> Option<BegunJob> {
        match Turn::of(&self.quickness) {
            Some(turn) => Some(BegunJob { work: self, turn }),
            None => {
                self.hand_over();
                None
            }
        }
    }

    /// Gives it to the pool.
    pub fn hand_over(self) {
        self.pool.run_for(self.client, self.job);
    }
}

/// QuickJob work that is about to run.
pub struct BegunJob {
    work: QuickJob,
    turn: Turn,
}

crate::debug_as!(BegunJob, |it| "BegunJob({:?})", it.work);

impl BegunJob {
    /// Runs it, which may take long. A panic ends only this work.
    pub fn run(self) {
        // Destructors of what it held complete what it owed; the panic is counted.
        let _ = contained("work", || Behalf::of_client(self.work.client).run(self.work.job));
        self.turn.end();
    }
}

/// Whether a disk is quick.
#[derive(Debug)]
pub(crate) struct Quickness {
    since: Instant,
    busy: AtomicBool,
    /// When deferred work may run again, and how long the last pause was, in microseconds.
    from: AtomicU64,
    pause: AtomicU64,
}

impl Default for Quickness {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            busy: AtomicBool::new(false),
            from: AtomicU64::new(0),
            pause: AtomicU64::new(0),
        }
    }
}

impl Quickness {
    fn learn(&self, took: Duration) {
        let last = self.pause.load(Ordering::Relaxed);
        if took <= SLOW {
            if last > 0 {
                self.pause.store(last / 2, Ordering::Relaxed);
            }
            return;
        }
        let pause = (2 * last).clamp(micros(PAUSE.0), micros(PAUSE.1));
        self.pause.store(pause, Ordering::Relaxed);
        self.from.store(micros(self.since.elapsed()).saturating_add(pause), Ordering::Relaxed);
    }
}

/// The one piece of a disk's work that is deferred and runs.
struct Turn {
    of: Arc<Quickness>,
    begun: Instant,
}

impl Turn {
    fn of(of: &Arc<Quickness>) -> Option<Self> {
        let begun = Instant::now();
        let now = micros(begun.saturating_duration_since(of.since));
        let may = now >= of.from.load(Ordering::Relaxed) && !of.busy.swap(true, Ordering::Acquire);
        may.then(|| Self { of: of.clone(), begun })
    }

    fn end(self) {
        self.of.learn(self.begun.elapsed());
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.of.busy.store(false, Ordering::Release);
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    /// A thread for each job.
    struct Threads;

    impl Jobs for Threads {
        fn run_for(&self, _: u64, job: PoolJob) {
            thread::spawn(job);
        }
    }

    #[test]
    fn only_a_thread_that_defers_has_quick_work_one_at_a_time_and_none_soon_after_slow_work() {
        let quickness = Arc::new(Quickness::default());
        let (tell, told) = channel();
        let give = |job: PoolJob| {
            let quickness = quickness.clone();
            let work = QuickJob { pool: Box::new(Threads), quickness, client: 0, job };
            defer(work).unwrap_or_else(QuickJob::hand_over);
        };
        let job = || {
            let tell = tell.clone();
            give(Box::new(move || tell.send(thread::current().id()).unwrap()));
        };
        let here = thread::current().id();
        job();
        assert_ne!(told.recv().unwrap(), here, "nobody stands in for this thread");
        let deferred = |count: usize| {
            let ((), deferred) = deferring(|| (0..count).for_each(|_| job()));
            assert_eq!(deferred.len(), count);
            deferred
        };
        let mut two = deferred(2).into_iter();
        let first = two.next().unwrap().begin().unwrap();
        assert!(two.next().unwrap().begin().is_none(), "one at a time");
        assert_ne!(told.recv().unwrap(), here);
        first.run();
        assert_eq!(told.recv().unwrap(), here);
        let pause = || quickness.pause.load(Ordering::Relaxed);
        quickness.learn(SLOW * 2);
        assert!(deferred(1).remove(0).begin().is_none(), "it was slow just now");
        assert_ne!(told.recv().unwrap(), here);
        let first = pause();
        quickness.learn(SLOW * 2);
        assert_eq!(pause(), 2 * first);
        (0..40).for_each(|_| quickness.learn(SLOW * 2));
        assert_eq!(pause(), micros(PAUSE.1));
        (0..40).for_each(|_| quickness.learn(SLOW / 2));
        assert_eq!(pause(), 0);
        let rested = || quickness.from.store(0, Ordering::Relaxed);
        rested();
        deferred(1).remove(0).begin().unwrap().run();
        assert_eq!(told.recv().unwrap(), here);
        rested();
        let ((), panics) = deferring(|| give(Box::new(|| panic!("on purpose"))));
        panics.into_iter().filter_map(QuickJob::begin).for_each(BegunJob::run);
        rested();
        assert!(deferred(1).remove(0).begin().is_some(), "it is free again");
    }
}
