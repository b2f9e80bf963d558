//! Many pieces of work, some of them in flight at a time.
//!
//! Pieces that end at once are started one after the other, but not for ever on a thread that has
//! other things to do (a reactor, the timers): after some of them a thread of the pool continues.

use std::sync::Arc;
use std::task::{Poll, Waker};

use crate::contained::Panicked;
use crate::pool::WorkPool;
use crate::sync::Mutex;
use crate::task::spawn_while_wanted;
use crate::thread::has_time;

/// Steps in a row on a thread that has other things to do.
const ROW: usize = 64;

/// How many steps a task has taken in a row.
#[derive(Debug, Default)]
pub struct StepBudget(usize);

impl StepBudget {
    /// One more step: after many, if the thread has other things to do, it is taken on a thread of
    /// the pool.
    pub async fn spend(&mut self, pool: &WorkPool) {
        self.0 += 1;
        if self.0 > ROW && !has_time() {
            self.0 = 0;
            pool.enter().await;
        }
    }
}

/// Runs all of `pieces`, up to `width` (≥ 1) of them in flight at a time.
///
/// # Errors
/// The first failure, or panic. No more pieces are started then, and those in flight are waited
/// for.
pub async fn each<F, E>(
    pool: &WorkPool,
    width: usize,
    pieces: impl Iterator<Item = F>,
) -> Result<(), E>
where
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: From<Panicked> + Send + 'static,
{
    let mut budget = StepBudget::default();
    if width <= 1 {
        for piece in pieces {
            budget.spend(pool).await;
            piece.await?;
        }
        return Ok(());
    }
    let crew = Arc::new(Crew(Mutex::new(State { under_way: 0, failed: None, waker: None })));
    for piece in pieces {
        budget.spend(pool).await;
        crew.until(|state| state.under_way < width || state.failed.is_some()).await;
        let mut state = crew.0.lock();
        if state.failed.is_some() {
            break;
        }
        state.under_way += 1;
        drop(state);
        let share = PieceShare { crew: crew.clone(), result: None };
        spawn_while_wanted(async move { share.end(piece.await) });
    }
    crew.until(|state| state.under_way == 0).await;
    let failed = crew.0.lock().failed.take();
    failed.map_or(Ok(()), Err)
}

/// The state shared by the pieces.
struct Crew<E>(Mutex<State<E>>);

struct State<E> {
    under_way: usize,
    failed: Option<E>,
    waker: Option<Waker>,
}

/// One piece's share of it, until it is dropped with the result of the piece.
struct PieceShare<E: From<Panicked>> {
    crew: Arc<Crew<E>>,
    result: Option<Result<(), E>>,
}

impl<E> Crew<E> {
    async fn until(&self, is_so: impl Fn(&State<E>) -> bool) {
        std::future::poll_fn(|context| {
            let mut state = self.0.lock();
            if is_so(&state) {
                return Poll::Ready(());
            }
            state.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl<E: From<Panicked>> PieceShare<E> {
    fn end(mut self, result: Result<(), E>) {
        self.result = Some(result);
    }
}

impl<E: From<Panicked>> Drop for PieceShare<E> {
    fn drop(&mut self) {
        let result = self.result.take();
        let result = result.unwrap_or_else(|| Err(Panicked::of("a piece of a request").into()));
        let mut state = self.crew.0.lock();
        state.under_way -= 1;
        if let Err(e) = result {
            state.failed.get_or_insert(e);
        }
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;
    use crate::task::{Promise, promise, spawn};

    fn ended(
        width: usize,
        pieces: Vec<impl Future<Output = Result<(), Panicked>> + Send + 'static>,
    ) -> mpsc::Receiver<Result<(), Panicked>> {
        let (tx, rx) = mpsc::channel();
        spawn(async move {
            let pool = WorkPool::new(1);
            tx.send(each(&pool, width, pieces.into_iter()).await).unwrap();
        });
        rx
    }

    #[test]
    fn no_more_than_the_width_are_in_flight_and_all_are_done() {
        let (under_way, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let owed: Arc<Mutex<Vec<Promise<()>>>> = Arc::default();
        let piece = || {
            let (under_way, most, owed) = (under_way.clone(), most.clone(), owed.clone());
            async move {
                let now = under_way.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                let (promise, answer) = promise();
                owed.lock().push(promise);
                answer.await;
                under_way.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
        };
        let rx = ended(4, std::iter::repeat_with(piece).take(50).collect());
        for _ in 0..50 {
            let promise = owed.lock().pop().unwrap();
            promise.keep(());
        }
        assert!(rx.recv().unwrap().is_ok());
        assert_eq!(most.load(Ordering::SeqCst), 4);
    }

    #[test]
    fn a_piece_that_panics_is_a_failure_of_the_whole() {
        for width in [2, 16] {
            let piece = |i: usize| async move {
                assert!(i != 3, "on purpose");
                Ok(())
            };
            assert!(ended(width, (0..9).map(piece).collect()).recv().unwrap().is_err());
        }
    }
}
