//! Our own synchronisation is right in whatever order threads run: thousands of orders of each
//! scene, tried by a model (`--cfg shuttle`). A task that waits for ever is a deadlock of the
//! model.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use shuttle::sync::mpsc;
use shuttle::thread;

use crate::sync::Mutex;
use crate::{Cover, Gate, Mailbox, Panicked, Promise, WorkPool, each, has_time, promise, spawn};

/// Half of the orders are random; in the others a thread is seldom interrupted, at any place.
fn in_any_order(scene: impl Fn() + Send + Sync + 'static) {
    let scene = Arc::new(scene);
    let same = scene.clone();
    shuttle::check_random(move || same(), 1000);
    shuttle::check_pct(move || scene(), 1000, 3);
}

fn count(of: &AtomicUsize) -> usize {
    of.load(SeqCst)
}

/// Runs `work` on a thread that others interrupt wherever it waits.
async fn interrupted<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        let ended = work.as_mut().poll(context);
        thread::yield_now();
        ended
    })
    .await
}

/// Promises that threads keep, each thread one after the other.
#[derive(Clone, Default)]
struct Owed(Arc<Mutex<VecDeque<Promise<()>>>>);

impl Owed {
    /// Waits until a promise is kept.
    async fn one(&self) {
        let (owed, answer) = promise();
        self.0.lock().push_back(owed);
        answer.await;
    }

    /// Keeps `promises` promises from a thread.
    fn keeper(&self, promises: usize) -> thread::JoinHandle<()> {
        let owed = self.0.clone();
        thread::spawn(move || {
            let mut kept = 0;
            while kept < promises {
                let next = owed.lock().pop_front();
                match next {
                    Some(next) => next.keep(()),
                    None => {
                        thread::yield_now();
                        continue;
                    }
                }
                kept += 1;
            }
        })
    }
}

/// A task behind the gate, which checks that it may be.
async fn behind(gate: Arc<Gate>, inside: Arc<(AtomicUsize, AtomicUsize)>, alone: bool, owed: Owed) {
    let pass = if alone { gate.alone().await } else { gate.together().await };
    let (together, lonely) = &*inside;
    let mine = if alone { lonely } else { together };
    let others = if alone { count(together) + count(lonely) } else { count(lonely) };
    assert_eq!(others, 0, "{pass:?}");
    mine.fetch_add(1, SeqCst);
    owed.one().await;
    mine.fetch_sub(1, SeqCst);
    drop(pass);
}

#[test]
fn what_lies_in_a_seat_is_driven_by_one_thread() {
    in_any_order(|| {
        let (tell, told) = mpsc::channel();
        let tell = Mutex::new(tell);
        let cover = Cover::new(1, move |n: usize| tell.lock().send(n).unwrap());
        for n in 0..3 {
            assert!(cover.is_watched());
            let ((), kept) = cover.step(0, n, thread::yield_now);
            let driven = if kept.is_none() { told.recv().ok() } else { kept };
            assert_eq!(driven, Some(n));
        }
        assert!(told.try_recv().is_err());
    });
}

#[test]
fn an_exclusive_pass_is_alone_and_no_task_waits_for_ever() {
    in_any_order(|| {
        let (gate, owed) = (Arc::<Gate>::default(), Owed::default());
        let inside = Arc::<(AtomicUsize, AtomicUsize)>::default();
        let ended = Arc::new(AtomicUsize::new(0));
        let threads = (0..2).map(|_| {
            let (gate, owed, inside, ended) =
                (gate.clone(), owed.clone(), inside.clone(), ended.clone());
            thread::spawn(move || {
                for alone in [false, true, false] {
                    let visit = behind(gate.clone(), inside.clone(), alone, owed.clone());
                    let ended = ended.clone();
                    spawn(async move {
                        visit.await;
                        ended.fetch_add(1, SeqCst);
                    });
                }
            })
        });
        let threads: Vec<_> = threads.chain([owed.keeper(3), owed.keeper(3)]).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(count(&ended), 6);
    });
}

#[test]
fn tasks_pass_a_gate_in_the_order_in_which_they_came() {
    in_any_order(|| {
        let gate = Arc::<Gate>::default();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (tx, rx) = mpsc::channel();
        let to_pass = |n: usize| {
            let (gate, seen) = (gate.clone(), seen.clone());
            async move {
                let pass = gate.alone().await;
                seen.lock().push(n);
                pass
            }
        };
        let first = to_pass(0);
        spawn(async move { tx.send(first.await).unwrap() });
        let pass = rx.recv().unwrap();
        for n in 1..3 {
            let visit = to_pass(n);
            spawn(async move { drop(visit.await) });
        }
        let leaves = thread::spawn(move || drop(pass));
        for n in 3..6 {
            let visit = to_pass(n);
            spawn(async move { drop(visit.await) });
        }
        leaves.join().unwrap();
        assert_eq!(*seen.lock(), [0, 1, 2, 3, 4, 5]);
    });
}

#[test]
fn of_many_pieces_no_more_than_the_width_are_under_way_and_all_are_done() {
    in_any_order(|| {
        let pool = WorkPool::new(1);
        let (under_way, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let owed = Owed::default();
        let (tx, rx) = mpsc::channel();
        let pieces = (0..5).map({
            let (under_way, done, owed) = (under_way.clone(), done.clone(), owed.clone());
            move |_| {
                let (under_way, done, owed) = (under_way.clone(), done.clone(), owed.clone());
                async move {
                    assert!(under_way.fetch_add(1, SeqCst) < 2);
                    owed.one().await;
                    under_way.fetch_sub(1, SeqCst);
                    done.fetch_add(1, SeqCst);
                    Ok::<_, Panicked>(())
                }
            }
        });
        let keepers = [owed.keeper(3), owed.keeper(2)];
        spawn(async move { tx.send(each(&pool, 2, pieces).await).unwrap() });
        rx.recv().unwrap().unwrap();
        assert_eq!((count(&done), count(&under_way)), (5, 0));
        keepers.into_iter().for_each(|keeper| keeper.join().unwrap());
    });
}

/// Which piece has failed.
#[derive(Debug)]
struct Failed(usize);

impl From<Panicked> for Failed {
    fn from(panicked: Panicked) -> Self {
        panic!("{panicked}")
    }
}

#[test]
fn where_a_piece_fails_those_under_way_are_waited_for_and_no_more_are_started() {
    in_any_order(|| {
        let pool = WorkPool::new(1);
        let (started, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (tx, rx) = mpsc::channel();
        let pieces = (0..9).map({
            let (started, ended) = (started.clone(), ended.clone());
            move |n| {
                let (started, ended) = (started.clone(), ended.clone());
                async move {
                    started.fetch_add(1, SeqCst);
                    let (owed, answer) = promise();
                    thread::spawn(move || owed.keep(()));
                    interrupted(answer).await;
                    ended.fetch_add(1, SeqCst);
                    if n < 2 { Ok(()) } else { Err(Failed(n)) }
                }
            }
        });
        spawn(async move { tx.send(each(&pool, 3, pieces).await).unwrap() });
        let Failed(n) = rx.recv().unwrap().unwrap_err();
        // 0 and 1 end well, and at most three of the others are in flight when one has failed.
        assert!((2..5).contains(&n), "{n}");
        assert!(count(&started) <= 5 && count(&started) == count(&ended));
    });
}

#[test]
fn a_task_goes_on_once_for_each_thing_it_waited_for_and_ends_once() {
    in_any_order(|| {
        let steps = Arc::new(AtomicUsize::new(0));
        let (promises, answers): (Vec<_>, Vec<_>) = (0..3).map(|_| promise::<()>()).unzip();
        let (held, rx) = mpsc::channel::<()>();
        let counted = steps.clone();
        spawn(async move {
            for answer in answers {
                assert!(interrupted(answer).await.is_some());
                counted.fetch_add(1, SeqCst);
                thread::yield_now();
            }
            drop(held);
        });
        for promise in promises {
            thread::spawn(move || promise.keep(()));
        }
        assert!(rx.recv().is_err(), "it ends, and what it held is dropped");
        assert_eq!(count(&steps), 3);
    });
}

#[test]
fn tasks_that_wake_one_another_on_two_threads_take_turns_and_all_end() {
    in_any_order(|| {
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut first = Vec::new();
        for thread in 0..2 {
            let (root, woken) = promise();
            first.push(root);
            // The first task wakes three that wait, which must not run before it waits or ends.
            let (owed, answers): (Vec<_>, Vec<_>) = (1..4).map(|_| promise::<()>()).unzip();
            for (n, answer) in (1..).zip(answers) {
                let order = order.clone();
                spawn(async move {
                    answer.await;
                    order.lock().push((thread, n));
                });
            }
            let order = order.clone();
            spawn(async move {
                woken.await;
                owed.into_iter().for_each(|promise| promise.keep(()));
                order.lock().push((thread, 0));
            });
        }
        let wakers = first.into_iter().map(|root| thread::spawn(move || root.keep(())));
        let wakers: Vec<_> = wakers.collect();
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
        for thread in 0..2 {
            let order = order.lock();
            let own: Vec<_> = order.iter().filter(|(t, _)| *t == thread).map(|(_, n)| *n).collect();
            assert_eq!(own, [0, 1, 2, 3]);
        }
    });
}

#[test]
fn a_task_that_asks_for_a_thread_of_the_pool_goes_on_there_and_the_others_do_not() {
    in_any_order(|| {
        let pool = WorkPool::new(1);
        let (tx, rx) = mpsc::channel();
        for _ in 0..2 {
            let (pool, tx, here) = (pool.clone(), tx.clone(), tx.clone());
            let (owed, answer) = promise();
            thread::spawn(move || {
                spawn(async move {
                    answer.await;
                    here.send(!has_time()).unwrap();
                });
                spawn(async move {
                    interrupted(pool.enter()).await;
                    tx.send(has_time()).unwrap();
                    thread::yield_now();
                    interrupted(pool.enter()).await;
                    tx.send(has_time()).unwrap();
                });
                owed.keep(());
            });
        }
        drop(tx);
        assert_eq!(rx.into_iter().collect::<Vec<_>>(), [true; 6]);
    });
}

#[test]
fn what_is_given_to_a_pool_is_all_done_by_no_more_threads_than_allowed() {
    in_any_order(|| {
        let pool = WorkPool::undivided(2);
        let (tx, rx) = mpsc::channel();
        let at_work = Arc::new(AtomicUsize::new(0));
        for _ in 0..2 {
            let (pool, tx, at_work) = (pool.for_disk(), tx.clone(), at_work.clone());
            thread::spawn(move || {
                for n in 0..3 {
                    let (tx, at_work) = (tx.clone(), at_work.clone());
                    pool.run(move || {
                        let now = at_work.fetch_add(1, SeqCst) + 1;
                        thread::yield_now();
                        at_work.fetch_sub(1, SeqCst);
                        // Beyond the limit there is one for a disk that has none.
                        tx.send((n, now <= 3)).unwrap();
                    });
                    thread::yield_now();
                }
            });
        }
        drop(tx);
        let mut all: Vec<_> = rx.into_iter().collect();
        all.sort_unstable();
        assert_eq!(all.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2]);
        assert!(all.iter().all(|(_, few)| *few));
    });
}

#[test]
fn whatever_is_put_in_a_mailbox_is_taken_out_in_order_and_no_call_is_lost() {
    in_any_order(|| {
        let mailbox = Arc::new(Mailbox::default());
        let (call, calls) = mpsc::channel();
        for thread in 0..2 {
            let (mailbox, call) = (mailbox.clone(), call.clone());
            thread::spawn(move || {
                for n in 0..3 {
                    if mailbox.put((thread, n)).unwrap() {
                        call.send(()).unwrap();
                    }
                    thread::yield_now();
                }
            });
        }
        // A call that is lost leaves nothing to wait for.
        drop(call);
        let (mut all, mut again) = (Vec::new(), false);
        while all.len() < 6 {
            if !std::mem::take(&mut again) {
                calls.recv().unwrap();
            }
            mailbox.attend();
            let mut looks = 0;
            while !mailbox.try_leave() {
                looks += 1;
                if looks > 2 {
                    again = mailbox.leave();
                    break;
                }
                all.extend(mailbox.take());
                thread::yield_now();
            }
        }
        for thread in 0..2 {
            let own: Vec<_> = all.iter().filter(|(t, _)| *t == thread).map(|(_, n)| *n).collect();
            assert_eq!(own, [0, 1, 2]);
        }
    });
}
