//! Dirty bitmaps that are kept true while their image is written.
//!
//! Before the first change the image says that they are in use, so that whoever finds it after a
//! power failure does not trust them. What is written since is in memory, and is merged into their
//! bits when the image is closed; then they are in use no more. Those that are not enabled stay as
//! they are.

use device::Result;

use super::super::bitmap::{Bitmap, flags};
use super::super::corrupt;
use super::super::dirty::ONES;
use super::super::entry::OFFSET;
use super::super::region::Region;
use super::super::tracked::InUse;
use super::{Stop, Writer};
use crate::kit::blocks::Rank;
use crate::kit::confused;
use crate::kit::numbers::be64;

impl Writer {
    /// Sets the bits of what is about to be written, if that can be done at once.
    pub(super) fn try_track(&self, offset: u64, len: u64) -> bool {
        len == 0 || self.tracked.iter().all(|tracked| tracked.set(offset, len))
    }

    /// Sets the bits of what is about to be written.
    ///
    /// # Errors
    /// The image cannot say that its bitmaps are in use. Nothing may be written.
    pub(super) async fn track(&self, offset: u64, len: u64) -> Result<()> {
        while !self.try_track(offset, len) {
            let _alone = self.marking.alone().await;
            if self.tracked.iter().any(|tracked| tracked.in_use() != InUse::Said) {
                // Where this fails, or taking it back did, it has to be said again.
                self.mark_all(InUse::Unsure);
                self.mark_bitmaps(flags::IN_USE).await?;
                self.mark_all(InUse::Said);
            }
        }
        Ok(())
    }

    /// Whether bitmaps are in use, or may be.
    pub(super) fn is_tracking(&self) -> bool {
        self.tracked.iter().any(|tracked| tracked.in_use() != InUse::No)
    }

    fn mark_all(&self, in_use: InUse) {
        self.tracked.iter().for_each(|tracked| tracked.mark(in_use));
    }

    /// Sets the flag that bitmaps are in use, or clears it (0), durably.
    async fn mark_bitmaps(&self, in_use: u32) -> Result<()> {
        let tracked: Vec<_> = self.tracked.iter().map(|tracked| tracked.bitmap.clone()).collect();
        self.mark(&tracked, in_use).await
    }

    /// The same for these.
    pub(super) async fn mark(&self, bitmaps: &[Bitmap], in_use: u32) -> Result<()> {
        for Bitmap { flags, flags_at, .. } in bitmaps {
            let flags = flags & !flags::IN_USE | in_use;
            self.attempt(|_| {
                self.block(*flags_at)?;
                Ok(self.blocks.change(*flags_at, Rank::Last, &flags.to_be_bytes())?)
            })
            .await?;
        }
        self.flush().await
    }

    /// Merges what was set since into the bitmaps, which then are in use no more.
    ///
    /// # Errors
    /// They may still be in use, and nothing of them is forgotten.
    pub(super) async fn save_bitmaps(&self) -> Result<()> {
        let _alone = self.marking.alone().await;
        if !self.is_tracking() {
            return Ok(());
        }
        // Whoever writes from now on waits until they can be marked again.
        self.mark_all(InUse::Unsure);
        self.merge_bitmaps().await?;
        self.mark_all(InUse::No);
        Ok(())
    }

    async fn merge_bitmaps(&self) -> Result<()> {
        for tracked in &self.tracked {
            while let Some((at, bits)) = tracked.first_chunk() {
                self.merge_chunk(&tracked.bitmap, at, &bits).await?;
                tracked.forget_chunk(at);
            }
        }
        // They are true when they say so.
        self.flush().await?;
        self.mark_bitmaps(0).await
    }

    /// Merges bits, which lie in one block, into those at `at` (in bytes) of a bitmap.
    async fn merge_chunk(&self, bitmap: &Bitmap, at: u64, bits: &[u8]) -> Result<()> {
        let cluster = self.geometry.cluster();
        let (place, within) = (bitmap.table_offset + at / cluster * 8, at % cluster);
        self.attempt(|state| {
            let block = self.block(place)?;
            let in_block = usize::try_from(place - self.blocks.start(place)).unwrap_or(usize::MAX);
            let entry = be64(&block, in_block).ok_or_else(confused)?;
            let offset = entry & OFFSET;
            if offset != 0 {
                if !offset.is_multiple_of(cluster) {
                    let action = "a cluster of a bitmap does not begin at a cluster";
                    return Err(Stop::Failed(corrupt(action).at(offset)));
                }
                self.check_apart(Region { offset, len: cluster })?;
                let old = self.block(offset + within)?;
                let merged: Vec<u8> = old.iter().zip(bits).map(|(old, new)| old | new).collect();
                return Ok(self.blocks.change(offset + within, Rank::Last, &merged)?);
            }
            if entry & ONES != 0 {
                return Ok(());
            }
            let offset = self.take(state, 1)?.start << self.geometry.cluster_bits;
            let mut bytes = vec![0; usize::try_from(cluster).unwrap_or(0)];
            let room = usize::try_from(within).ok().and_then(|at| bytes.get_mut(at..));
            let room = room.and_then(|room| room.get_mut(..bits.len())).ok_or_else(confused)?;
            room.copy_from_slice(bits);
            self.blocks.add(offset, Rank::Last, &bytes);
            Ok(self.blocks.change(place, Rank::Last, &offset.to_be_bytes())?)
        })
        .await
    }
}
