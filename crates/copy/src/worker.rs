//! A worker: one thread that moves units over a lane to either end.
//!
//! It starts reads up to its depth and its budget of bytes, looks at what arrives, and writes,
//! zeroes or skips. When the source answers at once, each piece is written while it is still in
//! the cache; when it does not, reads are started many at a time. It waits, on both
//! descriptors, only when neither end has anything to do.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use device::{
    Buffer, BufferPool, Completed, Error, ErrorKind, Fault, Operation, Outcome, Result, Slice,
    ZeroFlags, ZeroRuns,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::depth::Lead;
use crate::end::{End, read_outcome};
use crate::job::{Job, LOOK};
use crate::mover::Mover;
use crate::plan::Stretch;
use crate::progress::Moved;
use crate::queue::Next;
use crate::ticket::{Task, Tickets};

mod zeroing;

pub(crate) struct Worker {
    job: Arc<Job>,
    source: End,
    target: End,
    tickets: Tickets,
    reads: Lead,
    writes: Lead,
    /// What is left of the unit that is being started.
    stretches: VecDeque<Stretch>,
    /// Whether units may still come.
    more: bool,
    /// Whether it may still find zeroes.
    finds: bool,
    /// What the target shall do as soon as the depth allows.
    backlog: VecDeque<Todo>,
    /// Payload bytes in buffers.
    held: u64,
    pool: BufferPool,
    ended: Vec<Completed>,
}

/// Something for the target to do.
#[derive(Debug)]
enum Todo {
    Resolve { offset: u64, len: u64 },
    Write { offset: u64, data: Slice },
    WriteZeroes { offset: u64, len: u64 },
    Zero { offset: u64, len: u64, flags: ZeroFlags },
}

impl Worker {
    pub(crate) fn open(job: Arc<Job>) -> Result<Self> {
        let source = End::open(&job.source)?;
        let target = End::open(&job.target)?;
        let keep = usize::try_from(job.queue_size).unwrap_or(usize::MAX);
        let (reads, writes) = (
            Lead::new(source.is_inline(), job.requests),
            Lead::new(target.is_inline(), job.requests),
        );
        job.ranges.enter();
        Ok(Self {
            job,
            source,
            target,
            tickets: Tickets::default(),
            reads,
            writes,
            stretches: VecDeque::new(),
            more: true,
            finds: true,
            backlog: VecDeque::new(),
            held: 0,
            pool: BufferPool::new(keep),
            ended: Vec::new(),
        })
    }

    /// Moves units until there are no more.
    pub(crate) fn run(mut self) -> Result<()> {
        loop {
            if self.job.cancel.is_cancelled() {
                return Err(cancelled());
            }
            if self.job.queue.is_stopped() {
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
                for range in self.job.ranges.leave() {
                    self.zero(range);
                }
            } else if !self.tickets.is_empty() {
                self.wait()?;
            } else if self.more {
                self.next_unit(true);
            } else {
                break;
            }
        }
        self.flush()
    }

    /// Takes the next unit, if there is one now (or soon, if it may `wait`).
    fn next_unit(&mut self, wait: bool) -> bool {
        match self.job.queue.next(wait) {
            Next::Empty => false,
            Next::End => {
                self.more = false;
                false
            }
            Next::Unit(unit) => {
                self.job.units.add(&unit);
                self.stretches = unit.stretches.into();
                true
            }
        }
    }

    fn has_room(&self) -> bool {
        self.backlog.is_empty()
            && self.tickets.len() < self.job.requests
            && self.reads.has_room()
            && self.writes.has_room()
            && (self.held == 0
                || self.held.saturating_add(self.job.sizes.request) <= self.job.queue_size)
    }

    /// Starts what depth and budget allow; whether it started anything.
    fn start_more(&mut self) -> Result<bool> {
        let mut started = false;
        while self.has_room() {
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
            match self.job.movers.choose(&stretch, &self.job.target) {
                Mover::InKernel { from, to } => self.move_in_kernel(stretch, &from, &to)?,
                Mover::ReadAndWrite => self.read(stretch)?,
            }
            if self.source.is_inline() {
                break;
            }
        }
        Ok(started)
    }

    fn move_in_kernel(
        &mut self,
        mut stretch: Stretch,
        from: &device::Place,
        to: &device::Place,
    ) -> Result<()> {
        self.job.progress.touch();
        let n = self.job.movers.in_kernel(from, to, stretch.len).min(stretch.len);
        if n == 0 {
            return self.read(stretch);
        }
        self.retire(stretch.start..stretch.start + n, Moved::Copied);
        if n < stretch.len {
            stretch.split(n);
            self.stretches.push_front(stretch);
        }
        Ok(())
    }

    /// Starts a read of the first piece of a stretch; pieces end at multiples of the request.
    fn read(&mut self, mut stretch: Stretch) -> Result<()> {
        let room = self.job.sizes.request - stretch.start % self.job.sizes.request;
        let offset = stretch.start;
        let len = stretch.len.min(room);
        if len < stretch.len {
            stretch.split(len);
            self.stretches.push_front(stretch);
        }
        let len = to_usize(len)?;
        let buffer = self.pool.take(len);
        self.held += len as u64;
        let ticket = self.tickets.issue(Task::Read { offset, len });
        self.reads.started();
        self.source.start(ticket, Operation::Read { offset, buffer });
        Ok(())
    }

    fn harvest_source(&mut self) -> Result<bool> {
        let mut ended = std::mem::take(&mut self.ended);
        let moved = self.source.turn(&mut ended);
        for completed in ended.drain(..) {
            let (task, started) = self.tickets.redeem(completed.ticket)?;
            let Task::Read { offset, len } = task else { return Err(confused("source")) };
            self.reads.ended(started);
            let outcome =
                completed.outcome.map_err(|e| e.on(&self.job.source.info().name).at(offset))?;
            let buffer = read_outcome(outcome, len).ok_or_else(|| confused("source"))?;
            self.held -= len as u64;
            self.arrived(buffer, offset)?;
        }
        self.ended = ended;
        Ok(moved)
    }

    /// Looks at what was read, and has it written, or zeroed.
    fn arrived(&mut self, buffer: Buffer, offset: u64) -> Result<()> {
        let Some(granularity) = self.job.sizes.granularity else {
            self.write(offset, buffer.into());
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
                self.write(offset, buffer.into());
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
                self.write(at, part);
            }
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, data: Slice) {
        self.held += data.len() as u64;
        self.todo(Todo::Write { offset, data });
    }

    /// The range is right in the target.
    fn retire(&self, range: Range<u64>, how: Moved) {
        self.job.units.retire(&self.job, range.start, range.end - range.start, how);
    }

    fn todo(&mut self, todo: Todo) {
        self.backlog.push_back(todo);
        self.start_backlog();
    }

    /// Gives the target what waits for it, up to the depth; whether anything was given.
    fn start_backlog(&mut self) -> bool {
        let mut started = false;
        while self.tickets.len() < self.job.requests
            && let Some(todo) = self.backlog.pop_front()
        {
            started = true;
            self.start_on_target(todo);
        }
        started
    }

    fn start_on_target(&mut self, todo: Todo) {
        match todo {
            Todo::Resolve { offset, len } => {
                let ticket = self.tickets.issue(Task::Resolve { offset, len });
                let max = zeroing::TARGET_EXTENTS;
                self.target.start(ticket, Operation::Resolve { offset, len, max });
            }
            Todo::Write { offset, data } => {
                self.job.progress.touch();
                let task = Task::Write { offset, len: data.len(), zeroes: false };
                let ticket = self.tickets.issue(task);
                self.writes.started();
                self.target.start(ticket, Operation::Write { offset, data, fua: false });
            }
            Todo::WriteZeroes { offset, len } => self.write_zeroes(offset, len),
            Todo::Zero { offset, len, flags } => {
                self.job.progress.touch();
                let ticket = self.tickets.issue(Task::Zero { offset, len });
                self.target.start(ticket, Operation::Zero { offset, len, flags });
            }
        }
    }

    fn harvest_target(&mut self) -> Result<bool> {
        let mut ended = std::mem::take(&mut self.ended);
        let moved = self.target.turn(&mut ended);
        for completed in ended.drain(..) {
            let (task, started) = self.tickets.redeem(completed.ticket)?;
            if let Task::Write { .. } = task {
                self.writes.ended(started);
            }
            self.target_answered(task, completed.outcome)?;
        }
        self.ended = ended;
        Ok(moved)
    }

    fn target_answered(&mut self, task: Task, outcome: Result<Outcome>) -> Result<()> {
        let name = &self.job.target.info().name;
        match (task, outcome) {
            (Task::Write { offset, len, zeroes }, Ok(Outcome::Done)) => {
                if !zeroes {
                    self.held -= len as u64;
                }
                let how = if zeroes { Moved::Zeroed } else { Moved::Copied };
                self.retire(offset..offset + len as u64, how);
                Ok(())
            }
            (Task::Zero { offset, len }, Ok(Outcome::Done)) => {
                self.job.zero.zeroed();
                self.retire(offset..offset + len, Moved::Zeroed);
                Ok(())
            }
            (Task::Zero { offset, len }, Err(e)) if e.is_unsupported() => {
                self.job.zero.refused();
                self.todo(Todo::WriteZeroes { offset, len });
                Ok(())
            }
            (Task::Resolve { offset, len }, Ok(Outcome::Extents(extents))) => {
                self.resolved(offset..offset + len, &extents)
            }
            // A map that cannot be had proves nothing.
            (Task::Resolve { offset, len }, Err(e)) if e.is_unsupported() => {
                self.zero_by(self.job.zero.do_it(), offset..offset + len);
                Ok(())
            }
            (Task::Flush, Ok(Outcome::Done)) => Ok(()),
            (Task::Flush, Err(e)) => Err(e.on(name)),
            (
                Task::Write { offset, .. }
                | Task::Zero { offset, .. }
                | Task::Resolve { offset, .. },
                Err(e),
            ) => Err(e.on(name).at(offset)),
            _ => Err(confused("target")),
        }
    }

    /// Waits until one of the ends can go on, or it is time to look whether to stop.
    fn wait(&self) -> Result<()> {
        let mut fds: [Option<PollFd<'_>>; 2] = [None, None];
        for (slot, end) in fds.iter_mut().zip([&self.source, &self.target]) {
            if let Some((fd, interest)) = end.waits_on() {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, interest.read);
                flags.set(PollFlags::OUT, interest.write);
                *slot = Some(PollFd::from_borrowed_fd(fd, flags));
            }
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK.subsec_nanos()) };
        let polled = match fds {
            [Some(a), Some(b)] => poll(&mut [a, b], Some(&timeout)),
            [Some(a), None] | [None, Some(a)] => poll(&mut [a], Some(&timeout)),
            [None, None] => return Err(confused("lane that waits for nothing")),
        };
        match polled {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(Error::os("copy: wait for the devices", e)),
        }
    }

    /// Makes what went through this worker's own lane durable, if that was asked for.
    fn flush(&mut self) -> Result<()> {
        if !self.job.flush || !self.target.wants_flush() {
            return Ok(());
        }
        let ticket = self.tickets.issue(Task::Flush);
        self.target.start(ticket, Operation::Flush);
        loop {
            if self.job.cancel.is_cancelled() {
                return Err(cancelled());
            }
            let moved = self.harvest_target()?;
            if self.tickets.is_empty() {
                return Ok(());
            }
            if !moved {
                self.wait()?;
            }
        }
    }
}

fn to_usize(n: u64) -> Result<usize> {
    usize::try_from(n).map_err(|_| Error::invalid(format!("{n} bytes do not fit in memory")))
}

pub(crate) fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, Fault::User, "copy: stopped as asked")
}

pub(crate) fn confused(what: &str) -> Error {
    let action = format!("copy: the {what} gave an answer that makes no sense; this is a defect");
    Error::new(ErrorKind::Io, Fault::Us, action)
}
