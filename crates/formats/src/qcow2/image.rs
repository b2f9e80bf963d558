//! The disk in an image, as a device.

use std::sync::Arc;

use device::{Buffer, Edge, Info, MapCost, Operation, Outcome, Result};
use runtime::WorkPool;

use super::dirty::Dirty;
use super::header::Compression;
use super::map::{Map, Walk};
use crate::kit::cache::Shelf;
use crate::kit::{Layer, at_once};

/// The most runs to answer without waiting; more are a long request.
const RUNS_AT_ONCE: usize = 64;

/// An open image. It is read-only, so nothing in it moves.
pub(super) struct Qcow2Image {
    pub(super) info: Info,
    pub(super) map: Map,
    pub(super) compression: Compression,
    /// The file with the uncompressed clusters: the container or a data file.
    pub(super) data: Edge,
    /// The disk for unallocated clusters.
    pub(super) backing: Option<Edge>,
    /// Decompressed clusters, by their offsets in the disk.
    pub(super) unpacked: Shelf,
    /// For computations.
    pub(super) pool: WorkPool,
    pub(super) bitmaps: Vec<Dirty>,
    /// The cost of asking the data's file for holes.
    pub(super) below: MapCost,
}

impl Qcow2Image {
    /// The backing disk, and how much of a range lies in it, if any does.
    pub(super) fn backed(&self, at: u64, len: u64) -> Option<(&Edge, u64)> {
        let backing = self.backing.as_ref()?;
        let there = backing.info().size.checked_sub(at).filter(|there| *there > 0)?;
        Some((backing, there.min(len)))
    }

    /// How much of `len` bytes at `offset` is in the data's file; the rest is zeroes.
    pub(super) fn stored(&self, offset: u64, len: u64) -> u64 {
        self.map.data_size.saturating_sub(offset).min(len)
    }

    /// Whether the uncompressed clusters are in a data file.
    pub(super) fn home_file(&self) -> u16 {
        u16::from(self.map.tables.geometry.data_file)
    }
}

impl Layer for Qcow2Image {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> Vec<&Edge> {
        let container = &self.map.tables.container;
        let data = Some(&self.data).filter(|_| self.home_file() != 0);
        std::iter::once(container).chain(data).chain(&self.backing).collect()
    }

    async fn run(self: Arc<Self>, operation: Operation) -> Result<Outcome> {
        match operation {
            // Nothing was written.
            Operation::Flush => Ok(Outcome::Done),
            Operation::Prefetch { .. } => Ok(Outcome::Done),
            Operation::Read { offset, buffer } => {
                self.read(offset, buffer).await.map(Outcome::Read)
            }
            Operation::Resolve { offset, len, max } => {
                let mut walk = Walk::waiting(&self.pool);
                let found = self.resolve((offset, len), max, &mut walk).await?;
                found.map(Outcome::Extents).ok_or_else(crate::kit::confused)
            }
            Operation::Status { context, offset, len, max } => {
                self.status(&context, (offset, len), max).await.map(Outcome::Status)
            }
            Operation::Take { .. } => Ok(Outcome::Taken(0)),
            Operation::Trim { .. } | Operation::Write { .. } | Operation::Zero { .. } => {
                Err(device::Error::unsupported("write to an image in place"))
            }
        }
    }

    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        let (mut at, end) = (offset, offset + buffer.len() as u64);
        let (mut rest, mut walk) = (buffer, Walk::at_once());
        for _ in 0..RUNS_AT_ONCE {
            let run = at_once(self.map.run(at, end, &mut walk)).transpose()?.flatten();
            let Some(run) = run else { return Ok(false) };
            let len = usize::try_from(run.len).unwrap_or(usize::MAX).min(rest.len());
            let (piece, after) = rest.split_at_mut(len);
            if !self.fill_now(&run, piece)? {
                return Ok(false);
            }
            (at, rest) = (run.end(), after);
            if at >= end {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn resolve_now(
        &self,
        range: (u64, u64),
        max: usize,
        out: &mut Vec<device::Extent>,
    ) -> Result<bool> {
        let mut walk = Walk::at_once();
        let found = at_once(self.resolve(range, max.min(RUNS_AT_ONCE), &mut walk));
        let found = found.transpose()?.flatten();
        let is_known = found.is_some();
        out.extend(found.into_iter().flatten());
        Ok(is_known)
    }
}

/// Copies `from`, which begins at `start` of the disk, to its place in `to`, which begins at
/// `base`.
pub(super) fn lay(to: &mut Buffer, base: u64, from: &[u8], start: u64) -> Option<()> {
    let at = usize::try_from(start.checked_sub(base)?).ok()?;
    to.get_mut(at..)?.get_mut(..from.len())?.copy_from_slice(from);
    Some(())
}
