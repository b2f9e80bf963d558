//! Threads that stand in for one another: what a thread drives is driven on by another while a step
//! of it does not come back, as Go's scheduler does with system calls.
//!
//! A thread leaves what it drives, a reactor with its connections, in its seat while it takes a
//! step that may stall, such as a write to a disk. A watch looks at the seats now and then, and
//! drives on itself what it finds there twice in the same step, once a new watch has begun. A
//! thread whose step took too long finds its seat empty, and has nothing left to drive. A step that
//! comes back in time costs two locks that nobody else wants, and no system call. The watch sleeps
//! while no steps are taken, and ends after a while.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::sync::{Condvar, Mutex, spawn_thread};

/// How long a step may take at least before another thread drives on; at most twice as long.
const PERIOD: Duration = Duration::from_millis(2);
/// After so many periods without a step the watch sleeps,
const QUIET: u32 = 50;
/// and after this time it ends.
const IDLE: Duration = Duration::from_secs(5);

/// The seats of some threads that drive a `T` each.
pub struct Cover<T> {
    seats: Vec<Seat<T>>,
    /// Goes on with what a thread left in its seat, on another thread.
    drive: Box<dyn Fn(T) + Send + Sync>,
    /// There is a watch.
    watched: Mutex<bool>,
    /// It sleeps, or there is none: who takes a step calls it.
    rests: AtomicBool,
    call: Condvar,
}

impl<T> fmt::Debug for Cover<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cover({} seats)", self.seats.len())
    }
}

struct Seat<T> {
    left: Mutex<Option<T>>,
    /// Steps taken so far.
    steps: AtomicU64,
}

impl<T: Send + 'static> Cover<T> {
    /// Of `seats` threads. `drive` goes on with what one of them has left.
    pub fn new(seats: usize, drive: impl Fn(T) + Send + Sync + 'static) -> Arc<Self> {
        let seat = |_| Seat { left: Mutex::new(None), steps: AtomicU64::new(0) };
        Arc::new(Self {
            seats: (0..seats).map(seat).collect(),
            drive: Box::new(drive),
            watched: Mutex::new(false),
            rests: AtomicBool::new(true),
            call: Condvar::new(),
        })
    }

    /// Takes a step that may stall, while `driven` lies in seat `number`. Returns it, unless
    /// another thread drives it by now: which is the case for sure only while there is a watch
    /// ([`Self::is_watched`]). When `step` panics, another thread drives on.
    pub fn step<R>(
        self: &Arc<Self>,
        number: usize,
        driven: T,
        step: impl FnOnce() -> R,
    ) -> (R, Option<T>) {
        let Some(seat) = self.seats.get(number) else { return (step(), Some(driven)) };
        // Counted first: what lies in a seat belongs to a step that the watch can tell from others.
        seat.steps.fetch_add(1, Ordering::SeqCst);
        *seat.left.lock() = Some(driven);
        if self.rests.load(Ordering::SeqCst) {
            self.call_watch();
        }
        let done = step();
        let driven = seat.left.lock().take();
        (done, driven)
    }

    /// Whether there is a watch; begins one if not.
    pub fn is_watched(self: &Arc<Self>) -> bool {
        // One that does not rest is there.
        !self.rests.load(Ordering::SeqCst) || self.call_watch()
    }

    fn call_watch(self: &Arc<Self>) -> bool {
        let mut watched = self.watched.lock();
        if *watched {
            self.rests.store(false, Ordering::SeqCst);
            self.call.notify_one();
        } else {
            *watched = self.spawn_watch();
        }
        *watched
    }

    /// With the lock of `watched`.
    fn spawn_watch(self: &Arc<Self>) -> bool {
        let cover = self.clone();
        let begun = spawn_thread("watch", move || cover.watch()).is_ok();
        self.rests.store(!begun, Ordering::SeqCst);
        begun
    }

    fn watch(self: Arc<Self>) {
        let mut seen = vec![0; self.seats.len()];
        let mut quiet = 0;
        loop {
            let mut steps = false;
            for (seat, seen) in self.seats.iter().zip(&mut seen) {
                let now = seat.steps.load(Ordering::SeqCst);
                if *seen != now {
                    (*seen, steps) = (now, true);
                } else if let Some(driven) = self.take_over(seat) {
                    return (self.drive)(driven);
                }
            }
            quiet = if steps { 0 } else { quiet + 1 };
            if quiet < QUIET {
                let watched = self.watched.lock();
                let _ = self.call.wait_timeout(watched, PERIOD);
            } else if self.rest(&seen) {
                quiet = 0;
            } else {
                return;
            }
        }
    }

    /// Takes what was left, if there is anything, and another watch begins.
    fn take_over(self: &Arc<Self>, seat: &Seat<T>) -> Option<T> {
        let watched = self.watched.lock();
        let mut left = seat.left.lock();
        let driven = left.take()?;
        if self.spawn_watch() {
            return Some(driven);
        }
        // It goes on as the watch.
        drop(watched);
        self.rests.store(false, Ordering::SeqCst);
        *left = Some(driven);
        None
    }

    /// Waits for a step after those that were `seen`. Returns whether there was one.
    fn rest(&self, seen: &[u64]) -> bool {
        let mut watched = self.watched.lock();
        self.rests.store(true, Ordering::SeqCst);
        // A step that has not seen that it rests was counted before.
        let steps = self.seats.iter().map(|seat| seat.steps.load(Ordering::SeqCst));
        let is_left = |seat: &Seat<T>| seat.left.lock().is_some();
        if steps.eq(seen.iter().copied()) && !self.seats.iter().any(is_left) {
            watched = self.call.wait_timeout(watched, IDLE).0;
        } else {
            self.rests.store(false, Ordering::SeqCst);
        }
        let goes_on = !self.rests.load(Ordering::SeqCst);
        *watched = goes_on;
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_step_that_returns_keeps_what_it_drives_and_one_that_stalls_loses_it() {
        let (tell, told) = mpsc::channel();
        let cover = Cover::new(2, move |driven: u32| tell.send(driven).unwrap());
        assert!(cover.is_watched());
        assert_eq!(cover.step(0, 1, || 7), (7, Some(1)));
        // It returns when another thread has driven on; and so does one beside it.
        let (other, second) = (cover.clone(), mpsc::channel::<()>());
        let beside = std::thread::spawn(move || other.step(1, 3, || second.1.recv()));
        assert_eq!(cover.step(0, 2, || told.recv().unwrap() + told.recv().unwrap()), (5, None));
        drop(second.0);
        assert_eq!(beside.join().unwrap().1, None);
        assert_eq!(cover.step(1, 4, || ()), ((), Some(4)), "the seat is free again");
    }
}
