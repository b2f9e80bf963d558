//! Batches of requests: a caller that submits several marks where they end, so that they can be
//! sent together.
//!
//! A batch is a scope on the submitting thread, so deferred work cannot be forgotten: it is done
//! when the scope ends, in whatever way, and before the thread waits for a result. Outside a batch
//! nothing is deferred.

use std::cell::RefCell;

use crate::contained::contained;
#[cfg(shuttle)]
use crate::sync::RefCellKey;
use crate::sync::thread_local;

/// Deferred work, and its owner.
type PutOff = Vec<(usize, Box<dyn FnOnce()>)>;

thread_local! {
    /// `None` outside a batch.
    static BATCH: RefCell<Option<PutOff>> = const { RefCell::new(None) };
}

/// Runs `turn`, at whose end a batch of requests ends. One inside another is a part of it.
pub fn batch<R>(turn: impl FnOnce() -> R) -> R {
    let began = BATCH.with_borrow_mut(|batch| {
        let outside = batch.is_none();
        batch.get_or_insert_default();
        outside
    });
    // Not `then_some`: an end that is dropped ends the batch.
    let _end = began.then(|| End);
    turn()
}

/// In a batch: defers `work` until its end, unless some is deferred for `key` (an address, say)
/// already. Returns whether this is a batch; outside, nothing is done.
pub fn at_end_of_batch<W: FnOnce() + 'static>(key: usize, work: impl FnOnce() -> W) -> bool {
    BATCH.with_borrow_mut(|batch| {
        let Some(put_off) = batch else { return false };
        if put_off.iter().all(|(other, _)| *other != key) {
            put_off.push((key, Box::new(work())));
        }
        true
    })
}

/// This thread is about to wait, perhaps for deferred work: that is done now.
pub fn before_waiting() {
    loop {
        let put_off = BATCH.with_borrow_mut(|batch| batch.as_mut().map(std::mem::take));
        match put_off {
            Some(put_off) if !put_off.is_empty() => run(put_off),
            _ => return,
        }
    }
}

fn run(put_off: PutOff) {
    for (_, work) in put_off {
        // A panic must not stop the others; it is counted.
        let _ = contained("the end of a batch", work);
    }
}

struct End;

impl Drop for End {
    fn drop(&mut self) {
        // Requests that this work submits are in no batch.
        run(BATCH.take().unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    /// Defers a note for `key`. Returns whether it could.
    fn note(notes: &Rc<RefCell<Vec<usize>>>, key: usize) -> bool {
        at_end_of_batch(key, || {
            let notes = notes.clone();
            move || notes.borrow_mut().push(key)
        })
    }

    #[test]
    fn deferred_work_is_done_once_for_each_key_at_the_end_of_the_outermost_batch() {
        let notes = Rc::default();
        batch(|| {
            assert!(note(&notes, 1) && note(&notes, 2) && note(&notes, 1));
            batch(|| assert!(note(&notes, 3)));
            assert!(notes.borrow().is_empty());
        });
        assert_eq!(*notes.borrow(), [1, 2, 3]);
    }

    #[test]
    fn outside_a_batch_nothing_is_deferred() {
        let notes = Rc::default();
        assert!(!note(&notes, 1));
        batch(|| ());
        assert!(!note(&notes, 2) && notes.borrow().is_empty());
    }

    #[test]
    fn a_wait_in_a_batch_waits_for_nothing_that_was_deferred() {
        let notes = Rc::default();
        batch(|| {
            note(&notes, 1);
            before_waiting();
            assert_eq!(*notes.borrow(), [1]);
            note(&notes, 2);
        });
        assert_eq!(*notes.borrow(), [1, 2]);
    }

    #[test]
    fn a_batch_that_panics_has_ended_too() {
        let notes = Rc::default();
        let ended = contained("a turn", || {
            batch(|| {
                note(&notes, 1);
                let broken: fn() = || panic!("on purpose");
                at_end_of_batch(2, || broken);
                note(&notes, 3);
                panic!("on purpose")
            })
        });
        assert!(ended.is_err());
        assert_eq!(*notes.borrow(), [1, 3]);
        assert!(!note(&notes, 4));
    }
}
