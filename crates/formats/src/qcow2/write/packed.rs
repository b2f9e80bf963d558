//! Compressed clusters of an image that is written: bytes side by side in clusters of the
//! container, each of which is counted once for each compressed cluster that lies in it.
//!
//! Their order is that of all new clusters: the bytes and the refcounts are durable before an entry
//! refers to them. What a failure leaves is room that nothing refers to.

use std::ops::Range;
use std::sync::Arc;

use device::{Buffer, Result, Slice, below};
use runtime::Gate;

use super::super::create::{CompressionLevel, packed};
use super::link::Becomes;
use super::refcounts::not_counted;
use super::{Attempt, State, Stop, Writer, WrittenImage};
use crate::kit::confused;

/// How whole clusters are compressed.
pub(super) struct Packing {
    level: CompressionLevel,
    /// Whoever takes room for one and writes it: two may lie in one sector.
    alone: Arc<Gate>,
}

/// Room for a compressed cluster.
struct PackedRoom {
    offset: u64,
    /// The clusters of the container in which it lies.
    units: Range<u64>,
}

impl Writer {
    /// From now on whole clusters that get a new place are compressed where that makes them
    /// shorter.
    pub(in super::super) fn packing(self, level: CompressionLevel) -> Self {
        Self { packing: Some(Packing { level, alone: Arc::default() }), ..self }
    }

    /// Room for `len` bytes, fewer than a cluster has, that begins behind the last one in its
    /// cluster, if that is counted up.
    fn share(&self, state: &mut State, len: u64) -> Attempt<Option<u64>> {
        let cluster = self.geometry.cluster();
        let Some(at) = state.packed_to.filter(|at| at % cluster + len <= cluster) else {
            return Ok(None);
        };
        Ok(self.count_one_more(state, at >> self.geometry.cluster_bits)?.then(|| {
            self.packed_up_to(state, at + len);
            at
        }))
    }

    /// The same where it ends in the cluster `unit`, which was taken for it: it begins in the one
    /// before, where the last one ends, or else there.
    fn share_and_go_on(&self, state: &mut State, len: u64, unit: u64) -> Attempt<u64> {
        let (cluster, start) = (self.geometry.cluster(), unit << self.geometry.cluster_bits);
        let follows = |at: &u64| at.next_multiple_of(cluster) == start && at + len > start;
        let at = match state.packed_to.filter(follows) {
            Some(at) if self.count_one_more(state, at >> self.geometry.cluster_bits)? => at,
            _ => start,
        };
        self.packed_up_to(state, at + len);
        Ok(at)
    }

    /// The next one begins at this offset, if that is within a cluster.
    fn packed_up_to(&self, state: &mut State, end: u64) {
        state.packed_to = Some(end).filter(|end| !end.is_multiple_of(self.geometry.cluster()));
    }

    /// Counts one reference more to a cluster in use; false: it has as many as can be counted.
    fn count_one_more(&self, state: &State, unit: u64) -> Attempt<bool> {
        match self.count_of(state, unit)? {
            0 => Err(Stop::Failed(not_counted(unit))),
            count if count >= self.most() => Ok(false),
            count => self.set_count(state, unit, count + 1).map(|()| true),
        }
    }
}

impl WrittenImage {
    /// Writes the first cluster of `data`, which has all of it up to the end of the disk,
    /// compressed if that makes it shorter; returns how many bytes. `None`: it is to be written as
    /// it is.
    pub(super) async fn write_packed(
        self: &Arc<Self>,
        writer: &Writer,
        at: u64,
        data: &Slice,
    ) -> Result<Option<u64>> {
        let Some(Packing { level, alone }) = &writer.packing else { return Ok(None) };
        let len = usize::try_from(writer.geometry.cluster()).map_err(|_| confused())?;
        let there = data.len().min(len);
        // What is behind the end of the disk is zero.
        let mut bytes = Buffer::zeroed(len);
        let (to, from) = (bytes.get_mut(..there), data.get(..there));
        to.zip(from).map(|(to, from)| to.copy_from_slice(from)).ok_or_else(confused)?;
        let Some(bytes) = packed(*level, &bytes, |p| p.map(Buffer::copy_of)) else {
            return Ok(None);
        };
        let _alone = alone.alone().await;
        let len = bytes.len() as u64;
        let PackedRoom { offset, units } = self.take_packed(writer, at, len).await?;
        let Some(entry) = writer.geometry.packed(offset, len) else {
            writer.give_back(units).await;
            return Ok(None);
        };
        let written = below::write(&writer.data.edge, offset, bytes.into(), false).await;
        let linked = match written {
            Ok(()) => writer.link(&self.map, at, 1, |_| Becomes::Packed(entry)).await,
            Err(e) => Err(e),
        };
        if linked.is_err() {
            writer.give_back(units).await;
        }
        linked.map(|()| Some(there as u64))
    }

    /// Takes room for so many bytes, for the cluster of the disk at `at`.
    async fn take_packed(&self, writer: &Writer, at: u64, len: u64) -> Result<PackedRoom> {
        let bits = writer.geometry.cluster_bits;
        let room = |offset: u64| PackedRoom {
            offset,
            units: offset >> bits..((offset + len - 1) >> bits) + 1,
        };
        if let Some(offset) = writer.attempt(|state| writer.share(state, len)).await? {
            return Ok(room(offset));
        }
        let new = self.take(writer, at >> bits, 1).await?;
        let shared = |state: &mut State| writer.share_and_go_on(state, len, new.start);
        match writer.attempt(shared).await {
            Ok(offset) => Ok(room(offset)),
            Err(e) => {
                writer.give_back(new).await;
                Err(e)
            }
        }
    }
}
