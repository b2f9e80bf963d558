//! Work that waits without a thread: a future that continues on the thread that wakes it.
//!
//! Work of several steps is written as one `async fn` and spawned. A task begins on the thread that
//! spawns it; later it continues on the thread that wakes it. Tasks that wake one another on one
//! thread take turns there, so that a long queue of them is not a deep recursion. A task must never
//! block its thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use async_task::Runnable;

use crate::batch::before_waiting;
use crate::behalf::Behalf;
use crate::contained::contained;
use crate::pool::WorkPool;
#[cfg(shuttle)]
use crate::sync::RefCellKey;
use crate::sync::thread_local;
use crate::thread::taking_time;

/// Starts `work` here and now; it continues when it is woken. A panic ends only this task: what it
/// held is dropped.
pub fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    begin(Box::pin(work), Behalf::current().lasting());
}

/// The same for work on which only its requester depends: what it gives to a pool need not be begun
/// once the requester has gone. The task then sees a dropped promise.
pub fn spawn_while_wanted(work: impl Future<Output = ()> + Send + 'static) {
    begin(Box::pin(work), Behalf::current());
}

/// Work of one type: the executor's code is compiled once, not for each future that is spawned,
/// which was a third of the code of `formats`.
type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

fn begin(work: Work, behalf: Behalf) {
    let begun = async_task::Builder::new().metadata(behalf).spawn(move |_| work, schedule);
    let (runnable, task) = begun;
    task.detach();
    // Not through the queue: a task over a device that never waits ends before this returns, also
    // when another task calls this.
    run(runnable);
}

fn run(task: Task) {
    // On the thread that wakes it.
    let behalf = task.metadata().clone();
    let _ = contained("a task", || behalf.run(|| task.run()));
}

/// A task that is to run, with the behalf of all its steps.
type Task = Runnable<Behalf>;

thread_local! {
    /// Where the task that this thread runs wants to continue, if it asked.
    static GOES_ON_IN: RefCell<Option<WorkPool>> = const { RefCell::new(None) };
    /// Tasks that were woken on this thread while it runs another one; `None` when it does not.
    static TURNS: RefCell<Option<VecDeque<Task>>> = const { RefCell::new(None) };
}

/// Continues on a thread of `pool`.
pub(crate) async fn move_to(pool: &WorkPool) {
    let mut moved = false;
    poll_fn(|context| {
        if std::mem::replace(&mut moved, true) {
            return Poll::Ready(());
        }
        // Not by a job that wakes it: a quick one would find the task still running here, and it
        // would continue here.
        GOES_ON_IN.set(Some(pool.clone()));
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn schedule(task: Task) {
    if let Some(pool) = GOES_ON_IN.take() {
        return pool.run(move || run(task));
    }
    let first = TURNS.with_borrow_mut(|turns| match turns {
        Some(queue) => {
            queue.push_back(task);
            None
        }
        None => {
            *turns = Some(VecDeque::new());
            Some(task)
        }
    });
    let mut next = first;
    while let Some(task) = next {
        run(task);
        next = TURNS.with_borrow_mut(|turns| {
            let next = turns.as_mut().and_then(VecDeque::pop_front);
            if next.is_none() {
                *turns = None;
            }
            next
        });
    }
}

/// A value that is owed, and the task that waits for it.
#[must_use]
pub fn promise<T>() -> (Promise<T>, Promised<T>) {
    let (sender, receiver) = oneshot::async_channel();
    (Promise(sender), Promised(receiver))
}

/// Passes a promise to `start`, and blocks until it is kept; `None` if it was dropped instead.
pub fn wait_for<T>(start: impl FnOnce(Promise<T>)) -> Option<T> {
    let (sender, receiver) = oneshot::channel();
    taking_time(|| start(Promise(sender)));
    before_waiting();
    receiver.recv().ok()
}

/// The right to give an answer, once.
pub struct Promise<T>(oneshot::Sender<T>);

impl<T> Promise<T> {
    /// Gives the answer; dropped if nothing waits for it any more.
    pub fn keep(self, value: T) {
        let _ = self.0.send(value);
    }
}

impl<T> fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Promise")
    }
}

/// The answer that is owed; `None` if the promise was dropped instead.
pub struct Promised<T>(oneshot::AsyncReceiver<T>);

impl<T> Promised<T> {
    /// Whether it can be had without waiting.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.0.has_message() || self.0.is_closed()
    }
}

impl<T> fmt::Debug for Promised<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Promised")
    }
}

impl<T> Future for Promised<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(Result::ok)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};

    use super::*;

    #[test]
    fn a_task_goes_on_when_its_answer_comes_from_whichever_thread() {
        let (tx, rx) = mpsc::channel();
        let (first, a) = promise();
        let (second, b) = promise();
        spawn(async move {
            let sum = a.await.unwrap() + b.await.unwrap();
            tx.send(sum).unwrap();
        });
        std::thread::spawn(move || second.keep(2));
        first.keep(1);
        assert_eq!(rx.recv().unwrap(), 3);
    }

    #[test]
    fn a_broken_promise_is_an_answer_too() {
        let (tx, rx) = mpsc::channel();
        let (owed, answer) = promise::<u8>();
        spawn(async move { tx.send(answer.await).unwrap() });
        drop(owed);
        assert_eq!(rx.recv().unwrap(), None);
        assert_eq!(wait_for(|owed: Promise<u8>| drop(owed)), None);
    }

    #[test]
    fn a_task_that_panics_drops_what_it_held_and_ends_no_other() {
        let (tx, rx) = mpsc::channel();
        let (first, a) = promise::<()>();
        let (held, b) = promise::<()>();
        spawn(async move {
            let _held = held;
            a.await;
            panic!("on purpose");
        });
        spawn(async move { tx.send(b.await).unwrap() });
        first.keep(());
        assert_eq!(rx.recv().unwrap(), None);
    }

    #[test]
    fn a_long_chain_of_tasks_that_wake_one_another_does_not_overflow_the_stack() {
        let ended = Arc::new(AtomicUsize::new(0));
        let (first, mut answer) = promise();
        for _ in 0..100_000 {
            let (next, after) = promise();
            let before = std::mem::replace(&mut answer, after);
            let ended = ended.clone();
            spawn(async move {
                before.await;
                ended.fetch_add(1, Ordering::Relaxed);
                next.keep(());
            });
        }
        first.keep(());
        assert_eq!(ended.load(Ordering::Relaxed), 100_000);
    }

    #[test]
    fn a_task_that_asks_for_a_thread_of_the_pool_goes_on_there() {
        let pool = WorkPool::new(1);
        let (tx, rx) = mpsc::channel();
        for _ in 0..1000 {
            let (pool, tx) = (pool.clone(), tx.clone());
            spawn(async move {
                pool.enter().await;
                tx.send(std::thread::current().id()).unwrap();
            });
            assert_ne!(rx.recv().unwrap(), std::thread::current().id());
        }
    }

    #[test]
    fn a_task_stays_its_clients_whichever_thread_wakes_it() {
        let (tx, rx) = mpsc::channel();
        let (owed, answer) = promise();
        Behalf::of_client(7).run(|| {
            spawn(async move {
                answer.await;
                tx.send(Behalf::current().client()).unwrap();
            });
        });
        Behalf::of_client(8).run(|| owed.keep(()));
        assert_eq!(rx.recv().unwrap(), 7);
    }
}
