//! Calls to a device without an edge, for a test that waits for each answer.

use device::{Buffer, Device, Extent, Operation, Outcome, Result, ZeroFlags};

/// One method for each operation. Each blocks until it has been answered.
#[allow(missing_docs, clippy::missing_errors_doc, reason = "they are the operations")]
pub trait BlockingCalls {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;
    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()>;
    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()>;
    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()>;
    fn flush(&self) -> Result<()>;
    fn prefetch(&self, offset: u64, len: u64) -> Result<()>;
    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()>;
}

impl BlockingCalls for dyn Device + '_ {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let buffer = Buffer::zeroed(buf.len());
        match self.run(Operation::Read { offset, buffer })? {
            Outcome::Read(read) => buf.copy_from_slice(&read),
            other => panic!("not what was asked for: {other:?}"),
        }
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        let data = Buffer::copy_of(data).into();
        self.run(Operation::Write { offset, data, fua }).map(drop)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        self.run(Operation::Zero { offset, len, flags }).map(drop)
    }

    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.run(Operation::Trim { offset, len, fua }).map(drop)
    }

    fn flush(&self) -> Result<()> {
        self.run(Operation::Flush).map(drop)
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.run(Operation::Prefetch { offset, len }).map(drop)
    }

    fn resolve(&self, offset: u64, len: u64, max: usize, out: &mut Vec<Extent>) -> Result<()> {
        match self.run(Operation::Resolve { offset, len, max })? {
            Outcome::Extents(extents) => out.extend(extents),
            other => panic!("not what was asked for: {other:?}"),
        }
        Ok(())
    }
}
