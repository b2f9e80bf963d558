//! The path to one end of a copy, and how it is reopened when it breaks.
//!
//! A path is broken when the peer has closed it, or announces that it will. Operations in flight
//! may have been done or not; a copy may repeat them, because each range gets the same bytes
//! however often it is written. (That is not true of a sweep: see `zero`.) A peer that only fell
//! silent may still execute its requests at any time: they must not be overtaken, so that ends the
//! copy, as every other error does.
//!
//! A path is reopened a few times in a row; then the error that broke it is final.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Duration;

use device::{Edge, Error, ErrorKind, Info, Operation, Result};
use runtime::Mutex;

use crate::answer::confused;
use crate::progress::{Cancel, LOOK};

/// How long the first pause is when it could not be reopened; each is twice as long.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(5);

/// The path to a device. Shared by all that use it.
pub(crate) struct Path {
    edge: Edge,
    /// How often in a row it is reopened.
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How often it was reopened.
    times: u64,
    /// How often since an operation last succeeded.
    in_vain: usize,
    /// It is known to be broken, and was not reopened since.
    broken: bool,
}

impl Path {
    pub(crate) fn new(edge: &Edge, most: usize) -> Arc<Self> {
        Arc::new(Self { edge: edge.clone(), most, state: Mutex::default() })
    }

    /// A path to the same device opened anew, reopened as often.
    pub(crate) fn like(&self, edge: &Edge) -> Arc<Self> {
        Self::new(edge, self.most)
    }

    pub(crate) fn edge(&self) -> &Edge {
        &self.edge
    }

    pub(crate) fn info(&self) -> &Info {
        self.edge.info()
    }

    /// Grows when the device may have forgotten what was not durable.
    pub(crate) fn epoch(&self) -> u64 {
        self.edge.device().epoch()
    }

    /// Whether the device is beyond a path that may break, and may then have forgotten something.
    pub(crate) fn may_forget(&self) -> bool {
        self.edge.device().session().is_some()
    }

    /// Whether the device is beyond a path that may break, and something else may be at its end
    /// then.
    pub(crate) fn may_return(&self) -> bool {
        self.most > 0 || self.edge.device().may_return()
    }

    /// Whether reads may show bytes that are kept of what was at its end before.
    pub(crate) fn keeps_bytes(&self) -> bool {
        self.edge.device().keeps_bytes()
    }

    /// How often it was reopened.
    pub(crate) fn times(&self) -> u64 {
        self.state.lock().times
    }

    /// An operation succeeded over it. One that is noticed only after it broke succeeded before
    /// that.
    pub(crate) fn is_of_use(&self) {
        if self.most > 0 {
            let mut state = self.state.lock();
            if !state.broken {
                state.in_vain = 0;
            }
        }
    }

    /// Whether an error says that the path is broken, and it may be reopened.
    pub(crate) fn is_broken_by(&self, e: &Error) -> bool {
        self.most > 0 && matches!(e.kind(), ErrorKind::Disconnected | ErrorKind::Shutdown)
    }

    /// Reopens it because of an error, unless that was done since it had been made `seen` times,
    /// which is then how often it was. Waits, but only until the copy is to stop.
    ///
    /// # Errors
    /// The same error after too many failed attempts; another one, if it cannot be reopened.
    pub(crate) fn renew(&self, seen: &mut u64, why: Error, cancel: &Cancel) -> Result<()> {
        let mut state = self.state.lock();
        while state.times == *seen {
            state.broken = true;
            cancel.check()?;
            if state.in_vain >= self.most {
                return Err(why);
            }
            state.in_vain += 1;
            match self.reopen(cancel) {
                Ok(()) => (state.times, state.broken) = (state.times + 1, false),
                Err(e) if is_final(&e) => return Err(e.on(&self.info().name)),
                Err(_) if state.in_vain < self.most => pause(state.in_vain, cancel)?,
                Err(_) => {}
            }
        }
        *seen = state.times;
        Ok(())
    }

    /// In a thread of its own, which is abandoned when the copy is to stop.
    fn reopen(&self, cancel: &Cancel) -> Result<()> {
        let (tell, told) = channel();
        let edge = self.edge.clone();
        // The receiver may have gone.
        let work = move || drop(tell.send(edge.device().reopen()));
        let thread = Builder::new().name("reopen".into()).spawn(work);
        drop(thread.map_err(|e| Error::os("copy: start a thread", e))?);
        heard(&told, cancel)
    }

    /// Runs something that changes nothing, or a flush; again if the path had to be reopened.
    pub(crate) fn ask<T>(
        &self,
        cancel: &Cancel,
        question: impl Fn(&Edge) -> Result<T>,
    ) -> Result<T> {
        let answer = self.through(&mut self.times(), cancel, question);
        answer.inspect(|_| self.is_of_use()).map_err(|e| e.on(&self.info().name))
    }

    /// Makes durable what was written, or waits until the copy is to stop.
    pub(crate) fn flush(&self, cancel: &Cancel) -> Result<()> {
        let flush = |edge: &Edge| {
            let (tell, told) = channel();
            // The receiver may have gone.
            edge.submit(Operation::Flush, Box::new(move |outcome| drop(tell.send(outcome))));
            heard(&told, cancel).map(drop)
        };
        let flushed = self.ask(cancel, flush);
        flushed.or_else(|e| cancel.check().and(Err(e)))
    }

    /// Runs something over the path, which had been reopened `seen` times; again if it broke.
    pub(crate) fn through<T>(
        &self,
        seen: &mut u64,
        cancel: &Cancel,
        work: impl Fn(&Edge) -> Result<T>,
    ) -> Result<T> {
        loop {
            match work(&self.edge) {
                Err(e) if self.is_broken_by(&e) => self.renew(seen, e, cancel)?,
                answer => return answer,
            }
        }
    }
}

/// The result, or that the copy is to stop.
pub(crate) fn heard<T>(told: &Receiver<Result<T>>, cancel: &Cancel) -> Result<T> {
    loop {
        match told.recv_timeout(LOOK) {
            Ok(answer) => return answer,
            Err(RecvTimeoutError::Timeout) => cancel.check()?,
            Err(RecvTimeoutError::Disconnected) => return Err(confused("device")),
        }
    }
}

/// Whether another attempt would fail in the same way: it is another disk, say.
fn is_final(e: &Error) -> bool {
    !matches!(
        e.kind(),
        ErrorKind::Disconnected | ErrorKind::Shutdown | ErrorKind::TimedOut | ErrorKind::NotFound
    )
}

fn pause(times: usize, cancel: &Cancel) -> Result<()> {
    let doublings = u32::try_from(times.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
    let mut left = PAUSE.saturating_mul(1 << doublings).min(LONGEST);
    while !left.is_zero() {
        cancel.check()?;
        let part = left.min(LOOK);
        std::thread::sleep(part);
        left -= part;
    }
    Ok(())
}
