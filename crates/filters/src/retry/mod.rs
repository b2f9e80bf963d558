//! `retry`: when an operation fails, waits, reopens the device below and tries again.
//!
//! A write that is tried again writes the same bytes in the same place. Errors that are answers and
//! not failures are passed on. So is a flush that the device itself failed, because a second one
//! would not write the data that the first one lost. A flush over a reopened path does not cover
//! writes acknowledged before (see `device::losses`). Only the opening itself holds a thread.

mod reopening;

use runtime::Timers;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use device::losses::{LossAccount, Mark};
use device::{
    Again, Arrival, Done, Edge, Error, ErrorClass, ErrorKind, Fault, Filter, Filtered, Operation,
    OperationKind, Outcome, Over, Params, Result, param, values,
};

use crate::FilterKind;
use reopening::Reopening;

/// The longest wait.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

pub(crate) const KIND: FilterKind = FilterKind {
    word: "retry",
    summary: "reopens the device and retries when an operation fails",
    keeps_disk: false,
    params: &[
        param("retries", "N", "how often to try again (default 5)"),
        param("retry-delay", "TIME", "how long to wait before it (default 2 seconds)"),
        param("retry-exponential", "true|false", "wait twice as long each time (default true)"),
        param("retry-readonly", "true|false", "write no more after a failure (default false)"),
    ],
    example: "serve --filter=retry --filter=error memory 1M error-rate=10% retry-delay=10ms \
              --run 'nbdcopy \"$uri\" null:'",
    open: |params, below, context| {
        let settings = Settings::read(params)?;
        let (timers, readonly) = (context.timers.clone(), AtomicBool::new(false));
        let reopening = Reopening::new(below.device().clone(), context.pool.clone());
        let account = LossAccount::new(reopening.path());
        let shared = Shared { settings, timers, reopening, account, readonly };
        Ok(Filtered::device(Retry(Arc::new(shared)), below))
    },
    ..FilterKind::PLAIN
};

#[derive(Clone, Copy, Debug)]
struct Settings {
    retries: u64,
    delay: Duration,
    exponential: bool,
    readonly: bool,
}

impl Settings {
    fn read(params: &Params) -> Result<Self> {
        Ok(Self {
            retries: values::number(params, "retries")?.unwrap_or(5),
            delay: values::duration(params, "retry-delay")?.unwrap_or(Duration::from_secs(2)),
            exponential: values::flag(params, "retry-exponential")?.unwrap_or(true),
            readonly: values::flag(params, "retry-readonly")?.unwrap_or(false),
        })
    }

    /// How long to wait when `tried` tries have failed (at least 1).
    fn wait(&self, tried: u64) -> Duration {
        let doublings = if self.exponential { tried.saturating_sub(1) } else { 0 };
        let factor = u32::try_from(doublings).ok().and_then(|n| 1u32.checked_shl(n));
        let wait = factor.and_then(|factor| self.delay.checked_mul(factor));
        if self.delay.is_zero() { self.delay } else { wait.unwrap_or(LONGEST).min(LONGEST) }
    }
}

/// Whether another try may succeed, and the success would be true.
fn is_worth_another(kind: OperationKind, failed: &Error) -> bool {
    match failed.class() {
        ErrorClass::Permanent => false,
        ErrorClass::Transient => true,
        // A system that fails to write data back forgets the data; its next flush succeeds.
        ErrorClass::Misbehaved | ErrorClass::Ours => kind != OperationKind::Flush,
    }
}

struct Retry(Arc<Shared>);

/// What is common to all operations of a filter.
struct Shared {
    settings: Settings,
    timers: Timers,
    reopening: Arc<Reopening>,
    account: LossAccount,
    /// Nothing is written any more.
    readonly: AtomicBool,
}

impl Filter for Retry {
    fn describe(&self, over: &mut Over) {
        over.info.observe();
    }

    fn reopens(&self) -> bool {
        true
    }

    fn run(&self, over: &Over, mut operation: Operation, done: Done) {
        let (below, shared) = (over.below.clone(), self.0.clone());
        let told = shared.account.told();
        let again = operation.again();
        Trial { below, shared, again, tried: 0, told, done }.go(operation);
    }

    fn for_client(&self, over: &Over, arrival: &mut Arrival<'_>) -> Option<Arc<dyn Filter>> {
        let Shared { settings, timers, reopening, account, .. } = &*self.0;
        let Arrival { below, has_own_path, .. } = arrival;
        // Each client must hear of possible losses, and one client's failure does not stop the
        // writes of others.
        if !over.info.abilities.write && !*has_own_path {
            return None;
        }
        let same = reopening.is_of(below.device());
        let reopening = if same {
            reopening.clone()
        } else {
            Reopening::new(below.device().clone(), below.pool().clone())
        };
        // Whether one client's flush covers the changes of the others.
        let account = if same || below.info().abilities.multi_conn {
            account.beside(reopening.path())
        } else {
            LossAccount::new(reopening.path())
        };
        let (settings, timers, readonly) = (*settings, timers.clone(), AtomicBool::new(false));
        let shared = Shared { settings, timers, reopening, account, readonly };
        Some(Arc::new(Self(Arc::new(shared))))
    }
}

/// An operation in flight, until it succeeds or is given up.
struct Trial {
    below: Edge,
    shared: Arc<Shared>,
    again: Again,
    /// How many tries have failed.
    tried: u64,
    /// How many losses the client had been told of when it began.
    told: u64,
    done: Done,
}

impl Trial {
    fn go(self, operation: Operation) {
        if operation.changes() && self.shared.readonly.load(Ordering::Acquire) {
            let action = "write: read-only since an earlier operation failed";
            let error = Error::new(ErrorKind::ReadOnly, Fault::User, action);
            return (self.done)(Err(error.on(&self.below.info().name)));
        }
        let seen = self.shared.reopening.times();
        let below = self.below.clone();
        let mark = self.shared.account.mark(below.device().epoch());
        below.submit(operation, Box::new(move |result| self.ended(seen, mark, result)));
    }

    fn go_again(mut self) {
        let operation = self.again.operation();
        self.go(operation);
    }

    fn ended(mut self, seen: u64, mark: Mark, result: Result<Outcome>) {
        let error = match result.and_then(|outcome| self.vouch(mark, outcome)) {
            Ok(outcome) => return (self.done)(Ok(outcome)),
            Err(error) => error,
        };
        if error.kind() == ErrorKind::NotFast && self.tried > 0 && self.again.slow_down() {
            return self.go_again();
        }
        if !is_worth_another(self.again.kind(), &error) {
            return (self.done)(Err(error));
        }
        if self.shared.settings.readonly {
            self.shared.readonly.store(true, Ordering::Release);
        }
        self.failed(seen, error);
    }

    /// Whether the success counts, now that its path is known.
    fn vouch(&self, mark: Mark, outcome: Outcome) -> Result<Outcome> {
        let now = self.below.device().epoch();
        let account = &self.shared.account;
        if self.again.kind() == OperationKind::Flush {
            let vouched = account.flushed(mark, self.told, now);
            return vouched.map(|()| outcome).map_err(|e| e.on(&self.below.info().name));
        }
        if self.again.fua() {
            // A flush may have made it durable, over another path.
            if mark.epoch != now {
                let action = "make durable: reconnected meanwhile";
                let error = Error::new(ErrorKind::Disconnected, Fault::Peer, action);
                return Err(error.on(&self.below.info().name));
            }
        } else if self.again.kind().changes() {
            account.changed(mark, now);
        }
        Ok(outcome)
    }

    /// Waits, and reopens the device.
    fn failed(mut self, seen: u64, error: Error) {
        if self.tried >= self.shared.settings.retries {
            return (self.done)(Err(error));
        }
        self.tried += 1;
        let wait = self.shared.settings.wait(self.tried);
        let timers = self.shared.timers.clone();
        timers.after(wait, move || {
            let reopening = self.shared.reopening.clone();
            let then = move |reopened: Result<()>| match reopened {
                Ok(()) => self.go_again(),
                Err(error) => self.failed(seen, error),
            };
            reopening.since(seen, Box::new(then));
        });
    }
}

#[cfg(test)]
mod tests;
