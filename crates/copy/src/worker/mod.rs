//! A worker: one thread that moves units over a lane to either end.
//!
//! It starts reads up to its depth and its budget of bytes, looks at what arrives, and writes,
//! zeroes or skips. When the source answers at once, each piece is written while it is still in
//! the cache; when it does not, reads are started many at a time. It waits, on both
//! descriptors, only when neither end has anything to do.

mod looking;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use device::{
    Buffer, BufferPool, Completed, EdgeLane, Error, ErrorKind, Operation, Outcome, Place, Result,
    Slice, ZeroRuns,
};

use crate::answer::{confused, read_outcome};
use crate::depth::Lead;
use crate::held::{Held, Load};
use crate::job::Job;
use crate::ledger::Ledger;
use crate::progress::{LOOK, Moved};
use crate::queue::Next;
use crate::sums::SumPart;
use crate::tickets::{Task, Tickets};
use crate::unit::{Stretch, Unit};
use crate::zero::{Coalescer, ZeroBy};

/// Extents asked of the target at a time.
const TARGET_EXTENTS: usize = 256;

pub(crate) struct Worker {
    job: Arc<Job>,
    source: EdgeLane,
    target: EdgeLane,
    tickets: Tickets,
    reads: Lead,
    writes: Lead,
    /// The rest of the unit that is being started.
    stretches: VecDeque<Stretch>,
    /// Ranges that the target took by reference, which are to be read for the witness.
    taken: VecDeque<Range<u64>>,
    /// Whether units may still come.
    more: bool,
    /// Whether it may still find zeroes.
    finds: bool,
    /// Operations for the target, as soon as the depth allows.
    backlog: VecDeque<Todo>,
    /// Ranges of the target being read, and what was found not to be zero.
    looking: usize,
    dirt: Coalescer,
    /// Payload in buffers.
    held: Held,
    pool: BufferPool,
    ended: Vec<Completed>,
}

/// An operation for the target.
#[derive(Debug)]
enum Todo {
    Write { offset: u64, data: Slice, load: Arc<Load>, share: Option<SumPart> },
    Zero(Range<u64>, ZeroBy),
}

impl Todo {
    fn offset(&self) -> u64 {
        match self {
            Self::Write { offset, .. } => *offset,
            Self::Zero(range, _) => range.start,
        }
    }
}

impl Worker {
    pub(crate) fn open(job: Arc<Job>) -> Result<Self> {
        let (source, target) = (job.pair.source.lane()?, job.pair.target.lane()?);
        let keep = usize::try_from(job.pair.sizes.queue).unwrap_or(usize::MAX);
        let lead = || Lead::new(job.pair.sizes.requests, job.pair.sizes.few);
        let (reads, writes) = (lead(), lead());
        job.zeroes.waiting.enter();
        Ok(Self {
            job,
            source,
            target,
            tickets: Tickets::default(),
            reads,
            writes,
            stretches: VecDeque::new(),
            taken: VecDeque::new(),
            more: true,
            finds: true,
            backlog: VecDeque::new(),
            looking: 0,
            dirt: Coalescer::default(),
            held: Held::default(),
            pool: BufferPool::new(keep),
            ended: Vec::new(),
        })
    }

    /// Moves units until there are no more.
    pub(crate) fn run(mut self) -> Result<()> {
        loop {
            self.job.account.cancel.check()?;
            if self.job.account.queue.is_stopped() {
                return Ok(());
            }
            let mut moved = self.start_more()?;
            moved |= self.harvest_source()?;
            moved |= self.start_backlog();
            moved |= self.harvest_target()?;
            if moved {
                continue;
            }
            if self.finds && !self.more && self.stretches.is_empty() && self.reads.is_idle() {
                self.finds = false;
                let acts = self.job.zeroes.leave();
                self.zero(acts, self.job.zeroes.epoch);
            } else if !self.tickets.is_empty() {
                let begun = Instant::now();
                self.wait()?;
                let time = begun.elapsed();
                self.reads.waited(time);
                self.writes.waited(time);
                // The slower end has more requests in flight: the other one's are soon answered.
                let reads = self.reads.under_way();
                let for_source = reads > self.tickets.len().saturating_sub(reads);
                self.job.account.progress.waited(for_source, time);
            } else if let Some(ledger) = self.full() {
                ledger.wait();
            } else if self.more {
                self.next_unit(true);
            } else {
                return Ok(());
            }
        }
    }

    /// Takes the next unit, if there is one now (or soon, if it may `wait`).
    fn next_unit(&mut self, wait: bool) -> bool {
        match self.job.account.queue.next(wait) {
            Next::Empty => false,
            Next::End => {
                self.more = false;
                false
            }
            Next::Unit(unit) => {
                self.stretches.extend(unit.stretches);
                true
            }
        }
    }

    /// The ledger, while no more may be begun.
    fn full(&self) -> Option<&Ledger> {
        self.job.account.ledger.as_deref().filter(|ledger| ledger.is_full())
    }

    fn has_room(&self) -> bool {
        self.backlog.is_empty()
            && self.full().is_none()
            && self.tickets.len() < self.job.pair.sizes.requests
            && self.reads.has_room()
            && self.writes.has_room()
            && self.held.has_room(self.job.pair.sizes.request, self.job.pair.sizes.queue)
    }

    /// Starts what depth and budget allow. Returns whether it started anything.
    fn start_more(&mut self) -> Result<bool> {
        let mut started = false;
        while self.has_room() {
            if let Some(range) = self.taken.pop_front() {
                started = true;
                self.show(range)?;
                continue;
            }
            let Some(stretch) = self.stretches.pop_front() else {
                // One unit at a time, so that a long run of holes can be stopped.
                if !started && self.more && self.next_unit(false) {
                    continue;
                }
                break;
            };
            started = true;
            if stretch.zero {
                self.want_zero(stretch.start..stretch.end());
                continue;
            }
            match stretch.place.clone().filter(|_| self.job.takes) {
                Some(from) => self.take(stretch, from)?,
                None => self.read(stretch)?,
            }
            // Bytes are searched and written while they are in the cache.
            if self.source.has_ended() {
                break;
            }
        }
        Ok(started)
    }

    /// Has the target take the bytes from where they lie: shared, or copied by the system where
    /// zeroes are not looked for. What it does not take is read, which says what is wrong.
    fn take(&mut self, stretch: Stretch, from: Place) -> Result<()> {
        let (start, is_long) = (stretch.start, stretch.len > self.job.pair.sizes.unit);
        let took = self.take_or_read(stretch, from);
        if is_long {
            self.job.account.queue.settled(start);
        }
        took
    }

    fn take_or_read(&mut self, mut stretch: Stretch, from: Place) -> Result<()> {
        let Job { pair, account, .. } = &*self.job;
        account.progress.touch();
        let (epoch, share_only) = (pair.target_epoch(), pair.sizes.granularity.is_some());
        let taken = pair.target.take(stretch.start, stretch.len, from, share_only).unwrap_or(0);
        if taken > 0 {
            self.retire(stretch.start..stretch.start + taken, Moved::Copied, epoch);
            if self.job.witness.is_none() {
                account.progress.read(taken);
            }
            if self.job.witness.is_some() {
                self.taken.push_back(stretch.start..stretch.start + taken);
            }
            if taken < stretch.len {
                stretch.split(taken);
                self.share_out(stretch);
            }
            return Ok(());
        }
        let rest = self.cut(&mut stretch);
        if let Some(rest) = rest {
            self.share_out(rest);
        }
        stretch.place = None;
        self.read(stretch)
    }

    /// Cuts off what is longer than a unit, if anything: the stretch was left whole because it was
    /// to be shared.
    fn cut(&self, stretch: &mut Stretch) -> Option<Stretch> {
        let unit = self.job.pair.sizes.unit;
        let room = unit - stretch.start % unit;
        (stretch.len > room).then(|| {
            let first = stretch.split(room);
            std::mem::replace(stretch, first)
        })
    }

    /// The rest of a stretch that could not be shared: it goes to all workers if it is long.
    fn share_out(&mut self, mut stretch: Stretch) {
        let range = stretch.start..stretch.end();
        let mut all = Vec::new();
        while let Some(rest) = self.cut(&mut stretch) {
            all.push(std::mem::replace(&mut stretch, rest));
        }
        all.push(stretch);
        if all.len() > 1 {
            self.job.shares.store(false, Relaxed);
            let unit = |s: &Stretch| {
                let (start, end, stretches) = (s.start, s.end(), vec![s.clone()]);
                Unit { start, end, stretches, may_return: false }
            };
            if self.job.account.queue.give_back(&range, all.iter().map(unit).collect()) {
                return;
            }
        }
        for stretch in all.into_iter().rev() {
            self.stretches.push_front(stretch);
        }
    }

    /// Starts a read of the first piece of a stretch.
    fn read(&mut self, mut stretch: Stretch) -> Result<()> {
        let offset = stretch.start;
        let len = self.piece(&(stretch.start..stretch.end()));
        if len < stretch.len {
            stretch.split(len);
            self.stretches.push_front(stretch);
        }
        self.start_read(offset, len, false)
    }

    /// Starts a read of the first piece of a range that the target has taken.
    fn show(&mut self, range: Range<u64>) -> Result<()> {
        let (start, len) = (range.start, self.piece(&range));
        if start + len < range.end {
            self.taken.push_front(start + len..range.end);
        }
        self.start_read(start, len, true)
    }

    /// Bytes of a range that are read at once; pieces end at multiples of the request.
    fn piece(&self, range: &Range<u64>) -> u64 {
        let request = self.job.pair.sizes.request;
        (range.end - range.start).min(request - range.start % request)
    }

    fn start_read(&mut self, offset: u64, len: u64, taken: bool) -> Result<()> {
        let len = to_usize(len)?;
        let buffer = self.pool.take_whole(len);
        let load = self.held.take(buffer.capacity());
        let epoch = self.job.pair.source_epoch();
        let task = Task::Read { offset, len, taken };
        let ticket = self.tickets.issue(task, epoch, Some(load), None);
        self.reads.started();
        self.source.start(ticket, Operation::Read { offset, buffer });
        Ok(())
    }

    fn harvest_source(&mut self) -> Result<bool> {
        let mut ended = std::mem::take(&mut self.ended);
        let moved = self.source.turn(&mut ended);
        for completed in ended.drain(..) {
            let (task, started) = self.tickets.redeem(completed.ticket)?;
            let Task::Read { offset, len, taken } = task else { return Err(confused("source")) };
            self.reads.ended(started.at);
            let load = started.load.ok_or_else(|| confused("source"))?;
            match completed.outcome {
                Ok(outcome) => {
                    let buffer = read_outcome(outcome, len).ok_or_else(|| confused("source"))?;
                    self.job.account.progress.read(len as u64);
                    if let Some(sums) = &self.job.sums {
                        let range = offset..offset + len as u64;
                        sums.saw(range, started.epoch, self.job.pair.source_epoch());
                    }
                    if let Some(witness) = &self.job.witness {
                        witness.data(offset, &buffer);
                    }
                    if !taken {
                        self.arrived(buffer, offset, &load)?;
                    }
                }
                Err(e) => return Err(e.on(&self.job.pair.source.info().name).at(offset)),
            }
        }
        self.ended = ended;
        Ok(moved)
    }

    /// Searches what was read for zeroes, and has it written, or zeroed.
    fn arrived(&mut self, buffer: Buffer, offset: u64, load: &Arc<Load>) -> Result<()> {
        let Some(granularity) = self.job.pair.sizes.granularity else {
            self.write(offset, buffer.into(), load);
            return Ok(());
        };
        let len = buffer.len();
        let mut runs = ZeroRuns::new(&buffer, offset, granularity);
        match runs.next() {
            Some((0, n, true)) if n == len => {
                self.want_zero(offset..offset + len as u64);
                return Ok(());
            }
            Some((0, n, false)) if n == len => {
                self.write(offset, buffer.into(), load);
                return Ok(());
            }
            _ => {}
        }
        let buffer = Arc::new(buffer);
        for (start, n, zero) in ZeroRuns::new(&buffer, offset, granularity) {
            let at = offset + start as u64;
            if zero {
                self.want_zero(at..at + n as u64);
            } else {
                let part = Slice::part(&buffer, start, n).ok_or_else(|| confused("copy"))?;
                self.write(at, part, load);
            }
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, data: Slice, load: &Arc<Load>) {
        let share = self.job.sums.as_ref().map(|sums| sums.share(offset, &data));
        self.todo(Todo::Write { offset, data, load: load.clone(), share });
    }

    /// A range that is to read as zeroes.
    fn want_zero(&mut self, range: Range<u64>) {
        let zeroes = &self.job.zeroes;
        // A range that is read again may be the last one: nothing would join it.
        let acts = if self.finds { zeroes.want(range) } else { zeroes.now(range) };
        self.zero(acts, self.job.zeroes.epoch);
    }

    /// Ranges that are to read as zeroes, and how; `epoch` is that of the knowledge about them.
    fn zero(&mut self, acts: Vec<(Range<u64>, ZeroBy)>, epoch: u64) {
        for (range, how) in acts {
            match how {
                ZeroBy::Skipping(how) => self.retire(range, how, epoch),
                how => self.todo(Todo::Zero(range, how)),
            }
        }
    }

    /// The range is right in the target, by a request that began in the epoch.
    fn retire(&self, range: Range<u64>, how: Moved, epoch: u64) {
        self.job.account.retire(range, how, epoch);
    }

    fn todo(&mut self, todo: Todo) {
        // Where operations further ahead may be held back for the first, the first is sent before
        // them.
        let at = match self.job.zeroes.policy.told {
            true => self.backlog.partition_point(|other| other.offset() < todo.offset()),
            false => self.backlog.len(),
        };
        self.backlog.insert(at, todo);
        self.start_backlog();
    }

    /// Sends the target what waits for it, up to the depth. Returns whether anything was sent.
    fn start_backlog(&mut self) -> bool {
        let mut started = false;
        while self.tickets.len() < self.job.pair.sizes.requests {
            if self.job.account.ledger.as_ref().is_some_and(|ledger| ledger.is_due()) {
                self.ask_target(Task::Flush, Operation::Flush, None);
            } else if let Some(todo) = self.next_todo() {
                self.start_on_target(todo);
            } else {
                break;
            }
            started = true;
        }
        started
    }

    fn start_on_target(&mut self, todo: Todo) {
        match todo {
            Todo::Write { offset, data, load, share } => {
                self.start_write(offset, data, Some(load), share);
            }
            Todo::Zero(range, how) => {
                let (offset, len) = (range.start, range.end - range.start);
                match how {
                    ZeroBy::Asking => {
                        let max = TARGET_EXTENTS;
                        let operation = Operation::Resolve { offset, len, max };
                        self.ask_target(Task::Resolve { offset, len }, operation, None);
                    }
                    ZeroBy::Request(flags) => {
                        self.job.account.progress.touch();
                        let operation = Operation::Zero { offset, len, flags };
                        self.ask_target(
                            Task::Zero { offset, len, fast: flags.fast_only },
                            operation,
                            None,
                        );
                    }
                    ZeroBy::Reading => self.look_at(range),
                    ZeroBy::Skipping(how) => self.retire(range, how, self.job.zeroes.epoch),
                    ZeroBy::Writing => self.write_zeroes(offset, len),
                }
            }
        }
    }

    /// Zeroes of the job hold no memory.
    fn start_write(
        &mut self,
        offset: u64,
        data: Slice,
        load: Option<Arc<Load>>,
        share: Option<SumPart>,
    ) {
        self.job.account.progress.touch();
        self.writes.started();
        let task = Task::Write { offset, len: data.len(), zeroes: load.is_none() };
        let epoch = self.job.pair.target_epoch();
        let ticket = self.tickets.issue(task, epoch, load, share);
        self.target.start(ticket, Operation::Write { offset, data, fua: false });
    }

    fn ask_target(&mut self, task: Task, operation: Operation, load: Option<Arc<Load>>) {
        let ticket = self.tickets.issue(task, self.job.pair.target_epoch(), load, None);
        self.target.start(ticket, operation);
    }

    /// Writes the first piece of a range of zeroes, and leaves the rest for later.
    fn write_zeroes(&mut self, offset: u64, len: u64) {
        let request = self.job.pair.sizes.request;
        let n = len.min(request - offset % request);
        if n < len {
            let rest = offset + n..offset + len;
            self.backlog.push_front(Todo::Zero(rest, ZeroBy::Writing));
        }
        let zeroes = self.job.zeroes.buffer();
        match Slice::part(zeroes, 0, usize::try_from(n).unwrap_or(usize::MAX)) {
            Some(data) => self.start_write(offset, data, None, None),
            None => self.job.account.queue.stop(confused("copy")),
        }
    }

    fn harvest_target(&mut self) -> Result<bool> {
        let mut ended = std::mem::take(&mut self.ended);
        let moved = self.target.turn(&mut ended);
        for completed in ended.drain(..) {
            let (task, started) = self.tickets.redeem(completed.ticket)?;
            match task {
                Task::Write { .. } => self.writes.ended(started.at),
                Task::Look { .. } => {
                    self.writes.ended(started.at);
                    self.looking -= 1;
                }
                _ => {}
            }
            match completed.outcome {
                Ok(outcome) => {
                    if let (Some(sums), Some(share)) = (&self.job.sums, &started.share) {
                        sums.add(share);
                    }
                    self.target_answered(task, started.epoch, outcome)?;
                }
                Err(e) => self.target_failed(task, e)?,
            }
        }
        self.ended = ended;
        Ok(moved)
    }

    fn target_answered(&mut self, task: Task, epoch: u64, outcome: Outcome) -> Result<()> {
        match (task, outcome) {
            (Task::Write { offset, len, zeroes }, Outcome::Done) => {
                let how = if zeroes { Moved::Zeroed } else { Moved::Copied };
                self.retire(offset..offset + len as u64, how, epoch);
            }
            (Task::Look { offset, len, end }, outcome) => {
                let buffer = read_outcome(outcome, len).ok_or_else(|| confused("target"))?;
                self.looked(&buffer, offset..end, epoch);
            }
            (Task::Zero { offset, len, fast }, Outcome::Done) => {
                self.job.zeroes.policy.zeroed(fast);
                self.retire(offset..offset + len, Moved::Zeroed, epoch);
            }
            (Task::Resolve { offset, len }, Outcome::Extents(extents)) => {
                let acts = self.job.zeroes.answered(&(offset..offset + len), &extents)?;
                self.zero(acts, epoch);
            }
            (Task::Flush, Outcome::Done) => self.flushed(Ok(()))?,
            _ => return Err(confused("target")),
        }
        Ok(())
    }

    fn target_failed(&mut self, task: Task, e: Error) -> Result<()> {
        match task {
            Task::Zero { offset, len, fast: true }
                if e.kind() == ErrorKind::NotFast || e.is_unsupported() =>
            {
                self.job.zeroes.policy.not_fast();
                self.zero_again(offset, len, self.job.zeroes.policy.do_it(len));
            }
            Task::Zero { offset, len, .. } if e.is_unsupported() => {
                self.zero_again(offset, len, self.job.zeroes.policy.refused(len));
            }
            // A map that cannot be read proves nothing.
            Task::Resolve { offset, len } if e.is_unsupported() => {
                self.todo(Todo::Zero(offset..offset + len, self.job.zeroes.policy.do_it(len)));
            }
            // Its first try may still be done, late: both zero the range, which gets nothing else.
            Task::Zero { offset, len, fast: true } if self.job.pair.goes_on_after(&e) => {
                self.zero_again(offset, len, self.job.zeroes.policy.do_it_unseen());
            }
            Task::Write { offset, .. }
            | Task::Zero { offset, .. }
            | Task::Resolve { offset, .. } => {
                return Err(e.on(&self.job.pair.target.info().name).at(offset));
            }
            Task::Look { offset, end, .. } => self.look_failed(offset..end),
            Task::Flush => {
                self.flushed(Err(e.on(&self.job.pair.target.info().name)))?;
            }
            Task::Read { .. } => return Err(confused("target")),
        }
        Ok(())
    }

    fn zero_again(&mut self, offset: u64, len: u64, how: ZeroBy) {
        self.backlog.push_back(Todo::Zero(offset..offset + len, how));
    }

    fn flushed(&self, outcome: Result<()>) -> Result<()> {
        self.job.account.ledger.as_ref().map_or(Ok(()), |ledger| ledger.ended(outcome))
    }

    /// Waits until one of the ends can go on, or it is time to check whether to stop.
    fn wait(&self) -> Result<()> {
        EdgeLane::wait([&self.source, &self.target], LOOK)
    }
}

fn to_usize(n: u64) -> Result<usize> {
    usize::try_from(n).map_err(|_| Error::invalid(format!("{n} bytes do not fit in memory")))
}
