//! A container that is written while it is open, and may grow.
//!
//! A device never changes its size. This one may be written up to the size that a file can have, if
//! the device below [grows](Device::grows), and knows how long it is: what is beyond reads as
//! zeroes. It never cuts anything off.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device::{
    Buffer, Device, Done, Edge, Error, Extent, ExtentKind, Info, Now, Operation, Outcome, Result,
    Session, below,
};
use runtime::promise;

/// What no file is longer than.
const LONGEST: u64 = i64::MAX.cast_unsigned();

/// The container. All clones are one.
#[derive(Clone)]
pub(crate) struct Container(Arc<Inner>);

struct Inner {
    info: Info,
    below: Edge,
    /// Bytes that are there.
    length: AtomicU64,
    /// From there on nothing was ever written, or attempted to be.
    untouched: AtomicU64,
}

impl Container {
    /// That of an image that is in `below`, and an edge around it for all bytes that it may have.
    pub(crate) fn open(below: Edge) -> (Self, Edge) {
        let mut info = below.info().clone();
        let (length, grows) = (info.size, below.device().grows());
        let untouched = if grows { length } else { u64::MAX };
        if grows {
            info.size = LONGEST;
        }
        let pool = below.pool().clone();
        let (length, untouched) = (AtomicU64::new(length), AtomicU64::new(untouched));
        let this = Self(Arc::new(Inner { info, below: below.clone(), length, untouched }));
        let edge = if grows { Edge::new(Arc::new(this.clone()), pool) } else { below };
        (this, edge)
    }

    /// Bytes that it has now.
    pub(crate) fn length(&self) -> u64 {
        self.0.length.load(Ordering::Acquire)
    }

    /// The bytes that it may have at most.
    pub(crate) fn limit(&self) -> u64 {
        self.0.info.size
    }

    /// Whether all from `offset` on is zero, and stays so until it is written.
    pub(crate) fn is_untouched(&self, offset: u64) -> bool {
        offset >= self.0.untouched.load(Ordering::Acquire)
    }

    /// The container as long as it is now, for what looks at one of a known length.
    pub(crate) fn as_it_is(&self) -> Edge {
        let Inner { info, below, .. } = &*self.0;
        if !below.device().grows() {
            return below.clone();
        }
        let info = Info { size: self.length(), ..info.clone() };
        Edge::new(Arc::new(Settled { info, container: self.clone() }), below.pool().clone())
    }

    /// Bytes of a range that are there.
    fn there(&self, offset: u64, len: u64) -> u64 {
        self.length().saturating_sub(offset).min(len)
    }

    fn device(&self) -> &dyn Device {
        &**self.0.below.device()
    }

    fn submit_change(&self, operation: Operation, end: u64, done: Done) {
        let inner = self.0.clone();
        inner.untouched.fetch_max(end, Ordering::AcqRel);
        let then: Done = Box::new(move |result| {
            if result.is_ok() {
                inner.length.fetch_max(end, Ordering::AcqRel);
            }
            drop(inner);
            done(result);
        });
        self.device().submit(operation, then);
    }

    /// A read of which the end is not there.
    async fn read_end(self, offset: u64, mut buffer: Buffer) -> Result<Outcome> {
        let there = self.there(offset, buffer.len() as u64);
        let there = usize::try_from(there).unwrap_or(usize::MAX).min(buffer.len());
        let (begin, rest) = buffer.split_at_mut(there);
        rest.fill(0);
        if !begin.is_empty() {
            let (owed, answer) = promise();
            let read = Operation::Read { offset, buffer: Buffer::zeroed(there) };
            self.device().submit(read, Box::new(move |result| owed.keep(result)));
            match answer.await.unwrap_or_else(|| Err(Error::unanswered()))? {
                Outcome::Read(read) if read.len() == there => begin.copy_from_slice(&read),
                _ => return Err(device::below::confused()),
            }
        }
        Ok(Outcome::Read(buffer))
    }
}

impl Device for Container {
    fn info(&self) -> &Info {
        &self.0.info
    }

    fn submit(&self, operation: Operation, done: Done) {
        let Some((offset, len)) = operation.range() else {
            return self.device().submit(operation, done);
        };
        let there = self.there(offset, len);
        match operation {
            Operation::Write { .. } => self.submit_change(operation, offset + len, done),
            operation if there == len => self.device().submit(operation, done),
            Operation::Read { offset, buffer } => {
                let this = self.clone();
                below::complete(done, async move { this.read_end(offset, buffer).await });
            }
            Operation::Resolve { offset, max, .. } if there > 0 => {
                self.device().submit(Operation::Resolve { offset, len: there, max }, done);
            }
            Operation::Resolve { .. } => {
                done(Ok(Outcome::Extents(vec![Extent::new(offset, len, ExtentKind::Hole)])));
            }
            Operation::Trim { offset, fua, .. } if there > 0 => {
                self.device().submit(Operation::Trim { offset, len: there, fua }, done);
            }
            Operation::Prefetch { .. } | Operation::Trim { .. } => done(Ok(Outcome::Done)),
            Operation::Take { .. } => done(Ok(Outcome::Taken(0))),
            // The zeroes are written, and make it longer.
            Operation::Zero { flags, .. } if flags.fast_only => done(Err(Error::not_fast())),
            Operation::Flush | Operation::Status { .. } | Operation::Zero { .. } => {
                done(Err(Error::unsupported(operation.kind().name())));
            }
        }
    }

    fn now(&self, now: Now<'_>) -> Result<bool> {
        match now {
            Now::Read { offset, ref buffer } => {
                let len = buffer.len() as u64;
                if self.there(offset, len) < len { Ok(false) } else { self.device().now(now) }
            }
            Now::Resolve { offset, len, .. } => {
                if self.there(offset, len) < len {
                    Ok(false)
                } else {
                    self.device().now(now)
                }
            }
            Now::Write { offset, data, .. } => {
                let end = offset + data.len() as u64;
                self.0.untouched.fetch_max(end, Ordering::AcqRel);
                let is_written = self.device().now(now)?;
                if is_written {
                    self.0.length.fetch_max(end, Ordering::AcqRel);
                }
                Ok(is_written)
            }
        }
    }

    fn session(&self) -> Option<&dyn Session> {
        self.device().session()
    }
}

/// A container that has grown, as long as it was then.
struct Settled {
    info: Info,
    container: Container,
}

impl Device for Settled {
    fn info(&self) -> &Info {
        &self.info
    }

    fn submit(&self, operation: Operation, done: Done) {
        self.container.submit(operation, done);
    }

    fn now(&self, now: Now<'_>) -> Result<bool> {
        self.container.now(now)
    }

    fn session(&self) -> Option<&dyn Session> {
        self.container.session()
    }

    fn grows(&self) -> bool {
        true
    }
}
