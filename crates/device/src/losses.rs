//! Changes that were acknowledged and may not be durable, across paths that break.
//!
//! For devices that reopen a broken path and count how often ([`Session::epoch`]).
//!
//! [`Session::epoch`]: crate::Session::epoch
//!
//! A server that crashed and came back may have lost what it had not made durable, and its next
//! flush succeeds all the same. So the first flush after the path was reopened fails, if changes
//! were not durable: once for each client, because each must learn that its own changes may be
//! gone. Changes that a flush covered never count as lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use runtime::{Mutex, MutexGuard};

use crate::{Error, ErrorKind, Fault, Result};

/// The account of all clients whose flushes cover each other's changes.
#[derive(Debug, Default)]
struct Ledger(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Changes that were acknowledged and were not durable by themselves.
    done: u64,
    /// How many of them are durable, or were reported lost.
    settled: u64,
    /// How often some were reported lost.
    losses: u64,
    /// The losses that were reported to any client.
    told: u64,
}

impl State {
    fn lose(&mut self) {
        self.losses += 1;
        self.settled = self.done;
    }
}

/// The path to a device: the epoch in which it was seen last.
#[derive(Clone, Debug, Default)]
pub struct SeenEpoch(Arc<AtomicU64>);

impl SeenEpoch {
    /// A path that is in this epoch now.
    #[must_use]
    pub fn new(epoch: u64) -> Self {
        Self(Arc::new(AtomicU64::new(epoch)))
    }
}

/// One client's account.
#[derive(Debug)]
pub struct LossAccount {
    ledger: Arc<Ledger>,
    path: SeenEpoch,
    /// The losses that were reported to this client.
    told: AtomicU64,
}

/// What was known when an operation was tried.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// The epoch that it is tried in.
    pub epoch: u64,
    done: u64,
}

impl LossAccount {
    /// The first account over a path.
    #[must_use]
    pub fn new(path: SeenEpoch) -> Self {
        Self { ledger: Arc::default(), path, told: AtomicU64::new(0) }
    }

    /// The account of one more client. Losses that were reported to no client yet will be reported
    /// to it.
    #[must_use]
    pub fn beside(&self, path: SeenEpoch) -> Self {
        let told = self.ledger.0.lock().told;
        Self { ledger: self.ledger.clone(), path, told: AtomicU64::new(told) }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> SeenEpoch {
        self.path.clone()
    }

    /// The account in the epoch `now`.
    fn in_epoch(&self, now: u64) -> MutexGuard<'_, State> {
        let mut state = self.ledger.0.lock();
        if self.path.0.fetch_max(now, Relaxed) < now && state.done > state.settled {
            state.lose();
        }
        state
    }

    /// The losses that were reported to this client.
    #[must_use]
    pub fn told(&self) -> u64 {
        self.told.load(Relaxed)
    }

    /// Before an operation is tried.
    #[must_use]
    pub fn mark(&self, epoch: u64) -> Mark {
        Mark { epoch, done: self.in_epoch(epoch).done }
    }

    /// A change was acknowledged that is not durable by itself. It may be from a path that is lost
    /// by now.
    pub fn changed(&self, mark: Mark, now: u64) {
        let mut state = self.in_epoch(now);
        state.done += 1;
        if mark.epoch != now {
            state.lose();
        }
    }

    /// A flush succeeded that began when `told` losses had been reported to the client. Whether the
    /// success may be reported.
    ///
    /// # Errors
    /// Changes that were acknowledged before may be lost.
    pub fn flushed(&self, mark: Mark, told: u64, now: u64) -> Result<()> {
        let mut state = self.in_epoch(now);
        if state.losses > told {
            self.told.fetch_max(state.losses, Relaxed);
            state.told = state.losses;
            let action =
                "flush: reconnected; changes that were acknowledged and not flushed may be lost";
            return Err(Error::new(ErrorKind::Io, Fault::Peer, action));
        }
        if mark.epoch == now {
            state.settled = state.settled.max(mark.done);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flush(account: &LossAccount, epoch: u64) -> bool {
        let (mark, told) = (account.mark(epoch), account.told());
        account.flushed(mark, told, epoch).is_ok()
    }

    #[test]
    fn a_flush_in_a_later_epoch_fails_once_if_something_was_at_stake() {
        let account = LossAccount::new(SeenEpoch::new(3));
        assert!(flush(&account, 3) && flush(&account, 4));
        account.changed(account.mark(4), 4);
        assert!(flush(&account, 4) && flush(&account, 5));
        account.changed(account.mark(5), 5);
        assert!(!flush(&account, 6));
        assert!(flush(&account, 6));
    }

    #[test]
    fn what_was_acknowledged_while_a_flush_was_in_flight_is_not_covered_by_it() {
        let account = LossAccount::new(SeenEpoch::new(0));
        account.changed(account.mark(0), 0);
        let mark = account.mark(0);
        account.changed(account.mark(0), 0);
        account.flushed(mark, 0, 0).unwrap();
        assert!(!flush(&account, 1));
    }

    #[test]
    fn what_was_begun_before_and_is_acknowledged_after_may_have_been_done_by_either() {
        let account = LossAccount::new(SeenEpoch::new(0));
        let change = account.mark(0);
        account.changed(change, 1);
        assert!(!flush(&account, 1));
        // So may a flush.
        account.changed(account.mark(1), 1);
        let mark = account.mark(1);
        assert!(account.flushed(mark, account.told(), 2).is_err());
    }

    #[test]
    fn a_loss_is_reported_to_every_client_and_every_flush_in_flight() {
        let path = SeenEpoch::new(0);
        let one = LossAccount::new(path.clone());
        let two = one.beside(path.clone());
        one.changed(one.mark(0), 0);
        // Two flushes of the same client, begun before either was answered.
        let (mark, told) = (one.mark(1), one.told());
        assert!(one.flushed(mark, told, 1).is_err() && one.flushed(mark, told, 1).is_err());
        // A client that comes after the loss was reported has lost nothing.
        let three = one.beside(path);
        assert!(flush(&one, 1) && !flush(&two, 1) && flush(&two, 1) && flush(&three, 1));
    }

    #[test]
    fn an_account_that_comes_before_the_loss_was_reported_gets_it() {
        let path = SeenEpoch::new(0);
        let one = LossAccount::new(path.clone());
        one.changed(one.mark(0), 0);
        let two = one.beside(path.clone());
        assert_eq!(two.mark(1).done, 1);
        let three = one.beside(path);
        assert!(!flush(&three, 1) && !flush(&two, 1) && !flush(&one, 1) && flush(&one, 1));
    }

    #[test]
    fn one_client_s_loss_is_that_of_all_whose_flushes_cover_each_other() {
        let one = LossAccount::new(SeenEpoch::new(0));
        let two = one.beside(SeenEpoch::new(0));
        one.changed(one.mark(0), 0);
        // The other's path broke; the server there now may have lost the change.
        assert!(!flush(&two, 1));
        assert!(!flush(&one, 0));
    }
}
