//! A copy of a stream: bytes that come once, in order, and whose number is not known before the
//! end.
//!
//! One thread reads and looks for zeroes, with a few writes in flight. The end of the stream is
//! taken at its word: a failure of the producer cannot be seen here. Nothing can be read again, so
//! a target that reconnected, and may have forgotten something, fails the copy. A failed read is
//! never taken for the end.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use device::{
    Buffer, BufferPool, Done, Edge, Error, ErrorKind, Fault, Operation, Order, Outcome, Result,
    Slice, ZeroFlags, ZeroRuns, format_size,
};

use crate::answer::{confused, flush};
use crate::options::HELD;
use crate::pair::check_target;
use crate::progress::{LOOK, Moved};
use crate::{Cancel, FailedCopy, Flush, Options, Progress, Reflink, Report, Watched};
use runtime::RangeSet;

/// Operations in flight at a time, where they are short enough.
const WIDTH: usize = 16;
/// How long a copy that failed waits for what is in flight.
const PATIENCE: Duration = Duration::from_secs(1);

/// Fills the beginning of a buffer and returns how many bytes, at least one; 0 at the end, and
/// `None` if nothing came for this long.
pub type ReadNext<'a> = dyn FnMut(&mut [u8], Duration) -> Result<Option<usize>> + Send + 'a;

/// Copies what `read` gives to the beginning of `target`. What lies beyond its end is left alone,
/// unless `resize`, which is called with the length once that is known, cuts it off. Of the options
/// only those on zeroes and durability count; a zero target is believed only if it need not be
/// checked.
///
/// # Errors
/// The first thing that went wrong, with how far the copy came.
pub fn stream(
    read: &mut ReadNext<'_>,
    target: &Edge,
    resize: &dyn Fn(u64) -> Result<()>,
    options: &Options,
    progress: &Progress,
    cancel: &Cancel,
) -> std::result::Result<Report, Box<FailedCopy>> {
    let began = Instant::now();
    let mut copy = Copy::new(target, options, progress, cancel);
    progress.begin(0);
    let outcome = copy.check().and_then(|()| copy.go(read)).and_then(|()| copy.finish(resize));
    if outcome.is_err() {
        copy.give_up();
    }
    let counted = progress.snapshot();
    let report = Report {
        total: copy.at,
        copied: counted.copied,
        zeroed: counted.zeroed,
        skipped: counted.skipped,
        confirmed: 0,
        elapsed: began.elapsed(),
        touched: progress.touched(),
        left: if outcome.is_err() { copy.left() } else { Vec::new() },
    };
    match outcome {
        Err(error) => Err(Box::new(FailedCopy { error, report })),
        Ok(()) => Ok(report),
    }
}

/// The result of one operation.
type Ended = (Range<u64>, Moved, Result<()>);

struct Copy<'a> {
    target: Edge,
    options: &'a Options,
    progress: &'a Progress,
    cancel: &'a Cancel,
    pool: BufferPool,
    answers: (Sender<Ended>, Receiver<Ended>),
    in_flight: usize,
    /// Bytes that were read.
    at: u64,
    /// Of these, the ones in the target.
    done: RangeSet,
    /// The target's epoch when the copy began.
    epoch: u64,
}

impl<'a> Copy<'a> {
    fn new(
        target: &Edge,
        options: &'a Options,
        progress: &'a Progress,
        cancel: &'a Cancel,
    ) -> Self {
        let (target, epoch) = (target.clone(), target.device().epoch());
        let pool = BufferPool::new(request(options).saturating_mul(width(options)));
        let (answers, done) = (channel(), RangeSet::default());
        Self { target, options, progress, cancel, pool, answers, in_flight: 0, at: 0, done, epoch }
    }

    fn check(&self) -> Result<()> {
        self.options.check()?;
        check_target(self.target.info(), self.options.flush)?;
        if self.options.reflink == Reflink::Always {
            return Err(Error::invalid("reflink: a stream has no blocks that could be shared"));
        }
        Ok(())
    }

    fn go(&mut self, read: &mut ReadNext<'_>) -> Result<()> {
        let mut ended = false;
        while !ended {
            let mut buffer = self.pool.take(request(self.options));
            let mut filled = 0;
            while filled < buffer.len() && !ended {
                // A write that failed ends the copy, also while nothing comes.
                self.harvest(Duration::ZERO)?;
                self.cancel.check()?;
                let begun = Instant::now();
                let came = read(buffer.get_mut(filled..).unwrap_or_default(), LOOK)?;
                self.progress.waited(true, begun.elapsed());
                self.progress.read(came.unwrap_or(0) as u64);
                match came {
                    None => {}
                    Some(0) => ended = true,
                    Some(n) if n <= buffer.len() - filled => filled += n,
                    Some(_) => return Err(confused("source")),
                }
            }
            buffer.truncate(filled);
            if filled > 0 {
                self.hand_on(buffer)?;
            }
        }
        while self.in_flight > 0 {
            self.cancel.check()?;
            self.harvest(LOOK)?;
        }
        Ok(())
    }

    /// Writes what was read, or zeroes the target where it is zero.
    fn hand_on(&mut self, buffer: Buffer) -> Result<()> {
        let (start, len) = (self.at, buffer.len() as u64);
        let size = self.target.info().size;
        self.at = start.saturating_add(len);
        if len > size.saturating_sub(start) {
            let action = format!(
                "target is too small: it has {size} bytes ({}), and the source has more",
                format_size(size)
            );
            let error = Error::new(ErrorKind::NoSpace, Fault::User, action);
            return Err(error.on(&self.target.info().name));
        }
        if let Some(Watched(witness)) = &self.options.witness {
            witness.data(start, &buffer);
        }
        let buffer = Arc::new(buffer);
        let Some(granularity) = self.granularity() else {
            return self.write(&buffer, start, 0, buffer.len());
        };
        for (first, len, is_zero) in ZeroRuns::new(&buffer, start, granularity) {
            if is_zero {
                self.zero(start + first as u64, len as u64)?;
            } else {
                self.write(&buffer, start, first, len)?;
            }
        }
        Ok(())
    }

    /// Zeroes are looked for only where it makes a difference.
    fn granularity(&self) -> Option<u64> {
        let info = self.target.info();
        let wished =
            self.options.sparse.filter(|_| !info.abilities.discards && !self.options.wipe)?;
        Some(wished.max(info.blocks.minimum.into()).max(1))
    }

    fn write(&mut self, buffer: &Arc<Buffer>, start: u64, first: usize, len: usize) -> Result<()> {
        let data = Slice::part(buffer, first, len).ok_or_else(|| confused("buffer"))?;
        let offset = start + first as u64;
        let operation = Operation::Write { offset, data, fua: false };
        self.start(operation, offset..offset + len as u64, Moved::Copied)
    }

    fn zero(&mut self, offset: u64, len: u64) -> Result<()> {
        let (range, options) = (offset..offset + len, self.options);
        let is_zero = options.target_is_zero && !options.check_zero && !options.allocated;
        // A target that is written as a stream gets every byte.
        if is_zero && self.target.info().order == Order::Any {
            self.progress.add(Moved::Skipped, len);
            self.done.add(range);
            return Ok(());
        }
        let flags = ZeroFlags {
            may_unmap: !options.allocated,
            written: options.written,
            ..ZeroFlags::default()
        };
        self.start(Operation::Zero { offset, len, flags }, range, Moved::Zeroed)
    }

    fn start(&mut self, operation: Operation, range: Range<u64>, how: Moved) -> Result<()> {
        let one_by_one = self.target.info().order == Order::OneByOne;
        let most = if one_by_one { 1 } else { width(self.options) };
        while self.in_flight >= most {
            self.cancel.check()?;
            self.harvest(LOOK)?;
        }
        self.progress.touch();
        self.in_flight += 1;
        let done = answering(self.answers.0.clone(), range, how);
        self.target.submit(operation, done);
        Ok(())
    }

    /// Takes what has ended, and waits at most this long for the first.
    fn harvest(&mut self, wait: Duration) -> Result<()> {
        let mut wait = wait;
        while self.in_flight > 0 {
            let ended = match self.answers.1.recv_timeout(wait) {
                Ok(ended) => ended,
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => return Err(confused("target")),
            };
            wait = Duration::ZERO;
            self.in_flight -= 1;
            let (range, how, outcome) = ended;
            outcome?;
            self.progress.add(how, range.end - range.start);
            self.done.add(range);
        }
        Ok(())
    }

    /// All is written: the target gets its length, and is made durable.
    fn finish(&mut self, resize: &dyn Fn(u64) -> Result<()>) -> Result<()> {
        let target = &self.target;
        let named = |e: Error| e.on(&target.info().name);
        self.progress.begin(self.at);
        resize(self.at).map_err(named)?;
        target.device().finish().map_err(named)?;
        if self.options.flush != Flush::Never && target.info().abilities.flush {
            flush(target, self.cancel)?;
        }
        if target.device().epoch() == self.epoch {
            return Ok(());
        }
        self.done = RangeSet::default();
        let action = "copy: it reconnected, so earlier writes may be lost, and a stream cannot be \
                      read again";
        Err(named(Error::new(ErrorKind::Disconnected, Fault::Peer, action)))
    }

    /// What is in flight after a failure is waited for, but not for ever, and not once it is to
    /// stop.
    fn give_up(&mut self) {
        let since = Instant::now();
        while self.in_flight > 0 && !self.cancel.is_cancelled() && since.elapsed() < PATIENCE {
            // The first failure is the one that is reported.
            let _ = self.harvest(LOOK);
        }
    }

    /// The ranges that were read and are not known to be in the target; if there are none, the
    /// first byte that was not read.
    fn left(&self) -> Vec<Range<u64>> {
        let mut left: Vec<_> = self.done.gaps(0..self.at).collect();
        if left.is_empty() {
            left.push(self.at..self.at.saturating_add(1));
        }
        left
    }
}

/// Bytes that are read and written at once.
fn request(options: &Options) -> usize {
    usize::try_from(options.request_size).unwrap_or(usize::MAX)
}

/// Operations in flight at a time: no more than what may be held. Each may be a small part of a
/// buffer, and holds all of it.
fn width(options: &Options) -> usize {
    let held = options.queue_size.unwrap_or(HELD) / options.request_size.max(1);
    usize::try_from(held).unwrap_or(WIDTH).clamp(1, WIDTH)
}

/// Tells what came of an operation; if nothing is answered, that it is a defect.
fn answering(tell: Sender<Ended>, range: Range<u64>, how: Moved) -> Done {
    let mut answer = Answer(Some((tell, range, how)));
    Box::new(move |outcome: Result<Outcome>| answer.tell(outcome.map(drop)))
}

/// A result that is sent once, at the latest when this is dropped.
struct Answer(Option<(Sender<Ended>, Range<u64>, Moved)>);

impl Answer {
    fn tell(&mut self, outcome: Result<()>) {
        if let Some((tell, range, how)) = self.0.take() {
            // The copy may have ended.
            let _ = tell.send((range, how, outcome));
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.tell(Err(confused("target")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_requests_are_few_at_a_time() {
        let of = |request_size: u64, queue_size: Option<u64>| {
            width(&Options { request_size, queue_size, ..Options::default() })
        };
        assert_eq!(of(256 << 10, None), WIDTH);
        assert_eq!(of(4 << 20, None), 9);
        assert_eq!(of(32 << 20, None), 1, "and one that is filled");
        assert_eq!(of(32 << 20, Some(1 << 30)), WIDTH);
        assert_eq!(of(256 << 10, Some(1)), 1);
    }
}
