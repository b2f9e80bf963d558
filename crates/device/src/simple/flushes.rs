//! Flushes of one disk, joined before they take a thread.
//!
//! One runs, and those that come meanwhile are a list that the next one answers together: it begins
//! after they came, so it covers all that completed before each of them. However many wait, only
//! one thread is used.

use std::sync::Arc;

use runtime::{Mutex, WorkPool, contained};

use crate::{Done, Error, Outcome, Result};

/// The flushes of one device.
#[derive(Default)]
pub(super) struct Flushes(Mutex<State>);

#[derive(Default)]
struct State {
    /// One runs, or is about to.
    running: bool,
    waiting: Vec<Done>,
}

impl Flushes {
    /// Runs `flush` in `pool`, once for all that wait for one meanwhile; then `done`.
    pub(super) fn join(
        self: &Arc<Self>,
        flush: impl Fn() -> Result<()> + Send + 'static,
        pool: &WorkPool,
        done: Done,
    ) {
        let mut state = self.0.lock();
        state.waiting.push(done);
        if !state.running {
            state.running = true;
            drop(state);
            self.clone().next(flush, pool.clone());
        }
    }

    /// Between two of them the thread goes back to the pool, where others have their turn.
    fn next(self: Arc<Self>, flush: impl Fn() -> Result<()> + Send + 'static, pool: WorkPool) {
        pool.clone().run(move || {
            let waiting = std::mem::take(&mut self.0.lock().waiting);
            let flushed = contained("flush", &flush).unwrap_or_else(|panic| Err(panic.into()));
            let mut state = self.0.lock();
            let is_last = state.waiting.is_empty();
            state.running = !is_last;
            drop(state);
            if is_last {
                drop(flush);
                return answer(waiting, &flushed);
            }
            answer(waiting, &flushed);
            self.next(flush, pool);
        });
    }
}

fn answer(waiting: Vec<Done>, flushed: &Result<()>) {
    for done in waiting {
        let outcome = match flushed {
            Ok(()) => Ok(Outcome::Done),
            Err(e) => Err(Error::new(e.kind(), e.fault(), e.to_string())),
        };
        // A waiter must not keep the others from their answers.
        let _ = contained("answer a flush", || done(outcome));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::{Blocking, Edge, ErrorKind, Fault, Info, Operation, Simple};

    const GUARD: Duration = Duration::from_secs(60);

    /// Flushes and reads when and how the test says; no other operation is expected. No
    /// `trial::TestDevice`, which stands on another copy of this crate than its unit tests.
    struct Slow {
        info: Info,
        begun: AtomicUsize,
        go: Mutex<mpsc::Receiver<Result<()>>>,
    }

    impl Blocking for Slow {
        fn info(&self) -> &Info {
            &self.info
        }

        fn waits(&self) -> bool {
            true
        }

        fn read_at(&self, _: &mut [u8], _: u64) -> Result<()> {
            self.flush()
        }

        fn write_at(&self, _: &[u8], _: u64, _: bool) -> Result<()> {
            Err(Error::unsupported("write"))
        }

        fn flush(&self) -> Result<()> {
            self.begun.fetch_add(1, Ordering::SeqCst);
            self.go.lock().recv_timeout(GUARD).expect("told to go on")
        }
    }

    fn slow() -> (Arc<Slow>, Edge, mpsc::Sender<Result<()>>) {
        let (tell, go) = mpsc::channel();
        let info = crate::model::Model::new(1).info().clone();
        let slow = Arc::new(Slow { info, begun: AtomicUsize::new(0), go: Mutex::new(go) });
        (slow.clone(), Simple::shared_edge(slow, &WorkPool::new(4)), tell)
    }

    fn submit(edge: &Edge, n: usize, answers: &mpsc::Sender<(usize, Result<Outcome>)>) {
        let answers = answers.clone();
        edge.submit(Operation::Flush, Box::new(move |answer| answers.send((n, answer)).unwrap()));
    }

    fn wait_for_begun(slow: &Slow, n: usize) {
        while slow.begun.load(Ordering::SeqCst) < n {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_thousand_flushes_are_two_and_one_that_came_later_is_not_answered_by_the_first() {
        let (slow, edge, tell) = slow();
        let (tx, answers) = mpsc::channel();
        submit(&edge, 0, &tx);
        wait_for_begun(&slow, 1);
        for n in 1..1000 {
            submit(&edge, n, &tx);
        }
        tell.send(Ok(())).unwrap();
        assert_eq!(answers.recv_timeout(GUARD).unwrap().0, 0);
        wait_for_begun(&slow, 2);
        assert!(answers.try_recv().is_err(), "answered by a flush that began before it came");
        tell.send(Ok(())).unwrap();
        for n in 1..1000 {
            let (caller, answer) = answers.recv_timeout(GUARD).unwrap();
            assert!(caller == n && answer.is_ok());
        }
        assert_eq!(slow.begun.load(Ordering::SeqCst), 2);
        submit(&edge, 1000, &tx);
        tell.send(Ok(())).unwrap();
        assert!(answers.recv_timeout(GUARD).unwrap().1.is_ok());
    }

    #[test]
    fn a_failed_flush_fails_for_all_requests_that_waited_for_it() {
        let (slow, edge, tell) = slow();
        let (tx, answers) = mpsc::channel();
        submit(&edge, 0, &tx);
        wait_for_begun(&slow, 1);
        submit(&edge, 1, &tx);
        submit(&edge, 2, &tx);
        tell.send(Ok(())).unwrap();
        tell.send(Err(Error::new(ErrorKind::NoSpace, Fault::File, "flush"))).unwrap();
        assert!(answers.recv_timeout(GUARD).unwrap().1.is_ok());
        for _ in 0..2 {
            let error = answers.recv_timeout(GUARD).unwrap().1.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoSpace);
        }
    }

    #[test]
    fn a_disk_that_was_closed_is_closed_when_its_last_answer_is_there() {
        let read = || Operation::Read { offset: 0, buffer: crate::Buffer::zeroed(1) };
        for operation in [Operation::Flush, read()] {
            let (slow, edge, tell) = slow();
            let (tx, answers) = mpsc::channel();
            let left = Arc::downgrade(&slow);
            edge.submit(
                operation,
                Box::new(move |answer| tx.send((answer, left.strong_count())).unwrap()),
            );
            drop((slow, edge));
            tell.send(Ok(())).unwrap();
            let (answer, held_by) = answers.recv_timeout(GUARD).unwrap();
            assert!(answer.is_ok() && held_by == 0);
        }
    }
}
