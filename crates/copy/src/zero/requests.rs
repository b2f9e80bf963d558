//! Fast zeroes, several in flight at a time.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use device::{Error, ErrorKind, Operation, Outcome, Result, ZeroFlags};
use runtime::{Condvar, Mutex};

use super::act::Zeroes;
use crate::account::CopyAccount;
use crate::pair::Pair;
use crate::progress::{LOOK, cancelled};

/// Requests in flight at a time.
const AT_ONCE: usize = 16;

/// The sender. Cheap to clone; all clones share.
#[derive(Clone)]
pub(super) struct Requests<'a> {
    pub(super) pair: &'a Pair,
    pub(super) account: &'a CopyAccount,
    pub(super) zeroes: &'a Zeroes,
    /// Nothing is handed out to workers yet.
    alone: Arc<Mutex<bool>>,
}

/// How a fast zero ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Swept {
    Done,
    /// Nothing was changed.
    Refused,
    /// The path broke; the target may have done it or not, or do it yet.
    Lost,
}

impl<'a> Requests<'a> {
    pub(super) fn new(pair: &'a Pair, account: &'a CopyAccount, zeroes: &'a Zeroes) -> Self {
        Self { pair, account, zeroes, alone: Arc::new(Mutex::new(true)) }
    }

    /// From now on workers may change the target, too.
    pub(super) fn not_alone(&self) {
        *self.alone.lock() = false;
    }

    /// The longest request that the target takes as one.
    pub(super) fn longest(&self) -> u64 {
        let block = u64::from(self.pair.target.info().blocks.minimum).max(1);
        let longest = self.pair.target.info().longest_effect;
        (longest - longest % block).max(block)
    }

    /// Zeroes all of a range, in as many requests as it takes.
    pub(super) fn all(&self, range: &Range<u64>) -> Result<()> {
        let mut parts = VecDeque::new();
        let (mut start, longest) = (range.start, self.longest());
        while start < range.end {
            let end = range.end.min(start.saturating_add(longest));
            parts.push_back(start..end);
            start = end;
        }
        match self.run(parts)? {
            Swept::Done => {}
            Swept::Refused => self.zeroes.policy.not_fast(),
            Swept::Lost => self.zeroes.policy.no_more_in_advance(),
        }
        Ok(())
    }

    /// Zeroes these, until one is refused or lost. Returns when none is in flight; if the copy
    /// stops, returns at once, with an error, so that nothing is handed out that one of them could
    /// overtake. One that is lost is never repeated; what it might zero late is copied once more.
    pub(super) fn run(&self, mut parts: VecDeque<Range<u64>>) -> Result<Swept> {
        let answers = Arc::<Answers>::default();
        let (mut under_way, mut refused, mut lost, mut failed) = (0, false, false, None);
        let (target, epoch) = (&self.pair.target, self.pair.target_epoch());
        loop {
            while under_way < AT_ONCE
                && !refused
                && !lost
                && failed.is_none()
                && let Some(part) = parts.pop_front()
            {
                self.start(part, &answers);
                under_way += 1;
            }
            if under_way == 0 {
                break;
            }
            for (part, outcome) in answers.take() {
                under_way -= 1;
                let is_lost = outcome.as_ref().is_err_and(|e| self.pair.goes_on_after(e));
                // A device below may also have repeated it over another path.
                if let Some(ledger) = &self.account.ledger
                    && (is_lost || self.pair.target_epoch() != epoch)
                {
                    ledger.doubt(part.clone());
                }
                match outcome {
                    Ok(_) => self.zeroes.policy.made(part),
                    Err(e) if is_refusal(&e) => refused = true,
                    Err(_) if is_lost => lost = true,
                    Err(e) => {
                        failed.get_or_insert(e.on(&target.info().name).at(part.start));
                    }
                }
            }
            if self.account.is_over() {
                return Err(cancelled());
            }
        }
        match failed {
            Some(e) => Err(e),
            None if lost => Ok(Swept::Lost),
            None if refused => Ok(Swept::Refused),
            None => Ok(Swept::Done),
        }
    }

    fn start(&self, part: Range<u64>, answers: &Arc<Answers>) {
        let flags = ZeroFlags { fast_only: true, ..self.zeroes.policy.flags() };
        let (offset, len) = (part.start, part.end - part.start);
        let (answers, alone) = (answers.clone(), self.alone.clone());
        let touch = self.account.progress.touching();
        self.pair.target.submit(
            Operation::Zero { offset, len, flags },
            Box::new(move |outcome| {
                // Held until that is recorded, so that no worker can have changed anything
                // meanwhile.
                let alone = alone.lock();
                if *alone && outcome.as_ref().is_err_and(is_refusal) {
                    touch.was_nothing();
                }
                drop(alone);
                answers.put(part, outcome);
            }),
        );
    }
}

fn is_refusal(e: &Error) -> bool {
    e.kind() == ErrorKind::NotFast || e.is_unsupported()
}

/// The results of requests, for the thread that waits for them.
#[derive(Default)]
struct Answers {
    list: Mutex<Vec<(Range<u64>, Result<Outcome>)>>,
    more: Condvar,
}

impl Answers {
    fn put(&self, part: Range<u64>, outcome: Result<Outcome>) {
        self.list.lock().push((part, outcome));
        self.more.notify_one();
    }

    /// The results that have come; waits a moment if there are none.
    fn take(&self) -> Vec<(Range<u64>, Result<Outcome>)> {
        let mut list = self.list.lock();
        if list.is_empty() {
            list = self.more.wait_timeout(list, LOOK).0;
        }
        std::mem::take(&mut list)
    }
}
