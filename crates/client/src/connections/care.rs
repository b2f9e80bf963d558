//! What is recorded of operations if the device reconnects by itself: whether a flush covers them,
//! and which bytes a disk that comes back must still have. Otherwise only whether there are
//! acknowledged changes that no flush has covered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use device::losses::{LossAccount, Mark};
use device::{Operation, Outcome, Result};

use super::canaries::{Canaries, Flushing};

/// What all connections to an export have in common.
#[derive(Debug)]
pub(crate) struct Keep {
    /// The name in errors.
    name: Arc<str>,
    /// How long requests wait for a lost server; `None`: they do not.
    pub(crate) patience: Option<Duration>,
    /// See [`device::Session::epoch`].
    epoch: AtomicU64,
    /// Without patience: how many changes were acknowledged and not durable, and how many of them a
    /// flush has covered.
    changed: AtomicU64,
    flushed: AtomicU64,
    pub(crate) canaries: Canaries,
}

impl Keep {
    pub(crate) fn new(name: Arc<str>, patience: Option<Duration>, block: u64) -> Arc<Self> {
        let [epoch, changed, flushed] = [const { AtomicU64::new(0) }; 3];
        let canaries = Canaries::new(block);
        Arc::new(Self { name, patience, epoch, changed, flushed, canaries })
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The server may have forgotten what was not durable.
    pub(crate) fn grow(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.canaries.doubt();
    }

    /// Without patience: whether a change was acknowledged that a server may have forgotten, if it
    /// is another one.
    pub(crate) fn owes_a_flush(&self) -> bool {
        self.changed.load(Ordering::SeqCst) > self.flushed.load(Ordering::SeqCst)
    }

    fn care_for_one_server(self: &Arc<Self>, operation: &Operation) -> Care {
        let covers = match operation {
            Operation::Flush => Some(self.changed.load(Ordering::SeqCst)),
            _ if operation.changes() && !operation.fua() => None,
            _ => return Care::none(),
        };
        Care(Record::Counted { keep: self.clone(), covers })
    }

    /// Records an operation that begins now, for the client with this account.
    pub(crate) fn care(
        self: &Arc<Self>,
        operation: &Operation,
        account: Option<&Arc<LossAccount>>,
    ) -> Care {
        if self.patience.is_none() {
            return self.care_for_one_server(operation);
        }
        let canaries = &self.canaries;
        let what = match operation {
            Operation::Flush => What::Flush(canaries.flush()),
            Operation::Read { offset, buffer } => {
                match canaries.read(*offset, buffer.len() as u64) {
                    Some(id) => What::Read(Some(id)),
                    None => return Care::none(),
                }
            }
            Operation::Write { offset, data, .. } => {
                What::Change(canaries.change(*offset, data.len() as u64, Some(data)))
            }
            Operation::Take { offset, len, .. }
            | Operation::Trim { offset, len, .. }
            | Operation::Zero { offset, len, .. } => {
                What::Change(canaries.change(*offset, *len, None))
            }
            Operation::Prefetch { .. } | Operation::Resolve { .. } | Operation::Status { .. } => {
                return Care::none();
            }
        };
        let account = account.map(|account| Accounted {
            account: account.clone(),
            mark: account.mark(self.epoch()),
            told: account.told(),
        });
        let durable = operation.fua();
        Care(Record::Noted(Box::new(Noted { keep: self.clone(), what, durable, account })))
    }
}

/// The record of an operation. It must be told how that ended.
#[derive(Debug)]
pub(crate) struct Care(Record);

#[derive(Debug)]
enum Record {
    Nothing,
    /// A change, or a flush that covers this many.
    Counted {
        keep: Arc<Keep>,
        covers: Option<u64>,
    },
    Noted(Box<Noted>),
}

#[derive(Debug)]
struct Noted {
    keep: Arc<Keep>,
    what: What,
    /// It is durable when it is acknowledged.
    durable: bool,
    account: Option<Accounted>,
}

#[derive(Debug)]
struct Accounted {
    account: Arc<LossAccount>,
    mark: Mark,
    told: u64,
}

#[derive(Debug)]
enum What {
    /// A change, by its number.
    Change(u64),
    Flush(Flushing),
    /// A read of a canary.
    Read(Option<u64>),
}

impl Care {
    /// Records nothing.
    pub(crate) fn none() -> Self {
        Self(Record::Nothing)
    }

    /// It is sent once more, now.
    pub(crate) fn again(&mut self) {
        let Record::Noted(noted) = &mut self.0 else { return };
        let Noted { keep, what, account, .. } = &mut **noted;
        if let Some(Accounted { account, mark, .. }) = account {
            *mark = account.mark(keep.epoch());
        }
        match what {
            What::Change(_) => {}
            What::Flush(flushing) => *flushing = keep.canaries.flush(),
            What::Read(canary) => {
                if let Some(id) = canary.take() {
                    keep.canaries.forget(id);
                }
            }
        }
    }

    /// It has ended; returns the result for the caller.
    pub(crate) fn ended(self, outcome: Result<Outcome>) -> Result<Outcome> {
        let Noted { keep, what, durable, account } = match self.0 {
            Record::Nothing => return outcome,
            Record::Counted { keep, covers } => {
                match covers {
                    _ if outcome.is_err() => {}
                    Some(covers) => _ = keep.flushed.fetch_max(covers, Ordering::SeqCst),
                    None => _ = keep.changed.fetch_add(1, Ordering::SeqCst),
                }
                return outcome;
            }
            Record::Noted(noted) => *noted,
        };
        let (canaries, now) = (&keep.canaries, keep.epoch());
        match (what, &outcome) {
            (What::Change(id), Ok(_)) => {
                canaries.changed(id, durable);
                if let Some(Accounted { account, mark, .. }) = account.filter(|_| !durable) {
                    account.changed(mark, now);
                }
            }
            (What::Change(id), Err(_)) => canaries.forget(id),
            (What::Flush(flushing), Ok(_)) => {
                if let Some(Accounted { account, mark, told }) = account {
                    account.flushed(mark, told, now).map_err(|e| e.on(&keep.name))?;
                }
                canaries.flushed(&flushing);
            }
            (What::Read(Some(id)), Ok(Outcome::Read(bytes))) => canaries.fill(id, bytes),
            (What::Read(Some(id)), _) => canaries.forget(id),
            (What::Flush(_), Err(_)) | (What::Read(None), _) => {}
        }
        outcome
    }
}
