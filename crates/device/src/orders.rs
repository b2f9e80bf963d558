//! Completions on other threads are noticed in whatever order threads run: thousands of orders of
//! each scene, tried by a model (`--cfg shuttle`). A task that waits for ever is a deadlock of the
//! model.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use runtime::WorkPool;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shuttle::sync::mpsc;
use shuttle::thread;

use crate::model::Model;
use crate::{Blocking, Device, Done, Edge, Error, Info, Operation, Outcome, Result, Simple};

/// Half of the orders are random; in the others a thread is seldom interrupted, at any place.
fn in_any_order(scene: impl Fn() + Send + Sync + 'static) {
    let scene = Arc::new(scene);
    let same = scene.clone();
    shuttle::check_random(move || same(), 1000);
    shuttle::check_pct(move || scene(), 1000, 3);
}

/// Ends each operation on a thread of its own, which the model knows, as no `trial::TestDevice`
/// does.
struct Elsewhere(Info);

impl Device for Elsewhere {
    fn info(&self) -> &Info {
        &self.0
    }

    fn submit(&self, _: Operation, done: Done) {
        thread::spawn(move || done(Ok(Outcome::Done)));
    }
}

fn rings(bell: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(bell, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

#[test]
fn the_bell_of_a_lane_rings_for_whatever_ends_while_it_is_waited_for() {
    in_any_order(|| {
        let info = Model::new(1 << 16).info().clone();
        let edge = Edge::new(Arc::new(Elsewhere(info)), WorkPool::new(1));
        let mut lane = edge.lane().unwrap();
        let (mut started, mut ended) = (0, Vec::new());
        while ended.len() < 5 {
            // Two at a time.
            while started < 5 && started < 2 + ended.len() {
                lane.start(u64::try_from(started).unwrap(), Operation::Flush);
                started += 1;
            }
            if lane.turn(&mut ended) {
                continue;
            }
            let (bell, _) = lane.waits_on().next().unwrap();
            // A bell that never rings is more steps than the model allows.
            while !rings(bell) {
                thread::yield_now();
            }
        }
        let mut tickets: Vec<_> = ended.iter().map(|completed| completed.ticket).collect();
        tickets.sort_unstable();
        assert_eq!(tickets, [0, 1, 2, 3, 4]);
    });
}

/// Counts flushes, under the model's eyes.
struct Counts {
    info: Info,
    begun: AtomicUsize,
    ended: AtomicUsize,
}

impl Blocking for Counts {
    fn info(&self) -> &Info {
        &self.info
    }

    fn waits(&self) -> bool {
        true
    }

    fn read_at(&self, _: &mut [u8], _: u64) -> Result<()> {
        Err(Error::unsupported("read"))
    }

    fn write_at(&self, _: &[u8], _: u64, _: bool) -> Result<()> {
        Err(Error::unsupported("write"))
    }

    fn flush(&self) -> Result<()> {
        self.begun.fetch_add(1, SeqCst);
        thread::yield_now();
        self.ended.fetch_add(1, SeqCst);
        Ok(())
    }
}

#[test]
fn each_flush_is_answered_once_and_by_one_that_began_after_it_came() {
    in_any_order(|| {
        let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let info = Model::new(1 << 16).info().clone();
        let counts = Arc::new(Counts { info, begun, ended });
        let edge = Simple::shared_edge(counts.clone(), &WorkPool::new(2));
        let (tx, rx) = mpsc::channel();
        for _ in 0..3 {
            let (edge, counts, tx) = (edge.clone(), counts.clone(), tx.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    let (counts, tx) = (counts.clone(), tx.clone());
                    let before = counts.begun.load(SeqCst);
                    let done = move |outcome: Result<Outcome>| {
                        let covered = counts.ended.load(SeqCst) > before;
                        tx.send(outcome.is_ok() && covered).unwrap();
                    };
                    edge.submit(Operation::Flush, Box::new(done));
                    thread::yield_now();
                }
            });
        }
        drop(tx);
        assert_eq!(rx.into_iter().collect::<Vec<_>>(), [true; 6]);
    });
}
