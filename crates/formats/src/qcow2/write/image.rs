//! The disk in an image that is written, as a device.

use std::sync::Arc;

use device::{Edge, Extent, Info, Operation, Outcome, Result};

use super::super::map::Map;
use super::Writer;
use crate::kit::room::Lease;
use crate::kit::{Layer, Scattered};

/// The disk. What moves in it is seen under a lease.
pub(in super::super) struct WrittenImage {
    pub(in super::super) disk: Arc<Scattered>,
    /// The map of `disk`.
    pub(in super::super) map: Arc<Map>,
    pub(in super::super) writer: Writer,
    /// Something lies below, or will: what is to read as zeroes has to say so.
    pub(in super::super) is_over: bool,
}

impl WrittenImage {
    /// Places are given with the lease under which they were found, if any are.
    fn guard(&self, extents: &mut [Extent], lease: &Lease) {
        let gives = self.writer.gives_places();
        for extent in extents.iter_mut().filter(|extent| extent.depth == 0) {
            let place = extent.place.take().filter(|_| gives);
            extent.place = place.map(|place| place.guarded(lease.clone()));
        }
    }
}

impl Layer for WrittenImage {
    fn info(&self) -> &Info {
        self.disk.info()
    }

    fn below(&self) -> Vec<&Edge> {
        self.disk.below()
    }

    async fn run(self: Arc<Self>, operation: Operation) -> Result<Outcome> {
        let done = |()| Outcome::Done;
        match operation {
            Operation::Flush => self.writer.flush().await.map(done),
            Operation::Trim { offset, len, .. } => self.trim(offset, len).await.map(done),
            Operation::Write { offset, data, .. } => self.write(offset, data).await.map(done),
            Operation::Zero { offset, len, flags } => self.zero(offset, len, flags).await.map(done),
            Operation::Prefetch { .. }
            | Operation::Read { .. }
            | Operation::Resolve { .. }
            | Operation::Status { .. }
            | Operation::Take { .. } => {
                let lease = self.writer.lease();
                let mut outcome = Layer::run(self.disk.clone(), operation).await?;
                if let Outcome::Extents(extents) = &mut outcome {
                    self.guard(extents, &lease);
                }
                Ok(outcome)
            }
        }
    }

    async fn finish(self: Arc<Self>) -> Result<()> {
        // Where no table has changed, bytes in their places have.
        let closed = self.writer.close().await;
        self.writer.flush().await?;
        closed
    }

    fn is_unsaved(&self) -> bool {
        self.writer.is_unsaved()
    }

    fn write_now(&self, offset: u64, data: &[u8]) -> Result<bool> {
        self.try_write(offset, data)
    }

    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        let _lease = self.writer.lease();
        self.disk.read_now(offset, buffer)
    }

    fn resolve_now(&self, range: (u64, u64), max: usize, out: &mut Vec<Extent>) -> Result<bool> {
        let (lease, known) = (self.writer.lease(), out.len());
        let is_known = self.disk.resolve_now(range, max, out)?;
        self.guard(out.get_mut(known..).unwrap_or_default(), &lease);
        Ok(is_known)
    }
}
