//! A format as a device: what it has to say of each operation is one future, and what that says
//! without waiting is the answer to `now`.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use device::{Device, Done, Info, Now, Operation, Outcome, Result};
use runtime::{spawn, wait_for};

/// A disk in a container.
pub(crate) trait Layer: Send + Sync + 'static {
    /// What is known of it. Constant.
    fn info(&self) -> &Info;

    /// Does an operation; holds no thread while it waits. Begins on the caller's thread, which may be
    /// a reactor: what computes for long goes on after [`runtime::where_there_is_time`].
    fn run(self: Arc<Self>, operation: Operation) -> impl Future<Output = Result<Outcome>> + Send;

    /// Fills `buffer` here and now, or answers false; see [`Device::now`]. Never computes for long.
    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        let _ = (offset, buffer);
        Ok(false)
    }

    /// Says what a range holds, or answers false.
    fn resolve_now(
        &self,
        range: (u64, u64),
        max: usize,
        out: &mut Vec<device::Extent>,
    ) -> Result<bool> {
        let _ = (range, max, out);
        Ok(false)
    }

    /// The last byte was written: see [`Device::finish`]. For those that are made.
    fn finish(self: Arc<Self>) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }
}

/// The device that a layer makes.
pub(crate) struct Layered<L>(Arc<L>);

impl<L: Layer> Layered<L> {
    pub(crate) fn device(layer: L) -> Arc<dyn Device> {
        Arc::new(Self(Arc::new(layer)))
    }
}

impl<L: Layer> Device for Layered<L> {
    fn info(&self) -> &Info {
        self.0.info()
    }

    fn submit(&self, operation: Operation, done: Done) {
        let layer = self.0.clone();
        spawn(async move { done(layer.run(operation).await) });
    }

    fn now(&self, now: Now<'_>) -> Result<bool> {
        match now {
            Now::Read { offset, buffer } => self.0.read_now(offset, buffer),
            Now::Resolve { offset, len, max, out } => self.0.resolve_now((offset, len), max, out),
            Now::Write { .. } => Ok(false),
        }
    }

    fn finish(&self) -> Result<()> {
        let layer = self.0.clone();
        let finished = wait_for(|promise| {
            spawn(async move { promise.keep(layer.finish().await) });
        });
        finished.unwrap_or_else(|| Err(device::Error::unanswered()))
    }
}

/// What becomes of `work` without waiting. What waited is dropped.
pub(crate) fn at_once<T>(work: impl Future<Output = T>) -> Option<T> {
    match std::pin::pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}
