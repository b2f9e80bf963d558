//! A test device as each of the things that a disk can be.

use device::{
    Blocking, Buffer, Client, Connected, Device, Done, Extent, Info, Lane, Operation, Outcome,
    Place, Result, Session, StatusRun, ZeroFlags,
};

use super::TestDevice;

impl Device for TestDevice {
    fn info(&self) -> &Info {
        &self.core.info
    }

    fn submit(&self, operation: Operation, done: Done) {
        let Some((operation, done)) = self.core.arrive(operation, done) else { return };
        match &self.late {
            Some(queue) => queue.put(operation, done),
            None => self.core.answer(operation, done),
        }
    }

    fn lane(&self) -> Result<Option<Box<dyn Lane>>> {
        let Some(open) = &self.open_lane else { return Ok(None) };
        self.core.failure().map_or_else(|| open(self).map(Some), Err)
    }

    fn session(&self) -> Option<&dyn Session> {
        self.session.as_deref()
    }
}

impl Blocking for TestDevice {
    fn info(&self) -> &Info {
        &self.core.info
    }

    fn waits(&self) -> bool {
        self.waits
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let buffer = Buffer::zeroed(buf.len());
        // What is there after a failure is not defined.
        buf.fill(0xee);
        match self.run(Operation::Read { offset, buffer })? {
            Outcome::Read(bytes) => buf.copy_from_slice(&bytes),
            other => panic!("a read was answered with {other:?}"),
        }
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        let data = Buffer::copy_of(data).into();
        self.run(Operation::Write { offset, data, fua }).map(drop)
    }

    fn flush(&self) -> Result<()> {
        self.run(Operation::Flush).map(drop)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        self.run(Operation::Zero { offset, len, flags }).map(drop)
    }

    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.run(Operation::Trim { offset, len, fua }).map(drop)
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.run(Operation::Prefetch { offset, len }).map(drop)
    }

    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        match self.run(Operation::Resolve { offset, len, max })? {
            Outcome::Extents(extents) => out.extend(extents),
            other => panic!("a map was answered with {other:?}"),
        }
        Ok(())
    }

    fn status(
        &self,
        context: &str,
        offset: u64,
        len: u64,
        max: usize,
        out: &mut Vec<StatusRun>,
    ) -> Result<()> {
        match self.run(Operation::Status { context: context.into(), offset, len, max })? {
            Outcome::Status(runs) => out.extend(runs),
            other => panic!("a status was answered with {other:?}"),
        }
        Ok(())
    }

    fn take(&self, offset: u64, len: u64, from: &Place, share_only: bool) -> Result<u64> {
        match self.run(Operation::Take { offset, len, from: from.clone(), share_only })? {
            Outcome::Taken(taken) => Ok(taken),
            other => panic!("a take was answered with {other:?}"),
        }
    }

    fn lane(&self) -> Result<Option<Box<dyn Lane>>> {
        Device::lane(self)
    }

    fn session(&self) -> Option<&dyn Session> {
        self.session.as_deref()
    }
}

/// A session that only lets clients in.
pub(super) struct Connecting<F>(pub(super) F);

impl<F: Fn(&Client, Connected) + Send + Sync> Session for Connecting<F> {
    fn connect(&self, client: &Client, done: Connected) {
        (self.0)(client, done);
    }
}
