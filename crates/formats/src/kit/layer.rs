//! A format as a device: each operation is one future, and if that is ready without waiting, it
//! answers `now`.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use device::{
    Device, Done, Edge, Error, ErrorKind, Fault, Info, Now, Operation, Outcome, PathsBelow, Result,
    Session, below,
};
use runtime::{spawn, wait_for};

/// A disk in a container.
pub(crate) trait Layer: Send + Sync + 'static {
    /// Its description. Constant.
    fn info(&self) -> &Info;

    /// Carries out an operation; holds no thread while it waits. It begins on the caller's thread,
    /// which may be a reactor: long computations go on after [`runtime::where_there_is_time`].
    fn run(self: Arc<Self>, operation: Operation) -> impl Future<Output = Result<Outcome>> + Send;

    /// Fills `buffer` here and now, or answers false; see [`Device::now`]. Never computes for long.
    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        let _ = (offset, buffer);
        Ok(false)
    }

    /// Writes all of `data` here and now, or answers false; see [`Device::now`].
    fn write_now(&self, offset: u64, data: &[u8]) -> Result<bool> {
        let _ = (offset, data);
        Ok(false)
    }

    /// Returns the map of a range, or answers false.
    fn resolve_now(
        &self,
        range: (u64, u64),
        max: usize,
        out: &mut Vec<device::Extent>,
    ) -> Result<bool> {
        let _ = (range, max, out);
        Ok(false)
    }

    /// The disks below. Their broken paths count as its own.
    fn below(&self) -> Vec<&Edge>;

    /// The last byte was written: see [`Device::finish`]. For images being made, and for those that
    /// are written, which are saved.
    fn finish(self: Arc<Self>) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Whether something would be lost if the device went now, without [`finish`](Self::finish):
    /// the tables of an image that is written. For images being made, that is as it should be.
    fn is_unsaved(&self) -> bool {
        false
    }
}

/// The device that a layer makes.
pub(crate) struct Layered<L: Layer> {
    layer: Arc<L>,
    /// It keeps bytes of what is below: its tables are those of the image that was opened.
    paths: Option<PathsBelow>,
}

impl<L: Layer> Layered<L> {
    pub(crate) fn device(layer: L) -> Arc<dyn Device> {
        let paths = PathsBelow::of(layer.below(), true);
        Arc::new(Self { layer: Arc::new(layer), paths })
    }

    /// The device of a layer that is written, and is saved in the end: when the program says that
    /// all has been done, or when the device goes before.
    pub(crate) fn saved_at_the_end(layer: L, context: &runtime::Context) -> Arc<dyn Device> {
        let paths = PathsBelow::of(layer.below(), true);
        let layer = Arc::new(layer);
        let (last, complaints) = (layer.clone(), context.control.complaints());
        context.control.on_end(move || {
            let name = last.info().name.clone();
            let saved = wait_for(|promise| {
                spawn(async move { promise.keep(last.finish().await) });
            });
            if let Err(e) = saved.unwrap_or_else(|| Err(Error::unanswered())) {
                complaints.add(e.on(name));
            }
        });
        Arc::new(Self { layer, paths })
    }
}

impl<L: Layer> Drop for Layered<L> {
    fn drop(&mut self) {
        if self.layer.is_unsaved() {
            let layer = self.layer.clone();
            // It was not flushed, so nothing is owed.
            spawn(async move { drop(layer.finish().await) });
        }
    }
}

impl<L: Layer> Device for Layered<L> {
    fn info(&self) -> &Info {
        self.layer.info()
    }

    fn submit(&self, operation: Operation, done: Done) {
        let layer = self.layer.clone();
        below::complete(done, async move { layer.run(operation).await });
    }

    fn now(&self, now: Now<'_>) -> Result<bool> {
        match now {
            Now::Read { offset, buffer } => self.layer.read_now(offset, buffer),
            Now::Resolve { offset, len, max, out } => {
                self.layer.resolve_now((offset, len), max, out)
            }
            // What is durable waits.
            Now::Write { fua: true, .. } => Ok(false),
            Now::Write { offset, data, .. } => self.layer.write_now(offset, data),
        }
    }

    fn session(&self) -> Option<&dyn Session> {
        self.paths.as_ref().map(|paths| paths as &dyn Session)
    }

    fn finish(&self) -> Result<()> {
        let layer = self.layer.clone();
        let epoch = || self.paths.as_ref().map_or(0, Session::epoch);
        let before = epoch();
        let finished = wait_for(|promise| {
            spawn(async move { promise.keep(layer.finish().await) });
        });
        finished.unwrap_or_else(|| Err(Error::unanswered()))?;
        if epoch() != before {
            let action = "write the tables of the image: the connection was replaced meanwhile, \
                          and writes may be lost";
            return Err(Error::new(ErrorKind::Disconnected, Fault::Peer, action));
        }
        Ok(())
    }
}

/// The result of `work` if it need not wait. If it must wait, it is dropped.
pub(crate) fn at_once<T>(work: impl Future<Output = T>) -> Option<T> {
    match std::pin::pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}
