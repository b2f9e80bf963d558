//! The disk: sectors of the container, decrypted after they are read and encrypted before they are
//! written.
//!
//! Whole sectors only; the edge reads and rewrites one that is written in part. The map says that
//! all of it is data: what is a hole in the container decrypts to noise, and zeroes are written as
//! cipher text like all else. Nothing is trimmed, as that would show which sectors are in use.

use std::sync::Arc;

use device::{
    Abilities, BlockSizes, BufferPool, Edge, Error, Extent, ExtentKind, Info, Operation, Outcome,
    Result, below,
};
use runtime::{has_time, where_there_is_time};

use super::cipher::{SECTOR, Sectors};
use super::volume::Segment;
use crate::kit::{Layer, ask, flush, write};

/// Bytes that any thread may compute: about 30 µs.
const QUICK: usize = 64 << 10;
/// Bytes of free buffers that are kept for cipher text.
const KEPT: usize = 8 << 20;

/// A disk in a container.
pub(super) struct Decrypted {
    info: Info,
    below: Edge,
    sectors: Sectors,
    segment: Segment,
    buffers: BufferPool,
}

impl Decrypted {
    /// `size` bytes, in whole sectors, with this key.
    ///
    /// # Errors
    /// The key does not have the length that the cipher needs.
    pub(super) fn new(below: Edge, segment: Segment, size: u64, key: &[u8]) -> Result<Self> {
        let sectors = Sectors::new(segment.encryption, key, segment.sector)?;
        let (container, sector) = (below.info(), u32::try_from(segment.sector).unwrap_or(u32::MAX));
        let Abilities { write, flush, fua, multi_conn, rotational, prefetch, .. } =
            container.abilities;
        let abilities =
            Abilities { write, flush, fua, multi_conn, rotational, prefetch, ..Abilities::READ };
        let blocks = BlockSizes {
            minimum: sector,
            preferred: container.blocks.preferred.max(BlockSizes::ANY.preferred),
            ..BlockSizes::ANY
        };
        let (lanes, bulk) = (container.lanes, container.bulk);
        let info =
            Info { abilities, blocks, lanes, bulk, ..Info::new(container.name.clone(), size) };
        Ok(Self { info, below, sectors, segment, buffers: BufferPool::new(KEPT) })
    }

    /// What holds it.
    pub(super) fn container(&self) -> &Edge {
        &self.below
    }

    /// Where a byte lies in the container.
    fn place(&self, offset: u64) -> u64 {
        self.segment.offset + offset
    }

    /// The number of the vector of the sector at `offset`.
    fn number(&self, offset: u64) -> u64 {
        self.segment.first.wrapping_add(offset / SECTOR as u64)
    }

    /// Continues where so many bytes may be computed.
    async fn time_for(&self, len: usize) {
        if len > QUICK {
            where_there_is_time(self.below.pool()).await;
        }
    }
}

impl Layer for Decrypted {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> Vec<&Edge> {
        vec![&self.below]
    }

    async fn run(self: Arc<Self>, operation: Operation) -> Result<Outcome> {
        match operation {
            Operation::Flush => flush(&self.below).await?,
            Operation::Prefetch { offset, len } => {
                ask(&self.below, Operation::Prefetch { offset: self.place(offset), len }).await?;
            }
            Operation::Read { offset, buffer } => {
                let mut buffer = below::read(&self.below, self.place(offset), buffer).await?;
                self.time_for(buffer.len()).await;
                self.sectors.decrypt(&mut buffer, self.number(offset));
                return Ok(Outcome::Read(buffer));
            }
            Operation::Write { offset, data, fua } => {
                self.time_for(data.len()).await;
                let mut buffer = self.buffers.take(data.len());
                buffer.copy_from_slice(&data);
                drop(data);
                self.sectors.encrypt(&mut buffer, self.number(offset));
                write(&self.below, self.place(offset), buffer.into(), fua).await?;
            }
            Operation::Resolve { offset, len, .. } => {
                return Ok(Outcome::Extents(vec![Extent::new(offset, len, ExtentKind::Data)]));
            }
            Operation::Status { .. }
            | Operation::Take { .. }
            | Operation::Trim { .. }
            | Operation::Zero { .. } => {
                return Err(Error::unsupported(operation.kind().name()));
            }
        }
        Ok(Outcome::Done)
    }

    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        let is_quick = buffer.len() <= QUICK || has_time();
        if !is_quick || !self.below.read_now(buffer, self.place(offset))? {
            return Ok(false);
        }
        self.sectors.decrypt(buffer, self.number(offset));
        Ok(true)
    }

    fn resolve_now(
        &self,
        (offset, len): (u64, u64),
        _: usize,
        out: &mut Vec<Extent>,
    ) -> Result<bool> {
        out.push(Extent::new(offset, len, ExtentKind::Data));
        Ok(true)
    }

    async fn finish(self: Arc<Self>) -> Result<()> {
        self.below.device().finish()
    }
}
