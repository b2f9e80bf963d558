//! Further connections, while none was lost since all were last asked.
//!
//! A connection that is made beside others leads to the same server if one of the others answers
//! afterwards. Those answers may take long: behind many others, or behind a flush of minutes. No
//! operation waits for that: the new connection is used at once, for everything but flushes, and is
//! *in doubt* until there is such an answer. A flush over it could cover changes that another
//! server has lost, so flushes go over trusted connections. If none of those is left, the server
//! may be another one: the epoch grows, and then all connections are trusted, since the new epoch
//! says so. Where lost connections are not reconnected, no account says to whom that makes a
//! difference. So there, if changes were acknowledged that no flush has covered, flushes fail until
//! a caller reconnects.

use std::ops::Range;
use std::sync::Arc;

use device::Operation;

use super::Shared;
use super::connection::SharedConnection;
use super::reconnecting::{ask_and_tell, is_lost};

impl Shared {
    /// The smallest range that can be read, at the beginning.
    pub(super) fn first_block(&self) -> Range<u64> {
        0..u64::from(self.session.blocks.minimum.max(1)).min(self.session.size)
    }

    /// Puts a new connection in doubt, if there are others and they seem to be alive. Returns
    /// whether it did.
    pub(super) fn doubts(&self, new: &Arc<SharedConnection>) -> bool {
        let others = self.list.lock();
        let doubted = !others.is_empty() && !others.iter().any(|other| other.is_over());
        drop(others);
        new.trust(!doubted);
        doubted
    }

    /// Trusts a new connection when a trusted one has answered a request that is sent from now on.
    pub(super) fn trust_later(&self, new: &Arc<SharedConnection>) {
        for other in self.all().iter().filter(|other| !Arc::ptr_eq(other, new)) {
            let (new, witness) = (Arc::downgrade(new), Arc::downgrade(other));
            ask_and_tell(other, &self.first_block(), move |answer| {
                // Any reply will do, also an error.
                if !is_lost(&answer)
                    && witness.upgrade().is_some_and(|witness| witness.is_trusted())
                    && let Some(new) = new.upgrade()
                {
                    new.trust(true);
                }
            });
        }
    }

    /// Puts a new connection in doubt that was made without asking these others, if flushes have to
    /// cover what went over them.
    pub(super) fn doubts_beside(&self, new: &SharedConnection, others: &[Arc<SharedConnection>]) {
        let lives = others.iter().any(|other| !other.is_over());
        new.trust(!self.writes || !lives && !self.keep.owes_a_flush());
    }

    /// If none of these usable connections is trusted, the server may be another one: the epoch
    /// grows, and they are trusted, unless flushes must fail.
    pub(super) fn trust_the_rest(&self, list: &[Arc<SharedConnection>]) {
        if !self.reconnects() && self.keep.owes_a_flush() {
            return;
        }
        let left = || list.iter().filter(|connection| !connection.is_over());
        if left().next().is_some() && !left().any(|connection| connection.is_trusted()) {
            self.keep.grow();
            left().for_each(|connection| connection.trust(true));
        }
    }

    /// Whether it is the only one of these that a flush may go over.
    pub(super) fn vouches_alone(one: &SharedConnection, list: &[Arc<SharedConnection>]) -> bool {
        one.is_trusted() && list.iter().filter(|other| other.is_trusted()).count() == 1
    }

    /// The connection with the least to do among those that may carry the operation, as
    /// [`Shared::choose`].
    pub(super) fn choose_for(&self, operation: &Operation) -> Option<Arc<SharedConnection>> {
        if !matches!(operation, Operation::Flush) {
            return self.choose();
        }
        let all = self.list.lock();
        self.trust_the_rest(&all);
        let trusted = || all.iter().filter(|connection| connection.is_trusted());
        let of_use = trusted().filter_map(|connection| Some((connection.load()?, connection)));
        let best = of_use.min_by_key(|(load, _)| *load).map(|(_, connection)| connection);
        // A lost one returns the error.
        best.or_else(|| trusted().find(|_| !self.reconnects())).cloned()
    }
}
