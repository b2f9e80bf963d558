//! Work that waits without a thread: a future that is carried on by whoever wakes it.
//!
//! A filter whose operation has several steps writes them down one after another and spawns
//! that. A task begins on the thread that spawns it; woken later, it goes on where it was woken.
//! Tasks that wake one another on one thread take turns there, so that a long queue of them is
//! no deep recursion. A task must never block its thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Starts `work` here and now; what waits goes on when it is woken.
pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    let state = State { work: Some(Box::pin(work)), woken: false };
    // Not by way of the queue: a task over a device that never waits ends before this returns,
    // also when this is called by another task.
    Arc::new(Task(Mutex::new(state))).advance();
}

struct Task(Mutex<State>);

struct State {
    /// `None` while somebody carries it on, and when it has ended.
    work: Option<Work>,
    /// It was woken while somebody carried it on.
    woken: bool,
}

impl Task {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn advance(self: Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut context = Context::from_waker(&waker);
        loop {
            let Some(mut work) = self.take() else { return };
            if work.as_mut().poll(&mut context).is_ready() {
                return;
            }
            let mut state = self.lock();
            state.work = Some(work);
            if !std::mem::take(&mut state.woken) {
                return;
            }
        }
    }

    /// The work, unless somebody else has it: then that one is told.
    fn take(&self) -> Option<Work> {
        let mut state = self.lock();
        state.woken = state.work.is_none();
        state.work.take()
    }
}

thread_local! {
    /// Tasks that were woken on this thread while it carries on another; `None` when it does not.
    static TURNS: RefCell<Option<VecDeque<Arc<Task>>>> = const { RefCell::new(None) };
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let queued = TURNS.with_borrow_mut(|turns| match turns {
            Some(queue) => {
                queue.push_back(self.clone());
                true
            }
            None => {
                *turns = Some(VecDeque::new());
                false
            }
        });
        if queued {
            return;
        }
        let _last = Last;
        let mut next = Some(self);
        while let Some(task) = next {
            task.advance();
            next = TURNS.with_borrow_mut(|turns| turns.as_mut().and_then(VecDeque::pop_front));
        }
    }
}

/// Whoever gives turns on this thread: afterwards nobody does. If it ended in a panic, the others
/// get their turns all the same.
struct Last;

impl Drop for Last {
    fn drop(&mut self) {
        let left = TURNS.with_borrow_mut(Option::take).unwrap_or_default();
        left.into_iter().for_each(Task::wake);
    }
}

/// A value that somebody owes, and the one who waits for it.
pub(crate) fn promise<T>() -> (Promise<T>, Answer<T>) {
    let slot = Arc::new(Mutex::new(Slot { value: None, broken: false, waker: None }));
    (Promise(slot.clone()), Answer(slot))
}

struct Slot<T> {
    value: Option<T>,
    /// The promise was dropped.
    broken: bool,
    waker: Option<Waker>,
}

fn lock<T>(slot: &Mutex<T>) -> MutexGuard<'_, T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to give an answer, once.
pub(crate) struct Promise<T>(Arc<Mutex<Slot<T>>>);

impl<T> Promise<T> {
    /// Gives the answer.
    pub(crate) fn keep(self, value: T) {
        lock(&self.0).value = Some(value);
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        let waker = {
            let mut slot = lock(&self.0);
            slot.broken = true;
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The answer that somebody owes; `None` if the promise was dropped instead.
pub(crate) struct Answer<T>(Arc<Mutex<Slot<T>>>);

impl<T> Future for Answer<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = lock(&self.0);
        if slot.broken {
            return Poll::Ready(slot.value.take());
        }
        slot.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

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
}
